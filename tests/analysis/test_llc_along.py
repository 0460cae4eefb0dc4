"""Learning coefficients along a run: exact on a quadratic, resumable, parallel, with their verdicts."""

import json
from dataclasses import fields

import numpy as np
import pytest
import torch
from grokscope.analysis.commands.main import main
from grokscope.analysis.figures import llc as figures
from grokscope.analysis.figures.style import panels
from grokscope.analysis.llc import LLCCurve, llc_along
from grokscope.analysis.llc_row import LLCOptions
from grokscope.analysis.result import load, save
from grokscope.geometry import finite_beta
from grokscope.geometry.llc_diagnostics import MAX_NOISE_SHARE
from grokscope.geometry.objective import Objective
from grokscope.runs.store import Run
from matplotlib.figure import Figure
from memory_run import MemoryRun
from tiny_run import tiny

KEYS = {"steps", "llc", "tilted", "drift", "excess", "stderr", "rhat", "ess", "verdict", "reason"} | {
    "num_beta", "localization", "step_size", "scaled_llc",
}  # fmt: skip
DIM, SAMPLES = 5, 60
OPTIONS = {"num_beta": 20.0, "step_size": 0.02, "burn_in": 20, "num_draws": 40, "batch_size": SAMPLES}


def quadratic_run(path, *, snapshots=4):
    """Snapshots that come toward the minimum of a quadratic loss from ever nearer."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(SAMPLES, DIM, generator=generator)
    target = torch.ones(DIM)

    def loss(theta, indices):
        return (x[indices] @ (theta - target)).square().mean() / 2

    distances = np.linspace(0.9, 0, snapshots)[:, None] * np.linspace(0.5, 1.5, DIM)
    thetas = (np.ones((1, DIM)) + distances).astype(np.float32)
    run = MemoryRun(path, thetas, np.arange(snapshots) * 100)
    return run, Objective(loss, SAMPLES), (x.T @ x / SAMPLES).double().numpy()


def along(path, **options):
    run, objective, A = quadratic_run(path)
    snapshots = options.pop("snapshots", np.arange(len(run)))
    return llc_along(run, objective=objective, snapshots=snapshots, **{**OPTIONS, **options}), run, A


def test_values_on_a_quadratic_are_exact_within_their_errors(tmp_path):
    curve, run, A = along(
        tmp_path, num_chains=16, num_draws=200, density_nodes=5, density_probes=4, scaled=False
    )
    values, vectors = np.linalg.eigh(A)
    for at in range(4):
        gradient = vectors.T @ A @ (run.thetas[at] - 1.0)
        options = {"num_beta": 20.0, "localization": float(curve.localization[at])}
        exact = finite_beta.quadratic_drift(values, gradient, **options)
        # 3.5 standard errors over 8 comparisons: false alarm 0.4 %
        assert abs(curve.tilted[at] - exact.tilted) < 3.5 * curve.tilted_stderr[at]
        assert abs(curve.llc[at] - exact.llc) < 3.5 * curve.stderr[at]
        assert abs(curve.excess[at]) < 3.5 * curve.excess_stderr[at]
    np.testing.assert_allclose(curve.drift, curve.llc - curve.tilted, rtol=1e-6, atol=1e-9)
    assert (curve.drift[:-1] < 0).all()
    assert "not at a minimum" in curve.reason[0]
    assert curve.drift[-1] == pytest.approx(0, abs=1e-3)


def test_one_localization_for_all_and_one_that_follows_the_norm(tmp_path):
    curve, _, _ = along(tmp_path)
    assert np.ptp(curve.localization) == np.ptp(curve.step_size) == 0
    assert curve.localization[0] == pytest.approx(DIM / (0.01 * curve.squared_norm[-1]))
    np.testing.assert_allclose(curve.scaled_localization * curve.squared_norm / DIM, curve.scale)
    np.testing.assert_allclose(curve.scale, 100, rtol=1e-6)
    assert curve.scaled_llc[-1] == pytest.approx(curve.llc[-1])  # same point, same chains, same γ
    assert not np.allclose(curve.scaled_llc[:-1], curve.llc[:-1])
    without, _, _ = along(tmp_path, scaled=False)
    assert without.scaled_llc.size == len(without.scaled_verdict) == 0
    assert np.array_equal(without.llc, curve.llc)


def test_processes_and_seeds(tmp_path):
    short = {"num_draws": 20, "burn_in": 10, "batch_size": 16}
    short["snapshots"] = np.array([0, 3])
    one, _, _ = along(tmp_path, **short)
    two, _, _ = along(tmp_path, **short, jobs=2)
    other, _, _ = along(tmp_path, **short, seed=1)
    for field in fields(LLCCurve):
        first, second = getattr(one, field.name), getattr(two, field.name)
        assert np.array_equal(first, second, equal_nan=not isinstance(first, tuple | str)), field.name
    assert not np.array_equal(one.llc, other.llc)


def test_an_interrupted_walk_goes_on_with_the_same_result(tmp_path):
    short = {"num_draws": 20, "burn_in": 10}
    whole, _, _ = along(tmp_path / "whole", **short)
    visited = []

    def stops(iterable, *, description="", total=None):
        for item in iterable:
            if description == "llc":
                visited.append(item)
                if len(visited) == 3:
                    raise KeyboardInterrupt
            yield item

    with pytest.raises(KeyboardInterrupt):
        along(tmp_path / "part", **short, progress=stops)
    before = len(visited)
    resumed, _, _ = along(tmp_path / "part", **short, progress=stops)
    assert len(visited) - before <= 2  # of four snapshots, at least two were kept
    assert np.array_equal(resumed.llc, whole.llc)
    assert list((tmp_path / "part").glob("*.partial.h5")) == []


def test_a_snapshot_does_not_depend_on_the_others_visited_once_hyperparameters_are_given(tmp_path):
    options = {"num_draws": 20, "burn_in": 10, "localization": 50.0}
    all_of_them, _, _ = along(tmp_path, **options)
    alone, _, _ = along(tmp_path, **options, snapshots=np.array([2]))
    assert alone.llc[0] == all_of_them.llc[2]


def test_calibration_is_recorded_and_each_snapshot_can_have_its_own(tmp_path):
    free = {"step_size": None, "burn_in": None, "num_draws": None}
    free["scaled"] = False
    curve, _, _ = along(tmp_path, **free, max_gradients=800)
    assert len(curve.calibration) >= 3
    assert "localization" in curve.calibration[0]
    assert np.ptp(curve.step_size) == 0
    own, _, _ = along(tmp_path, **free, max_gradients=800, mode="snapshot")
    np.testing.assert_allclose(own.localization * own.squared_norm / DIM, 100, rtol=1e-5)
    assert "max_gradients" in curve.calibration[-1]


def test_thorough_runs_until_ok(tmp_path):
    few = {"burn_in": 3, "num_draws": 60}
    assert "ok" not in along(tmp_path, **few)[0].verdict
    curve, _, _ = along(tmp_path, **few, thorough=True, snapshots=np.array([3]), scaled=False)
    assert curve.verdict == ("ok",), curve.reason
    assert curve.burn_in[0] > 3
    assert curve.traces.shape[-1] == 60  # every snapshot keeps as many draws


def test_thorough_halves_steps_whose_minibatches_are_too_noisy(tmp_path):
    run, objective, _ = quadratic_run(tmp_path, snapshots=20)
    noisy = OPTIONS | {"batch_size": 6, "snapshots": np.array([17]), "scaled": False}
    once, often = (llc_along(run, objective=objective, **noisy, thorough=t) for t in (False, True))
    assert once.step_size[0] == 0.02
    assert once.noise_share[0] > MAX_NOISE_SHARE
    assert "noise share" in once.reason[0]
    halvings = np.log2(0.02 / often.step_size[0])
    assert halvings == round(halvings) >= 1
    assert often.burn_in[0] >= 20 * 2**halvings  # the same time
    assert often.noise_share[0] < MAX_NOISE_SHARE  # which is linear in the step
    assert "noise share" not in often.reason[0]


@pytest.mark.parametrize("given", [{"num_draws": 0}, {"burn_in": -1}, {"num_chains": 0}])
def test_lengths_out_of_bounds_are_refused_before_any_work(given, tmp_path):
    ((name, value),) = given.items()
    with pytest.raises(ValueError, match=f"{name}={value} must be at least"):
        along(tmp_path, **given)
    assert not list(tmp_path.glob("*"))


def test_no_burn_in_is_none(tmp_path):
    curve, _, _ = along(tmp_path, burn_in=0, snapshots=np.array([3]), scaled=False)
    assert curve.burn_in[0] == 0


def test_sensitivity_grid(tmp_path):
    curve, _, _ = along(tmp_path, sensitivity=True, snapshots=np.array([2, 3]), step_size=2e-3)
    assert curve.sensitivity_llc.shape == (3, 3)
    assert (np.diff(curve.sensitivity_quadratic, axis=1) < 0).all()  # stronger localization, smaller value
    assert np.isfinite(curve.sensitivity_llc).all()
    assert (curve.sensitivity_stderr > 0).all()
    assert curve.sensitivity_llc[1, 1] == pytest.approx(curve.scaled_llc[-1], rel=1e-4)  # the same chains
    assert np.isnan(along(tmp_path, num_draws=10)[0].sensitivity_llc).all()


def test_sensitivity_panel_meets_the_exact_value_everywhere(tmp_path):
    options = {"num_chains": 8, "num_draws": 60, "burn_in": 250, "density_nodes": DIM, "density_probes": 4}
    options["step_size"] = 2e-3
    curve, _, A = along(tmp_path, sensitivity=True, snapshots=np.array([2, 3]), scaled=False, **options)
    for k, step_size in enumerate(curve.sensitivity_step_size):
        assert step_size == pytest.approx(2e-3 * 4.0 ** (k - 1))
        for j, gamma in enumerate(curve.sensitivity_localization):
            exact = finite_beta.quadratic(np.linalg.eigvalsh(A), num_beta=20.0, localization=float(gamma))
            # At the minimum; nine comparisons at 3.5 standard errors: false alarm 0.4 %.
            assert abs(curve.sensitivity_llc[k, j] - exact) < 3.5 * curve.sensitivity_stderr[k, j]
            assert curve.sensitivity_quadratic[k, j] == pytest.approx(exact, rel=0.5)  # four probes of five


CHANGES = {
    "num_beta": 30.0, "localization": 40.0, "relative_radius": 0.2, "step_size": 1e-3, "burn_in": 3,
    "num_draws": 9, "num_chains": 3, "batch_size": 20, "method": "rmsprop", "averaged_noise": False,
    "mode": "snapshot", "scaled": False, "max_gradients": 80, "density_probes": 2, "density_nodes": 2,
    "seed": 1,
}  # fmt: skip


@pytest.fixture(scope="module")
def usual(tmp_path_factory):
    return calibrated_curve(tmp_path_factory.mktemp("usual"))


def calibrated_curve(path, **changed):
    run, objective, _ = quadratic_run(path)
    options = {"batch_size": 16, "max_gradients": 120, "snapshots": [0, 3]} | changed
    return llc_along(run, objective=objective, **options)


def test_no_option_is_left_out_below():
    assert set(CHANGES) | {"thorough"} == {field.name for field in fields(LLCOptions)}


@pytest.mark.parametrize("name", CHANGES)
def test_every_option_changes_the_result(usual, tmp_path, name):
    other = calibrated_curve(tmp_path, **{name: CHANGES[name]})
    seen = ("llc", "density_nodes", "scaled_llc", "localization", "quadratic")
    assert not all(np.array_equal(getattr(usual, key), getattr(other, key)) for key in seen)


def test_result_round_trip(tmp_path):
    curve, run, _ = along(tmp_path, num_draws=10, burn_in=5)
    save(curve, run)
    again = load(LLCCurve, run)
    assert again.reason == curve.reason
    assert np.array_equal(again.traces, curve.traces)


def test_figures_have_every_mark(tmp_path):
    curve, run, _ = along(tmp_path, num_draws=40, sensitivity=True)
    run.metrics = {}
    _, axes = panels()
    figures.plot_llc(curve, axes[0, 0])
    labels = axes[0, 0].get_legend_handles_labels()[1]
    assert {"published", "tilted", "Hessian alone"} <= set(labels)
    assert set(curve.verdict) <= set(labels)
    for plot in (figures.plot_scaled, figures.plot_sensitivity):
        _, axes = panels()
        plot(curve, axes[0, 0])
    _, axes = panels()
    figures.plot_traces(curve, axes[0, 0], 0)
    assert len(axes[0, 0].lines) == curve.num_chains + 1


def test_command_line(capsys):
    run = tiny(analyzed=False)
    capsys.readouterr()
    words = [
        "analyze",
        "llc",
        str(run),
        "--snapshots",
        "3",
        "--max-gradients",
        "120",
        "--jobs",
        "1",
        "--name",
        "x",
    ]
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found) >= KEYS
    assert len(found["verdict"]) == len(found["reason"]) == len(found["llc"]) == 3
    assert set(found["verdict"]) <= {"ok", "suspect", "invalid"}
    assert "traces" not in found
    assert main([*words, "--without-scaled"]) == 0
    text = capsys.readouterr().out
    assert "verdict" in text
    assert "step size" in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--batch-size", "0"], "batch_size=0"),
        (["--step-size", "-1"], "step_size=-1"),
        (["--snapshots", "1"], "count=1"),
        (["--num-chains", "0"], "num_chains=0"),
    ],
)
def test_wrong_arguments(words, message, capsys):
    quick = ["--snapshots", "2", "--max-gradients", "20", "--jobs", "1"]
    assert main(["analyze", "llc", str(tiny(analyzed=False)), *quick, *words]) == 2
    assert message in capsys.readouterr().err


def test_draw_gives_all_figures(tmp_path):
    path = tiny(analyzed=False)
    assert (
        main(["analyze", "llc", str(path), "--snapshots", "2", "--max-gradients", "60", "--jobs", "1"]) == 0
    )
    run = Run.open(path)
    drawn = figures.draw(run, load(LLCCurve, run))
    assert set(drawn) == {"llc", "llc_traces", "llc_sensitivity"}
    assert all(isinstance(figure, Figure) for figure in drawn.values())
