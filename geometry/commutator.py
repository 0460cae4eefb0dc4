"""The Lie bracket of two gradient fields: how far two minibatch steps are from commuting.

For independent batches the bracket has mean zero and it vanishes for full batches: it measures minibatch
noise, not curvature. So every value carries its batch size, and `curvature_proper` stands apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite, nan, sqrt

import torch
from torch import Tensor

from .objective import Loss, Objective


@dataclass(frozen=True)
class Commutator:
    """One bracket H_B g_A − H_A g_B with its normalizations; what is undefined is nan, never guarded.

    The split and `curvature_proper` need the full data and are nan without a `Background`.
    """

    vector: Tensor  # (P,) H_B g_A − H_A g_B
    raw: float  # ‖vector‖
    defect: float  # D = raw / (‖g_A‖ ‖g_B‖), as published: curvature / gradient norm, grows like 1/‖g‖
    curvature: float  # C1 = raw / mean(‖g_A‖, ‖g_B‖), in units of curvature
    scale_free: float  # C0 = raw / (‖H_B g_A‖ + ‖H_A g_B‖), in [0, 1]
    gradient_norms: tuple[float, float]  # ‖g_A‖, ‖g_B‖
    product_norms: tuple[float, float]  # ‖H_B g_A‖, ‖H_A g_B‖
    cosine: float  # cos(g_A, g_B)
    noise_floor: float  # roundoff of the last subtraction: machine epsilon · (‖H_B g_A‖ + ‖H_A g_B‖)
    batch_size: int | None
    sqrt_b_raw: float  # √b · raw, independent of b where the leading order holds
    gradient_scatter: float  # ½‖g_A − g_B‖², an unbiased estimate of tr Cov(g_i) / b
    signal_to_noise: float  # ‖g‖² / gradient_scatter; without a background g_A·g_B stands for ‖g‖²
    gradient_noise: float  # ‖H(g_A − g_B)‖
    curvature_noise: float  # ‖(H_B − H)g − (H_A − H)g‖
    cross_noise: float  # ‖(H_B − H)(g_A − g) − (H_A − H)(g_B − g)‖; the three vectors add up to the bracket
    curvature_proper: float  # ‖Hg‖ / ‖g‖ of the full data: what survives without minibatch noise
    undefined: str  # why fields that could be had are nan; empty if none is


@dataclass(frozen=True)
class Background:
    """What all pairs at one theta share: gradient and curvature of the full data."""

    objective: Objective
    theta: Tensor  # (P,)
    gradient: Tensor  # (P,) g
    product: Tensor  # (P,) Hg

    @property
    def curvature_proper(self) -> float:
        """‖Hg‖ / ‖g‖; nan at an exact stationary point."""
        return _ratio(_norm(self.product), _norm(self.gradient))


def background(objective: Objective, theta: Tensor) -> Background:
    """The gradient g = ∇L and Hg of the full data at theta (P,), to be shared by all pairs there.

    Costs about four gradients of the full data.
    """
    theta = theta.detach()
    gradient = objective.gradient(theta)
    return Background(objective, theta, gradient, full_product(objective, theta, gradient))


def commutator(
    loss_a: Loss,
    loss_b: Loss,
    theta: Tensor,
    *,
    batch_size: int | None = None,
    background: Background | None = None,
) -> Commutator:
    """The exact bracket H_B g_A − H_A g_B at theta (P,), g and H gradient and Hessian of the two losses.

    It is the limit of (θ_AB − θ_BA)/η² for gradient steps of size η on A then B, and on B then A (the
    finite step of Xu 2026, arXiv 2602.16746, that `finite_commutator` computes), without the float noise
    of that subtraction. To leading order E‖bracket‖² = (2/b) tr Cov_i(H g_i − H_i g) for independent
    batches of b samples. Antisymmetric in (A, B), so only its size and |cos| have a meaning.

    Costs six gradient evaluations: each Hessian-vector product is one backward pass through the kept
    graph of a gradient. With `background`, the split costs four more and a full-data product.

    Raises:
        ValueError: theta is not a floating-point vector, batch_size < 1, or background is of another theta.
    """
    _check(theta, batch_size, background)
    extra = [] if background is None else [background.gradient]
    graph_a, graph_b = _GradientGraph(loss_a, theta), _GradientGraph(loss_b, theta)
    b_on_a, *b_on_full = graph_b.products([graph_a.gradient, *extra])
    a_on_b, *a_on_full = graph_a.products([graph_b.gradient, *extra])
    vector = b_on_a - a_on_b
    curvature_part = b_on_full[0] - a_on_full[0] if background is not None else None
    gradients = graph_a.gradient, graph_b.gradient
    parts = _split(vector, gradients[0] - gradients[1], background, curvature_part)
    return _assemble(vector, gradients, (b_on_a, a_on_b), parts, batch_size, background)


def full_product(objective: Objective, theta: Tensor, vector: Tensor) -> Tensor:
    """Hv (P,) with the Hessian of the full mean loss, accumulated chunk by chunk (three gradients)."""
    total = torch.zeros_like(theta)
    for weight, loss in objective.chunks():
        total += weight * _GradientGraph(loss, theta).products([vector])[0]
    return total


class _GradientGraph:
    """A gradient whose graph is kept, for products with the Hessian.

    Measured on the one- and two-layer transformers of the default and the published setting: two
    products from kept graphs cost 1.5 times the four gradients of the finite step, forward-over-reverse
    1.8 to 2.3 times, and K pairs batched by vmap are slower than one by one on a CPU.
    """

    def __init__(self, loss: Loss, theta: Tensor) -> None:
        self._point = theta.detach().requires_grad_(True)
        with torch.enable_grad():
            value = loss(self._point)
            self._graph = self._differentiate(value, create_graph=True) if value.requires_grad else None
        self.gradient = torch.zeros_like(theta) if self._graph is None else self._graph.detach()

    def products(self, vectors: Sequence[Tensor]) -> list[Tensor]:
        """Hv for each v; frees the graph."""
        if self._graph is None or not self._graph.requires_grad:
            return [torch.zeros_like(v) for v in vectors]
        last = len(vectors) - 1
        found = [self._differentiate(self._graph, v, retain_graph=i < last) for i, v in enumerate(vectors)]
        self._graph = None
        return [torch.zeros_like(self.gradient) if f is None else f for f in found]

    def _differentiate(
        self, value: Tensor, cotangent: Tensor | None = None, **options: bool
    ) -> Tensor | None:
        (found,) = torch.autograd.grad(value, self._point, cotangent, allow_unused=True, **options)
        return found


def _assemble(
    vector: Tensor,
    gradients: tuple[Tensor, Tensor],
    products: tuple[Tensor, Tensor],
    parts: tuple[float, float, float],
    batch_size: int | None,
    shared: Background | None,
) -> Commutator:
    raw, norm_a, norm_b = _norm(vector), *map(_norm, gradients)
    product_norms = _norm(products[0]), _norm(products[1])
    inner = float(_dot(*gradients))
    scatter = _norm(gradients[0] - gradients[1]) ** 2 / 2
    return Commutator(
        vector=vector,
        raw=raw,
        defect=_ratio(raw, norm_a * norm_b),
        curvature=_ratio(raw, (norm_a + norm_b) / 2),
        scale_free=_ratio(raw, sum(product_norms)),
        gradient_norms=(norm_a, norm_b),
        product_norms=product_norms,
        cosine=_ratio(inner, norm_a * norm_b),
        noise_floor=torch.finfo(vector.dtype).eps * sum(product_norms),
        batch_size=batch_size,
        sqrt_b_raw=nan if batch_size is None else sqrt(batch_size) * raw,
        gradient_scatter=scatter,
        signal_to_noise=_ratio(inner if shared is None else _norm(shared.gradient) ** 2, scatter),
        gradient_noise=parts[0],
        curvature_noise=parts[1],
        cross_noise=parts[2],
        curvature_proper=nan if shared is None else shared.curvature_proper,
        undefined=_reason(raw, norm_a, norm_b, sum(product_norms)),
    )


def _split(
    vector: Tensor, difference: Tensor, shared: Background | None, curvature_part: Tensor | None
) -> tuple[float, float, float]:
    """Norms of gradient noise, curvature noise and their cross term."""
    if shared is None or curvature_part is None:
        return nan, nan, nan
    gradient_part = full_product(shared.objective, shared.theta, difference)
    cross = vector - gradient_part - curvature_part
    return _norm(gradient_part), _norm(curvature_part), _norm(cross)


def _check(theta: Tensor, batch_size: int | None, shared: Background | None) -> None:
    if theta.ndim != 1 or not theta.is_floating_point():
        raise ValueError(f"theta has shape {tuple(theta.shape)} and {theta.dtype}; give a float vector (P,)")
    if batch_size is not None and batch_size < 1:
        raise ValueError(f"batch_size={batch_size} must be at least 1, or None if the losses are no batches")
    if shared is not None and not torch.equal(shared.theta, theta):
        raise ValueError("background belongs to another theta; compute background(objective, theta) here")


def _reason(raw: float, norm_a: float, norm_b: float, products: float) -> str:
    """The cause of nan fields in words, the first that applies."""
    if not all(map(isfinite, (raw, norm_a, norm_b, products))):
        return "loss, gradient or curvature is not finite"
    zero = [name for name, norm in (("A", norm_a), ("B", norm_b)) if norm == 0]
    if zero:
        return f"the gradient on {' and '.join(zero)} is exactly zero"
    return "both Hessian-vector products are exactly zero" if products == 0 else ""


def _norm(vector: Tensor) -> float:
    """Euclidean norm, summed in float64: squares of late gradients underflow in float32."""
    return float(torch.linalg.vector_norm(vector, dtype=torch.float64))


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return a.double() @ b.double()


def _ratio(numerator: float, denominator: float) -> float:
    """The quotient, nan instead of a guard where the denominator is zero."""
    return numerator / denominator if denominator != 0 else nan
