"""Commutators along real runs: against the geometry called by hand, whichever snapshots are visited."""

import json
import pickle
from dataclasses import fields, replace
from math import isnan, pi, sqrt

import numpy as np
import pytest
import torch
from grokscope.analysis.commands.commutator import command
from grokscope.analysis.commutator import CommutatorCurve, commutator_along
from grokscope.analysis.commutator_probe import optimizer_step
from grokscope.analysis.figures.commutator import draw
from grokscope.analysis.onset import generalization_steps, onsets
from grokscope.analysis.result import load, save
from grokscope.geometry.commutator import background, commutator
from grokscope.geometry.finite_commutator import finite_commutator
from grokscope.geometry.objective import gradient
from grokscope.geometry.optimizer_commutator import OptimizerState
from grokscope.runs.config import RunConfig
from grokscope.runs.rebuild import rebuild
from grokscope.runs.streams import generator
from grokscope.runs.train import train
from joblib.externals.loky.backend.reduction import dumps

CONFIG = RunConfig(
    modulus=11,
    width=16,
    heads=2,
    feedforward=24,
    batch_size=20,
    steps=60,
    snapshot_every=10,
    evaluate_every=20,
    second_moment_every=10,
    lr=3e-3,
)
FAST = {"pairs": 3, "split_pairs": 1, "rank": 2, "singular": 2}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return train(CONFIG, tmp_path_factory.mktemp("runs") / "small")


@pytest.fixture(scope="module")
def curve(run):
    return commutator_along(run, **FAST)


def by_hand(run, index, pairs=3):
    """theta, batches and brackets of one snapshot, from the geometry alone."""
    step = int(run.steps[index])
    stream = generator(0, "probes", step)
    objective = rebuild(run)
    n = objective.num_samples
    batches = [[torch.randint(n, (20,), generator=stream) for _ in "ab"] for _ in range(pairs)]
    theta = torch.from_numpy(run.theta(index))
    return (
        objective,
        theta,
        batches,
        [commutator(objective.on(a), objective.on(b), theta) for a, b in batches],
    )


def test_values_are_medians_over_pairs_of_the_runs_batch_size(run, curve):
    assert (curve.batch_size, curve.pairs, curve.step_size) == (20, 3, 1e-3)
    for row in (0, len(curve.steps) // 2, len(curve.steps) - 1):
        index = int(np.searchsorted(run.steps, curve.steps[row]))
        objective, theta, batches, found = by_hand(run, index)
        for name in ("raw", "defect", "curvature", "scale_free"):
            values = [getattr(one, name) for one in found]
            assert getattr(curve, name)[row] == pytest.approx(np.median(values), rel=1e-5)
            low, high = getattr(curve, f"{name}_quartiles")[row]
            assert (low, high) == pytest.approx(tuple(np.quantile(values, (0.25, 0.75))), rel=1e-5)
        shared = background(objective, theta)
        a, b = batches[0]
        split = commutator(objective.on(a), objective.on(b), theta, background=shared)
        assert curve.gradient_noise[row] == pytest.approx(split.gradient_noise, rel=1e-4)
        assert curve.curvature_noise[row] == pytest.approx(split.curvature_noise, rel=1e-4)
        assert curve.curvature_proper[row] == pytest.approx(shared.curvature_proper, rel=1e-4)
        scatter = np.mean([one.gradient_scatter for one in found])
        assert curve.signal_to_noise[row] == pytest.approx(
            float(shared.gradient.norm()) ** 2 / scatter, rel=1e-4
        )
        rough = [finite_commutator(objective.on(a), objective.on(b), theta) for a, b in batches]
        assert curve.float32_defect[row] == pytest.approx(np.median([one.defect for one in rough]), rel=1e-4)
        assert curve.noise_floor[row] == pytest.approx(
            np.median([one.noise_floor for one in rough]), rel=1e-3
        )
    assert curve.sqrt_b_raw == pytest.approx(sqrt(20) * curve.raw)
    assert (curve.roundoff < 1e-4).all()
    # Two routes to one number: products with the Hessian, and differences of gradients up to O(step size).
    assert curve.compensated_defect == pytest.approx(curve.defect, rel=0.05)
    assert curve.alignment_chance == sqrt(2 / (pi * run.table.size))


def test_other_snapshots_do_not_matter(run, curve):
    index = int(np.searchsorted(run.steps, curve.steps[3]))
    alone = commutator_along(run, snapshots=[index], **FAST)
    for field in fields(CommutatorCurve):
        whole, single = getattr(curve, field.name), getattr(alone, field.name)
        if isinstance(whole, np.ndarray) and len(whole) == len(curve.steps) and field.name != "steps":
            np.testing.assert_array_equal(whole[3], single[0], err_msg=field.name)


def test_the_measure_travels_to_other_processes(run, monkeypatch):
    kept = {}

    def walk(run, indices, measure, **_):
        kept["probe"] = measure
        raise InterruptedError

    monkeypatch.setattr("grokscope.analysis.commutator.walk", walk)
    with pytest.raises(InterruptedError):
        commutator_along(run, **FAST)
    there = pickle.loads(dumps(kept["probe"]))(3, run.theta(3))
    here = kept["probe"](3, run.theta(3))
    assert there.keys() == here.keys()
    assert there["raw"] == here["raw"]


def test_optimizer_step_is_the_one_that_trained_the_run(run):
    """From the state rebuilt at step 0, one step on the first training batch leads to the recorded theta."""
    config = replace(
        CONFIG, steps=1, snapshot_every=1, group_lr={"embedding": 3.0}, clip=0.1, dtype="float64"
    )
    grouped = train(config, run.path.parent / "grouped")
    objective = rebuild(grouped)
    batch = torch.randint(objective.num_samples, (20,), generator=generator(0, "batches"))
    theta = torch.from_numpy(grouped.theta(0))
    step = optimizer_step(config, grouped)
    after, _ = step(theta, gradient(objective.on(batch), theta), OptimizerState.start(theta))
    torch.testing.assert_close(after, torch.from_numpy(grouped.theta(1)), rtol=1e-9, atol=1e-12)


def test_optimizer_commutator_is_there_where_the_state_is(run, curve):
    assert np.isfinite(curve.optimizer_relative).all()
    assert ((curve.optimizer_scale_free > 0) & (curve.optimizer_scale_free <= 1)).all()
    without = train(replace(CONFIG, second_moment_every=0, steps=10), run.path.parent / "without")
    found = commutator_along(without, snapshots=[0, 3], **FAST)
    assert np.isfinite(found.optimizer_relative[0])  # step 0: nothing to remember
    assert np.isnan(found.optimizer_relative[1:]).all()


def test_subspaces_stand_beside_their_nulls(run, curve):
    assert curve.bases == ("trajectory", "past", "weight", "displacement", "gradient")
    late = curve.inside_fraction[-1]
    assert ((late > 0) & (late < 1)).all()
    assert isnan(curve.inside_fraction[0, 1])  # no past at the start
    assert isnan(curve.inside_fraction[0, 3])  # no displacement either
    assert (curve.inside_null_deviation[-1] > 0).all()
    np.testing.assert_allclose(curve.inside_chance[-1, :2], 2 / run.table.size)
    assert np.isnan(curve.other_seed_fraction).all()
    seeds = dict.fromkeys(("seed", "init_seed", "split_seed", "batch_seed"), 1)
    other = train(replace(CONFIG, **seeds), run.path.parent / "other")
    found = commutator_along(run, reference=other, snapshots=[3, 6], **FAST)
    assert np.isfinite(found.other_seed_fraction[:, [0, 2, 3, 4]]).all()
    assert np.isnan(found.other_seed_fraction[:, 1]).all()  # the past of another run is no control
    assert isnan(curve.alignment[-1])
    assert (curve.alignment[:-1] > 0).all()


def test_a_run_without_configuration_takes_a_given_objective(run, curve):
    objective = rebuild(run)
    last = len(run.steps) - 1
    found = commutator_along(run, objective=objective, snapshots=[last], **FAST)
    np.testing.assert_allclose(found.raw, curve.raw[-1:], rtol=1e-4)
    assert np.isnan(found.roundoff).all()  # there is no float64 loss
    double = train(replace(CONFIG, dtype="float64", steps=20), run.path.parent / "double")
    exact = commutator_along(double, objective=rebuild(double), snapshots=[2], **FAST)
    assert np.isnan(exact.float32_defect).all()
    assert len(draw(double, exact)) == 4  # with nothing to show in float32
    assert np.isfinite(exact.optimizer_relative).all()
    both = commutator_along(double, snapshots=[2], **FAST)
    assert np.isfinite(both.float32_defect).all()
    assert np.isnan(both.roundoff).all()


def test_onsets_and_leads(run, curve):
    assert curve.onset_rules[0] == "published_float32"
    assert curve.lead.shape == (len(curve.onset_rules), 3)
    np.testing.assert_array_equal(np.isnan(curve.generalized), np.isnan(generalization_steps(run)))
    steps = np.arange(0, 1000, 50)
    rise = np.where(steps < 300, 1.0, 50.0)
    columns = dict.fromkeys(("raw", "defect", "curvature", "scale_free", "float32_defect"), rise)
    found = onsets(steps, columns | {"gradient_norm": 1 / rise}, factor=10)
    assert set(found.values()) == {(250.0, 300.0)}


def test_saved_loaded_drawn_and_printed(run, curve, tmp_path, capsys):
    save(curve, run, directory=tmp_path)
    again = load(CommutatorCurve, run, directory=tmp_path)
    np.testing.assert_array_equal(again.inside_fraction, curve.inside_fraction)
    figures = draw(run, again)
    assert set(figures) == {
        "commutator",
        "commutator_float32",
        "commutator_noise",
        "commutator_subspaces",
    }
    assert command(run.path, snapshots=3, pairs=2, split_pairs=1, rank=2, out=tmp_path, json=True) == 0
    printed = json.loads(capsys.readouterr().out)
    keys = "steps defect curvature scale_free raw gradient_norm batch_size signal_to_noise noise_floor"
    keys += " stagnant_fraction float32_defect inside_fraction inside_null"
    assert set(keys.split()) <= set(printed)
    assert len(printed["steps"]) == 3
    assert command(run.path, steps=(0, 60), pairs=2, split_pairs=0, rank=2, out=tmp_path) == 0
    text = capsys.readouterr().out
    assert "float32 D" in text
    assert "below floor" in text
    assert "published_float32" in text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size=0 must be from 1 to the 60"),
        ({"pairs": 0}, "pairs=0"),
        ({"pairs": 2, "split_pairs": 3}, "split_pairs=3"),
    ],
)
def test_wrong_options_are_named(run, options, message):
    with pytest.raises(ValueError, match=message):
        commutator_along(run, **options)


def test_a_reference_must_have_the_same_parameters(run, tmp_path):
    wider = train(replace(CONFIG, width=32, steps=1), tmp_path / "wider")
    with pytest.raises(ValueError, match="has other parameters than"):
        commutator_along(run, reference=wider, **FAST)


def test_full_batch_runs_get_minibatches(tmp_path):
    full = train(replace(CONFIG, batch_size="full", replacement=False, steps=10), tmp_path / "full")
    assert commutator_along(full, batch_size=8, snapshots=[0], **FAST).batch_size == 8
    found = commutator_along(full, snapshots=[0], **FAST)
    assert found.batch_size == 30
    assert found.raw[0] > 0
