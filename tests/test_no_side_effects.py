"""Asking changes nothing: model, mode, gradients, flags, random states and the run stay byte for byte."""

import gc
import inspect
import random
import warnings
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch
from grokscope.analysis.objectives import aligned
from grokscope.geometry.objective import from_module
from grokscope.runs.config import RunConfig
from grokscope.runs.models.model import make_model
from grokscope.runs.store import Run
from grokscope.runs.tasks.task import make_task
from grokscope.runs.train import train
from grokscope.runs.verify import verify
from torch import nn

CONFIG = RunConfig(
    modulus=5, width=16, heads=2, feedforward=16, steps=200, lr=1e-2, weight_decay=0.1, log_every=5,
    evaluate_every=10, snapshot_every=10, second_moment_every=20,
)  # fmt: skip
ANALYSIS = Path(import_module("grokscope.analysis.result").__file__).parent
# Options that keep an analysis short; what it finds is tested elsewhere.
FAST = {
    "commutator_along": {"pairs": 2, "split_pairs": 1, "rank": 2, "singular": 1},
    "spectrum_along": {"density_nodes": 4},
    "trajectory_along": {"rank": 2},
    "surface_along": {"size": 4, "points": 4},
    "llc_along": {"num_draws": 20, "burn_in": 5, "num_chains": 2},
}
OVER_ALL_SAMPLES = {"progress_along"}  # the others are asked about the training samples


def analyses():
    """Every public `*_along` function of the analysis package."""
    for file in sorted(ANALYSIS.glob("*.py")):
        module = import_module(f"grokscope.analysis.{file.stem}")
        for name, function in inspect.getmembers(module, inspect.isfunction):
            if name.endswith("_along") and name[0] != "_" and function.__module__ == module.__name__:
                yield function


ALL = {function.__name__: function for function in analyses()}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return train(CONFIG, tmp_path_factory.mktemp("run") / "run").path


class Users(nn.Module):
    """The trained model inside the user's own, with everything that could be disturbed."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner
        self.norm = nn.BatchNorm1d(CONFIG.modulus, affine=False)
        self.dropout = nn.Dropout(0.5)
        self.frozen = nn.Linear(2, 2)
        self.frozen.requires_grad_(False)

    def forward(self, x):
        return self.dropout(self.norm(self.inner(x)))


@pytest.fixture
def users(path, request):
    """(model, objective, run) with gradients, a frozen part and moved running means."""
    task = make_task(CONFIG)
    model = Users(make_model(CONFIG, task))
    name = getattr(request.node, "callspec", None) and request.node.callspec.params["name"]
    samples = slice(None) if name in OVER_ALL_SAMPLES else task.train
    inputs, targets = task.inputs[samples], task.targets[samples]
    nn.functional.cross_entropy(model(inputs), targets).backward()
    model.inner.train(), model.norm.eval(), model.dropout.eval()
    run = Run.open(path)
    objective = from_module(model, inputs, targets, nn.functional.cross_entropy)
    names = tuple(name.removeprefix("inner.") for name in objective.table.names)
    objective = replace(objective, table=replace(objective.table, names=names, aliases=run.table.aliases))
    return model, aligned(objective, run.table), run


def everything(model, run):
    """Whatever of the user's could change, by name."""
    tensors = {**model.state_dict(), **{f"grad of {n}": p.grad for n, p in model.named_parameters()}}
    found = {n: None if t is None else t.detach().numpy().tobytes() for n, t in tensors.items()}
    found |= {f"address of {n}": p.data_ptr() for n, p in model.named_parameters()}
    found |= {f"mode of {n}": m.training for n, m in model.named_modules()}
    found |= {f"flag of {n}": p.requires_grad for n, p in model.named_parameters()}
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_buffers", "_parameters")
    found |= {f"{k} of {n}": len(getattr(m, k)) for n, m in model.named_modules() for k in hooks}
    return found | {
        "torch random state": torch.get_rng_state().numpy().tobytes(),
        "NumPy random state": repr(np.random.get_state()),
        "Python random state": random.getstate(),
        "gradients on": torch.is_grad_enabled(),
        "inference mode": torch.is_inference_mode_enabled(),
        "default dtype": torch.get_default_dtype(),
        "threads": torch.get_num_threads(),
        "determinism": torch.are_deterministic_algorithms_enabled(),
        "attention": (torch.backends.cuda.flash_sdp_enabled(), torch.backends.cuda.math_sdp_enabled()),
        "NumPy errors": np.geterr(),
        "warning filters": list(warnings.filters),
        "snapshots": run.hash,
        "index": (Path(run.path) / "run.h5").read_bytes(),
    }


def ask(function, run, objective, folder):
    known = inspect.signature(function).parameters
    options = {"objective": objective, "snapshots": [0, len(run) // 2, len(run) - 1], "directory": folder}
    options = {name: value for name, value in options.items() if name in known}
    try:
        return function(run, **options, **FAST.get(function.__name__, {}))
    except FileNotFoundError as error:
        pytest.skip(f"{function.__name__} needs {Path(error.filename).name}, which is not there")


@pytest.mark.parametrize("name", ALL)
def test_an_analysis_changes_nothing(name, users, tmp_path):
    model, objective, run = users
    before = everything(model, run)
    ask(ALL[name], run, objective, tmp_path)
    gc.collect()
    after = everything(model, run)
    assert [part for part in before if before[part] != after[part]] == []
    assert verify(run).ok


@pytest.mark.parametrize("name", ALL)
def test_nor_does_one_that_refuses_a_random_loss(name, users, tmp_path):
    """In training mode dropout makes the loss random: refused or not, nothing moves but the numbers drawn."""
    model, objective, run = users
    model.train()
    before = everything(model, run)
    try:
        ask(ALL[name], run, objective, tmp_path)
    except (ValueError, RuntimeError) as error:  # of ours, or of torch about its own layers
        assert str(error)
    after = everything(model, run)
    moved = {part for part in before if before[part] != after[part]}
    assert moved <= {"torch random state"}  # dropout itself draws there


def test_all_analyses_are_found():
    assert {"trajectory_along", "commutator_along"} <= set(ALL)


def test_a_change_would_be_noticed(users):
    model, _, run = users
    changes = (
        lambda: torch.rand(1),
        lambda: np.random.rand(),
        lambda: random.random(),
        lambda: model.norm.running_mean.add_(1),
        lambda: model.inner.eval(),
        lambda: model.zero_grad(),
        lambda: model.frozen.requires_grad_(True),
        lambda: model.register_forward_hook(lambda *_: None),
    )
    for change in changes:
        before = everything(model, run)
        change()
        assert everything(model, run) != before
