"""The statistics of delay predictions, on drawn records with known answers."""

from dataclasses import replace
from math import exp, inf, log, pi, sqrt

import numpy as np
import pytest
from grokscope.analysis import delay_fit, delay_limits, delay_score, delay_validation
from grokscope.runs.calibration import Record
from grokscope.runs.evidence import Setting
from grokscope.runs.milestones import Crossing, Milestones


def record(cell, delay, *, start=3000.0, lr=1e-3, seed=0):
    steps = np.arange(0.0, 401, 10)
    known = Crossing(280, 300, 400)
    generalized = None if delay is None else Crossing(299 + delay, 300 + delay, 400 + delay)
    return Record(
        cell=cell,
        seed=seed,
        setting=Setting(lr, 1.0, 500, 1000, 10_000),
        fields={"task": "add"},
        milestones=Milestones(known, generalized, known, generalized, 20_000),
        curves={"squared_norm": (steps, start * np.exp(-1e-3 * steps))},
        norm=(steps, start * np.exp(-1e-3 * steps)),
    )


def test_margin_is_the_conformal_order_statistic():
    records = [record(cell, 1000) for cell in range(1, 20)]
    predicted = np.log(1000) + np.arange(19) / 100
    # 19 cells: ceil(0.9 * 20) = 18th smallest of 0.00 .. 0.18
    assert delay_fit.margin(records, predicted) == pytest.approx(0.17)
    assert delay_fit.margin(records[:5], predicted[:5]) == inf


def test_margin_covers_new_cells():
    """Cells share an error; false alarm below 1e-3 (coverage of 400 x 10 new cells around 0.9 or more)."""
    generator = np.random.default_rng(0)
    hits = []
    for _ in range(400):
        errors = generator.normal(0, 0.3, 48).repeat(3) + generator.normal(0, 0.1, 144)
        records = [record(i // 3, 1000, seed=i) for i in range(144)]
        width = delay_fit.margin(records, np.log(1000) + errors)
        new = generator.normal(0, 0.3, 10) + generator.normal(0, 0.1, 10)
        hits.append((np.abs(new) <= width).mean())
    deviation = np.std(hits) / sqrt(400)
    assert 0.9 - 4 * deviation < np.mean(hits) < 0.93


def test_a_censored_run_counts_at_least_its_budget():
    records = [record(cell, None) for cell in range(1, 20)]
    predicted = np.full(19, log(19_700 / 2))
    assert delay_fit.margin(records, predicted) == pytest.approx(log(2))
    assert delay_fit.margin(records, predicted + 5) == 0


def test_holm():
    assert delay_score.holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert delay_score.holm([0.5, 0.9]) == pytest.approx([1.0, 1.0])


def test_sign_flips_by_cell():
    cells = np.repeat(np.arange(12), 5)
    generator = np.random.default_rng(0)
    assert delay_score.sign_flip(np.full(60, 0.1), cells) < 1e-3
    nulls = [delay_score.sign_flip(generator.normal(size=60), cells, resamples=500) for _ in range(200)]
    assert 0.01 < np.mean(np.array(nulls) < 0.1) < 0.2  # 0.1 expected, sd 0.021: false alarm below 1e-4


def test_scores_of_known_errors():
    records = [record(cell, 1000) for cell in (1, 1, 2, 2)] + [record(3, 100), record(3, None)]
    predictions = {
        "model": np.full(4, 1000.0),
        "double": np.full(4, 2000.0),
        "none": np.array([np.nan, np.nan, 1000, 1000]),
    }
    model, double, none = delay_score.score(records, predictions, reference="model")
    assert (model.n, model.mean_log_error, model.mape) == (4, 0.0, 0.0)
    assert double.mean_log_error == pytest.approx(log(2))
    assert (double.low, double.high) == pytest.approx((log(2), log(2)))
    assert (double.mape, double.bias) == pytest.approx((1.0, log(2)))
    # undefined: the shortest delay then possible is the 100 steps to the information time
    assert (none.undefined, none.mean_log_error) == (2, pytest.approx(log(10) / 2))


def test_concordance():
    delays = np.array([1.0, 2.0, 3.0, 3.0])
    assert delay_score.concordance(delays, delays) == 1
    assert delay_score.concordance(delays, -delays) == 0
    assert delay_score.concordance(delays, np.ones(4)) == 0.5


def test_evidence_within_a_cell_helps_held_out_seeds():
    generator = np.random.default_rng(1)
    starts = 3000 * np.exp(generator.normal(0, 0.2, (10, 5)))
    records = [
        record(c, round(2000 * (starts[c, k] / 3000) ** 2 * exp(0.3 * c / 10)), start=starts[c, k], seed=k)
        for c in range(10)
        for k in range(5)
    ]
    found = delay_validation.held_out_seeds(records)
    ours, mean = delay_score.score(records, found, reference="cell mean and evidence")
    assert ours.mean_log_error < 0.1 * mean.mean_log_error
    assert mean.p < 0.01


def test_the_spread_is_the_pooled_deviation():
    generator = np.random.default_rng(2)
    delays = {str(c): [round(x) for x in 1e6 * np.exp(c + generator.normal(0, 0.2, 400))] for c in range(5)}
    found = delay_limits.spread("drawn", delays | {"9": [None, 5]})
    assert found.deviation == pytest.approx(0.2, rel=0.07)  # sd 1.6 % of it: 4 sd
    assert found.mean_log_error == pytest.approx(found.deviation * sqrt(2 / pi))
    assert (found.groups, found.n) == (5, 2000)  # one branch was cut off, and one alone has no spread
    with pytest.raises(ValueError, match="none has two values"):
        delay_score.pooled_deviation([[1.0], []])


def test_what_decides_within_cells_is_explained():
    generator = np.random.default_rng(5)
    starts = 3000 * np.exp(generator.normal(0, 0.2, (24, 5)))
    records = [
        replace(
            record(
                c, round(2000 * (starts[c, k] / 3000) ** 2 * exp(0.3 * c / 10)), start=starts[c, k], seed=k
            ),
            hidden={"test_loss": exp(generator.normal()), "test_accuracy": generator.uniform()},
        )
        for c in range(24)
        for k in range(5)
    ]
    early, late, leak, both = delay_limits.explained(records)
    assert early.n == len(records)
    assert early.share > 0.9
    assert late.share > 0.9
    assert both.share > 0.8
    assert abs(leak.share) < 0.2  # noise: the share's sd is about 1/sqrt(120)


def test_questions_within_a_budget():
    scores, answers = delay_fit.budget_questions([record(1, 1500), record(2, None)], np.log([1500.0, 1500.0]))
    # budgets 500, 1000, 2000, 4000; the censored run is known to take more than 19,700 steps
    assert answers.tolist() == [False, False, True, True, False, False, False, False]
    assert scores[2] == pytest.approx(log(2000 / 1500))


def test_the_regression_is_the_one_of_lifelines():
    import lifelines
    import pandas

    generator = np.random.default_rng(7)
    x = generator.normal(size=(80, 2))
    delays = np.exp(7 + x @ [0.5, -0.2] + generator.normal(0, 0.3, 80))
    bounds = np.column_stack([delays * 0.97, np.where(delays > 1800, inf, delays * 1.03)])
    ours = delay_fit.interval_regression(np.column_stack([np.ones(80), x]), np.log(bounds), penalizer=0.05)
    table = pandas.DataFrame({"a": x[:, 0], "b": x[:, 1], "low": bounds[:, 0], "high": bounds[:, 1]})
    fitter = lifelines.LogNormalAFTFitter(penalizer=0.05).fit_interval_censoring(table, "low", "high")
    theirs = fitter.params_
    expected = [theirs["sigma_", "Intercept"], *(theirs["mu_", name] for name in ("Intercept", "a", "b"))]
    np.testing.assert_allclose(ours, expected, atol=1e-4)  # theirs stops at 1e-5 in the loss


def test_the_gradient_of_the_regression_vanishes_far_in_the_tails():
    chance, low, high = delay_fit._interval_chance(np.array([-40.0, 30.0, -1.0]), np.array([-39.9, inf, 1.0]))
    assert np.isfinite(chance).all()
    assert chance[2] == pytest.approx(log(0.682689492137))
    assert (low[1], high[1]) == (pytest.approx(30.0333, rel=1e-4), 0)  # Mills: x + 1/x - 2/x^3 + ...


def test_the_fit_recovers_a_censored_law():
    generator = np.random.default_rng(3)
    lrs = np.exp(generator.uniform(log(5e-4), log(4e-3), 120))
    delays = [round(3 / lr * exp(generator.normal(0, 0.1))) for lr in lrs]
    records = [
        record(i, d if d < 4000 else None, lr=lr) for i, (lr, d) in enumerate(zip(lrs, delays, strict=True))
    ]
    records = [r if r.delay else _cut(r, 4000) for r in records]
    formula = delay_fit.fit_formula(records)
    new = [record(0, 1, lr=lr) for lr in (6e-4, 3e-3)]
    assert formula.log_delay(new) == pytest.approx([log(3 / 6e-4), log(3 / 3e-3)], abs=0.08)


def _cut(item, delay):
    known = item.milestones.memorized
    return replace(item, milestones=Milestones(known, None, known, None, 300 + delay))
