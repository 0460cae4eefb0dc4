"""Scores of signals against brute force, scikit-learn and simulated worlds with known answers."""

from math import isnan, nan

import numpy as np
import pytest
from grokscope.analysis.ranking import (
    bootstrap,
    fit_pairs,
    holm,
    leave_pair_out,
    mixed_pairs,
    normal_scores,
    permuted,
    stratified_auc,
)
from grokscope.analysis.signals import Outcome, Reading, metric_readings, outcome, score_signals, values_at
from memory_run import random_run, series
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score


def test_stratified_auc_counts_pairs_within_cells():
    rng = np.random.default_rng(0)
    cells = rng.integers(3, size=60)
    positive = rng.random(60) < 0.5
    values = rng.integers(5, size=60) + 10.0 * cells  # ties, and cells that differ
    by_cell = [roc_auc_score(positive[cells == c], values[cells == c]) for c in range(3)]
    sizes = [positive[cells == c].sum() * (~positive[cells == c]).sum() for c in range(3)]
    assert stratified_auc(values, positive, cells) == pytest.approx(np.average(by_cell, weights=sizes))
    assert isnan(stratified_auc(values, np.ones(60, dtype=bool), cells))


def test_pair_model_is_ridge_logistic_regression_of_differences():
    rng = np.random.default_rng(1)
    features, positive, cells = rng.standard_normal((30, 3)), rng.random(30) < 0.5, rng.integers(2, size=30)
    pairs = mixed_pairs(positive, cells)
    difference = features[pairs[:, 0]] - features[pairs[:, 1]]
    both = np.vstack([difference, -difference])
    labels = np.repeat([1, 0], len(pairs))
    scale = 30 / len(pairs)
    # Each pair counts once there with weight `scale`, here twice with half of it.
    model = LogisticRegression(fit_intercept=False, C=1.0, tol=1e-10, max_iter=1000)
    model.fit(both, labels, sample_weight=np.full(len(both), scale / 2))
    np.testing.assert_allclose(fit_pairs(features, pairs).weights, model.coef_[0], rtol=1e-4, atol=1e-6)


def test_leave_pair_out_is_fair():
    """Pure noise gives .5: in sample it would be above, leave-one-out below."""
    found = []
    for seed in range(12):
        rng = np.random.default_rng(seed)
        cells, positive = np.repeat([0, 1], 12), np.tile([True, False], 12)
        found.append(leave_pair_out(rng.standard_normal((24, 3)), mixed_pairs(positive, cells)).mean())
    # Deviation of one AUC over 2 x 6 x 6 pairs is about .12: the mean of 12 within .1 (three sigma).
    assert np.mean(found) == pytest.approx(0.5, abs=0.1)


def test_normal_scores_and_permutation_stay_within_cells():
    rng = np.random.default_rng(0)
    values, cells = rng.standard_normal(40), rng.integers(3, size=40)
    np.testing.assert_allclose(normal_scores(values, cells), normal_scores(np.exp(values), cells))
    shuffled = permuted(values, cells, rng)
    assert not np.array_equal(shuffled, values)
    for cell in range(3):
        np.testing.assert_array_equal(np.sort(shuffled[cells == cell]), np.sort(values[cells == cell]))
    assert (normal_scores(np.ones(7), np.zeros(7, dtype=int)) == 0).all()


def test_holm():
    np.testing.assert_allclose(
        holm(np.array([[0.01, 0.04], [nan, 0.03]])), np.array([[0.03, 0.06], [nan, 0.06]])
    )


def test_bootstrap_of_cells_is_wider_when_cells_differ():
    rng = np.random.default_rng(0)
    cells, positive = np.repeat(np.arange(8), 10), np.tile([True, False], 40)
    pairs = mixed_pairs(positive, cells)
    per_pair = (cells[pairs[:, 0]] % 2).astype(float)
    wide = bootstrap(per_pair, pairs, cells, by_cell=True, draws=300, rng=rng)
    narrow = bootstrap(per_pair, pairs, cells, by_cell=False, draws=300, rng=rng)
    assert wide.mean == narrow.mean == 0.5
    assert wide.high - wide.low > 0.4
    assert narrow.high - narrow.low < 0.2


def world(*, runs=48, cells=6, seed=0, through_loss=False):
    """A hidden trait decides whether runs generalize; `probe` sees it, or only what the loss tells."""
    rng = np.random.default_rng(seed)
    trait = rng.standard_normal(runs)
    cell = np.arange(runs) % cells
    generalizes = trait + 0.5 * rng.standard_normal(runs) > 0
    loss = (trait if through_loss else 0 * trait) + 0.5 * rng.standard_normal(runs)
    probe = (
        loss + 0.3 * rng.standard_normal(runs) if through_loss else trait + 0.3 * rng.standard_normal(runs)
    )
    steps = np.arange(0, 4001, 100)
    early = steps >= 500

    def readings(level):
        return [Reading(steps, np.where(early, np.exp(x), 1.0)) for x in level]

    outcomes = [
        Outcome(f"cell {c}", 500, 600, 3000 if g else None, 4000)
        for c, g in zip(cell, generalizes, strict=True)
    ]
    signals = {"train_loss": readings(loss), "probe": readings(probe)}
    signals["noise"] = readings(rng.standard_normal(runs))
    return outcomes, signals


def test_a_telling_signal_is_found_and_adds_to_the_baseline():
    outcomes, signals = world()
    found = score_signals(outcomes, signals, baselines=("train_loss",), landmarks=(1.0, 2.0), draws=199)
    probe, noise = found.names.index("probe"), found.names.index("noise")
    assert (found.auc[probe] > 0.85).all()
    assert (found.increment[probe] > 0.2).all()
    assert (found.p[probe] < 0.05).all()
    assert (found.increment_p[probe] < 0.05).all()
    assert (found.increment_low[probe] > 0).all()
    assert (found.p[noise] > 0.05).all()
    assert (found.increment_p[noise] > 0.05).all()
    assert found.resampled == "cells"
    assert found.usable.tolist() == [[48, 48]] * 3
    assert (found.cells == 6).all()


def test_a_signal_that_only_repeats_the_loss_adds_nothing():
    outcomes, signals = world(through_loss=True)
    found = score_signals(outcomes, signals, baselines=("train_loss",), landmarks=(1.0,), draws=199)
    probe = found.names.index("probe")
    assert found.auc[probe, 0] > 0.75
    assert found.increment[probe, 0] < 0.05
    assert found.increment_p[probe, 0] > 0.05


def test_nothing_after_the_landmark_matters():
    outcomes, signals = world(runs=24, cells=2)
    whole = score_signals(outcomes, signals, baselines=("train_loss",), landmarks=(1.0,), draws=19)
    cut = {
        name: [Reading(r.steps, np.where(r.steps > 600, nan, r.values)) for r in readings]
        for name, readings in signals.items()
    }
    short = score_signals(outcomes, cut, baselines=("train_loss",), landmarks=(1.0,), draws=19)
    for field in ("auc", "increment", "p", "usable"):
        np.testing.assert_array_equal(getattr(whole, field), getattr(short, field))
    assert whole.resampled == "runs within cells"


def test_runs_that_generalized_already_or_never_memorized_are_not_at_risk():
    assert not Outcome("a", 500, 600, 600, 4000).at_risk(600.0)
    assert Outcome("a", 500, 600, 601, 4000).at_risk(600.0)
    assert not Outcome("a", 500, 600, None, 600).at_risk(600.0)
    never = Outcome("a", None, None, None, 4000)
    assert not never.at_risk(never.landmark(1.0))
    assert Outcome("a", 500, 700, None, 4000).landmark(1.0) == 700
    assert Outcome("a", 500, 700, None, 4000).landmark(2.0) == 1000


def test_values_are_the_last_ones_known():
    reading = Reading(np.array([0, 10, 20]), np.array([1.0, 2.0, 3.0]))
    found = values_at([reading] * 4, np.array([-1.0, 19.0, 20.0, nan]))
    np.testing.assert_array_equal(found, [nan, 2.0, 3.0, nan])


def test_cells_without_both_outcomes_have_no_score():
    outcomes = [Outcome("a", 500, 600, None, 4000)] * 5
    readings = [Reading(np.array([0]), np.array([float(i)])) for i in range(5)]
    found = score_signals(outcomes, {"x": readings}, baselines=(), landmarks=(1.0,), draws=9)
    assert isnan(found.auc[0, 0])
    assert isnan(found.p[0, 0])
    assert found.cells[0, 0] == 0


def test_wrong_input_is_named():
    outcomes, signals = world(runs=4, cells=1)
    with pytest.raises(ValueError, match="lacks the baseline 'squared_norm'"):
        score_signals(outcomes, signals, baselines=("squared_norm",))
    with pytest.raises(ValueError, match="3 readings for 4 runs"):
        score_signals(outcomes, {"probe": signals["probe"][:3]}, baselines=())


def test_outcome_and_metrics_of_a_run(tmp_path):
    run = random_run(tmp_path)
    steps = np.arange(0, 1001, 50)
    run.provenance = {"train_total": 10, "test_total": 10}
    run.metrics = {
        "train_correct": series(steps, np.where(steps < 200, 5, 10)),
        "test_correct": series(steps, np.where(steps < 600, 5, 10)),
        "train_loss": series(steps, 1.0 / (1 + steps)),
    }
    assert outcome(run) == Outcome("{}", 200, 300, 600, 1000)
    np.testing.assert_array_equal(metric_readings(run, ["train_loss"])["train_loss"].steps, steps)
    with pytest.raises(ValueError, match="'gradient_norm' is no metric"):
        metric_readings(run)
