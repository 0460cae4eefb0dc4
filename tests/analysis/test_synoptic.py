"""The synopsis: what stands in it, in which time, and that nothing is lost on the way to a picture."""

from pathlib import Path

import numpy as np
import pytest
from grokscope.analysis.chart import chart, thinned
from grokscope.analysis.figures import overlay, synoptic
from grokscope.analysis.figures.overlay import Compared, run_colors
from grokscope.analysis.figures.style import COLORS, GROUP_COLORS, group_color, panels
from grokscope.analysis.found import found
from grokscope.analysis.synopsis import Line, Panel, aligned, hidden, names_of, synopsis
from grokscope.runs.milestones import Crossing, Milestones, milestones
from matplotlib.backends.backend_agg import FigureCanvasAgg
from memory_run import random_run, series
from tiny_run import grokked

REACHED = Milestones(Crossing(90, 100, 200), Crossing(290, 300, 400), None, None, 500)
NEVER = Milestones(Crossing(90, 100, 200), None, None, None, 500)
STEPS = np.array([0, 100, 200, 300, 500])


@pytest.mark.parametrize(
    ("align", "times"),
    [
        ("step", [0, 100, 200, 300, 500]),
        ("memorized", [-100, 0, 100, 200, 400]),
        ("generalized", [-300, -200, -100, 0, 200]),
        ("milestones", [-0.5, 0, 0.5, 1, 2]),
    ],
)
def test_times_since_milestones(align, times):
    assert aligned(STEPS, REACHED, align).tolist() == times


@pytest.mark.parametrize("align", ["generalized", "milestones"])
def test_a_run_without_the_milestone_has_no_such_time(align):
    assert aligned(STEPS, NEVER, align) is None
    at_once = Milestones(Crossing(90, 100, 200), Crossing(90, 100, 200), None, None, 500)
    assert aligned(STEPS, at_once, "milestones") is None


def test_every_result_has_its_panel():
    run = grokked()
    results = found(run).by_kind
    shown = synopsis(run, results)
    keys = [panel.key for panel in shown]
    wanted = ["accuracy", "loss", "squared_norm", "commutator", "spectrum", "llc", "trajectory"]
    there = {"accuracy", "loss", "squared_norm", *results}
    assert keys == [key for key in wanted if key in there]
    for panel in shown:
        assert sum(line.main for line in panel.lines) == 1, panel.key
        for line in panel.lines:
            assert len(line.steps) == len(line.values)
            assert line.color in COLORS
            assert len(line.notes) in (0, len(line.steps))
            assert (line.low is None) == (line.high is None)


def test_the_predicted_interval_is_in_steps_of_the_run():
    run = grokked()
    delay = found(run).by_kind["delay"]
    norm = next(panel for panel in synopsis(run, {"delay": delay}) if panel.key == "squared_norm")
    if np.isfinite(delay.interval).all():
        (span,) = norm.spans
        assert (span.low, span.high) == tuple(milestones(run).memorized.step + delay.interval)
    law = norm.lines[1]
    assert law.steps[0] >= milestones(run).memorized.step  # no law before there is a start for it


def test_a_run_that_logged_nothing_has_no_synopsis(tmp_path):
    run = random_run(tmp_path)
    assert synopsis(run, {}) == ()
    assert synoptic.draw(run, {}) == {}


def test_values_that_a_logarithm_can_not_show_are_counted(tmp_path):
    run = random_run(tmp_path, snapshots=5, spacing=100)
    run.metrics = {"train_loss": series(STEPS, np.array([1.0, 0.5, 0.0, 0.0, 0.1]))}
    (panel,) = synopsis(run, {})
    assert hidden(panel) == 2
    figure = synoptic.draw(run, {})["synoptic"]
    assert "2 at or below 0" in figure.axes[0].get_ylabel()


def test_negative_values_are_shown_on_a_signed_axis():
    line = Line("bottom", "spectrum", STEPS, np.array([-300.0, -2.0, 0.0, 5.0, 4000.0]), main=True)
    _, axes = panels()
    synoptic.plot_panel(Panel("spectrum", "eigenvalues", "symlog", (line,)), axes[0, 0])
    heights = axes[0, 0].transData.transform([(1, value) for value in line.values])[:, 1]
    assert (np.diff(heights) > 2).all()  # pixels: in order, and none upon another


def test_a_doubtful_value_has_an_open_marker():
    notes = ("", "suspect", "", "", "invalid")
    line = Line("λ̂", "llc", STEPS, np.arange(5.0), marked=True, notes=notes)
    _, axes = panels()
    synoptic.plot_line(line, axes[0, 0])
    drawn = {tuple(found.get_xdata()): found.get_markerfacecolor() for found in axes[0, 0].lines[1:]}
    assert drawn == {(0, 200, 300): COLORS["llc"], (100, 500): "white"}


def test_overlays_keep_individual_curves_and_count_what_is_missing():
    def run(found):
        line = Line("test", "test", STEPS, np.linspace(0, 1, 5), main=True)
        return Compared((Panel("accuracy", "accuracy", "linear", (line,)),), found)

    runs = {"a": run(REACHED), "b": run(NEVER), "c": run(REACHED)}
    figures = overlay.draw(runs, align="generalized")
    (axes,) = figures["compare_accuracy"].axes
    curves = [found for found in axes.lines if len(found.get_xdata()) == 5]
    assert [curve.get_label() for curve in curves] == ["a", "c"]
    assert axes.get_xlabel() == "steps since generalization (1 without)"
    FigureCanvasAgg(figures["compare_accuracy"]).draw()


@pytest.mark.parametrize("count", [1, 7, 8, 40])
def test_runs_have_distinct_colors(count):
    assert len(set(run_colors(count))) == count


def test_no_group_has_the_color_of_something_else():
    groups = [*GROUP_COLORS.values(), *(group_color("own", k) for k in range(4))]
    assert len(set(groups)) == len(groups)
    assert not set(groups) & set(COLORS.values())
    assert "memorized" in COLORS
    assert {COLORS["memorized"], COLORS["generalized"]}.isdisjoint(
        color for name, color in COLORS.items() if name not in ("memorized", "generalized")
    )


def test_runs_get_short_and_distinct_names(tmp_path):
    assert names_of([Path("x/out/a"), Path("x/out/b")]) == ["a", "b"]
    assert names_of([Path("x/one/a"), Path("x/two/a")]) == ["one/a", "two/a"]
    with pytest.raises(ValueError, match="twice"):
        names_of([Path("x/a"), Path("x/../x/a")])


def test_of_long_names_only_what_differs_is_kept():
    sweep = [Path(f"x/modulus-31_lr-0.0015_weight_decay-{decay}_seed-7") for decay in (0.5, 1.0)]
    assert names_of(sweep) == ["decay-0.5", "decay-1.0"]
    unequal = [Path("x/a_very_long_name_of_a_run_0"), Path("x/another_long_name_of_a_run")]
    assert names_of(unequal) == [path.name for path in unequal]
    assert names_of([Path("x/one_very_long_name_of_a_single_run")]) == ["one_very_long_name_of_a_single_run"]


def test_long_lines_keep_their_ends_and_extremes():
    values = np.random.default_rng(0).standard_normal(50_000)
    values[12_345], values[23_456] = 9, -9
    kept = thinned(values, 1000)
    assert len(kept) <= 1000
    assert {0, 12_345, 23_456, 49_999} <= set(kept.tolist())
    assert (np.diff(kept) > 0).all()
    assert thinned(values[:1000], 1000).tolist() == list(range(1000))


def test_a_chart_is_plain_json_with_none_for_what_is_undefined():
    line = Line("x", "test", STEPS, np.array([1, np.nan, np.inf, 4, 5]), low=STEPS * 0.5, high=STEPS * 2.0)
    data = chart("run", "#000000", (Panel("p", "two\nlines", "log", (line,), limits=(0, 1)),), NEVER)
    (drawn,) = data["panels"][0]["lines"]
    assert drawn["values"] == [1, None, None, 4, 5]
    assert drawn["high"] == [0, 200, 400, 600, 1000]
    assert data["milestones"] == {
        "memorized": {"below": 90, "step": 100, "confirmed": 200},
        "generalized": None,
    }
    assert data["panels"][0]["label"] == "two lines"
