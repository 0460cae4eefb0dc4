"""A training step of the default configuration against the papers' plain loop, on one thread.

Both compute the same function of the same weights on the same batches with the same optimizer: logits and
gradients agree to rounding (tests/runs/test_models.py). Blocks of steps alternate, so that whatever else
the machine does hits both; the ratio is the median over pairs of neighboring blocks.
"""

import statistics
import time

import torch
from grokscope.runs.config import RunConfig
from grokscope.runs.losses import make_criterion
from grokscope.runs.models.model import make_model
from grokscope.runs.optimizers import make_optimizer
from grokscope.runs.tasks.task import make_task
from torch import nn

BLOCK, PAIRS, WARMUP = 5, 40, 10


class PlainLoop(nn.Module):
    """Every position through all of nn.TransformerEncoder, as the papers' code does."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, tokens):
        model = self.model
        encoded = model.encoder(model.token(tokens) + model.position.weight)
        return model.head(model.norm(encoded)[:, -1])


def row_training_step():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _measured(RunConfig())
    finally:
        torch.set_num_threads(threads)


def _measured(config):
    task = make_task(config)
    model = make_model(config, task)
    ours = _stepper(config, task, model, make_optimizer(config, model))
    model = PlainLoop(make_model(config, task))
    plain = _stepper(config, task, model, make_optimizer(config, model))
    model = PlainLoop(make_model(config, task))
    plainest = torch.optim.AdamW(model.parameters(), lr=config.lr, weight_decay=config.weight_decay)
    contenders = {"ours": ours, "plain": plain, "plainest": _stepper(config, task, model, plainest)}
    seconds = {name: [] for name in contenders}
    for step in contenders.values():
        _seconds(step, WARMUP)
    for pair in range(PAIRS):
        for name in sorted(contenders, reverse=bool(pair % 2)):
            seconds[name].append(_seconds(contenders[name], BLOCK) / BLOCK)
    ratio, other = (
        statistics.median(theirs / ours for theirs, ours in zip(seconds[name], seconds["ours"], strict=True))
        for name in ("plain", "plainest")
    )
    best = {name: f"{1e3 * min(values):.1f} ms" for name, values in seconds.items()}
    return {
        "row": "training_step",
        "ratio": round(ratio, 2),
        "goal": 2.2,
        "better": "higher",
        "detail": f"fastest {best['ours']}; nn.TransformerEncoder with the same AdamW {best['plain']}; "
        f"against PyTorch's default AdamW {other:.2f}x; one thread, median of {PAIRS} pairs",
    }


def _stepper(config, task, model, optimizer):
    inputs, targets = task.inputs[task.train], task.targets[task.train]
    criterion, stream = make_criterion(config, task), torch.Generator().manual_seed(0)

    def step():
        batch = torch.randint(len(inputs), (config.batch_size,), generator=stream)
        optimizer.zero_grad()
        criterion(model(inputs[batch]), targets[batch]).backward()
        optimizer.step()

    return step


def _seconds(step, count):
    start = time.perf_counter()
    for _ in range(count):
        step()
    return time.perf_counter() - start
