"""Objectives whose value at finite temperature is known."""

import torch
from grokscope.geometry.objective import Objective
from torch import Tensor

DOUBLE = torch.float64


def linear_network(widths, *, num_samples=60, generic=False, seed=0) -> tuple[Objective, Tensor]:
    """½ mean ‖W_L … W_1 x‖² with empirical input covariance exactly I, at a zero of the loss.

    The point is the origin, or one where all factors but the last, which is zero, are generic.
    """
    generator = torch.Generator().manual_seed(seed)
    x = torch.linalg.qr(torch.randn(num_samples, widths[0], generator=generator, dtype=DOUBLE))[0]
    x = x * num_samples**0.5
    shapes = list(zip(widths[1:], widths[:-1], strict=True))
    sizes = [rows * columns for rows, columns in shapes]

    def loss(theta, indices):
        values = x[indices]
        for part, shape in zip(theta.split(sizes), shapes, strict=True):
            values = values @ part.view(shape).T
        return values.square().sum(-1).mean() / 2

    theta = torch.zeros(sum(sizes), dtype=DOUBLE)
    if generic:
        theta[: -sizes[-1]] = torch.randn(sum(sizes[:-1]), generator=generator, dtype=DOUBLE)
    return Objective(loss, num_samples), theta


def without_last_factor(widths, theta, *, num_beta, localization, samples=200_000, seed=0):
    """nβ E[L] of a linear network localized at theta (last factor zero), and its standard error.

    With M the product of the other factors, the last one, (N, H), is Gaussian given M: what is left is
    E Σ_j (N/2) nβ s_j/(nβ s_j + γ) under the localizing Gaussian times ∏_j (nβ s_j + γ)^(−N/2), s the
    eigenvalues of M Mᵀ: an importance sample of independent draws, no chain.
    """
    generator = torch.Generator().manual_seed(seed)
    shapes = list(zip(widths[1:-1], widths[:-2], strict=True))
    product, at = None, 0
    for rows, columns in shapes:
        center = theta[at : at + rows * columns].view(rows, columns)
        noise = torch.randn(samples, rows, columns, generator=generator, dtype=DOUBLE)
        factor = center + noise / localization**0.5
        product = factor if product is None else factor @ product
        at += rows * columns
    s = torch.linalg.eigvalsh(product @ product.mT).clamp_min(0)
    outputs = widths[-1]
    weight = torch.softmax(-outputs / 2 * torch.log(num_beta * s + localization).sum(1), 0)
    value = outputs / 2 * (num_beta * s / (num_beta * s + localization)).sum(1)
    mean = float(weight @ value)
    return mean, float((weight @ (value - mean) ** 2 * weight.square().sum()) ** 0.5)


def regression(*, num_samples=80, dim=6, seed=0, dtype=DOUBLE) -> tuple[Objective, Tensor]:
    """Least squares ½ mean (x·w − y)² with noisy targets, and its curvature A (dim, dim)."""
    generator = torch.Generator().manual_seed(seed)
    scales = torch.logspace(0, -2, dim, dtype=DOUBLE)
    x = torch.randn(num_samples, dim, generator=generator, dtype=DOUBLE) * scales.sqrt()
    y = x @ torch.randn(dim, generator=generator, dtype=DOUBLE)
    y = y + 0.3 * torch.randn(num_samples, generator=generator, dtype=DOUBLE)
    x, y = x.to(dtype), y.to(dtype)

    def loss(theta, indices):
        return (x[indices] @ theta - y[indices]).square().mean() / 2

    return Objective(loss, num_samples), x.T @ x / num_samples


def of_point(function, *, num_samples=10) -> Objective:
    """A loss that is the same for every sample."""
    return Objective(lambda theta, indices: function(theta) + 0 * indices.sum(), num_samples)
