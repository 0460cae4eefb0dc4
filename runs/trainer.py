"""The state of one training run: update it by a step, record it, save it, load it."""

from __future__ import annotations

import io
from collections.abc import Iterable
from functools import cached_property
from math import isfinite
from typing import Any

import torch
from torch import Tensor

from ..geometry.objective import Objective, flatten, from_module, load_flat, parameter_table
from . import safe_load
from .config import RunConfig
from .evaluation import Metrics, evaluate, norms, root_second_moments, second_moment
from .interventions import Disturbance
from .losses import make_criterion
from .milestones import MilestoneMonitor
from .models.model import make_model
from .optimizers import adapt_embedding_lr, make_optimizer
from .prediction import Decision, DelayMonitor, decide
from .sampler import Sampler
from .schedule import is_due
from .store import RunWriter
from .tasks.task import make_task


class Diverged(RuntimeError):
    """The loss or the parameters stopped being finite; everything up to that step is in the run."""


class Trainer:
    """Model, optimizer, minibatch stream and milestones of one run, at `step` updates."""

    def __init__(self, config: RunConfig, *, trust: bool = False) -> None:
        self.config = config
        task = make_task(config, trust=trust)
        self.inputs, self.targets = task.inputs[task.train], task.targets[task.train]
        held_out = (task.inputs[task.test], task.targets[task.test])
        self.splits = {"train": (self.inputs, self.targets), "test": held_out}
        self.heads = task.heads
        self.model = make_model(config, task, trust=trust)
        self.table = parameter_table(self.model)
        self.optimizer = make_optimizer(config, self.model)
        self.criterion = make_criterion(config, task)
        self.sampler = Sampler(
            len(self.inputs), config.batch_size, replacement=config.replacement, seed=config.batch_seed
        )
        self.monitor = MilestoneMonitor(*self.totals.values())
        self.step = 0
        self.disturbance: Disturbance | None = None
        self.last_update: Metrics = {}
        self.decision: Decision | None = None

    @cached_property
    def _objective(self) -> Objective:
        return from_module(self.model, self.inputs, self.targets, self.criterion)

    @property
    def totals(self) -> dict[str, int]:
        """Numbers of samples that the counts of right answers refer to."""
        return {f"{split}_total": len(inputs) for split, (inputs, _) in self.splits.items()}

    @property
    def theta(self) -> Tensor:
        """A copy (P,) of the current parameters."""
        return flatten(self.model)

    def update(self) -> None:
        """One optimizer step on the next minibatch.

        Raises:
            Diverged: the minibatch loss is not finite; the parameters are those before the step.
        """
        batch = self.sampler.next()
        self.model.train()
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.criterion(self.model(self.inputs[batch]), self.targets[batch])
        if not isfinite(float(loss.detach())):
            raise Diverged(f"the minibatch loss is {float(loss.detach())} after {self.step} steps; lower lr")
        torch.autograd.backward(loss)
        logging = is_due(self.step + 1, self.config.log_every)
        gradient_norm = self._clip() if logging or self.config.clip is not None else 0.0
        before = self.theta if logging else None
        self._adapt()
        self.last_update = self._step(logging=logging)
        self.step += 1
        if before is not None:
            moved = float(torch.linalg.vector_norm(self.theta - before))
            self.last_update |= {"gradient_norm": gradient_norm, "update_norm": moved}

    def record(self, writer: RunWriter) -> None:
        """Write what is due of the current parameters: norms, evaluation, snapshot, second moment, state.

        Raises:
            Diverged: the parameters are not finite; nothing of this step is written.
        """
        config, step = self.config, self.step
        last = step == config.steps or self.done()
        evaluated = last or is_due(step, config.evaluate_every)
        if evaluated:
            self._evaluate(writer)
        last = last or self.done()
        snapshot = last or is_due(step, config.snapshot_every)
        moments = config.second_moment_every and (last or is_due(step, config.second_moment_every))
        logged = evaluated or last or is_due(step, config.log_every) or bool(self.last_update)
        if not (snapshot or moments or logged):
            return
        theta = self.theta
        if not bool(torch.isfinite(theta).all()):
            raise Diverged(f"parameters became infinite or NaN at step {step}; lower lr")
        if logged:
            writer.log(step, norms(theta, self.table) | self.last_update)
            self.consider(writer)
        snapshot = snapshot or self.done()
        if snapshot or moments:
            second = second_moment(self.model, self.optimizer) if moments else None
            writer.append(
                step, theta.cpu().numpy(), second_moment=None if second is None else second.cpu().numpy()
            )

    def keep_due(self) -> bool:
        """Whether `state_at` asks for the full state at the current step."""
        memorized = self.monitor.current.memorized
        confirmed_now = memorized is not None and memorized.confirmed == self.step
        return self.step in self.config.state_at or ("memorized" in self.config.state_at and confirmed_now)

    def done(self) -> bool:
        """Whether the configured distance past generalization is reached, or it is predicted too late."""
        if self.decision is not None and self.decision.stop:
            return True
        last = self.monitor.current.last_step(self.config.stop_after_generalization)
        return last is not None and self.step >= last

    def consider(self, writer: RunWriter) -> None:
        """Decide, once memorization is confirmed, whether to stop because of `stop_if_predicted_after`.

        The forecast sees what was logged until then and no test metric; the decision is kept in `decision`
        and, as `predicted_generalization`, among the metrics.
        """
        limit, memorized = self.config.stop_if_predicted_after, self.monitor.current.memorized
        if limit is None or memorized is None or self.decision is not None:
            return
        monitor = DelayMonitor.of(
            self.config,
            train_total=self.totals["train_total"],
            test_total=self.totals["test_total"],
            parameters=self.table.size,
        )
        prediction = monitor.replay(writer.metrics)
        self.decision = decide(prediction, stop_if_predicted_after=limit)
        expected = prediction.predicted_generalization
        if expected is not None and "predicted_generalization" not in writer.metrics:
            writer.log(self.step, {"predicted_generalization": expected})

    def state(self) -> bytes:
        """Everything that `load` needs to continue bit for bit, readable with weights_only=True."""
        content = {
            "step": self.step,
            "theta": self.theta,
            "optimizer": self.optimizer.state_dict(),
            "sampler": self.sampler.state(),
        }
        buffer = io.BytesIO()
        torch.save(content, buffer)
        return buffer.getvalue()

    def load(
        self, state: bytes, evaluations: Iterable[tuple[int, int, int]], *, batches: bool = True
    ) -> None:
        """Continue from `state`; `evaluations` (step, train_correct, test_correct) restore the milestones.

        With `batches=False` the minibatch stream stays that of the configuration, as in a branch with
        another `batch_seed`.

        Raises:
            ValueError: `state` holds what could run code, or not what a trainer of this configuration needs.
        """
        content: dict[str, Any] = safe_load.load(state, "the state of the run")
        try:
            load_flat(self.model, content["theta"])
            self.optimizer.load_state_dict(content["optimizer"])
            if batches:
                self.sampler.load(content["sampler"])
            self.step = int(content["step"])
        except (KeyError, TypeError, AttributeError, RuntimeError) as error:
            raise ValueError(f"the state of the run is not one of this trainer: {error!r}") from error
        for step, train_correct, test_correct in evaluations:
            self.monitor.update(step, train_correct, test_correct)

    def _evaluate(self, writer: RunWriter) -> None:
        self.model.eval()
        found = evaluate(self.model, self.criterion, self.splits, heads=self.heads)
        writer.log(self.step, found | root_second_moments(self.optimizer))
        self.monitor.update(self.step, int(found["train_correct"]), int(found["test_correct"]))

    def _clip(self) -> float:
        bound = float("inf") if self.config.clip is None else self.config.clip
        return float(torch.nn.utils.clip_grad_norm_(self.model.parameters(), bound))

    def _step(self, *, logging: bool) -> Metrics:
        """The optimizer's step, intervened upon where asked for; every rare intervention is logged."""
        if self.disturbance is None:
            self.optimizer.step()
            return {}
        length = self.disturbance.step(self.model, self.optimizer, self._objective, at=self.step)
        shown = length is not None and (logging or self.disturbance.rare)
        return {"intervention_norm": length} if shown and length is not None else {}

    def _adapt(self) -> None:
        every = self.config.adaptive_embedding_lr
        if every and self.step % every == 0:
            adapt_embedding_lr(self.config, self.model, self.optimizer)
