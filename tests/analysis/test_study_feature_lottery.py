from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from grokscope.analysis.feature_learning import features, guesses, mirrored_accuracy, weights
from grokscope.analysis.rows import identity
from grokscope.analysis.studies import feature_lottery
from grokscope.analysis.studies._feature_lottery_rows import descent
from grokscope.geometry.addition_network import logits
from grokscope.geometry.feature_lottery import Modes
from grokscope.runs.config import RunConfig
from grokscope.runs.rebuild import rebuild
from grokscope.runs.store import Run
from grokscope.runs.sweep import entries, sweep
from grokscope.runs.train import train

QUICK = feature_lottery.spec("quick")
SPEC = {
    "base": QUICK["base"],
    "runs": [run | {"feedforward": 48, "steps": 150, "lr": 2e-3} for run in QUICK["runs"] if run["seed"] < 2],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("feature_lottery")
    assert {outcome.status for outcome in sweep(entries(SPEC), home)} == {"done"}
    return home


def aligned(units: int, *, kinds: int = 5) -> Modes:
    """Pure units of evenly spread frequencies and evenly spaced phases, all aligned."""
    alpha = np.zeros((units * kinds, kinds))
    alpha[np.arange(units * kinds), np.arange(units * kinds) % kinds] = 1.0
    phi = np.repeat(2 * np.pi * np.arange(units) / units, kinds)[:, None] * np.ones(kinds)
    return Modes(alpha, alpha, phi, 2 * phi)


def test_features_of_ideal_and_of_random_units() -> None:
    found = features(aligned(16))
    np.testing.assert_allclose(found, (1, 0, 0, 0), atol=1e-12)
    stream = np.random.default_rng(0)
    noise = Modes(*stream.rayleigh(size=(2, 4000, 11)), *stream.uniform(-np.pi, np.pi, (2, 4000, 11)))
    drawn = features(noise)
    # Exponential powers: participation 2/(K + 1); |sin| of a uniform angle: 2/π. 4000 units: 1 % each.
    assert drawn.participation == pytest.approx(2 / 12, abs=0.005)
    assert drawn.misalignment == pytest.approx(2 / np.pi, abs=0.02)
    # χ²/10 with 10 degrees of freedom exceeds 3 with probability .001; |mean of n phases| is √(π/4n).
    assert drawn.unevenness < 3
    assert drawn.asymmetry == pytest.approx(np.sqrt(np.pi / 4 / (4000 / 11)), rel=0.3)


def test_guesses_are_scored_among_the_units_named() -> None:
    start = Modes(
        np.array([[1.0, 2.0], [2.0, 1.0]]),
        np.ones((2, 2)),
        np.zeros((2, 2)),
        np.array([[0.0, 3.0], [0.1, 0.2]]),
    )
    end = Modes(np.array([[9.0, 1.0], [9.0, 1.0]]), *(np.ones((2, 2)) for _ in range(3)))
    found = guesses(start, end, modulus=5)
    # Unit 0: frequency 2 is larger but opposed, so 1 blows up first and is also the better aligned.
    assert found == (1.0, 0.5, 1.0, 1.0, 2)
    assert guesses(start, end, modulus=5, among=np.array([True, False])).magnitude == 0
    with pytest.raises(ValueError, match="names no unit"):
        guesses(start, end, modulus=5, among=np.array([False, False]))


def test_descent_follows_the_flow_and_the_lottery() -> None:
    found = descent(7, units=24, steps=300)
    assert found.deviation < 0.05
    assert found.drift < 0.01
    assert found.guesses.lottery > 0.8
    assert found.guesses.lottery > found.guesses.alignment
    early = ~np.isnan(found.predicted[:, 0])
    np.testing.assert_allclose(found.amplitudes[early], found.predicted[early], rtol=0.05)


def test_specs_pair_the_arms_by_seed() -> None:
    assert len({claim.name for claim in feature_lottery.CLAIMS}) == len(feature_lottery.CLAIMS) >= 4
    for scale in ("quick", "paper"):
        configs = [e.config for e in entries(feature_lottery.spec(scale)) if e.config.modulus == 31]
        seeds = [{c.seed for c in configs if (c.weight_decay > 0) == decays} for decays in (True, False)]
        assert seeds[0] == seeds[1]
        assert len(seeds[0]) >= 5


def test_findings_answer_the_claims_in_order(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feature_lottery, "spec", lambda _: SPEC)
    monkeypatch.setattr(feature_lottery, "SEEDS", 2)
    found = feature_lottery.measure(folder, scale="quick", released_data=None, jobs=1, progress=identity)
    assert [f.claim for f in found.findings] == [c.name for c in feature_lottery.CLAIMS]
    assert all(f.evidence for f in found.findings)


def test_weights_are_those_of_the_model(folder: Path) -> None:
    run = Run.open(folder / entries(SPEC)[1].name)
    last = len(run) - 1
    scores = logits(*weights(run, last), activation="relu")
    test = rebuild(run, "test", dtype=torch.float64)
    outputs = test.outputs(torch.from_numpy(run.theta(last)).double(), torch.arange(test.num_samples))
    # Every row of the model's test outputs is the row of its pair.
    answers = outputs.detach().numpy().argmax(1)
    seen, unseen, share = mirrored_accuracy(run, last)
    right = run.metrics["test_correct"].value[-1]
    assert (seen * share + unseen * (1 - share)) * len(answers) == pytest.approx(right, abs=1e-6)
    assert scores.shape == (31, 31, 31)
    np.testing.assert_allclose(scores, scores.transpose(1, 0, 2), atol=1e-12)
    # A test pair's mirror is trained on with the training share of the other pairs, 3 of 4.
    assert share == pytest.approx(0.73, abs=0.1)


def test_other_runs_are_refused(tmp_path: Path) -> None:
    config = RunConfig(modulus=7, model="two_layer", feedforward=8, batch_size="full", steps=1)
    with pytest.raises(ValueError, match="shared=true"):
        weights(train(config, tmp_path / "run"), 0)
