"""The delay-law study on drawn runs that obey the law exactly, with T = ln(V_mem/V_post)/(2 lr wd)."""

from math import exp, log, nan

import numpy as np
import pytest
from grokscope.analysis.claim import verdicts
from grokscope.analysis.figures import study_norm_separation as figure
from grokscope.analysis.studies import norm_separation as study
from grokscope.analysis.studies._norm_passages import Passage, exponential_rate
from grokscope.analysis.study import Measured
from grokscope.runs.sweep import entries

TARGET = 300.0


def drawn(cell, seed, *, base):
    """A run that decays at 2 lr wd from V_0 on, memorizes at .8/(lr wd) and generalizes at TARGET."""
    fields = {**base, **cell}
    lr, weight_decay = fields["lr"], fields["weight_decay"]
    start = 13_000 * fields.get("embedding_init_scale", 1.0) ** 2 * (1 + 0.02 * seed)
    rate, memorized = 2 * lr * weight_decay, 0.8 / (lr * weight_decay)
    generalized = log(start / TARGET) / rate
    steps = np.arange(0, round(generalized) + 10, 10)
    learns = fields.get("optimizer") != "sgd"
    return Passage(
        lr=lr,
        weight_decay=weight_decay,
        memorized=memorized if learns else nan,
        generalized=generalized if learns else nan,
        start=start,
        norm_memorized=start * exp(-rate * memorized) if learns else nan,
        norm_generalized=TARGET if learns else nan,
        norm_end=TARGET * 0.999,
        fitted_rate=rate,
        train_accuracy=1.0 if learns else 0.015,
        test_accuracy=1.0 if learns else 0.01,
        steps=steps,
        norm=start * np.exp(-rate * steps),
    )


@pytest.fixture(scope="module")
def arms():
    base = study.spec("quick")["base"]
    cells = {}
    for arm in study.ARMS["quick"].values():
        for cell in arm:
            cells.setdefault(str(cell), [drawn(cell, k, base=base) for k in range(5)])
    return {name: [cells[str(cell)] for cell in arm] for name, arm in study.ARMS["quick"].items()}


def test_the_fit_finds_an_exponential_above_a_floor():
    steps = np.arange(0, 4001, 10)
    norm = np.where(steps < 500, 9000.0, 2500 * np.exp(-2e-3 * (steps - 500)) + 400)
    assert exponential_rate(steps, norm, since=500) == pytest.approx(2e-3, rel=1e-4)
    assert np.isnan(exponential_rate(steps, norm, since=3990))


def test_findings_on_runs_that_obey_the_law(arms):
    found = {finding.claim: finding for finding in study.findings(arms, None)}
    assert [finding.claim for finding in study.findings(arms, None)] == [c.name for c in study.CLAIMS]
    assert found["delay as 1/λ"].values == pytest.approx([-1] * 5)
    assert found["delay as 1/η"].values == pytest.approx([-1] * 5)
    assert found["log ratio of norms"].values == pytest.approx([0] * 5, abs=1e-9)
    # T ends at TARGET, the law at .999 of it
    assert max(found["prediction from three inputs"].values) < 1e-3
    assert found["fitted rate"].values == pytest.approx([2] * 5)
    assert found["norm at generalization"].values == pytest.approx([1 / 0.999] * 5)
    assert found["necessity"].values == (1.0,) * 5
    assert found["norm of memorization"].values == pytest.approx([1] * 5)
    assert found["SGD does not generalize"].values == (0.0,) * 5
    assert "at most 1.5%" in found["SGD does not generalize"].evidence


def test_verdicts_follow(arms):
    pairs = [(c, f, "quick") for c, f in zip(study.CLAIMS, study.findings(arms, None), strict=True)]
    numbers = dict(zip([claim.name for claim in study.CLAIMS], verdicts(pairs), strict=True))
    assert numbers["delay as 1/λ"] == numbers["necessity"] == "consistent"
    assert numbers["fitted rate"] == numbers["norm of memorization"] == "inconsistent"


def test_released_numbers_enter_the_evidence(arms):
    theirs = {"law": 0.307, "others": 0.134, "nominal": 1.58, "forecast": 0.49, "violations": 6.0}
    found = {finding.claim: finding for finding in study.findings(arms, theirs)}
    assert "30.7% by this arithmetic, 13.4%" in found["prediction from three inputs"].evidence
    assert "6 runs with V_post" in found["necessity"].evidence


@pytest.mark.parametrize("scale", ["quick", "paper"])
def test_runs_are_independent(scale):
    runs = entries(study.spec(scale))
    assert len({entry.config.seed for entry in runs}) == len(runs)
    trained = [entry.config for entry in runs if entry.config.optimizer == "adamw"]
    assert all(config.steps >= 40 / (config.lr * config.weight_decay) - 1 for config in trained)


def test_it_is_drawn(arms):
    measured = Measured(study.findings(arms, None), study._arrays(arms))
    assert len(figure.draw(measured).axes) == 6
