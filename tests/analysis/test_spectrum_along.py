"""The spectrum of a run: against dense Hessians, resumed, saved, drawn and printed."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from grokscope.analysis import spectrum_row
from grokscope.analysis.commands.spectrum import command
from grokscope.analysis.figures.spectrum import draw
from grokscope.analysis.result import load, save
from grokscope.analysis.spectrum import SpectrumCurve, spectrum_along
from grokscope.geometry.objective import from_module
from grokscope.geometry.operators import dense, ggn_operator, hessian_operator
from grokscope.geometry.stability import adam_preconditioner
from grokscope.runs.config import RunConfig
from grokscope.runs.rebuild import rebuild
from grokscope.runs.recorder import Recorder
from grokscope.runs.store import Run
from grokscope.runs.train import train

CONFIG = RunConfig(
    modulus=5, train_fraction=0.8, width=8, heads=2, feedforward=8, steps=24, batch_size=8, snapshot_every=6,
    second_moment_every=6, evaluate_every=6, stop_after_generalization=None,
)  # fmt: skip
KEYS = "steps largest smallest residuals extremal trace scale_aware preconditioned gate matvecs"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return train(CONFIG, tmp_path_factory.mktemp("run") / "small")


@pytest.fixture(scope="module")
def curve(run, tmp_path_factory):
    return spectrum_along(
        run,
        tolerance=1e-4,
        max_matvecs=150,
        matrices="all",
        dtype="float64",
        directory=tmp_path_factory.mktemp("out"),
    )


def at(run, step):
    index = int(np.flatnonzero(run.steps == step)[0])
    objective = rebuild(run, dtype=torch.float64)
    theta = torch.from_numpy(run.theta(index)).double()
    return objective, theta, dense(hessian_operator(objective, theta))


def test_every_number_against_the_dense_hessian(run, curve):
    assert (curve.steps > 0).all()
    for row in (0, -1):
        step = int(curve.steps[row])
        objective, theta, hessian = at(run, step)
        values = torch.linalg.eigvalsh(hessian)
        # A residual of 1e-4 of the value bounds its error, which is quadratic in it.
        np.testing.assert_allclose(curve.largest[row], values.flip(0)[:3], rtol=1e-4)
        np.testing.assert_allclose(curve.smallest[row], values[:1], rtol=1e-4)
        assert curve.converged[row].all()
        assert curve.extremal[row].all()
        aware = torch.linalg.eigvalsh(theta.abs()[:, None] * hessian * theta.abs())[-1]
        assert curve.scale_aware[row] == pytest.approx(float(aware), rel=1e-4)
        gauss_newton = dense(ggn_operator(objective, theta))
        assert curve.gauss_newton[row] == pytest.approx(
            float(torch.linalg.eigvalsh(gauss_newton)[-1]), rel=1e-4
        )
        top = torch.linalg.eigh(hessian)[1][:, -1]
        assert curve.gauss_newton_along[row] == pytest.approx(float(top @ gauss_newton @ top), rel=1e-3)
        stored = int(np.flatnonzero(run.second_moment_steps == step)[0])
        second = torch.from_numpy(run.second_moment(stored)).double()
        diagonal = adam_preconditioner(second, int(step), betas=CONFIG.betas, eps=CONFIG.eps)
        root = diagonal.rsqrt()
        inner = torch.linalg.eigvalsh(root[:, None] * hessian * root)[-1]
        assert curve.preconditioned[row] == pytest.approx(float(inner), rel=1e-3)
        assert curve.gate[row] == pytest.approx(float(inner) / (19 * 1.999 / 1e-3), rel=1e-3)
        root = (second / (1 - 0.999 ** int(step))).sqrt()
        assert curve.ceilings[row, 0] == pytest.approx(2e3 * (float(root.mean()) + 1e-8), rel=1e-5)
        assert curve.ceilings[row, 3] == pytest.approx(2e3 * (float(top**2 @ root) + 1e-8), rel=1e-3)
        assert curve.squared_norm[row] == pytest.approx(float(theta @ theta))
        assert abs(curve.trace[row] - float(hessian.trace())) < 8 * curve.trace_stderr[row]  # t, 3 degrees
        for m, matrix in enumerate(run.table.matrices()):
            part = slice(matrix.start, matrix.start + matrix.rows * matrix.columns)
            block = float(torch.linalg.eigvalsh(hessian[part, part])[-1] * theta[part].square().sum())
            assert curve.matrix_scale_aware[row, m] == pytest.approx(block, rel=1e-3)


@pytest.fixture(scope="module")
def quick(run, tmp_path_factory):
    """Measures two snapshots with few products."""

    def measure(**changed):
        few = {"max_matvecs": 8, "probes": 2, "batches": 2, "density_nodes": 3, "matrices": "heaviest"}
        return spectrum_along(
            run, **few | {"snapshots": [2, 4], "directory": tmp_path_factory.mktemp("quick")} | changed
        )

    return measure, measure()


@pytest.mark.parametrize(
    "changed",
    [
        {"largest": 2}, {"smallest": 2}, {"tolerance": 0.3}, {"max_matvecs": 6}, {"probes": 3},
        {"batches": 3}, {"batch_size": 4}, {"warm": True}, {"seed": 1}, {"dtype": "float64"},
        {"matrices": "all"}, {"density_nodes": 4}, {"density_probes": 1}, {"snapshots": [2, 3]},
    ],
)  # fmt: skip
def test_every_option_changes_the_result(quick, changed):
    measure, usual = quick
    other = measure(**changed)
    assert other.matvecs.tolist() != usual.matvecs.tolist() or any(
        not np.array_equal(getattr(usual, name), getattr(other, name))
        for name in ("largest", "smallest", "trace", "batch_sharpness", "matrices", "density_nodes")
    )


def test_gates_are_ratios_of_the_fields(curve):
    assert curve.gate_names[0] == "adaptive edge"
    np.testing.assert_array_equal(curve.gates[:, 0], curve.gate)
    np.testing.assert_allclose(curve.gates[:, 2:], curve.largest[:, :1] / curve.ceilings)
    np.testing.assert_allclose(curve.gates[:, 1], curve.preconditioned_batch_sharpness / curve.edge)
    assert set(curve.gate_verdicts) == {"unknown"}  # nothing is memorized in 24 steps
    assert len(curve.density_steps) == 3
    np.testing.assert_allclose(curve.density_weights.sum(axis=2), 1)


def test_an_interrupted_walk_goes_on_with_the_same_bits(run, tmp_path, monkeypatch):
    options = {"snapshots": [1, 2, 3], "density_probes": 0, "directory": tmp_path, "warm": True}
    whole = spectrum_along(run, **options)
    measure, calls = spectrum_row.Question.__call__, []

    def failing(self, index, theta, previous):
        calls.append(index)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return measure(self, index, theta, previous)

    monkeypatch.setattr(spectrum_row.Question, "__call__", failing)
    with pytest.raises(KeyboardInterrupt):
        spectrum_along(run, **options)
    resumed = spectrum_along(run, **options)
    assert calls == [1, 2, 3, 3]
    for name in SpectrumCurve.__dataclass_fields__:
        np.testing.assert_array_equal(getattr(resumed, name), getattr(whole, name), err_msg=name)


def test_saved_loaded_and_drawn(run, curve, tmp_path):
    save(curve, run, directory=tmp_path)
    loaded = load(SpectrumCurve, run, directory=tmp_path)
    np.testing.assert_array_equal(loaded.largest, curve.largest)
    assert set(draw(run, loaded)) == {"spectrum", "gates", "spectral_density"}
    without = replace(loaded, gates=loaded.gates * np.nan, density_steps=loaded.density_steps[:0])
    assert set(draw(run, without)) == {"spectrum"}


def test_command_prints_one_json_object_and_tables(run, tmp_path, capsys):
    options = {"snapshots": 3, "density_probes": 0, "out": tmp_path, "quiet": True}
    assert command(run.path, json=True, **options) == 0
    printed = json.loads(capsys.readouterr().out)
    assert set(KEYS.split()) <= set(printed)
    assert len(printed["residuals"][0]) == len(printed["largest"][0]) + len(printed["smallest"][0])
    assert command(run.path, **options) == 0
    text = capsys.readouterr().out
    assert "95 % confidence" in text
    assert "opening of the gates" in text


def test_sgd_has_its_own_edge_and_no_adaptive_numbers(tmp_path):
    config = replace(CONFIG, optimizer="sgd", momentum=0.9, weight_decay=0.1, steps=6)
    run = train(config, tmp_path / "sgd")
    curve = spectrum_along(run, snapshots=[0, 1], density_probes=0, tolerance=1e-3)
    assert curve.edge == pytest.approx(2 * 1.9 / 1e-3 - 0.1)
    np.testing.assert_allclose(curve.gate, curve.largest[:, 0] / curve.edge)
    assert np.isnan(curve.preconditioned).all()
    assert "heavy ball" in curve.edge_rule


def test_losses_that_are_no_functions_are_refused(run):
    objective = rebuild(run)
    noisy = replace(
        objective, sample_loss=lambda theta, i: objective.sample_loss(theta, i) * (1 + 0.1 * torch.rand(()))
    )
    with pytest.raises(ValueError, match="has no Hessian: it draws random numbers"):
        spectrum_along(run, objective=noisy, snapshots=[1])


def test_a_run_of_another_loop_with_its_own_objective(tmp_path):
    torch.manual_seed(0)
    model, inputs, targets = torch.nn.Linear(3, 4), torch.randn(20, 3), torch.randint(4, (20,))
    stepper = torch.optim.Adam(model.parameters(), lr=0.01)
    with Recorder(tmp_path / "run", model, stepper, second_moment_every=1) as recorder:
        recorder.step(0)
        for step in (1, 2, 3):
            stepper.zero_grad()
            torch.nn.functional.cross_entropy(model(inputs), targets).backward()
            stepper.step()
            recorder.step(step)
    run = Run.open(tmp_path / "run")
    objective = from_module(model, inputs, targets, torch.nn.functional.cross_entropy)
    curve = spectrum_along(run, objective=objective, max_matvecs=60, density_nodes=5)
    assert curve.edge == pytest.approx(38 / 0.01)
    assert np.isfinite(curve.gate).all()
    assert np.isnan(curve.batch_sharpness).all()  # nobody said of what batches
    sized = spectrum_along(run, objective=objective, max_matvecs=60, batch_size=5, density_probes=0)
    assert np.isfinite(sized.gates).all()
    with pytest.raises(ValueError, match="no configuration"):
        spectrum_along(run)
