"""Symmetric operators known by their products: Hessian, Gauss-Newton, restricted, scaled.

A product costs 2 to 4 gradient evaluations. The gradient's graph is built once per chunk of samples and kept,
so that each product is one backward pass through it and memory stays level however many products follow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import torch
from torch import Tensor
from torch.func import grad, jvp

from .objective import Loss, Objective, exact_attention

Mode = Literal["double_backward", "forward_over_reverse"]
Product = Callable[[Tensor], Tensor]

# Graphs of small chunks stay in cache: on CPU 512 to 1,024 samples ran 1.5 to 2 times faster than 4,704 at
# once.
PRODUCT_CHUNK = 1024
# Above this many chunks the graphs are rebuilt in every product instead of kept: memory before speed.
KEPT_CHUNKS = 16
DENSE_LIMIT = 10_000


@dataclass(frozen=True)
class SymmetricOperator:
    """A symmetric (P, P) matrix A given by its product `matvec(v (P,)) -> (P,)`.

    `operator @ v` takes a vector (P,) or the columns of a matrix (P, k); each column is one product.
    """

    matvec: Product
    dim: int
    dtype: torch.dtype
    device: torch.device
    description: str = "symmetric operator"

    def __matmul__(self, other: Tensor) -> Tensor:
        if other.ndim not in (1, 2) or other.shape[0] != self.dim:
            raise ValueError(
                f"operand has shape {tuple(other.shape)}; it must be ({self.dim},) or ({self.dim}, k)"
            )
        if other.ndim == 1:
            return self.matvec(other)
        return torch.stack([self.matvec(column) for column in other.T], dim=1)


def hessian_operator(
    objective: Objective,
    theta: Tensor,
    *,
    mode: Mode = "double_backward",
    parameters: str | Iterable[str] | None = None,
    l2: float = 0.0,
) -> SymmetricOperator:
    """The Hessian H = ∇²L(theta) + l2·I of the full mean loss L at theta (P,), in theta's precision.

    `double_backward` differentiates ⟨∇L, v⟩ on a kept graph (one gradient evaluation to build, then about two
    per product); `forward_over_reverse` pushes v through ∇L forward and rebuilds everything in each product.
    `parameters` (groups or name patterns) restricts rows and columns to those coordinates, in theta's order.
    `l2` is the factor of ½‖theta‖² in a loss with a coupled penalty; decoupled decay (AdamW) is a part of the
    update and of no loss, so there is no such term for it.

    Raises:
        ValueError: a bad argument, or a loss that draws random numbers (its Hessian is a random matrix).
    """
    builders = {"double_backward": _double_backward, "forward_over_reverse": _forward_over_reverse}
    if mode not in builders:
        raise ValueError(f"mode={mode!r} must be one of {', '.join(builders)}")
    _check_precision(theta)
    state = torch.get_rng_state()
    product = builders[mode](_rechunked(objective), theta.detach())
    if not torch.equal(state, torch.get_rng_state()):
        raise ValueError(
            "objective draws random numbers, as dropout in training mode does; call model.eval() first"
        )
    operator = _operator(_plus_identity(product, l2), theta, f"Hessian of {objective.description}")
    return operator if parameters is None else restrict(operator, coordinates(objective, parameters))


def ggn_operator(
    objective: Objective, theta: Tensor, *, parameters: str | Iterable[str] | None = None
) -> SymmetricOperator:
    """The Gauss-Newton part G = mean Jᵀ (∇²_f ℓ) J of H = G + R, with J the Jacobian of the outputs f.

    G is positive semidefinite for a loss ℓ that is convex in the outputs; for cross-entropy it is the Fisher
    matrix. A product is one forward and one backward derivative (about 1.5 gradient evaluations). Schraudolph
    2002.

    Raises:
        ValueError: the objective does not give outputs and criterion apart, or theta is in half precision.
    """
    _check_precision(theta)
    product = _gauss_newton(_rechunked(objective), theta.detach())
    operator = _operator(product, theta, f"Gauss-Newton matrix of {objective.description}")
    return operator if parameters is None else restrict(operator, coordinates(objective, parameters))


def restrict(operator: SymmetricOperator, coords: Tensor) -> SymmetricOperator:
    """The principal submatrix A[coords, coords] for int64 coords (Q,); a product costs one of `operator`."""

    def product(v: Tensor) -> Tensor:
        padded = torch.zeros(operator.dim, dtype=v.dtype, device=v.device)
        padded[coords] = v
        return operator.matvec(padded)[coords]

    return replace(operator, matvec=product, dim=len(coords))


def scaled(operator: SymmetricOperator, scale: Tensor) -> SymmetricOperator:
    """D A D with D = diag(scale (P,)); with scale = |theta|, rescaling an invariant block moves nothing."""
    if scale.shape != (operator.dim,):
        raise ValueError(f"scale has shape {tuple(scale.shape)}; the operator needs ({operator.dim},)")
    scale = scale.to(operator.dtype)
    return replace(
        operator,
        matvec=lambda v: scale * operator.matvec(scale * v),
        description=f"scaled {operator.description}",
    )


def preconditioned(operator: SymmetricOperator, diagonal: Tensor) -> SymmetricOperator:
    """P^(-1/2) A P^(-1/2) with P = diag(diagonal (P,)): the same eigenvalues as P⁻¹A, but symmetric.

    Raises:
        ValueError: an entry of the diagonal is not positive.
    """
    if not bool((diagonal > 0).all()):
        raise ValueError(
            f"diagonal has the entry {float(diagonal.min()):.3g}; a preconditioner is positive everywhere"
        )
    return scaled(operator, diagonal.rsqrt())


def shifted(operator: SymmetricOperator, shift: float, factor: float = 1.0) -> SymmetricOperator:
    """The operator factor·(A + shift·I), with the eigenvectors of A."""
    return replace(operator, matvec=lambda v: factor * (operator.matvec(v) + shift * v))


def dense(operator: SymmetricOperator) -> Tensor:
    """The whole matrix (P, P), column by column, unsymmetrized (P products).

    Raises:
        ValueError: P is above 10,000.
    """
    if operator.dim > DENSE_LIMIT:
        raise ValueError(
            f"dim={operator.dim} exceeds {DENSE_LIMIT}; a dense matrix is for small P, use lanczos"
        )
    return operator @ torch.eye(operator.dim, dtype=operator.dtype, device=operator.device)


def gradient_graph(loss: Loss, theta: Tensor) -> tuple[Tensor, Product]:
    """∇loss (P,) at theta, and the product v -> ∇²loss v on its kept graph."""
    point = theta.detach().clone().requires_grad_(True)
    with torch.enable_grad():
        slope = _derivative(loss(point), point, create_graph=True)
    return slope.detach(), lambda v: _derivative(slope, point, v)


def coordinates(objective: Objective, parameters: str | Iterable[str]) -> Tensor:
    """Coordinates (Q,) of theta in the named groups or patterns, on the objective's device."""
    if objective.table is None:
        raise ValueError("parameters needs an objective with a parameter table (see from_module)")
    return torch.from_numpy(objective.table.select(parameters)).to(objective.device)


def _check_precision(theta: Tensor) -> None:
    if theta.dtype not in (torch.float32, torch.float64):
        raise ValueError(
            f"theta is {theta.dtype}; curvature needs float32 or float64, so convert it (theta.float())"
        )


def _operator(product: Product, theta: Tensor, description: str) -> SymmetricOperator:
    return SymmetricOperator(product, theta.numel(), theta.dtype, theta.device, description)


def _plus_identity(product: Product, factor: float) -> Product:
    return product if factor == 0 else lambda v: product(v) + factor * v


def _rechunked(objective: Objective) -> Objective:
    return objective.with_chunk_size(min(objective.chunk_size, PRODUCT_CHUNK))


def _num_chunks(objective: Objective) -> int:
    return -(-objective.num_samples // objective.chunk_size)


def _accumulated(pieces: Iterable[tuple[float, Product]], v: Tensor) -> Tensor:
    total = torch.zeros_like(v)
    for weight, product in pieces:
        total.add_(product(v), alpha=weight)
    return total


def _double_backward(objective: Objective, theta: Tensor) -> Product:
    if _num_chunks(objective) > KEPT_CHUNKS:
        return lambda v: _accumulated(((w, _kept_graph(loss, theta)) for w, loss in objective.chunks()), v)
    kept = [(weight, _kept_graph(loss, theta)) for weight, loss in objective.chunks()]
    return lambda v: _accumulated(kept, v)


def _kept_graph(loss: Loss, theta: Tensor) -> Product:
    return gradient_graph(loss, theta)[1]


def _derivative(
    value: Tensor, point: Tensor, v: Tensor | None = None, *, create_graph: bool = False
) -> Tensor:
    """vᵀ ∂value/∂point, zero where value does not depend on point."""
    if not value.requires_grad:
        return torch.zeros_like(point)
    (found,) = torch.autograd.grad(
        value, point, v, retain_graph=True, create_graph=create_graph, allow_unused=True
    )
    return torch.zeros_like(point) if found is None else found


def _forward_over_reverse(objective: Objective, theta: Tensor) -> Product:
    objective.value(theta)  # so that a loss that draws random numbers shows itself here

    def through(loss: Loss) -> Product:
        def product(v: Tensor) -> Tensor:
            with exact_attention():
                derivative: Tensor = jvp(grad(loss), (theta,), (v,))[1]
            return derivative

        return product

    return lambda v: _accumulated(((weight, through(loss)) for weight, loss in objective.chunks()), v)


def _gauss_newton(objective: Objective, theta: Tensor) -> Product:
    build = partial(_kept_gauss_newton, objective, theta)
    parts = torch.tensor_split(
        torch.arange(objective.num_samples, device=objective.device), _num_chunks(objective)
    )
    weighted = [(len(part) / objective.num_samples, part) for part in parts]
    if len(parts) > KEPT_CHUNKS:
        return lambda v: _accumulated(((weight, build(part)) for weight, part in weighted), v)
    kept = [(weight, build(part)) for weight, part in weighted]
    return lambda v: _accumulated(kept, v)


def _kept_gauss_newton(objective: Objective, theta: Tensor, indices: Tensor) -> Product:
    """Product v -> Jᵀ (∇²ℓ) J v on kept graphs; J v is the derivative of Jᵀu in u."""
    if objective.outputs is None or objective.criterion is None:
        raise ValueError("objective has no outputs and criterion; Gauss-Newton needs both (see from_module)")
    point = theta.clone().requires_grad_(True)
    with torch.enable_grad(), exact_attention():
        outputs = objective.outputs(point, indices)
        dual = torch.zeros_like(outputs, requires_grad=True)
        pulled = _derivative(outputs, point, dual, create_graph=True)
        leaf = outputs.detach().requires_grad_(True)
        slope = _derivative(objective.criterion(leaf, indices), leaf, create_graph=True)

    def product(v: Tensor) -> Tensor:
        pushed = _derivative(pulled, dual, v)
        return _derivative(outputs, point, _derivative(slope, leaf, pushed))

    return product
