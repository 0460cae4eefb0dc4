"""Signals of runs at landmarks: leak-free, from analyses, functions and files; the command and its page."""

import json

import numpy as np
import pytest
from grokscope.analysis.commands.main import main
from grokscope.analysis.early_warning import (
    NAME,
    SOURCES,
    against_controls,
    analysis_readings,
    base_readings,
    landmark_snapshots,
    setting,
    user_reading,
)
from grokscope.analysis.early_warning_page import page
from grokscope.analysis.ranking import sequential_p
from grokscope.analysis.signals import Outcome, Reading, outcome, score_signals
from grokscope.runs.store import Run
from grokscope.runs.sweep import entries, sweep

SPEC = {
    "seeds": 2,
    "base": {
        "modulus": 7, "steps": 300, "batch_size": 16, "width": 16, "heads": 2, "feedforward": 32, "lr": 0.02,
        "evaluate_every": 10, "snapshot_every": 50, "second_moment_every": 50, "train_fraction": 0.6,
        "weight_decay": 0.1, "stop_after_generalization": None,
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    home = tmp_path_factory.mktemp("ranked")
    assert all(one.status == "done" for one in sweep(entries(SPEC), home))
    return home


@pytest.fixture(scope="module")
def runs(folder):
    return [Run.open(path.parent) for path in sorted(folder.rglob("run.h5"))]


def test_landmark_snapshots_are_the_last_ones_known(runs):
    for run in runs:
        found = outcome(run)
        rows = landmark_snapshots(run)
        if found.memorized is None:  # one of these two
            assert len(rows) == 0
            continue
        last = [run.steps[run.steps <= found.landmark(multiple)].max() for multiple in (1.0, 1.5, 2.0)]
        np.testing.assert_array_equal(run.steps[rows], sorted(set(last)))


@pytest.mark.parametrize("kind", ["spectrum", "trajectory", "commutator", "weights", "progress"])
def test_an_analysis_is_measured_once_and_kept(runs, kind, monkeypatch):
    run = runs[0]
    found = analysis_readings(run, kind)
    assert set(found) == {f"{kind}: {name}" for name in SOURCES[kind].signals}
    steps = run.steps[landmark_snapshots(run)]
    for reading in found.values():
        np.testing.assert_array_equal(reading.steps, steps)
    assert np.isfinite(next(iter(found.values())).values).all()
    if kind != "trajectory":
        broken = SOURCES[kind]._replace(measure=None)
        monkeypatch.setitem(SOURCES, kind, broken)
        again = analysis_readings(run, kind)
        for name, reading in found.items():
            np.testing.assert_array_equal(reading.values, again[name].values)
        assert (run.path / f"{kind}-{NAME}.h5").exists()


def test_trajectory_signals_know_nothing_later(runs):
    from grokscope.analysis.trajectory import trajectory_along

    run = runs[0]
    reading = analysis_readings(run, "trajectory")["trajectory: first component over its null"]
    rows = np.arange(landmark_snapshots(run)[0] + 1)
    alone = trajectory_along(run, snapshots=rows, rank=1)
    assert reading.values[0] == pytest.approx(alone.explained_variance[0] - alone.random_walk_null[0])


def test_users_signals_from_functions_and_files(runs, folder, tmp_path, monkeypatch):
    (tmp_path / "early_signals.py").write_text(
        "def norm(run):\n    found = run.metrics['squared_norm']\n    return found.step, found.value ** 0.5\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    run = runs[0]
    found = user_reading(run, "early_signals:norm", folder)
    np.testing.assert_allclose(found.values**2, run.metrics["squared_norm"].value)
    (tmp_path / f"{run.path.name}.csv").write_text("step,value\n0,1.5\n10,2\n")
    np.testing.assert_array_equal(user_reading(run, str(tmp_path), folder).values, [1.5, 2.0])
    np.savez(tmp_path / f"{run.path.name}.npz", steps=[0, 5], values=[3.0, 4.0])
    np.testing.assert_array_equal(user_reading(run, str(tmp_path), folder).steps, [0, 5])
    np.savez(tmp_path / f"{run.path.name}.npz", steps=[5, 0], values=[3.0, 4.0])
    with pytest.raises(ValueError, match="its steps must increase"):
        user_reading(run, str(tmp_path), folder)
    with pytest.raises(ValueError, match="has neither"):
        user_reading(runs[1], str(tmp_path), folder)


def test_the_command_ranks_analyses_and_a_users_signal(folder, tmp_path, monkeypatch, capsys):
    (tmp_path / "own.py").write_text("def depth(run):\n    return run.steps, run.steps * 1.0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    words = ["rank", str(folder), "--signal", "own:depth", "--analyses", "trajectory", "--draws", "19"]
    assert main([*words, "--controls", str(folder), "--json", "--out", str(tmp_path / "page.md")]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {"own:depth", "train_loss", "trajectory: first component without decay"} <= set(found["names"])
    assert found["runs"] == 2
    text = (tmp_path / "page.md").read_text()
    assert "| own:depth |" in text
    assert "2 runs in 1 cells" in text
    assert main(words) == 0
    assert "at 1.5 times the memorization time" in capsys.readouterr().out
    assert main(["rank", str(tmp_path / "nothing")]) == 2
    assert main(["rank", str(folder), "--analyses", "astrology"]) == 2
    assert "'astrology' gives no signals" in capsys.readouterr().err


def test_controls_are_compared_within_their_setting():
    outcomes = [Outcome("a", 100, 200, 900, 2000), Outcome("a", 100, 200, None, 2000)]
    controls = [Outcome("b", 100, 200, None, 2000)] * 2

    def reading(value):
        return Reading(np.array([0]), np.array([value]))

    found = against_controls(
        [reading(2.0), reading(-9.0)], outcomes, ["s", "s"],
        [reading(1.0), reading(5.0)], controls, ["s", "other"],
    )  # fmt: skip
    np.testing.assert_array_equal(found, [1, 1, 1])  # only the first of each counts


def test_settings_join_a_task_with_its_random_labels(runs):
    config = runs[0].config
    assert '"lr": 0.02' in setting(runs[0])
    assert setting(runs[0]) == setting(runs[1])
    assert "seed" not in setting(runs[0])
    assert config.task not in setting(runs[0])


def test_sequential_p_is_valid():
    rng = np.random.default_rng(0)

    def exceeds(chance):
        return lambda: bool(rng.random() < chance)

    found = np.array([sequential_p(exceeds(rng.random()), draws=199) for _ in range(400)])
    # Uniform p: 5 % of 400 are below .05, three standard deviations are 3.3 %.
    assert abs((found <= 0.05).mean() - 0.05) < 0.033
    assert abs(found.mean() - 0.5) < 0.05
    assert sequential_p(lambda: False, draws=99) == 0.01


def test_the_page_says_what_adds(runs):
    rng = np.random.default_rng(0)
    trait = rng.standard_normal(40)
    outcomes = [
        Outcome(json.dumps({"task": "add", "cell": k % 4}), 100, 200, 900 if t > 0 else None, 2000)
        for k, t in enumerate(trait)
    ]

    def readings(values):
        return [Reading(np.array([0]), np.array([v])) for v in values]

    signals = {name: readings(rng.standard_normal(40)) for name in base_readings(runs[0])}
    signals["oracle"] = readings(trait)
    scores = score_signals(outcomes, signals, draws=199, landmarks=(1.0,))
    text = page(scores, outcomes, np.full(scores.auc.shape, np.nan))
    assert "oracle add to them" in text
    assert "40 runs in 4 cells" in text
    assert "| oracle | 1.00* [1.00, 1.00] |" in text
