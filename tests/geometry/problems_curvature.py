"""Losses and operators with known spectra."""

import json
from pathlib import Path

import torch
from grokscope.geometry.objective import Objective, flatten, from_module
from grokscope.geometry.operators import SymmetricOperator
from torch import Tensor, nn
from torch.nn import functional

DATA = Path(__file__).parents[1] / "data"
CASES = {case["id"]: case for case in json.loads((DATA / "hessians.json").read_text())["cases"]}


def tensor(rows) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def matrix_operator(matrix: Tensor) -> SymmetricOperator:
    return SymmetricOperator(lambda v: matrix @ v, len(matrix), matrix.dtype, matrix.device)


def with_spectrum(values, *, dtype=torch.float64, seed=0) -> Tensor:
    """A matrix with the given eigenvalues and random eigenvectors."""
    values = torch.as_tensor(values, dtype=torch.float64)
    generator = torch.Generator().manual_seed(seed)
    basis, _ = torch.linalg.qr(
        torch.randn(len(values), len(values), dtype=torch.float64, generator=generator)
    )
    return ((basis * values) @ basis.T).to(dtype)


def oracle_objective(case, *, chunk_size=4096) -> tuple[Objective, Tensor]:
    """The case's loss without its l2 term, as a mean over samples, and its theta."""
    build = {
        "linear_regression": _linear,
        "binary_logistic_regression": _logistic,
        "softmax_regression": _softmax,
    }
    loss, theta, count = build[case["model"]](case)
    return Objective(loss, count, chunk_size), theta


def _linear(case):
    x, y, w = tensor(case["X"]), tensor(case["Y"]), tensor(case["W"])
    n, k = y.shape
    factor = {"(2 n)": 1 / 2, "(n k)": 1 / k, "/ 2": n / 2}
    scale = next(value for key, value in factor.items() if key in case["loss_convention"])

    def loss(theta, i):
        return scale * ((x[i] @ theta.reshape(w.shape).T - y[i]) ** 2).sum(1).mean()

    return loss, w.reshape(-1), n


def _logistic(case):
    x, y, w = tensor(case["X"]), tensor(case["y"]), tensor(case["w"])
    if case["bias"] is not None:
        x, w = torch.cat([x, torch.ones(len(x), 1, dtype=x.dtype)], 1), torch.cat([w, tensor([case["bias"]])])
    return (lambda theta, i: functional.binary_cross_entropy_with_logits(x[i] @ theta, y[i])), w, len(y)


def _softmax(case):
    x, y, w = tensor(case["X"]), torch.tensor(case["y"]), tensor(case["W"])
    scale = len(y) if case["loss_convention"].startswith("sum over samples") else 1

    def loss(theta, i):
        return scale * functional.cross_entropy(x[i] @ theta.reshape(w.shape).T, y[i])

    return loss, w.reshape(-1), len(y)


class TokenModel(nn.Module):
    """A one-layer transformer on two tokens, small enough for a dense Hessian (P = 287)."""

    def __init__(self, modulus=5, width=6):
        super().__init__()
        self.token = nn.Embedding(modulus, width)
        self.layer = nn.TransformerEncoderLayer(width, 2, 8, dropout=0.0, activation="gelu", batch_first=True)
        self.head = nn.Linear(width, modulus)

    def forward(self, pairs):
        return self.head(self.layer(self.token(pairs))[:, -1])


def small_mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 7), nn.Tanh(), nn.Linear(7, 4))


def network_objective(kind, *, dtype=torch.float64, chunk_size=4096, seed=0) -> tuple[Objective, Tensor]:
    """A small network at its random initialization, with cross-entropy on random data."""
    torch.manual_seed(seed)
    if kind == "transformer":
        model: nn.Module = TokenModel()
        inputs = torch.cartesian_prod(torch.arange(5), torch.arange(5))
        targets = inputs.sum(1) % 5
    else:
        model, inputs, targets = small_mlp(), torch.randn(21, 3, dtype=dtype), torch.randint(4, (21,))
    model = model.to(dtype).eval()
    objective = from_module(model, inputs, targets, functional.cross_entropy, chunk_size=chunk_size)
    return objective, flatten(model)


def dense_hessian(objective: Objective, theta: Tensor) -> Tensor:
    """By torch.func's reverse over reverse, a second route to the same matrix.

    Not by torch.func.hessian: its vmap of forward over reverse is wrong for LayerNorm weights (torch 2.13,
    off by 0.05 in entries of 0.1 and asymmetric, where finite differences agree with every other route to
    1e-11).
    """
    return torch.func.jacrev(torch.func.grad(objective.full))(theta)
