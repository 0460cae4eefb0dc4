"""The examples of the documentation train, are recorded, and can be analyzed with their own loss."""

import importlib
import inspect
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from grokscope.analysis.commands.main import ANALYSES, available, main
from grokscope.analysis.objectives import aligned, load_objective
from grokscope.geometry.objective import from_module, gradient
from grokscope.runs.checkpoints import import_checkpoints
from grokscope.runs.milestones import milestones
from grokscope.runs.store import Run
from safetensors.torch import save_file
from torch import nn

EXAMPLES = Path(__file__).parents[1] / "docs" / "examples"


@pytest.fixture(params=["digits", "python_text"])
def example(request, tmp_path, monkeypatch):
    """(module, its run)"""
    monkeypatch.syspath_prepend(EXAMPLES)
    monkeypatch.chdir(tmp_path)
    module = importlib.import_module(request.param)
    module.train(tmp_path / "run", steps=20)
    return module, Run.open(tmp_path / "run")


def test_the_objective_is_the_loss_that_was_trained(example):
    module, run = example
    objective = load_objective(f"{module.__name__}:objective", run)
    first, last = (objective.value(torch.from_numpy(run.theta(i))) for i in (0, -1))
    assert last < first
    assert objective.table == run.table
    if "train_loss" in run.metrics:  # the same mean in another order of summation
        assert run.metrics["train_loss"].value[[0, -1]] == pytest.approx([first, last], rel=1e-5)
        assert milestones(run).budget == 20


def test_every_analysis_takes_the_user_s_loss(example, capsys, monkeypatch):
    module, run = example
    if module.__name__ == "python_text":  # each of its samples is 32 letters
        monkeypatch.setattr(module, "samples", partial(module.samples, 8))
    for name in available(ANALYSES):
        command = importlib.import_module(f"grokscope.analysis.commands.{name}").command
        if "objective" not in inspect.signature(command).parameters:
            continue
        words = ["analyze", name, str(run.path), "--objective", f"{module.__name__}:objective", "--json"]
        assert main([*words, *FAST.get(name, "").split()]) == 0, capsys.readouterr().err
    assert main(["analyze", "trajectory", str(run.path)]) == 0


# Options that keep an analysis short; what it finds is tested elsewhere.
FAST = {
    "commutator": "--snapshots 2 --pairs 2 --split-pairs 1 --rank 2 --singular 1 --jobs 1",
    "llc": "--snapshots 2 --num-draws 10 --burn-in 5 --max-gradients 60 --without-scaled --jobs 1",
    "spectrum": "--snapshots 2 --max-matvecs 4 --density-nodes 3 --density-probes 1 --matrices *.bias "
    "--jobs 1",
    "surface": "--size 3 --points 3 --snapshots 2",
}


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.second, self.first = nn.Linear(3, 2), nn.Linear(4, 3)
        self.last = nn.Linear(3, 2, bias=False)
        self.last.weight = self.second.weight

    def forward(self, x):
        h = torch.tanh(self.first(x))
        return self.second(h) * self.last(h)


def test_an_imported_run_of_another_order_has_the_same_loss(tmp_path):
    """safetensors sorts its names, and keeps one of two tied tensors, perhaps under the other name."""
    torch.manual_seed(0)
    model = Two()
    inputs, targets = torch.randn(10, 4), torch.randn(10, 2)
    own = from_module(model, inputs, targets, nn.functional.mse_loss)
    state = {n: t for n, t in model.state_dict().items() if n != "second.weight"}
    (tmp_path / "in").mkdir()
    save_file(state, tmp_path / "in" / "1.safetensors")
    import_checkpoints(tmp_path / "in", tmp_path / "run")
    run = Run.open(tmp_path / "run")
    assert run.table.names != own.table.names
    found = aligned(own, run.table)
    theta = torch.from_numpy(run.theta(0))
    flat = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    assert found.value(theta) == own.value(flat)
    named = run.table.unflatten(gradient(found.full, theta))
    theirs = own.table.unflatten(gradient(own.full, flat))
    assert torch.equal(named["last.weight"], theirs["second.weight"])
    assert torch.equal(named["first.bias"], theirs["first.bias"])
    assert torch.equal(found.outputs(theta, torch.arange(3)), model(inputs[:3]))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def f(): return 3", "returned int; return an Objective"),
        ("g = 3", "has no function 'f'"),
        ("import nothing_of_the_kind", "can't be imported"),
        ("def f(run): return objective(nn.Linear(1, 3))", "bias has shape|weight has shape"),
        ("def f(run): return objective(nn.Sequential(nn.Linear(2, 2)))", "0.weight is not in the run"),
        ("def f(run): return objective(nn.Linear(2, 2, bias=False))", "lacks bias"),
    ],
)
def test_an_objective_that_does_not_fit_is_refused(tmp_path, monkeypatch, text, message):
    (tmp_path / "in").mkdir()
    torch.save(nn.Linear(2, 2).state_dict(), tmp_path / "in" / "1.pt")
    import_checkpoints(tmp_path / "in", tmp_path / "run")
    head = (
        "import torch\nfrom torch import nn\nfrom grokscope.geometry.objective import from_module\n"
        "def objective(m):\n"
        "    return from_module(m, torch.zeros(2, 2), torch.zeros(2), nn.functional.mse_loss)\n"
    )
    (tmp_path / "mine.py").write_text(head + text + "\n")
    refused(tmp_path, monkeypatch, message)


def refused(folder, monkeypatch, message):
    monkeypatch.chdir(folder)
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    with pytest.raises(ValueError, match=message):
        load_objective("mine:f", Run.open(folder / "run"))
    sys.modules.pop("mine", None)


NET = """
import torch
from torch import nn
from grokscope.geometry.objective import Objective, from_module
def net(last):
    return nn.Sequential(nn.Linear(3, 4), last, nn.Linear(4, 2))
def f(last, loss=nn.functional.cross_entropy, kind=torch.float32):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(20, 3, generator=generator, dtype=kind)
    return from_module(net(last), x, x[:, 0].gt(0).long(), loss)
"""


@pytest.mark.parametrize(
    ("last", "message"),
    [
        ("nn.BatchNorm1d(4, affine=False)", "mean over its halves .*batch normalization in training mode"),
        ("nn.Dropout(0.5)", r"is random: .*; call the model's eval\(\)"),
        ("nn.ReLU(), nn.CrossEntropyLoss(reduction='sum')", "mean over its halves .* averages"),
        ("nn.ReLU(), nn.CrossEntropyLoss(reduction='none')", r"has shape \(20,\); return one finite number"),
        ("nn.ReLU(), lambda outputs, targets: outputs.sum() / 0", "has value -?inf|has value nan"),
        ("nn.ReLU(), nn.MSELoss()", "can't be taken: RuntimeError: .*size"),
        ("nn.ReLU(), kind=torch.float64", "can't be taken: RuntimeError: .*dtype"),
    ],
)
def test_an_objective_that_is_no_mean_over_samples_is_refused(tmp_path, monkeypatch, last, message):
    (tmp_path / "in").mkdir()
    torch.manual_seed(0)
    state = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).state_dict()
    torch.save(state, tmp_path / "in" / "1.pt")
    import_checkpoints(tmp_path / "in", tmp_path / "run")
    (tmp_path / "mine.py").write_text(NET + f"_f = f\ndef f(): return _f({last})\n")
    refused(tmp_path, monkeypatch, message)


def test_loading_an_objective_draws_no_numbers(example):
    module, run = example
    before = torch.get_rng_state(), np.random.get_state()[1].copy()
    load_objective(f"{module.__name__}:objective", run)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.array_equal(np.random.get_state()[1], before[1])


TASK = """
import torch
def pairs(config):
    x = torch.cartesian_prod(torch.arange(5), torch.arange(5))
    return x, (x[:, 0] + 2 * x[:, 1]) % 5
"""


def test_a_run_of_one_s_own_task_is_analyzed_with_permission_only(tmp_path, monkeypatch, capsys):
    (tmp_path / "own_task.py").write_text(TASK)
    monkeypatch.chdir(tmp_path)
    small = "--steps 20 --width 8 --heads 2 --feedforward 8 --batch-size 4 --quiet"
    assert main(f"train --task own_task:pairs --out run {small}".split()) == 0
    words = ["analyze", "surface", "run", "--size", "2", "--points", "2", "--snapshots", "2", "--quiet"]
    assert main(words) == 2
    assert "--trust-run" in capsys.readouterr().err
    assert main([*words, "--trust-run"]) == 0
    assert main(words) == 2  # the permission went with the command
