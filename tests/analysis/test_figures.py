"""Figures: step 0 is visible, milestones are marked, fonts are embedded, nothing needs a screen."""

from dataclasses import replace

import numpy as np
import pytest
from grokscope.analysis.figures import style, training, trajectory
from grokscope.analysis.figures.style import (
    WIDTHS,
    mark_milestones,
    panels,
    paper,
    save_figure,
    short,
    step_axis,
)
from grokscope.analysis.trajectory import trajectory_along
from grokscope.runs.milestones import Crossing, Milestones
from matplotlib.backends.backend_agg import FigureCanvasAgg
from memory_run import random_run, series


def a_run(tmp_path):
    run = random_run(tmp_path, snapshots=30, size=40, spacing=50)
    steps = np.arange(0, 1500, 50)
    rising = np.clip((steps - 200) // 4, 0, 100)
    run.metrics = {
        "train_correct": series(steps, np.clip(steps // 3, 0, 100)),
        "test_correct": series(steps, rising),
        "train_loss": series(steps, np.exp(-steps / 300)),
        "test_loss": series(steps, 1 + np.exp(-steps / 900)),
        "squared_norm": series(steps, 100 * np.exp(-steps / 500)),
        "squared_norm.w": series(steps, 90 * np.exp(-steps / 500)),
    }
    run.provenance = {"train_total": 100, "test_total": 100}
    return run


MARKS = Milestones(Crossing(250, 300, 400), Crossing(550, 600, 700), None, None, 1450)


def test_the_step_axis_shows_zero_and_readable_ticks():
    _, axes = panels()
    step_axis(axes[0, 0], np.arange(0, 20_001, 10))
    ticks = axes[0, 0].get_xticks()
    assert ticks.tolist() == [0, 10, 100, 1000, 10_000]
    labels = [axes[0, 0].xaxis.get_major_formatter()(tick, 0) for tick in ticks]
    assert labels == ["0", "10", "100", "1k", "10k"]
    places = axes[0, 0].transData.transform([(tick, 0) for tick in [*ticks, 20_000]])[:, 0]
    assert (np.diff(places) > 15).all()  # pixels at 150 per inch: no two ticks meet


@pytest.mark.parametrize("steps", [[0, 3, 7], [0], [500, 520, 600], [0, 1_000_000]])
def test_short_runs_get_a_linear_axis(steps):
    _, axes = panels()
    step_axis(axes[0, 0], np.array(steps))
    assert axes[0, 0].get_xscale() == "linear"
    assert axes[0, 0].get_xlim()[0] <= steps[0] < axes[0, 0].get_xlim()[1]


def test_steps_in_few_characters():
    assert [short(step) for step in (0, 50, 1000, 20_000, 1.5e6)] == ["0", "50", "1k", "20k", "1.5M"]


def test_milestones_are_marked_within_the_figure():
    figure, axes = panels()
    step_axis(axes[0, 0], np.arange(0, 1500, 10))
    mark_milestones(axes[0, 0], MARKS)
    FigureCanvasAgg(figure).draw()
    boxes = [text.get_window_extent() for text in axes[0, 0].texts]
    assert [text.get_text() for text in axes[0, 0].texts] == ["memorized", "generalized"]
    assert not boxes[0].overlaps(boxes[1])
    assert all(figure.bbox.x0 <= box.x0 and box.x1 <= figure.bbox.x1 for box in boxes)
    mark_milestones(axes[0, 0], None)
    mark_milestones(axes[0, 0], replace(MARKS, memorized=None, generalized=None))


@pytest.mark.parametrize("width", ["single", "double"])
def test_all_figures_of_a_run(tmp_path, width):
    run = a_run(tmp_path)
    with paper(width):
        figures = training.draw(run) | trajectory.draw(run, trajectory_along(run))
        for figure in figures.values():
            FigureCanvasAgg(figure).draw()
        boxes = {name: figure.get_tightbbox() for name, figure in figures.items()}
    assert set(figures) == {"accuracy_loss", "squared_norm", "trajectory", "explained_variance"}
    for name, figure in figures.items():
        assert figure.get_figwidth() == WIDTHS[width]
        assert boxes[name].x0 >= 0, name
        assert boxes[name].x1 <= WIDTHS[width], name
        assert boxes[name].y1 <= figure.get_figheight(), name


def test_a_run_without_metrics_has_no_training_curves(tmp_path):
    assert training.draw(random_run(tmp_path)) == {}


def test_fonts_are_embedded_as_truetype_and_files_are_the_same_twice(tmp_path):
    def draw(stem):
        with paper():
            return save_figure(training.draw(a_run(tmp_path))["squared_norm"], tmp_path / "new folder" / stem)

    png, pdf = draw("a.b")
    assert (png.name, pdf.name) == ("a.b.png", "a.b.pdf")
    assert b"/FontFile2" in pdf.read_bytes()
    assert b"/Type3" not in pdf.read_bytes()
    assert [path.read_bytes() for path in draw("c")] == [png.read_bytes(), pdf.read_bytes()]


def test_colors_are_distinct_where_they_meet():
    assert len({style.COLORS[name] for name in ("train", "test", "memorized", "generalized", "null")}) == 5
