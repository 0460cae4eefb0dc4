import numpy as np
import pytest
import torch
from grokscope.analysis.edge import (
    Optimizer,
    clipped_fractions,
    edge_of,
    moments_at,
    optimizer_of,
    with_moments,
)
from grokscope.analysis.gate import gate_opening
from grokscope.runs.config import RunConfig
from grokscope.runs.recorder import Recorder
from grokscope.runs.store import Run
from grokscope.runs.train import train

STEPS = np.array([0, 10, 20, 30, 40, 50])
NAN = np.nan


@pytest.mark.parametrize(
    ("ratios", "memorized", "expected"),
    [
        ([9, 9, 9, 0.5, 0.5, 0.5], 20, ("opens", 20, 30)),
        ([9, 9, 0.5, 9, 0.5, 0.5], 10, ("opens", 30, 40)),  # one open snapshot does not last
        ([9, 0.5, 0.5, 0.5, 0.5, 0.5], 30, ("opened before memorization", 0, 10)),
        ([9, 9, 0.5, 0.5, 9, 0.5], 20, ("opens (closes again)", 10, 20)),
        ([0.5] * 6, 20, ("never closed", -1, 0)),
        ([9] * 6, 20, ("stays closed", 50, -1)),
        ([9, 9, 9, 9, 9, 0.5], 20, ("stays closed", 40, -1)),
        ([0.5, 0.5, 0.5, 9, 9, 9], 30, ("stays closed", 50, -1)),
        ([9, NAN, NAN, 0.5, NAN, 0.5], 20, ("opens", 0, 30)),
        ([NAN] * 6, 20, ("unknown", -1, -1)),
        ([9] * 6, None, ("unknown", -1, -1)),
        ([9, 0.5, 0.5, NAN, NAN, NAN], 30, ("unknown", -1, -1)),
    ],
)
def test_openings(ratios, memorized, expected):
    assert gate_opening(STEPS, np.array(ratios, dtype=float), memorized) == expected


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    small = RunConfig(
        modulus=5, width=8, heads=2, feedforward=8, steps=12, batch_size=8, snapshot_every=3, log_every=1,
        second_moment_every=6, evaluate_every=12, stop_after_generalization=None, clip=0.5,
    )  # fmt: skip
    home = tmp_path_factory.mktemp("runs")
    from dataclasses import replace

    configs = {
        "adamw": small,
        "adam": replace(small, optimizer="adam", group_lr={"embedding": 2.0}),
        "sgd": replace(small, optimizer="sgd", momentum=0.9, weight_decay=0.1),
    }
    return {name: train(config, home / name) for name, config in configs.items()}


def test_edges_of_optimizers(runs):
    edges = {name: edge_of(optimizer_of(run)) for name, run in runs.items()}
    assert edges["adamw"].value == pytest.approx(19 * (2 - 1e-3) / 1e-3)
    assert edges["adam"].value == pytest.approx(38 / 1e-3)
    assert edges["adam"].l2 == 1.0
    assert edges["sgd"].value == pytest.approx(2 * 1.9 / 1e-3 - 0.1)
    assert not edges["sgd"].preconditioned
    assert np.isnan(edge_of(None).value)
    assert np.isnan(edge_of(Optimizer("lion", 1e-3)).value)
    assert np.isnan(edge_of(Optimizer("adamw", 1e-3, varies=True)).value)
    assert edge_of(Optimizer("sgd", 0.01, momentum=0.9, nesterov=True)).value == pytest.approx(3.8 / 0.028)


def test_moments_reproduce_the_runs_preconditioner(runs):
    run, optimizer = runs["adam"], optimizer_of(runs["adam"])
    index = int(np.flatnonzero(run.steps == 6)[0])
    found = moments_at(run, optimizer, index)
    stored = run.second_moment(int(np.flatnonzero(run.second_moment_steps == 6)[0]))
    root = np.sqrt(stored / (1 - 0.999**6))
    np.testing.assert_allclose(found.root, root, rtol=1e-5)
    factor = np.ones(run.table.size)
    factor[run.table.select("embedding")] = 2.0
    np.testing.assert_allclose(found.diagonal, (1 - 0.9**6) * (root + 1e-8) / factor, rtol=1e-5)
    assert moments_at(run, optimizer, 0) is None
    assert moments_at(runs["sgd"], optimizer_of(runs["sgd"]), index) is None


def test_optimizers_of_other_loops_are_known_from_what_was_recorded(tmp_path):
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2))
    groups = [{"params": model[0].parameters()}, {"params": model[1].parameters(), "lr": 0.02}]
    stepper = torch.optim.AdamW(groups, lr=0.01, betas=(0.8, 0.9), weight_decay=0.5)
    with Recorder(tmp_path / "run", model, stepper, second_moment_every=1) as recorder:
        recorder.step(0)
        for step in (1, 2):
            model(torch.ones(5, 3)).square().mean().backward()
            stepper.step()
            recorder.step(step)
    run = Run.open(tmp_path / "run")
    optimizer = optimizer_of(run)
    assert edge_of(optimizer).value == pytest.approx(1.8 * (2 - 0.005) / (0.2 * 0.01))
    found = moments_at(run, optimizer, 2)
    state = torch.cat([stepper.state[p]["exp_avg_sq"].reshape(-1) for p in model.parameters()])
    diagonal = (1 - 0.8**2) * ((state / (1 - 0.9**2)).sqrt() + 1e-8)
    diagonal[16:] /= 2  # the second layer steps twice as far
    torch.testing.assert_close(found.diagonal, diagonal)


def test_snapshots_move_to_second_moments(runs):
    run = runs["adamw"]
    moved = with_moments(run, np.arange(len(run.steps)))
    assert np.isin(run.steps[moved], run.second_moment_steps).all()
    assert run.steps[moved][0] > 0
    assert run.steps[moved][-1] == 12
    chosen = np.array([0, 2])
    assert with_moments(runs["sgd"], chosen).tolist() == [0, 2]


def test_clipped_fractions(runs):
    run = runs["adamw"]
    series = run.metrics["gradient_norm"]
    found = clipped_fractions(run, np.array([4, 12]))
    for value, low, high in zip(found, (0, 4), (4, 12), strict=True):
        inside = (series.step > low) & (series.step <= high) if low else series.step <= high
        assert value == pytest.approx((series.value[inside] > 0.5).mean())
