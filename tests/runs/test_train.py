"""The trainer: same bits whatever interrupts it."""

import os
import random
import signal
import threading
import time
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from grokscope.runs import trainer
from grokscope.runs.config import RunConfig
from grokscope.runs.milestones import milestones
from grokscope.runs.rebuild import rebuild
from grokscope.runs.store import Run
from grokscope.runs.train import Diverged, train

SMALL = RunConfig(
    modulus=7, width=16, heads=2, feedforward=32, batch_size=16, lr=3e-3, steps=120,
    log_every=5, evaluate_every=10, snapshot_every=10, second_moment_every=20,
)  # fmt: skip


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    return train(SMALL, tmp_path_factory.mktemp("runs") / "undisturbed")


def test_equal_configurations_give_equal_runs(undisturbed, tmp_path):
    again = train(SMALL, tmp_path / "again")
    assert again.hash == undisturbed.hash
    assert again.finished


def test_snapshots_and_metrics_describe_the_same_parameters(undisturbed):
    objective = rebuild(undisturbed)
    losses = dict(zip(*undisturbed.metrics["train_loss"], strict=True))
    norms = dict(zip(*undisturbed.metrics["squared_norm"], strict=True))
    for i, step in enumerate(undisturbed.steps):
        theta = torch.from_numpy(undisturbed.theta(i))
        if step in norms:
            assert norms[step] == pytest.approx(float(theta.double().square().sum()), rel=1e-12)
        if step in losses:  # the same forward pass in another order of summation: float32 rounding
            assert losses[step] == pytest.approx(objective.value(theta), rel=1e-5)


def test_group_norms_add_up_to_the_whole(undisturbed):
    metrics = undisturbed.metrics
    parts = sum(series.value for name, series in metrics.items() if name.startswith("squared_norm."))
    np.testing.assert_allclose(parts, metrics["squared_norm"].value, rtol=1e-12)


def test_the_first_and_last_steps_are_kept(undisturbed):
    assert undisturbed.steps[0] == 0
    assert undisturbed.steps[-1] == SMALL.steps == undisturbed.metrics["train_correct"].step[-1]
    assert undisturbed.metrics["train_correct"].value.dtype == np.int64


def test_update_norm_is_the_distance_between_neighboring_steps(tmp_path):
    run = train(replace(SMALL, steps=4, snapshot_every=1, log_every=1), tmp_path / "run")
    moved = [np.linalg.norm(run.theta(i + 1) - run.theta(i)) for i in range(4)]
    assert run.metrics["update_norm"].step.tolist() == [1, 2, 3, 4]
    np.testing.assert_allclose(run.metrics["update_norm"].value, moved, rtol=1e-4)  # float32 differences


def test_second_moments_are_those_of_adam(tmp_path):
    run = train(replace(SMALL, steps=1, second_moment_every=1), tmp_path / "run")
    assert run.second_moment_steps.tolist() == [1]
    gradient_norm = run.metrics["gradient_norm"].value[0]
    second = run.second_moment(0).sum()  # after one step v = (1 - beta2) g², beta2 = 0.999
    assert second == pytest.approx(1e-3 * gradient_norm**2, rel=1e-4)


def test_interruption_by_an_exception_costs_no_correctness(undisturbed, tmp_path):
    def torn(steps, **_):
        for step in steps:
            if step == 57:
                raise MemoryError
            yield step

    with pytest.raises(MemoryError):
        train(SMALL, tmp_path / "run", progress=torn, commit_bytes=1)
    assert train(SMALL, tmp_path / "run").hash == undisturbed.hash


def _at(step, act):
    """A progress wrapper that acts when the loop comes to `step`."""

    def progress(steps, **_):
        for current in steps:
            if current == step:
                act()
            yield current

    return progress


def _kill_within(seconds):
    """Kill this process for good, from another thread, so that it falls anywhere in the step."""

    def kill():
        time.sleep(seconds)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=kill, daemon=True).start()


def test_kill_9_at_20_random_moments_ends_in_the_same_run(undisturbed, tmp_path):
    moments, path, last = random.Random(0), tmp_path / "run", 0
    for _ in range(20):
        last = Run.open(path).steps[-1] if (path / "run.h5").exists() else 0
        step, seconds = last + moments.randint(1, 12), moments.uniform(0, 0.02)
        child = os.fork()
        if child == 0:
            train(SMALL, path, commit_bytes=1, progress=_at(step, partial(_kill_within, seconds)))
            os._exit(0)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert status in (-signal.SIGKILL, 0)
    assert 0 < last < SMALL.steps  # the kills fell inside the run, not before or after it
    assert train(SMALL, path).hash == undisturbed.hash


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_polite_signal_commits_and_stops(undisturbed, tmp_path, number):
    path = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        train(SMALL, path, progress=_at(57, partial(os.kill, os.getpid(), number)))
    run = Run.open(path)
    assert not run.finished
    assert run.steps[-1] == 50  # committed: the snapshot before step 57
    assert train(SMALL, path).hash == undisturbed.hash


def test_another_configuration_is_refused_by_field(undisturbed):
    with pytest.raises(ValueError, match="lr"):
        train(replace(SMALL, lr=1e-2), undisturbed.path)


def test_more_steps_continue_a_finished_run(tmp_path):
    train(replace(SMALL, steps=40), tmp_path / "run")
    longer = train(SMALL, tmp_path / "run")
    assert longer.steps[-1] == SMALL.steps
    assert longer.config == SMALL


def test_divergence_stops_with_everything_before_it_readable(tmp_path):
    wild = replace(SMALL, optimizer="sgd", lr=1e8, weight_decay=0.0)
    with pytest.raises(Diverged, match="lower lr"):
        train(wild, tmp_path / "run")
    run = Run.open(tmp_path / "run")
    assert len(run) >= 1
    assert all(np.isfinite(run.theta(i)).all() for i in range(len(run)))


def test_only_the_named_stream_changes_with_its_seed(undisturbed, tmp_path):
    other = train(replace(SMALL, steps=10, batch_seed=1), tmp_path / "run")
    np.testing.assert_array_equal(other.theta(0), undisturbed.theta(0))
    assert not np.array_equal(other.theta(3), undisturbed.theta(3))


def test_training_leaves_the_global_random_state_alone(tmp_path):
    before = torch.get_rng_state()
    train(replace(SMALL, steps=3), tmp_path / "run")
    assert torch.equal(torch.get_rng_state(), before)


def test_it_stops_the_asked_distance_after_generalization(tmp_path, monkeypatch):
    # A threshold that chance reaches: the rule is tested here, not the network.
    chance = partial(trainer.MilestoneMonitor, threshold=0.04, sustain=10)
    monkeypatch.setattr(trainer, "MilestoneMonitor", chance)
    run = train(replace(SMALL, stop_after_generalization=30), tmp_path / "run")
    generalized = milestones(run, threshold=0.04, sustain=10).generalized
    assert run.finish_reason == "generalized"
    assert run.steps[-1] == max(generalized.step + 30, generalized.confirmed) < SMALL.steps
    assert run.metrics["test_correct"].step[-1] == run.steps[-1]


def test_state_is_kept_where_asked(tmp_path):
    train(replace(SMALL, steps=20, state_at=(7,)), tmp_path / "run")
    assert (tmp_path / "run" / "state-7.pt").exists()
