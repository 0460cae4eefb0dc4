from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from grokscope.analysis.idealized import Idealization, extraction
from grokscope.analysis.rows import identity
from grokscope.analysis.studies import square_waves
from grokscope.geometry.square_wave import Waves, ideal, right
from grokscope.runs.config import RunConfig
from grokscope.runs.rebuild import rebuild
from grokscope.runs.store import Run, RunWriter
from grokscope.runs.sweep import entries, sweep
from grokscope.runs.train import train

P = 13
SPEC = {
    "base": dict(square_waves.spec("quick")["base"])
    | {"modulus": P, "feedforward": 64, "steps": 400, "lr": 3e-3},
    "grid": {"label_noise": [0.0, 0.3, square_waves.RANDOM]},
    "seeds": 2,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("square_waves")
    outcomes = sweep(entries(SPEC), home)
    assert {outcome.status for outcome in outcomes} == {"done"}
    return home


def test_claims_are_complete_and_specs_are_valid() -> None:
    assert len({claim.name for claim in square_waves.CLAIMS}) == len(square_waves.CLAIMS) >= 4
    for scale in ("quick", "paper"):
        configs = [entry.config for entry in entries(square_waves.spec(scale))]
        assert {c.label_noise for c in configs} >= {0.0, 0.3, square_waves.RANDOM}
        for noise in {c.label_noise for c in configs}:
            assert len({c.seed for c in configs if c.label_noise == noise}) >= 5


def test_random_labels_are_uniform() -> None:
    """Noise 1 − 1/p of labels moved to another class leaves a share 1/p right: nothing to learn."""
    assert pytest.approx(96 / 97, abs=5e-5) == square_waves.RANDOM


def test_findings_answer_the_claims_in_order(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(square_waves, "spec", lambda _: SPEC)
    monkeypatch.setattr(square_waves, "BUILT", 6)
    found = square_waves.measure(folder, scale="quick", released_data=None, jobs=1, progress=identity)
    assert [f.claim for f in found.findings] == [c.name for c in square_waves.CLAIMS]
    assert all(f.evidence for f in found.findings)
    assert len(found.findings[0].values) == 6
    assert not found.findings[7].testable
    assert found.arrays["accuracy"].shape == (6, 3, 4)


def test_extraction_of_a_run(folder: Path) -> None:
    run = Run.open(folder / entries(SPEC)[0].name)
    made, found = Idealization(run), extraction(run)
    total = len(made.test_pairs)
    train_total = P * P - total
    at = int(run.steps[made.saturation()])
    series = run.metrics["train_correct"]
    before = series.value[series.step < at - SPEC["base"]["snapshot_every"]]
    assert (before < 0.99 * train_total).all()
    assert found.accuracy.shape == (3, 4)
    assert found.accuracy[2, 3] == run.metrics["test_correct"].value[-1] / total
    assert found.steps[0] == 0
    assert found.steps[-1] == run.steps[-1]


def test_layers_are_those_of_the_model(folder: Path) -> None:
    """The network answers as the three matrices and the biases say."""
    run = Run.open(folder / entries(SPEC)[0].name)
    made, last = Idealization(run), len(run) - 1
    layers = made.layers(last)
    named = run.table.unflatten(run.theta(last).astype(np.float64))
    a, b = made.test_pairs[:50].T
    hidden = np.maximum(layers.first.T[a] + layers.second.T[b] + named["feedforward.0.bias"], 0)
    wanted = hidden @ layers.output + named["head.bias"]
    test = rebuild(run, "test", dtype=torch.float64)
    theta = torch.from_numpy(run.theta(last)).double()
    found = test.outputs(theta, torch.arange(50))
    np.testing.assert_allclose(found.detach(), wanted, atol=1e-10)


def test_pure_waves_are_read_back_exactly(tmp_path: Path) -> None:
    """A run whose weights are a network of pure cosines: the ideal network is the network."""
    stream = np.random.default_rng(0)
    phases = stream.uniform(-np.pi, np.pi, (2, 64))
    waves = Waves(1 + np.arange(64) % 6, *phases, phases.sum(0))
    layers = ideal(waves, modulus=P, inputs="cosine", output="cosine")
    config = RunConfig(
        modulus=P, model="onehot_mlp", feedforward=64, batch_size="full", steps=1, second_moment_every=0
    )
    table = train(config, tmp_path / "template").table
    first = np.concatenate([layers.first, layers.second], axis=1)
    theta = np.concatenate([first.ravel(), np.zeros(64), layers.output.T.ravel(), np.zeros(P)])
    with RunWriter.create(tmp_path / "run", config, table) as writer:
        writer.append(0, theta.astype(np.float32))
    made = Idealization(Run.open(tmp_path / "run"))
    wanted = right(layers, made.test_pairs).mean()
    assert made.accuracy(0, inputs="cosine", output="cosine") == pytest.approx(wanted)
    assert wanted > 0.8
    np.testing.assert_allclose(np.abs(made.waves(0).phase_sum_error), 0, atol=1e-6)


def test_other_runs_are_refused(tmp_path: Path) -> None:
    config = RunConfig(modulus=7, model="two_layer", feedforward=8, batch_size="full", steps=1)
    with pytest.raises(ValueError, match="no addition by an onehot_mlp"):
        Idealization(train(config, tmp_path / "run"))
