"""Where the texts of a figure lie once it is drawn."""

from itertools import combinations

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text


def texts(figure):
    """(text, box in pixels) of everything that is written and seen."""
    renderer = FigureCanvasAgg(figure).get_renderer()
    figure.draw(renderer)
    found = []
    for axes in figure.axes:
        # Axes make ticks beyond their limits, which are never drawn.
        hidden = {id(label) for axis in (axes.xaxis, axes.yaxis) for label in _beyond(axis)}
        found += [text for text in axes.findobj(Text) if id(text) not in hidden]
    found += [text for text in figure.texts if text not in found]
    seen = [text for text in found if text.get_visible() and text.get_text().strip()]
    return [(text.get_text(), text.get_window_extent(renderer)) for text in seen]


def overlaps(figure):
    """Pairs of texts that meet; a pixel of each box at 150 per inch is air."""
    boxes = [(name, box.padded(-1)) for name, box in texts(figure)]
    return [(a, b) for (a, one), (b, other) in combinations(boxes, 2) if one.overlaps(other)]


def outside(figure):
    """Texts that leave the figure by more than a pixel."""
    frame = figure.bbox.padded(1)
    return [
        name
        for name, box in texts(figure)
        if box.x0 < frame.x0 or box.x1 > frame.x1 or box.y0 < frame.y0 or box.y1 > frame.y1
    ]


def _beyond(axis):
    low, high = sorted(axis.get_view_interval())
    ticks = [*axis.get_major_ticks(), *axis.get_minor_ticks()]
    drawn = {id(tick) for tick in axis._update_ticks()}
    return [
        label
        for tick in ticks
        if id(tick) not in drawn or not low <= tick.get_loc() <= high
        for label in (tick.label1, tick.label2)
    ]
