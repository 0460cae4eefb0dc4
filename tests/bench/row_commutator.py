"""Exact brackets against the published finite step, on the two-layer setting it was published for.

Times are CPU seconds of one thread, which other work on the machine does not stretch; contenders take
turns, so that a change of clock meets all of them. python -m tests.bench.row_commutator prints more.
"""

import json
import statistics
import time

import torch
from grokscope.geometry.commutator import commutator
from grokscope.geometry.finite_commutator import finite_commutator
from grokscope.geometry.objective import exact_attention, flatten, from_module, gradient
from grokscope.runs.config import RunConfig
from grokscope.runs.losses import make_criterion
from grokscope.runs.models.model import make_model
from grokscope.runs.tasks.task import make_task

ROUNDS, PAIRS, BATCH = 7, 5, 512
PUBLISHED = RunConfig(
    layers=2, feedforward=256, betas=(0.9, 0.98), model_options={"norm_first": True, "readout": "first"}
)


def row_commutator():
    """One exact bracket over the four gradients of the published method."""
    objective, theta, pairs = _problem(PUBLISHED)
    times = _times({"exact": _exact, "published": _published, "finite": _finite}, objective, theta, pairs)
    ratios = _ratios(times, "exact", "published")
    finite = statistics.median(_ratios(times, "finite", "published"))
    return {
        "row": "commutator",
        "ratio": statistics.median(ratios),
        "goal": 1.7,
        "better": "lower",
        "detail": f"290,401 parameters, batch {BATCH}, one thread, {ROUNDS} rounds of {PAIRS} pairs "
        f"({min(ratios):.2f} to {max(ratios):.2f}); our finite step with its noise {finite:.2f}",
    }


def row_commutator_batched():
    """K pairs one by one, which we do, against K pairs batched by vmap."""
    small = _batched_ratio(RunConfig(), batch=64)
    large = _batched_ratio(RunConfig(), batch=BATCH)
    return {
        "row": "commutator_batched",
        "ratio": large,
        "goal": 1.0,
        "better": "higher",
        "detail": f"batched time over ours, {PAIRS} pairs, default model, batch {BATCH}; at 64: {small:.2f}",
    }


def _batched_ratio(config, batch):
    times = _times({"exact": _exact, "batched": _batched}, *_problem(config, batch))
    return statistics.median(_ratios(times, "batched", "exact"))


def _problem(config, batch=BATCH):
    task = make_task(config)
    torch.manual_seed(0)
    model = make_model(config, task).eval()
    objective = from_module(
        model, task.inputs[task.train], task.targets[task.train], make_criterion(config, task)
    )
    picks = torch.randint(
        objective.num_samples, (PAIRS, 2, batch), generator=torch.Generator().manual_seed(0)
    )
    return objective, flatten(model), picks


def _exact(objective, theta, pairs):
    return torch.stack([commutator(objective.on(a), objective.on(b), theta).vector for a, b in pairs])


def _finite(objective, theta, pairs):
    return torch.stack([finite_commutator(objective.on(a), objective.on(b), theta).vector for a, b in pairs])


def _published(objective, theta, pairs, eta=1e-3):
    """The four gradients of Xu 2026 and nothing else."""
    found = []
    for a, b in pairs:
        after_a = theta - eta * gradient(objective.on(a), theta)
        after_b = theta - eta * gradient(objective.on(b), theta)
        after_ab = after_a - eta * gradient(objective.on(b), after_a)
        found.append((after_ab - (after_b - eta * gradient(objective.on(a), after_b))) / eta**2)
    return torch.stack(found)


def _batched(objective, theta, pairs):
    """All 2K gradients in one graph over copies of theta, all 2K products in one backward pass."""
    picks = pairs.transpose(0, 1).reshape(-1, pairs.shape[2])
    points = theta.expand(len(picks), -1).clone().requires_grad_(True)
    with exact_attention():
        total = torch.func.vmap(objective.sample_loss)(points, picks).sum()
    (found,) = torch.autograd.grad(total, points, create_graph=True)
    grads = found.view(2, len(pairs), -1)
    (products,) = torch.autograd.grad((grads * grads.detach().flip(0)).sum(), points)
    on_a, on_b = products.view(2, len(pairs), -1)
    return on_b - on_a


def _times(contenders, objective, theta, pairs):
    """CPU seconds (ROUNDS,) per contender, after one run each; their brackets must agree."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        vectors = {name: work(objective, theta, pairs) for name, work in contenders.items()}
        if "batched" in vectors:
            torch.testing.assert_close(vectors["batched"], vectors["exact"], rtol=1e-3, atol=1e-5)
        times = {name: [] for name in contenders}
        for _ in range(ROUNDS):
            for name, work in contenders.items():
                begin = time.process_time()
                work(objective, theta, pairs)
                times[name].append(time.process_time() - begin)
        return times
    finally:
        torch.set_num_threads(threads)


def _ratios(times, above, below):
    return [a / b for a, b in zip(times[above], times[below], strict=True)]


if __name__ == "__main__":
    for row in (row_commutator, row_commutator_batched):
        print(json.dumps(row()))
