from dataclasses import replace

import numpy as np
import pytest
from grokscope.runs.branch import branch
from grokscope.runs.config import RunConfig
from grokscope.runs.store import Run
from grokscope.runs.train import train

CONFIG = RunConfig(
    modulus=11, width=16, heads=2, feedforward=16, batch_size=32, steps=60, snapshot_every=10,
    evaluate_every=10, log_every=5, second_moment_every=0, state_at=(20, 25), stop_after_generalization=None,
)  # fmt: skip


@pytest.fixture(scope="module")
def parent(tmp_path_factory):
    return train(CONFIG, tmp_path_factory.mktemp("runs") / "parent")


def tail(run, after):
    return {int(step): run.theta(i) for i, step in enumerate(run.steps) if step > after}


@pytest.mark.parametrize("at", [20, 25])
def test_without_changes_it_is_the_parent_bit_for_bit(parent, tmp_path, at):
    child = branch(parent, tmp_path / "child", at=at)
    expected, found = tail(parent, at), tail(child, at)
    assert expected.keys() == found.keys()
    assert all(np.array_equal(expected[step], found[step]) for step in expected)
    for name, series in parent.metrics.items():
        late = series.step > at
        assert np.array_equal(series.value[late], child.metrics[name].value[child.metrics[name].step > at]), (
            name
        )


def test_it_names_its_parent_and_keeps_its_history(parent, tmp_path):
    child = branch(parent, tmp_path / "child", at=20)
    assert child.provenance["parent"]["hash"] == parent.hash
    assert child.provenance["parent"]["step"] == 20
    early = parent.metrics["train_correct"].step <= 20
    kept = child.metrics["train_correct"]
    assert np.array_equal(parent.metrics["train_correct"].value[early], kept.value[kept.step <= 20])


def test_another_batch_seed_leaves_at_the_branch(parent, tmp_path):
    one = branch(parent, tmp_path / "one", at=20, batch_seed=1)
    two = branch(parent, tmp_path / "two", at=20, batch_seed=2)
    last = [run.theta(len(run) - 1) for run in (parent, one, two)]
    assert not np.array_equal(last[0], last[1])
    assert not np.array_equal(last[1], last[2])


def test_changed_optimizer_settings_take_effect(parent, tmp_path):
    """With learning rate zero nothing moves any more; the saved optimizer must not bring the old one back."""
    child = branch(parent, tmp_path / "child", at=20, changes={"lr": 1e-30, "weight_decay": 0.0})
    thetas = list(tail(child, 20).values())
    assert np.array_equal(thetas[0], thetas[-1])


def test_a_branch_stopped_in_the_middle_goes_on(parent, tmp_path):
    branch(parent, tmp_path / "child", at=20, changes={"steps": 40})
    resumed = branch(parent, tmp_path / "child", at=20, changes={"steps": 60})
    expected = tail(parent, 20)
    assert all(np.array_equal(expected[step], found) for step, found in tail(resumed, 20).items())
    assert resumed.provenance["parent"]["step"] == 20


def test_errors_name_what_is_wrong(parent, tmp_path):
    with pytest.raises(ValueError, match="20, 25"):
        branch(parent, tmp_path / "x", at=30)
    with pytest.raises(ValueError, match="width"):
        branch(parent, tmp_path / "x", at=20, changes={"width": 32})
    with pytest.raises(ValueError, match="unknown field"):
        branch(parent, tmp_path / "x", at=20, changes={"learning_rate": 1})
    assert not (tmp_path / "x").exists()


def test_the_parent_is_not_touched(parent, tmp_path):
    before = parent.hash
    branch(parent, tmp_path / "child", at=20, batch_seed=5)
    assert Run.open(parent.path).hash == before
    assert Run.open(parent.path).config == replace(CONFIG)
