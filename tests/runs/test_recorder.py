"""A loop that is not ours leaves the run that our trainer would have left."""

import copy
import importlib
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
from grokscope import Recorder
from grokscope.geometry.objective import canonical_name, flatten, from_module, parameter_table
from grokscope.runs.config import RunConfig
from grokscope.runs.losses import make_criterion
from grokscope.runs.milestones import milestones
from grokscope.runs.models.model import make_model
from grokscope.runs.optimizers import make_optimizer
from grokscope.runs.rebuild import rebuild
from grokscope.runs.sampler import Sampler
from grokscope.runs.schedule import due_steps
from grokscope.runs.store import Run
from grokscope.runs.tasks.task import make_task
from grokscope.runs.train import train
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.optim.swa_utils import AveragedModel

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
SMALL = RunConfig(
    modulus=7, width=16, heads=2, feedforward=32, batch_size=16, lr=3e-3, steps=40,
    log_every=5, evaluate_every=10, snapshot_every=10, second_moment_every=20,
)  # fmt: skip


def raw_loop(config, path, *, wrap=lambda model: model, stop=None):
    """The steps of `train`, written by somebody who only knows PyTorch and Recorder."""
    task = make_task(config)
    model, criterion = make_model(config, task), make_criterion(config, task)
    optimizer, wrapped = make_optimizer(config, model), wrap(model)
    inputs, targets = task.inputs[task.train], task.targets[task.train]
    sampler = Sampler(len(inputs), config.batch_size, replacement=True, seed=config.batch_seed)
    cadence = {
        "snapshot_every": config.snapshot_every,
        "second_moment_every": config.second_moment_every,
    }
    totals = {"train_total": len(inputs)}
    with Recorder(path, wrapped, optimizer, provenance=totals, **cadence) as recorder:
        recorder.step(0)
        for step in range(1, config.steps + 1):
            batch = sampler.next()
            optimizer.zero_grad()
            loss = criterion(model(inputs[batch]), targets[batch])
            loss.backward()
            optimizer.step()
            right = (model(inputs).argmax(-1) == targets).sum()
            recorder.step(step, {"batch_loss": loss}, train_correct=right)
            if step == stop:
                raise RuntimeError("the user's own mistake")
    return Run.open(path)


def test_a_raw_loop_leaves_the_run_of_the_trainer(tmp_path):
    ours = train(SMALL, tmp_path / "ours")
    run = raw_loop(SMALL, tmp_path / "raw")
    assert run.hash == ours.hash
    assert run.table == ours.table
    assert run.finished
    assert run.config is None
    for name, series in run.metrics.items():
        if name.startswith("squared_norm"):
            theirs = dict(zip(*ours.metrics[name], strict=True))
            both = [(value, theirs[s]) for s, value in zip(*series, strict=True) if s in theirs]
            assert len(both) > 5
            assert all(value == their for value, their in both)
    assert run.second_moment_steps.tolist() == ours.second_moment_steps.tolist()
    for j in range(len(run.second_moment_steps)):
        assert np.array_equal(run.second_moment(j), ours.second_moment(j))
    assert run.metrics["train_correct"].value.dtype == np.int64
    assert len(run.metrics["batch_loss"].step) == SMALL.steps
    assert milestones(run).budget == SMALL.steps


def test_the_user_s_own_loss_is_the_objective(tmp_path):
    run, task = raw_loop(SMALL, tmp_path), make_task(SMALL)
    model = make_model(SMALL, task).eval()
    own = from_module(model, task.inputs[task.train], task.targets[task.train], nn.functional.cross_entropy)
    theta = torch.from_numpy(run.theta(-1))
    ours = rebuild(train(SMALL, tmp_path / "ours"))
    assert own.table == run.table
    assert own.value(theta) == pytest.approx(ours.value(theta), rel=1e-6)  # one float32 mean in two orders


WRAPPERS = {
    "DataParallel": nn.DataParallel,
    "compile": torch.compile,
    "averaged": AveragedModel,
    "checkpointed": checkpoint_wrapper,
    "both": lambda model: nn.DataParallel(torch.compile(model)),
    "inside": lambda model: replaced(model),
}


def replaced(model):
    """One inner module wrapped, as activation checkpointing and partial compilation do."""
    name, child = next((n, c) for n, c in model.named_children() if list(c.parameters()))
    setattr(model, name, checkpoint_wrapper(child))
    return model


@pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS)
def test_names_are_canonical_whatever_wraps_the_model(wrap, tmp_path):
    config = RunConfig(modulus=7, width=16, heads=2, feedforward=32)
    task = make_task(config)
    plain, wrapped = make_model(config, task), wrap(make_model(config, task))
    with Recorder(tmp_path, wrapped) as recorder:
        recorder.step(0)
    assert Run.open(tmp_path).table == parameter_table(plain)
    assert np.array_equal(Run.open(tmp_path).theta(0), flatten(plain).numpy())


def test_names_that_become_one_are_refused():
    model = nn.ParameterDict({"weight": nn.Parameter(torch.zeros(2))})
    model.module = nn.ParameterDict({"weight": nn.Parameter(torch.ones(3))})
    with pytest.raises(ValueError, match="two parameters are called 'weight'"):
        parameter_table(model)
    assert canonical_name("module.module._orig_mod.a._orig_mod.b") == "a.b"
    assert canonical_name("encoder.module.weight") == "encoder.module.weight"


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(5, 3)
        self.norm = nn.BatchNorm1d(3)
        self.head = nn.Linear(3, 5)
        self.head.weight = self.embedding.weight
        self.head.bias.requires_grad_(False)


def test_ties_once_frozen_and_buffers_not(tmp_path):
    with Recorder(tmp_path, Tied()) as recorder:
        recorder.step(0)
    table = Run.open(tmp_path).table
    assert table.names == ("embedding.weight", "norm.weight", "norm.bias")
    assert table.aliases == {"head.weight": "embedding.weight"}


@pytest.mark.parametrize(
    ("dtypes", "stored"),
    [
        ((torch.bfloat16, torch.float16), "float32"),
        ((torch.float32, torch.float32), "float32"),
        ((torch.float16, torch.float64), "float64"),
    ],
)
def test_every_precision_is_kept_exactly(dtypes, stored, tmp_path):
    model = nn.Sequential(*(nn.Linear(3, 2).to(dtype) for dtype in dtypes))
    with Recorder(tmp_path, model) as recorder:
        recorder.step(0)
    run = Run.open(tmp_path)
    assert run.dtype == stored
    kept = run.table.unflatten(torch.from_numpy(run.theta(0)))
    assert all(torch.equal(kept[name].to(p.dtype), p) for name, p in model.named_parameters())


def test_an_error_keeps_what_there_is_and_resume_goes_on(tmp_path):
    whole = raw_loop(SMALL, tmp_path / "whole")
    with pytest.raises(RuntimeError, match="own mistake"):
        raw_loop(SMALL, tmp_path / "run", stop=33)
    broken = Run.open(tmp_path / "run")
    assert not broken.finished
    assert broken.steps.tolist() == sorted({*due_steps(33, 10), *due_steps(33, 20)})
    model = make_model(SMALL, make_task(SMALL))
    with pytest.raises(FileExistsError, match="resume=STEP"):
        Recorder(tmp_path / "run", model)
    rows = dict(zip(whole.steps.tolist(), whole.rows(), strict=True))
    with Recorder(tmp_path / "run", model, snapshot_every=10, resume=16) as recorder:
        assert recorder.last_step == 16
        for step in (20, 30, 40):
            nn.utils.vector_to_parameters(torch.from_numpy(rows[step]), model.parameters())
            recorder.step(step)
    assert Run.open(tmp_path / "run").hash == whole.hash
    with pytest.raises(ValueError, match="other parameters"):
        Recorder(tmp_path / "run", nn.Linear(2, 2), resume=16)


def test_a_snapshot_on_demand(tmp_path):
    model = nn.Linear(2, 2)
    with Recorder(tmp_path, model, snapshot_every=100) as recorder:
        for step in range(90):
            recorder.step(step, snapshot=step == 89)
    assert Run.open(tmp_path).steps.tolist() == [*due_steps(88, 100), 89]


def test_the_optimizer_is_written_down(tmp_path):
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))
    groups = [
        {"params": model[0].parameters(), "weight_decay": 0.5},
        {"params": model[1].parameters(), "lr": 1e-4},
    ]
    with Recorder(tmp_path, model, torch.optim.AdamW(groups, lr=1e-2, weight_decay=0.0)) as recorder:
        recorder.step(0)
    found = Run.open(tmp_path).provenance["optimizer"]
    assert found["name"] == "AdamW"
    assert [(g["lr"], g["weight_decay"]) for g in found["groups"]] == [(1e-2, 0.5), (1e-4, 0.0)]
    assert found["groups"][1]["parameters"] == ["1.weight", "1.bias"]


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda r, m: r.step(0, loss=torch.zeros(3)), r"loss has shape \(3,\)"),
        (lambda r, m: r.step(0, loss="low"), "loss='low' is no number"),
        (lambda r, m: r.step(0, {"train/loss": 1.0}), "train.loss"),
        (lambda r, m: (r.step(5), r.step(5)), "step=5 must exceed"),
        (lambda r, m: r.step(-1), "step=-1"),
        (lambda r, m: r.step(0, test_correct=3), "test_correct counts .*test_total"),
        (lambda r, m: (nn.init.constant_(m.weight, torch.nan), r.step(0)), "NaN or infinite"),
        (lambda r, m: (m.bias.requires_grad_(False), r.step(0)), "other trainable parameters"),
    ],
)
def test_what_is_wrong_is_said(act, message, tmp_path):
    model = nn.Linear(2, 2)
    recorder = Recorder(tmp_path, model)
    with pytest.raises(ValueError, match=message):
        act(recorder, model)
    recorder.close()


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (nn.ReLU(), "nothing to record"),
        (nn.LazyLinear(3), "no values yet"),
        (nn.Linear(2, 2, device="meta"), "no values yet"),
        (nn.Linear(2, 2, dtype=torch.complex64), "only real parameters"),
    ],
)
def test_models_that_can_t_be_recorded(model, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        Recorder(tmp_path / "run", model)
    assert not (tmp_path / "run").exists()


def test_other_ranks_write_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 1)
    with Recorder(tmp_path / "run", nn.Linear(2, 2)) as recorder:
        recorder.step(0, loss=1.0)
        recorder.commit()
    assert not (tmp_path / "run").exists()


def test_recording_leaves_the_user_s_training_alone(tmp_path):
    model = nn.Sequential(nn.Linear(3, 3), nn.Dropout(), nn.BatchNorm1d(3))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(4, 3)).square().sum().backward()
    optimizer.step()
    before = everything(model, optimizer)
    with Recorder(tmp_path, model, optimizer, second_moment_every=1) as recorder:
        for step in range(3):
            recorder.step(step, loss=0.5)
    assert everything(model, optimizer) == before


def everything(model, optimizer):
    """Whatever of the user's could change, as comparable values."""
    tensors = {**model.state_dict(), **{n: p.grad for n, p in model.named_parameters()}}
    return (
        {name: tensor.numpy().tobytes() for name, tensor in tensors.items()},
        [(module.training) for module in model.modules()],
        [p.requires_grad for p in model.parameters()],
        repr(copy.deepcopy(optimizer.state_dict())),
        torch.get_rng_state().numpy().tobytes(),
        np.random.get_state()[1].tobytes(),
        torch.is_grad_enabled(),
    )


def fit(callback, module, *, batches=12, accumulate=2, stop=None):
    """What Lightning's Trainer.fit calls, in its order; steps count optimizer updates."""
    trainer = SimpleNamespace(global_step=0, optimizers=[module.optimizer], callback_metrics={})
    callback.on_train_start(trainer, module)
    try:
        for i in range(batches):
            loss = module.net(torch.ones(1, 2)).square().mean()
            loss.backward()
            if (i + 1) % accumulate == 0:
                module.optimizer.step()
                module.optimizer.zero_grad()
                trainer.global_step += 1
            trainer.callback_metrics = {"train/loss": loss.detach()}
            callback.on_train_batch_end(trainer, module, None, None, i)
            if i == stop:
                raise KeyboardInterrupt
    except BaseException as error:
        callback.on_exception(trainer, module, error)
        raise
    callback.on_train_end(trainer, module)


def test_the_documented_lightning_callback(tmp_path, monkeypatch):
    stub = ModuleType("lightning.pytorch")
    stub.Callback = object
    monkeypatch.setitem(sys.modules, "lightning", ModuleType("lightning"))
    monkeypatch.setitem(sys.modules, "lightning.pytorch", stub)
    monkeypatch.syspath_prepend(EXAMPLES)
    callback = importlib.import_module("lightning_callback").RecordRun
    module = nn.Module()
    module.net = nn.Linear(2, 1)
    module.optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    fit(callback(tmp_path / "whole"), module)
    run = Run.open(tmp_path / "whole")
    assert run.steps.tolist() == list(range(7))
    assert run.metrics["train.loss"].step.tolist() == list(range(1, 7))
    assert run.table.names == ("net.weight", "net.bias")
    assert run.finished
    with pytest.raises(KeyboardInterrupt):
        fit(callback(tmp_path / "broken"), module, stop=5)
    assert Run.open(tmp_path / "broken").steps.tolist() == [0, 1, 2, 3]
    assert not Run.open(tmp_path / "broken").finished
