"""Paired differences: the right pairs, the right intervals, the right words."""

import json

import numpy as np
import pytest
from grokscope.analysis.commands.main import main
from grokscope.analysis.compare import Interval, compare, holm, interval, sign_flip
from grokscope.geometry.parameters import ParameterTable
from grokscope.runs.config import RunConfig
from grokscope.runs.store import RunWriter
from scipy import stats

TABLE = ParameterTable(("w",), ((3,),), {})


def made(path, *, memorized=100, generalized=500, loss=0.1, theta=0.0, config=RunConfig, **fields):
    """A run that reaches its milestones at the given steps (None: never), without any training."""
    config = config and config(steps=1000, **fields)
    provenance = {"train_total": 10, "test_total": 10}
    with RunWriter.create(path, config, TABLE, provenance=provenance) as writer:
        for step in range(0, 1001, 100):
            writer.append(step, np.full(3, theta * (step > 300), np.float32))
            counts = [10 * (at is not None and step >= at) for at in (memorized, generalized)]
            writer.log(step, {"train_correct": counts[0], "test_correct": counts[1], "train_loss": loss})
        writer.finish("steps")


def grid(folder, seeds, *, shift=0, **fields):
    for lr in (1e-3, 1e-2):
        for seed in seeds:
            late = int(seed) % 3 * 100 + int(lr > 5e-3) * 100 + shift
            made(folder / f"{lr}-{seed}", lr=lr, seed=seed, generalized=300 + late, loss=0.1 + seed, **fields)


def by_name(found):
    return {difference.quantity: difference for difference in found.differences}


def test_pairs_agree_in_what_varies_within(tmp_path):
    grid(tmp_path / "a", [0, 1, 2], weight_decay=1.0)
    grid(tmp_path / "b", [1, 2, 3], shift=200, weight_decay=0.5)
    found = compare(tmp_path / "a", tmp_path / "b")
    assert found.pairs == tuple((name, name) for name in ("0.001-1", "0.001-2", "0.01-1", "0.01-2"))
    assert found.unpaired_a == ("0.001-0", "0.01-0")
    assert found.unpaired_b == ("0.001-3", "0.01-3")
    assert found.settings == {"weight_decay": ("1.0", "0.5")}
    generalized = by_name(found)["generalized"]
    assert (generalized.pairs, generalized.cells) == (4, 2)
    assert generalized.difference == Interval(200, 200, 200)
    assert by_name(found)["memorized"].difference == Interval(0, 0, 0)
    assert by_name(found)["delay"].ratio.mean > 1
    assert found.identical == 4


def test_one_setting_has_an_interval_over_its_seeds(tmp_path):
    rng, values = np.random.default_rng(0), []
    for seed in range(6):
        a, b = rng.uniform(1, 2, 2)
        values.append((a, b))
        made(tmp_path / "a" / str(seed), seed=seed, loss=a)
        made(tmp_path / "b" / str(seed), seed=seed, loss=b, lr=0.5)
    found = by_name(compare(tmp_path / "a", tmp_path / "b"))["final train_loss"]
    data = np.array(values)
    expected = stats.ttest_1samp(data[:, 1] - data[:, 0], 0).confidence_interval(0.95)
    assert found.difference == pytest.approx((np.diff(data).mean(), *expected))
    ratio = stats.ttest_1samp(np.log(data[:, 1] / data[:, 0]), 0).confidence_interval(0.95)
    assert found.ratio[1:] == pytest.approx(np.exp(list(ratio)))
    assert (found.mean_a, found.mean_b) == pytest.approx(tuple(data.mean(axis=0)))


def test_what_only_one_side_reached_is_counted_not_averaged(tmp_path):
    for seed, (a, b) in enumerate([(400, 500), (400, None), (None, 600), (None, None), (300, 500)]):
        made(tmp_path / "a" / str(seed), seed=seed, generalized=a)
        made(tmp_path / "b" / str(seed), seed=seed, generalized=b)
    found = by_name(compare(tmp_path / "a", tmp_path / "b"))["generalized"]
    assert (found.pairs, found.only_a, found.only_b) == (2, 1, 1)
    assert found.difference.mean == 150


def test_two_single_runs_need_no_common_setting(tmp_path, capsys):
    made(tmp_path / "a", seed=1, generalized=300)
    made(tmp_path / "b", seed=2, generalized=700, theta=1.0)
    found = compare(tmp_path / "a", tmp_path / "b")
    assert found.parted == (400,)
    assert by_name(found)["generalized"].difference == 400
    assert by_name(found)["generalized"].p is None
    assert main(["compare", str(tmp_path / "a"), str(tmp_path / "b")]) == 0
    out = capsys.readouterr().out
    assert "seed: 1 in A, 2 in B" in out
    assert "first common step at which they differ is 400" in out
    assert main(["compare", str(tmp_path / "a"), str(tmp_path / "a"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["identical"] == 1


def test_foreign_runs_are_paired_by_name(tmp_path):
    for side, name in (("a", "x"), ("a", "y"), ("b", "y"), ("b", "z")):
        made(tmp_path / side / name, config=None)
    found = compare(tmp_path / "a", tmp_path / "b")
    assert found.pairs == (("y", "y"),)
    assert found.settings == {}


def test_what_can_t_be_compared_is_said(tmp_path, capsys):
    grid(tmp_path / "a", [0, 1])
    grid(tmp_path / "b", [2, 3])
    with pytest.raises(ValueError, match=r"no run below .* has the settings .* lr, seed"):
        compare(tmp_path / "a", tmp_path / "b")
    made(tmp_path / "twice" / "p", seed=3)
    made(tmp_path / "twice" / "q", seed=3)
    with pytest.raises(ValueError, match=r"p and q below .* have the same settings"):
        compare(tmp_path / "twice", tmp_path / "a")
    with pytest.raises(ValueError, match="confidence=1 must be"):
        compare(tmp_path / "a", tmp_path / "b", confidence=1)
    (tmp_path / "b" / "bad").mkdir()
    (tmp_path / "b" / "bad" / "run.h5").write_bytes(b"no run")
    with pytest.raises(ValueError, match=r"bad.* can't be read"):
        compare(tmp_path / "a", tmp_path / "b")
    assert main(["compare", str(tmp_path / "a"), str(tmp_path / "nowhere")]) == 2


def test_intervals_hold_the_mean_as_often_as_they_say():
    """2,000 samples of 5: the hits have standard deviation 0.5 %, so 1.5 % off is three of them."""
    samples = np.random.default_rng(1).standard_normal((2000, 5)) + 3
    hits = [found.low <= 3 <= found.high for found in (interval(row, 0.95) for row in samples)]
    assert np.mean(hits) == pytest.approx(0.95, abs=0.015)
    assert interval([2.0], 0.95) == 2.0


def test_sign_flips():
    assert sign_flip([1.0, 2.0, 3.0]) == 2 / 8
    assert sign_flip([1.0, -1.0]) == 1.0
    assert sign_flip([0.0, 0.0]) == 1.0
    assert sign_flip(np.ones(13)) < 0.01
    assert sign_flip(np.tile([1.0, -1.0], 10)) == 1.0
    # p-values of data without an effect: of 300, 15 ± 3.8 are below 5 %; 30 is four of these above
    rng = np.random.default_rng(2)
    assert sum(sign_flip(rng.standard_normal(8)) < 0.05 for _ in range(300)) <= 30


def test_holm():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    assert holm([]) == []
