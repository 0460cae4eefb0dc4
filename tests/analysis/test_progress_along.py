import json
from dataclasses import fields, replace
from math import log

import numpy as np
import pytest
import torch
from grokscope.analysis.commands.main import main
from grokscope.analysis.figures import progress as figures
from grokscope.analysis.figures.style import paper
from grokscope.analysis.findings import findings
from grokscope.analysis.pairs import all_pairs
from grokscope.analysis.progress import ProgressCurve, Question, progress_along, violation
from grokscope.analysis.result import load
from grokscope.geometry.objective import Objective
from grokscope.runs.config import RunConfig
from grokscope.runs.milestones import milestones
from grokscope.runs.rebuild import rebuild
from grokscope.runs.store import Run
from grokscope.runs.tasks.task import make_task
from scipy.special import logsumexp
from tiny_run import tiny

P = 7
CONFIG = RunConfig(modulus=P, train_fraction=0.6)
WEIGHTS = {1: 3.0, 3: 1.0}


def fixed(config, logits):
    """An objective whose outputs are the given logits (N, C) whatever theta is."""
    targets = make_task(replace(config, label_noise=0.0)).targets
    table = torch.from_numpy(np.asarray(logits, dtype=np.float64))

    def criterion(outputs, indices):
        return torch.nn.functional.cross_entropy(outputs, targets[indices])

    return Objective(
        lambda theta, indices: criterion(table[indices], indices),
        len(targets),
        outputs=lambda theta, indices: table[indices],
        criterion=criterion,
    )


def measured(config, logits, keys):
    question = Question(fixed(config, logits), all_pairs(config), np.array(keys))
    return question(0, np.zeros(1), None)


def circuit(t, order, weights):
    """L_c = Σ_k w_k cos(2πk(t − c)/m): a wave of the answer with the right phase for each class."""
    return sum(
        w * np.cos(2 * np.pi * k * (t[:, None] - np.arange(order)) / order) for k, w in weights.items()
    )


def closed_form(order, weights):
    """Cross-entropy of `circuit`: ln Σ_d exp Σ_k w_k cos(2πkd/m) − Σ_k w_k, the same for all pairs."""
    d = np.arange(order)
    return logsumexp(sum(w * np.cos(2 * np.pi * k * d / order) for k, w in weights.items())) - sum(
        weights.values()
    )


class TestAgainstClosedForms:
    def logits(self, config=CONFIG):
        return circuit(all_pairs(config).answers, P, WEIGHTS)

    @pytest.mark.parametrize("task", ["add", "sub"])
    def test_restricted_and_excluded_loss(self, task):
        config = replace(CONFIG, task=task)
        found = measured(config, self.logits(config), [1])
        assert found["test_loss"] == pytest.approx(closed_form(P, WEIGHTS), rel=1e-12)
        assert found["restricted_loss"] == pytest.approx(closed_form(P, {1: 3.0}), rel=1e-12)
        assert found["excluded_loss"] == pytest.approx(closed_form(P, {3: 1.0}), rel=1e-12)

    def test_shares_and_participation(self):
        found = measured(CONFIG, self.logits(), [1])
        # Power is in proportion to w²: 9 and 1.
        np.testing.assert_allclose(found["shares"], [0.9, 0, 0.1], atol=1e-12)
        assert found["key_share"] == pytest.approx(0.9)
        assert found["wave_share"] == pytest.approx(1)
        assert found["participation"] == pytest.approx((81 + 1) / 100)

    def test_memorized_logits_are_left_alone(self):
        """Logits that vary by pair around a circuit: taking the circuit out leaves the rest exactly."""
        noise = np.random.default_rng(0).normal(size=(P * P, P))
        pairs = all_pairs(CONFIG)
        for t in range(P):  # no part of it is a function of the answer
            noise[pairs.answers == t] -= noise[pairs.answers == t].mean(axis=0)
        found = measured(CONFIG, self.logits() + noise, [1, 3])
        assert found["restricted_loss"] == pytest.approx(closed_form(P, WEIGHTS), rel=1e-12)
        alone = measured(CONFIG, noise, [1, 3])
        assert found["excluded_loss"] == pytest.approx(alone["train_loss"], rel=1e-12)
        centered = noise - noise.mean(axis=1, keepdims=True)
        circuit_power = P**3 * sum(w**2 for w in WEIGHTS.values()) / 2
        expected = circuit_power / (circuit_power + (centered**2).sum())
        assert found["key_share"] == pytest.approx(expected, rel=1e-12)

    def test_a_shift_of_all_logits_of_a_pair_has_no_power(self):
        shift = np.random.default_rng(0).normal(size=(P * P, 1))
        found, plain = (measured(CONFIG, self.logits() + s, [1]) for s in (10 * shift, 0))
        for name in ("key_share", "wave_share", "participation", "test_loss", "commutativity"):
            assert found[name] == pytest.approx(plain[name], abs=1e-9)

    def test_constant_logits(self):
        found = measured(CONFIG, np.zeros((P * P, P)), [1])
        assert found["restricted_loss"] == pytest.approx(log(P))
        assert found["excluded_loss"] == pytest.approx(log(P))
        assert found["commutativity"] == 0
        assert np.isnan(found["key_share"])

    @pytest.mark.parametrize("task", ["mul", "div"])
    def test_products_use_logarithms(self, task):
        config = replace(CONFIG, task=task)
        pairs = all_pairs(config)
        inside = pairs.answers >= 0
        logits = np.zeros((len(inside), P))
        logits[:, 1:] = circuit(pairs.answers, P - 1, {2: 3.0})
        found = measured(config, logits * inside[:, None], [2])
        assert pairs.order == P - 1
        assert found["key_share"] == pytest.approx(1)
        assert inside.sum() == (P - 1) ** 2


def test_random_logits_have_the_share_of_chance():
    config = replace(CONFIG, modulus=31)
    logits = np.random.default_rng(0).normal(size=(31 * 31, 31))
    found = measured(config, logits, [1, 2, 3])
    # Of 960 directions 6 are taken; the share over 30 classes has a relative sd of (2/(6 * 30))^.5 = .105.
    assert found["key_share"] == pytest.approx(6 / 960, rel=0.45)


class TestCommutativity:
    def test_violation_is_the_symmetric_divergence(self):
        rng = np.random.default_rng(0)
        p, q = (rng.dirichlet(np.ones(4), size=3) for _ in range(2))
        both = (p * np.log(p / q)).sum(1) / 2 + (q * np.log(q / p)).sum(1) / 2
        assert violation(np.log(p), np.log(q)) == pytest.approx(both.mean())
        assert np.isnan(violation(np.empty((0, 4)), np.empty((0, 4))))

    def test_symmetric_logits_have_none(self):
        pairs = all_pairs(CONFIG)
        logits = np.random.default_rng(0).normal(size=(P * P, P))
        found = measured(CONFIG, logits + logits[pairs.mirror], [1])
        assert found["commutativity_all"] == pytest.approx(0, abs=1e-12)

    def test_only_pairs_with_an_unseen_transpose_count(self):
        """Logits that differ from their transposes where both are trained on, and nowhere else."""
        pairs = all_pairs(CONFIG)
        both = pairs.train & pairs.train[pairs.mirror] & (pairs.mirror > np.arange(P * P))
        logits = np.zeros((P * P, P))
        logits[both, 0] = 5.0
        found = measured(CONFIG, logits, [1])
        assert found["commutativity"] == found["commutativity_unseen"] == 0
        assert found["commutativity_all"] > 0

    def test_pairs_are_sorted_by_what_was_trained_on(self):
        pairs = all_pairs(CONFIG)
        first, second = pairs.transposed
        assert pairs.train[first].all()
        assert not pairs.train[second].any()
        assert not pairs.train[pairs.mirror[pairs.unseen]].any()
        task = make_task(CONFIG)
        a, b = task.inputs.T.numpy()
        np.testing.assert_array_equal(a[pairs.mirror], b)
        np.testing.assert_array_equal(pairs.answers, (a + b) % P)

    def test_tasks_without_a_group_keep_it(self):
        found = measured(replace(CONFIG, task="x2_y2"), np.zeros((P * P, P)), [])
        assert found["commutativity"] == 0
        assert np.isnan(found["restricted_loss"])

    def test_subtraction_has_none(self):
        found = measured(replace(CONFIG, task="sub"), np.zeros((P * P, P)), [1])
        assert np.isnan(found["commutativity_all"])


def test_other_tasks_are_refused():
    with pytest.raises(ValueError, match=r"task='x3_xy' has no progress measures; they exist for add, sub"):
        all_pairs(replace(CONFIG, task="x3_xy"))


def test_along_a_run():
    run = Run.open(tiny())
    curve = progress_along(run, directory=tiny())
    train, test = (rebuild(run, split) for split in ("train", "test"))
    for row, index in ((0, 0), (-1, len(run.steps) - 1)):
        theta = torch.from_numpy(run.theta(index))
        # The run's own losses, in float32.
        assert curve.train_loss[row] == pytest.approx(train.value(theta), rel=1e-5)
        assert curve.test_loss[row] == pytest.approx(test.value(theta), rel=1e-5)
    story = {finding.topic: finding for finding in findings(run, {"progress": curve})}
    assert f"{100 * curve.key_share[-1]:.0f} % of the logits' power" in story["Circuit"].text
    assert curve.order == P
    assert curve.shares.shape == (len(curve.steps), P // 2)
    np.testing.assert_allclose(curve.shares.sum(1), curve.wave_share, rtol=1e-9)


def test_command_and_figure(tmp_path, capsys):
    path = tiny()
    assert main(["analyze", "progress", str(path), "--snapshots", "3", "--out", str(tmp_path), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert set(shown) == {field.name for field in fields(ProgressCurve)}
    run = Run.open(path)
    curve = load(ProgressCurve, run, directory=tmp_path)
    assert shown["steps"] == curve.steps.tolist()
    with paper("single"):
        assert len(figures.draw(run, curve)["progress"].axes) == 3
    assert milestones(run).budget == curve.steps[-1]


def test_what_does_not_apply_is_no_failure(tmp_path, monkeypatch, capsys):
    from grokscope.analysis.commands import all as every

    path = tmp_path / "run"
    words = "--task x3_xy --modulus 5 --steps 4 --width 8 --heads 1 --feedforward 8 --quiet"
    assert main(["train", "--out", str(path), *words.split()]) == 0
    monkeypatch.setattr(every, "ANALYSES", {"progress": "", "weights": "", "all": ""})
    assert main(["analyze", "all", str(path)]) == 0
    assert "== progress" not in capsys.readouterr().out


def test_processes_change_nothing(tmp_path):
    run = Run.open(tiny())
    one, two = (progress_along(run, snapshots=[0, 5, 9], jobs=jobs, directory=tmp_path) for jobs in (1, 2))
    for field in fields(ProgressCurve):
        np.testing.assert_array_equal(getattr(one, field.name), getattr(two, field.name))
