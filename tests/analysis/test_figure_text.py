"""No text of any figure meets another one or leaves the figure, at either width."""

import numpy as np
import pytest
from grokscope.analysis.figures import overlay
from grokscope.analysis.figures.gallery import gallery
from grokscope.analysis.figures.labels import free_sides
from grokscope.analysis.figures.style import panels, paper
from grokscope.analysis.found import found
from grokscope.analysis.synopsis import ALIGNED, synopsis
from grokscope.runs.milestones import milestones
from text_boxes import outside, overlaps
from tiny_run import grokked


@pytest.mark.parametrize("width", ["single", "double"])
def test_texts_of_all_figures_of_a_run(width):
    run = grokked()
    with paper(width):
        figures = dict(gallery(run, found(run)))
    assert {"accuracy_loss", "synoptic", "trajectory", "surface", "commutator", "delay"} <= set(figures)
    met = {name: overlaps(figure) for name, figure in figures.items()}
    assert {name: pairs for name, pairs in met.items() if pairs} == {}
    left = {name: outside(figure) for name, figure in figures.items()}
    assert {name: names for name, names in left.items() if names} == {}


@pytest.mark.parametrize("align", ALIGNED)
def test_texts_of_comparisons(align):
    runs = {name: grokked() for name in ("one run", "another one", "a third")}
    compared = {
        name: overlay.Compared(synopsis(run, found(run).by_kind), milestones(run))
        for name, run in runs.items()
    }
    with paper():
        figures = overlay.draw(compared, align=align)
    assert "compare_accuracy" in figures
    for name, figure in figures.items():
        assert overlaps(figure) == [], name
        assert outside(figure) == [], name


def test_the_check_finds_what_meets_and_what_leaves():
    figure, axes = panels()
    figure.set_layout_engine("none")  # it would make room
    axes[0, 0].text(0.5, 0.5, "one")
    assert overlaps(figure) == []
    axes[0, 0].text(0.52, 0.5, "two")
    axes[0, 0].text(0.95, 0.2, "a text that is far too long")
    assert overlaps(figure) == [("one", "two")]
    assert outside(figure) == ["a text that is far too long"]


@pytest.mark.parametrize("angle", np.linspace(0, 2 * np.pi, 9))
def test_labels_keep_off_a_straight_path(angle):
    """Through the middle of an empty plot there is always a side without the path."""
    _, axes = panels()
    axes[0, 0].set(xlim=(-1, 1), ylim=(-1, 1))
    path = np.linspace(-1, 1, 21)[:, None] * [np.cos(angle), np.sin(angle)]
    ((across, up),) = free_sides(path, {"memorized": 10}, axes[0, 0])
    direction = np.array([np.cos(angle), np.sin(angle)])
    off = np.array([across, up]) - ((across, up) @ direction) * direction
    assert np.linalg.norm(off) > 0.3
