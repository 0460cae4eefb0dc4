"""Interventions: projections exact, doses matched, training's streams untouched, resumed bit for bit."""

import os
import signal
from dataclasses import replace

import numpy as np
import pytest
import torch
from grokscope.geometry.objective import flatten
from grokscope.geometry.subspace import project
from grokscope.runs.branch import branch
from grokscope.runs.config import RunConfig, from_mapping, from_toml, parse_assignment
from grokscope.runs.intervention_config import intervention_of
from grokscope.runs.interventions import disturbance
from grokscope.runs.store import Run
from grokscope.runs.train import train
from grokscope.runs.trainer import Trainer

CONFIG = RunConfig(
    modulus=11, width=16, heads=2, feedforward=16, batch_size=32, steps=40, snapshot_every=2,
    evaluate_every=20, log_every=1, second_moment_every=0, state_at=(20,), stop_after_generalization=None,
    lr=3e-3, dtype="float64",
)  # fmt: skip


@pytest.fixture(scope="module")
def parent(tmp_path_factory):
    return train(CONFIG, tmp_path_factory.mktemp("runs") / "parent")


def child(parent, path, **intervention):
    return branch(parent, path, at=20, changes={"intervention": {"start": 20, **intervention}})


def final(run):
    return run.theta(len(run) - 1)


def basis_of(run, parent):
    found, _ = disturbance(run.config, run.table, parent={"path": str(parent.path)})
    return found.basis.numpy()


def displacement(run):
    """θ_40 − θ_20."""
    return final(run) - run.theta(int(np.searchsorted(run.steps, 20)))


@pytest.mark.parametrize("directions", ["trajectory", "past", "matched", "random"])
def test_a_projected_update_stays_in_the_directions(parent, tmp_path, directions):
    run = child(parent, tmp_path / "run", kind="project_update", directions=directions)
    basis, moved = basis_of(run, parent), displacement(run)
    np.testing.assert_allclose(basis @ basis.T, np.eye(8), atol=1e-13)  # 4 matrices x 2
    # 20 steps, each rounded to the last digit of θ of order one.
    np.testing.assert_allclose(moved, project(moved, basis), atol=1e-14)
    assert np.linalg.norm(moved) > 1e-3


def test_the_other_part_and_the_scope(parent, tmp_path):
    options = {"kind": "project_update", "part": "inside"}
    run = child(parent, tmp_path / "inside", **options)
    np.testing.assert_allclose(basis_of(run, parent) @ displacement(run), 0, atol=1e-13)
    run = child(parent, tmp_path / "scope", kind="project_update", scope="matrices")
    covered = [one for one in run.table.matrices() if "attn" in one.name or "attention" in one.name]
    inside = np.zeros(run.table.size, dtype=bool)
    for one in covered:
        inside[one.start : one.start + one.rows * one.columns] = True
    moved, free = displacement(run), displacement(parent)
    np.testing.assert_allclose(
        moved[inside], project(moved * inside, basis_of(run, parent))[inside], atol=1e-14
    )
    assert np.linalg.norm(moved[~inside]) > 0.5 * np.linalg.norm(free[~inside])


def test_directions_are_the_principal_ones_of_each_matrix(parent, tmp_path):
    run = child(parent, tmp_path / "run", kind="project_update", directions="past")
    one = next(m for m in run.table.matrices() if "in_proj" in m.name or "attn" in m.name)
    where = slice(one.start, one.start + one.rows * one.columns)
    known = np.flatnonzero(parent.steps <= 20)
    rows = np.stack([parent.theta(int(i))[where] for i in known])
    weights = np.gradient(parent.steps[known].astype(float))  # time that each snapshot stands for
    centered = rows - np.average(rows, axis=0, weights=weights)
    _, _, expected = np.linalg.svd(np.sqrt(weights)[:, None] * centered, full_matrices=False)
    rows_there = np.abs(basis_of(run, parent)[:, where]).sum(axis=1) > 0
    found = basis_of(run, parent)[rows_there][:, where]
    np.testing.assert_allclose(np.linalg.svd(found @ expected[:2].T)[1], 1, atol=1e-9)


def test_the_gradient_is_projected_before_the_optimizer(parent):
    """By hand: Adam without decay on the projected gradient, from a fresh state."""
    config = replace(
        CONFIG, weight_decay=0.0, intervention={"kind": "project_gradient", "directions": "matched",
        "strength": 0.75, "start": 0},
    )  # fmt: skip
    trainer, plain = Trainer(config), Trainer(replace(config, intervention={}))
    trainer.disturbance, _ = disturbance(config, trainer.table)
    start = flatten(plain.model).clone()
    plain.update()
    gradient = torch.cat([p.grad.reshape(-1) for p in plain.model.parameters()])
    basis = trainer.disturbance.basis
    kept = gradient - 0.75 * (gradient - basis.T @ (basis @ gradient))
    trainer.update()
    # The first step of Adam: lr · g / (|g| + eps).
    expected = start - config.lr * kept / (kept.abs() + config.eps)
    torch.testing.assert_close(flatten(trainer.model), expected, rtol=1e-9, atol=1e-12)
    assert trainer.last_update["intervention_norm"] == pytest.approx(float((kept - gradient).norm()))


@pytest.mark.parametrize("directions", ["trajectory", "matched", "random"])
def test_doses_match(parent, tmp_path, directions):
    shared = {"directions": directions}
    noise = child(parent, tmp_path / "noise", kind="noise", every=5, displacement=0.03, **shared)
    series = noise.metrics["intervention_norm"]
    assert series.step.tolist() == [21, 26, 31, 36]
    np.testing.assert_allclose(series.value, 0.03)
    kick = child(parent, tmp_path / "kick", kind="kick", displacement=0.2, **shared)
    assert kick.metrics["intervention_norm"].step.tolist() == [21]
    free, moved = (run.theta(int(np.searchsorted(run.steps, 22))) for run in (parent, kick))
    assert np.linalg.norm(moved - free) == pytest.approx(0.2, rel=0.2)  # a step later
    long = child(parent, tmp_path / "long", kind="project_update", match_length=True, **shared)
    at = long.metrics["update_norm"].step == 21
    own = parent.metrics["update_norm"].value[parent.metrics["update_norm"].step == 21]
    np.testing.assert_allclose(long.metrics["update_norm"].value[at], own, rtol=1e-9)


def test_a_push_lies_where_it_is_asked_for(parent, tmp_path):
    for k, push in enumerate(("gaussian", "commutator")):
        for part in ("orthogonal", "inside"):
            run = child(parent, tmp_path / f"{k}-{part}", kind="kick", displacement=1e3, push=push, part=part)
            moved = run.theta(int(np.searchsorted(run.steps, 22))) - run.theta(
                int(np.searchsorted(run.steps, 20))
            )
            share = np.linalg.norm(basis_of(run, parent) @ moved) / np.linalg.norm(moved)
            # The push is some thousand times as long as the two steps it is measured over, decay included.
            assert share == pytest.approx(float(part == "inside"), abs=0.02)


def test_a_sham_leaves_every_bit(parent, tmp_path):
    for push in ("gaussian", "commutator"):
        sham = child(parent, tmp_path / push, kind="sham", push=push, every=3)
        assert np.array_equal(final(sham), final(parent))
        assert "intervention_norm" in sham.metrics


def test_a_penalty_pulls_towards_the_manifold(parent, tmp_path):
    options = {"kind": "penalty", "scope": "matrices"}
    weak = child(parent, tmp_path / "weak", strength=0.0, **options)
    strong = child(parent, tmp_path / "strong", strength=100.0, **options)
    found, _ = disturbance(strong.config, strong.table, parent={"path": str(parent.path)})

    def distance(run):
        return float(found.part(torch.from_numpy(final(run)) - found.mean).norm())

    assert distance(strong) < 0.9 * distance(weak)
    np.testing.assert_array_equal(final(weak), final(parent))


def test_frozen_decay_keeps_what_gets_no_gradient(parent, tmp_path):
    options = {"kind": "project_gradient", "directions": "trajectory"}
    decayed = child(parent, tmp_path / "decayed", **options)
    frozen = child(parent, tmp_path / "frozen", freeze_decay=True, **options)
    head = frozen.table.select("head")
    gap = [np.linalg.norm(displacement(run)[head]) for run in (decayed, frozen)]
    # With no gradient only Adam's memory still moves the head; decay takes 20 · lr = 6 % of it.
    assert gap[1] < gap[0]
    theta = frozen.theta(int(np.searchsorted(frozen.steps, 20)))[head]
    shrunk = (1 - CONFIG.lr) ** 20 * theta
    late = displacement(decayed)[head] - displacement(frozen)[head]
    np.testing.assert_allclose(late, shrunk - theta, rtol=0.1, atol=2e-3)


def ended_by(number, at):
    def progress(steps):
        for step in steps:
            if step == at:
                os.kill(os.getpid(), number)
            yield step

    return progress


def test_killed_and_resumed_it_is_the_same(parent, tmp_path):
    options = {"kind": "noise", "every": 3, "displacement": 0.05, "push": "commutator"}
    whole = child(parent, tmp_path / "whole", **options)
    path, changes = tmp_path / "killed", {"intervention": {"start": 20, **options}}
    with pytest.raises(KeyboardInterrupt):
        branch(parent, path, at=20, changes=changes, progress=ended_by(signal.SIGTERM, 25))
    assert Run.open(path).steps[-1] == 24
    for step in (28, 31, 36):
        process = os.fork()
        if process == 0:
            killed = ended_by(signal.SIGKILL, step)
            train(Run.open(path).config, path, commit_bytes=1, progress=killed)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == -signal.SIGKILL
    assert 24 < Run.open(path).steps[-1] < 40
    again = train(Run.open(path).config, path)
    assert again.hash == whole.hash
    assert again.provenance["source"] == {"path": str(parent.path), "hash": parent.hash}


def test_a_branch_killed_before_its_first_commit_begins_where_it_branched(parent, tmp_path):
    def killed(steps):
        for step in steps:
            if step == 25:
                raise MemoryError
            yield step

    path, changes = tmp_path / "killed", {"lr": 1e-4}
    with pytest.raises(MemoryError):
        branch(parent, path, at=20, changes=changes, progress=killed)
    with pytest.raises(ValueError, match="branch it again"):
        train(Run.open(path).config, path)
    whole, again = (branch(parent, tmp_path / name, at=20, changes=changes) for name in ("whole", "killed"))
    assert again.hash == whole.hash


def test_draws_differ(parent, tmp_path):
    options = {"kind": "noise", "displacement": 0.1, "every": 10}
    one, two = (child(parent, tmp_path / str(k), draw=k, **options) for k in range(2))
    assert not np.array_equal(final(one), final(two))


@pytest.mark.parametrize(
    ("table", "complaint"),
    [
        ({"kind": "shove"}, "kind='shove' must be one of"),
        ({"strength": 1.0}, "kind=None must be one of"),
        ({"kind": "kick", "strength": 1.0}, "'strength' is no option of kick"),
        ({"kind": "kick"}, "displacement is missing"),
        ({"kind": "noise", "displacement": 1.0, "every": 0}, "every=0 must be at least 1"),
        ({"kind": "sham", "rank": 1.5}, "rank=1.5 must be of type int"),
        ({"kind": "penalty"}, "penalty needs scope='matrices'"),
        ({"kind": "sham", "start": 40}, "start=40 must be below steps=40"),
        ({"kind": "project_update", "directions": "random", "scope": "matrices"}, "need scope='all'"),
        ({"kind": "project_update", "directions": "circle"}, "directions='circle' must be one of"),
    ],
)
def test_inconsistent_options_are_refused(table, complaint):
    with pytest.raises(ValueError, match=complaint):
        replace(CONFIG, intervention={"start": 5, **table} if "start" not in table else table)


def test_what_a_run_cannot_give_is_refused(parent, tmp_path):
    with pytest.raises(ValueError, match="name one as source, or branch"):
        train(replace(CONFIG, intervention={"kind": "project_update", "start": 5}), tmp_path / "none")
    with pytest.raises(ValueError, match="freeze_decay needs optimizer='adamw'"):
        replace(
            CONFIG, optimizer="sgd",
            intervention={"kind": "project_update", "directions": "matched", "freeze_decay": True},
        )  # fmt: skip
    with pytest.raises(ValueError, match=r"snapshots of .* give no 20 directions"):
        child(parent, tmp_path / "few", kind="project_update", directions="past", rank=20)
    with pytest.raises(ValueError, match="has no weight matrix"):
        child(parent, tmp_path / "bias", kind="project_update", parameters="norm")
    other = train(replace(CONFIG, width=8, steps=4, state_at=()), tmp_path / "other")
    with pytest.raises(ValueError, match="has other parameters"):
        child(parent, tmp_path / "size", kind="project_update", source=str(other.path))


def test_it_is_spelled_as_a_table(tmp_path):
    name, value = parse_assignment('intervention={kind="noise", displacement=1, every=5, start=3}')
    config = from_mapping({name: value}, source="set", base=CONFIG)
    assert intervention_of(config).displacement == 1.0
    (tmp_path / "run.toml").write_text(config.to_toml())
    assert from_toml(tmp_path / "run.toml").intervention == config.intervention
    assert RunConfig.from_json(config.to_json()) == config
    assert intervention_of(CONFIG) is None
