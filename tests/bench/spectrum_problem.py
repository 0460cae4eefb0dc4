"""The run of the spectrum rows: two pre-norm layers, 290,401 parameters, as in Xu 2026 (2602.16746)."""

from pathlib import Path

import torch
from grokscope.geometry.objective import from_module, load_flat
from grokscope.runs.config import RunConfig
from grokscope.runs.losses import make_criterion
from grokscope.runs.milestones import milestones
from grokscope.runs.models.model import make_model
from grokscope.runs.store import Run
from grokscope.runs.tasks.task import make_task
from grokscope.runs.train import train

HOME = Path("out/bench/spectrum")  # trained once, minutes
SAMPLES = 2048
APART = 20  # steps between successive snapshots
CONFIG = RunConfig(
    layers=2,
    feedforward=256,
    model_options={"norm_first": True, "readout": "first", "position_std": 128**-0.5},
    betas=(0.9, 0.98),
    clip=1.0,
    seed=42,
    steps=8000,
    stop_after_generalization=200,
    snapshot_every=APART,
    second_moment_every=0,
)


def the_run() -> Run:
    try:
        found = Run.open(HOME)
    except ValueError:
        found = None
    return found if found is not None and found.finished else train(CONFIG, HOME)


def problem(dtype=torch.float32):
    """Model, data and criterion on the first 2,048 training samples, and the objective made of them."""
    task = make_task(CONFIG)
    model = make_model(CONFIG, task).to(dtype).eval()
    chosen = task.train[:SAMPLES]
    inputs, targets, criterion = task.inputs[chosen], task.targets[chosen], make_criterion(CONFIG, task)
    return model, inputs, targets, criterion, from_module(model, inputs, targets, criterion)


def places(run):
    """Indices of four snapshots, each with one before it: two on the plateau, two after generalization."""
    marks = milestones(run)
    if marks.memorized is None or marks.generalized is None:
        raise ValueError(f"{HOME} did not generalize; remove it and train again")
    memorized, generalized, last = marks.memorized.step, marks.generalized.step, int(run.steps[-1])
    wanted = [memorized + (generalized - memorized) * i / 3 for i in (1, 2)]
    wanted += [(generalized + last) / 2, last]
    return [int(abs(run.steps - step).argmin()) for step in wanted]


def set_parameters(model, theta):
    load_flat(model, theta)
