"""Every paper's configuration under docs/configs builds, counts and learns."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from grokscope.runs.config import from_toml
from grokscope.runs.losses import make_criterion
from grokscope.runs.models.model import make_model
from grokscope.runs.optimizers import adapt_embedding_lr, make_optimizer
from grokscope.runs.tasks.task import make_task

CONFIGS = sorted((Path(__file__).parents[2] / "docs" / "configs").glob("*.toml"))
COUNTS = {
    "norm_separation": 223_713,
    "low_dimensional": 290_401,
    "multi_task_dual": 302_914,
    "multi_task_tri": 315_427,
    "feature_learning": 2 * 31 * 931,
    "square_wave": 2 * 97 * 256 + 256 + 256 * 97 + 97,
}


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_configuration_learns_a_batch(path: Path) -> None:
    """Three steps on 64 training samples lower their loss; the loss never stops being finite."""
    config = from_toml(path)
    task = make_task(config)
    model = make_model(config, task)
    criterion, optimizer = make_criterion(config, task), make_optimizer(config, model)
    if path.stem in COUNTS:
        assert sum(p.numel() for p in model.parameters()) == COUNTS[path.stem]
    inputs, targets = task.inputs[task.train[:64]], task.targets[task.train[:64]]
    losses = []
    for _ in range(4):
        optimizer.zero_grad()
        loss = criterion(model(inputs), targets)
        losses.append(loss.item())
        loss.backward()
        if config.adaptive_embedding_lr:
            adapt_embedding_lr(config, model, optimizer)
        optimizer.step()
    assert torch.tensor(losses).isfinite().all()
    assert min(losses[1:]) < losses[0]
