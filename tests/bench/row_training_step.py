"""A training step of the default configuration against the papers' plain loop, on one thread.

All compute the same function of the same weights on the same batches with AdamW: logits, gradients and
trajectories agree to rounding (tests/runs/test_models.py). The plain loop is nn.TransformerEncoder and
torch.optim.AdamW as the papers' code calls them; the detail tells what remains when it has our fused
AdamW too. Blocks of steps alternate, so that whatever else the machine does hits all; a ratio is the
median over rounds of processor time, which one thread's work is and which waiting for a shared core is not.
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

BLOCK, ROUNDS, WARMUP = 5, 40, 10


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
    contenders = {name: _stepper(config, name) for name in ("ours", "plain", "plain with our optimizer")}
    seconds = {name: [] for name in contenders}
    for step in contenders.values():
        _seconds(step, WARMUP)
    for number in range(ROUNDS):
        for name in sorted(contenders, reverse=bool(number % 2)):
            seconds[name].append(_seconds(contenders[name], BLOCK) / BLOCK)
    ours, plain, fused = seconds.values()
    fastest = ", ".join(f"{name} {1e3 * min(values):.1f} ms" for name, values in seconds.items())
    return {
        "row": "training_step",
        "ratio": round(_median_ratio(plain, ours), 2),
        "goal": 2.2,
        "better": "higher",
        "detail": f"batch {config.batch_size}, one thread, processor time, median of {ROUNDS} rounds; with "
        f"our AdamW in the plain loop too {_median_ratio(fused, ours):.2f}; fastest: {fastest}",
    }


def _median_ratio(above, below):
    return statistics.median(a / b for a, b in zip(above, below, strict=True))


def _stepper(config, name):
    task = make_task(config)
    model = make_model(config, task) if name == "ours" else PlainLoop(make_model(config, task))
    optimizer = make_optimizer(config, model)
    if name == "plain":
        optimizer = torch.optim.AdamW(model.parameters(), lr=config.lr, weight_decay=config.weight_decay)
    inputs, targets = task.inputs[task.train], task.targets[task.train]
    criterion, stream = make_criterion(config, task), torch.Generator().manual_seed(0)

    def step():
        batch = torch.randint(len(inputs), (config.batch_size,), generator=stream)
        optimizer.zero_grad()
        criterion(model(inputs[batch]), targets[batch]).backward()
        optimizer.step()

    return step


def _seconds(step, count):
    start = time.process_time()
    for _ in range(count):
        step()
    return time.process_time() - start
