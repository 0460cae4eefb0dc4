"""Hessians of every model family that we train, against a dense one by another route."""

import numpy as np
import pytest
import torch
from grokscope.geometry.lanczos import extreme_pairs
from grokscope.geometry.objective import flatten, from_module
from grokscope.geometry.operators import dense, ggn_operator, hessian_operator
from grokscope.runs.config import MODELS, RunConfig
from grokscope.runs.losses import make_criterion
from grokscope.runs.models.model import make_model
from grokscope.runs.tasks.task import make_task
from problems_curvature import dense_hessian

FAMILIES = {name: {} for name in MODELS} | {
    "pre-norm": {"model": "transformer", "layers": 2, "model_options": {"norm_first": True}},
    "squared error": {"model": "onehot_mlp", "loss": "mse"},
    "stablemax": {"model": "embedding_mlp", "loss": "stablemax"},
}


def family_objective(options, *, chunk_size=7):
    config = RunConfig(**{"modulus": 5, "width": 4, "heads": 2, "feedforward": 6, **options})
    task = make_task(config)
    torch.manual_seed(0)
    model = make_model(config, task).double().eval()
    inputs = task.inputs[task.train]
    inputs = inputs.double() if inputs.is_floating_point() else inputs
    criterion = make_criterion(config, task)
    return from_module(model, inputs, task.targets[task.train], criterion, chunk_size=chunk_size), flatten(
        model
    )


@pytest.mark.parametrize("name", FAMILIES)
def test_both_ends_and_every_entry(name):
    objective, theta = family_objective({"model": name, **FAMILIES[name]})
    operator = hessian_operator(objective, theta)
    expected = dense_hessian(objective, theta)
    scale = float(expected.abs().max())
    torch.testing.assert_close(dense(operator), expected, rtol=0, atol=1e-12 * scale)
    values = torch.linalg.eigvalsh(expected)
    upper, lower = extreme_pairs(operator, 2, 2, tolerance=1e-6, max_matvecs=300)
    np.testing.assert_allclose(upper.values, values.flip(0)[:2], rtol=1e-6, atol=1e-9 * scale)
    np.testing.assert_allclose(lower.values, values[:2], rtol=1e-6, atol=1e-9 * scale)
    gauss_newton = torch.linalg.eigvalsh(dense(ggn_operator(objective, theta)))
    if "stablemax" not in name:  # not convex in the outputs
        assert float(gauss_newton[0]) > -1e-12 * scale
