"""SciPy's and PyHessian's eigensolvers on any symmetric operator, for cross-checks."""

from __future__ import annotations

import warnings

import numpy as np
import torch
from scipy.sparse.linalg import ArpackError, ArpackNoConvergence, LinearOperator, eigsh
from torch import Tensor, nn

from .ends import End, Vector
from .krylov import random_unit
from .operators import SymmetricOperator, dense, shifted

Answer = tuple[Vector, Tensor, int]
"""Values (k,) outermost first, unit vectors (k, P), products used."""

_ARPACK_NAMES = {"largest": "LA", "smallest": "SA", "magnitude": "LM"}


def scipy_pairs(
    operator: SymmetricOperator, end: End, budget: int, start: Tensor | None, generator: torch.Generator
) -> Answer:
    """ARPACK's implicitly restarted Lanczos (SciPy `eigsh`), in the operator's precision.

    ARPACK wants k well below P, so tiny operators (P ≤ 2k + 1) are solved densely. Like every method with one
    start vector it misses copies of multiple eigenvalues, and it fails on the zero operator.

    Raises:
        ValueError: ARPACK failed, or stopped with fewer than k pairs converged.
    """
    if operator.dim <= 2 * end.k + 1:
        values, vectors = torch.linalg.eigh(dense(operator).double())
        return _outermost(values.cpu().numpy(), vectors.T.to(operator.dtype), end, operator.dim)
    count = [0]

    def product(v: Vector) -> Vector:
        count[0] += 1
        vector = torch.from_numpy(np.ascontiguousarray(v).reshape(-1)).to(operator.device, operator.dtype)
        return np.asarray(operator.matvec(vector).cpu().numpy())

    kind = torch.empty(0, dtype=operator.dtype).numpy().dtype
    wrapped = LinearOperator((operator.dim, operator.dim), matvec=product, dtype=kind)
    first = random_unit(operator, generator) if start is None else start.reshape(-1, operator.dim).sum(dim=0)
    try:
        values, vectors = eigsh(
            wrapped,
            k=end.k,
            which=_ARPACK_NAMES[end.which],
            v0=first.cpu().numpy(),
            tol=end.tolerance,
            maxiter=budget,
        )
    except (ArpackNoConvergence, ArpackError) as error:
        raise ValueError(f"engine='scipy' failed ({error}); allow more products, or use lanczos") from None
    return _outermost(values, torch.from_numpy(vectors.T.copy()).to(operator.device), end, count[0])


def pyhessian_pairs(
    operator: SymmetricOperator, end: End, budget: int, start: Tensor | None, generator: torch.Generator
) -> Answer:
    """The power iteration of PyHessian 0.1, unchanged, on a quadratic whose Hessian is the operator.

    Its limits, and what is done about them: it finds the largest magnitude only, so for `largest` and
    `smallest` a first run finds the magnitude and a second one runs on the operator shifted by it; constants
    of 1e-6, so the operator is rescaled; global random numbers and a warning about reference cycles, both
    kept from the caller; a crash on parameters that the loss ignores and a model left in evaluation mode,
    which one flat vector and a module of our own do not meet. Its `density` needs a function that torch 2 no
    longer has, and is not used. It stops when two successive values agree to the tolerance, which bounds no
    error (0.4 % low at its default of 1e-3), and can return values out of order. `start` is ignored.
    """
    probe = operator.matvec(random_unit(operator, generator))
    size = float(probe.double().norm())
    if size == 0:
        return (
            np.zeros(end.k),
            torch.eye(end.k, operator.dim, dtype=operator.dtype, device=operator.device),
            1,
        )
    seed = int(torch.randint(2**31, (1,), generator=generator))
    if end.which == "magnitude":
        values, vectors, spent = _power_iteration(shifted(operator, 0.0, 1 / size), end, end.k, budget, seed)
        return _outermost(values * size, vectors, end, spent + 1)
    (reach,), _, first = _power_iteration(shifted(operator, 0.0, 1 / size), end, 1, budget, seed)
    sign = 1.0 if end.which == "largest" else -1.0
    moved = shifted(operator, sign * abs(reach) * size, 1 / size)
    values, vectors, spent = _power_iteration(moved, end, end.k, budget, seed)
    return _outermost((values - sign * abs(reach)) * size, vectors, end, first + spent + 1)


def _power_iteration(operator: SymmetricOperator, end: End, k: int, budget: int, seed: int) -> Answer:
    from pyhessian import hessian

    model = _Quadratic(operator)
    cuda = operator.device.type == "cuda"
    nothing = torch.zeros(1, device=operator.device)
    with torch.random.fork_rng(devices=[operator.device] if cuda else []), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # backward(create_graph=True); the cycle is cut below
        torch.manual_seed(seed)
        solver = hessian(model, lambda output, target: output, data=(nothing, nothing), cuda=cuda)
        values, vectors = solver.eigenvalues(maxIter=max(2, budget // k), tol=end.tolerance, top_n=k)
    model.theta.grad = None
    return np.array(values), torch.stack([part[0].detach() for part in vectors]), model.count[0]


class _Quadratic(nn.Module):
    """Half thetaᵀ A theta as a module, which is what PyHessian can be asked about."""

    def __init__(self, operator: SymmetricOperator) -> None:
        super().__init__()
        self.operator = operator
        self.count = [0]
        self.theta = nn.Parameter(torch.zeros(operator.dim, dtype=operator.dtype, device=operator.device))

    def forward(self, _: Tensor) -> Tensor:
        value: Tensor = _HalfSquare.apply(self.theta, self._product)  # type: ignore[no-untyped-call]
        return value

    def _product(self, v: Tensor) -> Tensor:
        self.count[0] += 1
        return self.operator.matvec(v)


class _HalfSquare(torch.autograd.Function):
    """Value ½ θᵀAθ with gradient A θ."""

    @staticmethod
    def forward(ctx, theta, product):  # type: ignore[no-untyped-def]
        ctx.save_for_backward(theta)
        ctx.product = product
        return 0.5 * theta @ product(theta)

    @staticmethod
    def backward(ctx, slope):  # type: ignore[no-untyped-def]
        return slope * _Apply.apply(ctx.saved_tensors[0], ctx.product), None  # type: ignore[no-untyped-call]


class _Apply(torch.autograd.Function):
    """The linear map θ -> A θ, its own derivative since A is symmetric."""

    @staticmethod
    def forward(ctx, theta, product):  # type: ignore[no-untyped-def]
        ctx.product = product
        return product(theta)

    @staticmethod
    def backward(ctx, v):  # type: ignore[no-untyped-def]
        return ctx.product(v), None


def _outermost(values: Vector, vectors: Tensor, end: End, matvecs: int) -> Answer:
    order = np.argsort(-end.key(values), kind="stable")[: end.k]
    return values[order].astype(np.float64), vectors[torch.from_numpy(order).to(vectors.device)], matvecs
