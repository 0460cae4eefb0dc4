"""Extreme eigenpairs of a symmetric operator, each with the evidence for it."""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

from .complement import Complement
from .eigenpairs import Eigenpairs, Evidence, eigenpairs, evidence
from .ends import KEYS, End, Pairs
from .krylov import Krylov, grow, random_unit
from .operators import SymmetricOperator

Which = Literal["largest", "smallest", "magnitude"]
Engine = Literal["lanczos", "scipy", "pyhessian"]

# Of a warm start's energy. The thousandth that is given is hundreds of times what chance gives a direction of
# 290,401: pairs come as early as from more, and the proof, which lives on the random part, hardly later.
RANDOM_PART = 0.999


def lanczos(
    operator: SymmetricOperator,
    k: int = 1,
    *,
    which: Which = "largest",
    tolerance: float = 1e-3,
    edge_tolerance: float | None = None,
    max_matvecs: int | None = None,
    start: Tensor | None = None,
    random_part: float = RANDOM_PART,
    certify: bool = True,
    multiplicity: bool = True,
    generator: torch.Generator | None = None,
    engine: Engine = "lanczos",
) -> Eigenpairs:
    """The k eigenpairs at one end of the spectrum: `largest`, `smallest` or largest `magnitude`.

    `smallest` means most negative. Lanczos with two-pass reorthogonalization from a random start, or from the
    sum of the rows of `start` (P,) or (j, P) with `random_part` of its energy random, so that an eigenvalue
    that has crossed cannot hide. It ends when the k pairs are converged to `tolerance` and, with `certify`,
    extremal to `edge_tolerance` (by default the same). For k > 1, further random starts in the complement of
    the pairs then look for more copies of multiple eigenvalues; after a warm start these are the proof of
    the end too. At most `max_matvecs` products (default 100 + 20 k); memory is one vector per product.

    On 290,401 parameters, to 1e-2 with the end to .05, the vectors from 20 steps before take 9 to 12 products
    instead of 8 to 13 for k = 1, where the proof is what costs, and 22 to 29 instead of 28 to 31 for k = 5.
    Lanczos 1950; two passes: Giraud, Langou, Rozložník 2005.

    `engine="scipy"` (ARPACK) and `"pyhessian"` (the power iteration of PyHessian 0.1) answer the same
    question for a cross-check, with residuals but without proof of extremality.

    Raises:
        ValueError: an argument out of bounds, too small a budget, or a product that is not finite.
    """
    end = End(which, k, tolerance, tolerance if edge_tolerance is None else edge_tolerance)
    budget = _checked(operator, end, max_matvecs, random_part)
    generator = generator or torch.Generator().manual_seed(0)
    if engine not in get_args(Engine):
        raise ValueError(f"engine={engine!r} must be one of {', '.join(get_args(Engine))}")
    if engine != "lanczos":
        return _external(engine, operator, end, budget, start, generator)
    space, share = _first_space(operator, start, random_part, generator)
    proved_later = certify and multiplicity and k > 1 and start is not None
    grow(space, budget, lambda: end.settled(space, share if certify and not proved_later else 0.0))
    proof, pairs, edges = evidence(space, end, share), end.pairs(space), end.edges(space, share)
    if len(pairs.values) == k and (k == 1 or not multiplicity):
        return eigenpairs(pairs, edges, end, proof, space.size)
    search = Complement(operator, end, proof, budget - space.size, generator)
    search.run(pairs, edges)
    return search.result(space.size)


def extreme_pairs(
    operator: SymmetricOperator,
    largest: int = 1,
    smallest: int = 1,
    *,
    tolerance: float = 1e-3,
    edge_tolerance: float | None = None,
    max_matvecs: int = 100,
    start: Tensor | None = None,
    random_part: float = RANDOM_PART,
    generator: torch.Generator | None = None,
) -> tuple[Eigenpairs, Eigenpairs]:
    """Both ends, (largest, smallest), from the products of one Krylov space.

    As `lanczos`, without the search for further copies (`complete` is false), and with the same number in
    `matvecs` of both: the cost of the two together. Each pair says for itself whether it is converged and
    extremal; the lower end of a loss Hessian is dense and small, and often is not within a budget that suits
    the upper one.

    Raises:
        ValueError: an argument out of bounds, too few directions, or a product that is not finite.
    """
    edge = tolerance if edge_tolerance is None else edge_tolerance
    ends = End("largest", largest, tolerance, edge), End("smallest", smallest, tolerance, edge)
    budget = min(_checked(operator, end, max_matvecs, random_part) for end in ends)
    generator = generator or torch.Generator().manual_seed(0)
    space, share = _first_space(operator, start, random_part, generator)
    grow(space, budget, lambda: all(end.settled(space, share) for end in ends))
    if space.size < max(largest, smallest):
        raise ValueError(f"the start spans {space.size} directions only; ask for fewer pairs, or use lanczos")
    proof = evidence(space, ends[0], share)
    upper, lower = (
        eigenpairs(end.pairs(space), end.edges(space, share), end, proof, space.size) for end in ends
    )
    return upper, lower


def _checked(operator: SymmetricOperator, end: End, max_matvecs: int | None, random_part: float) -> int:
    """The budget of products, once the arguments are in bounds."""
    budget = 100 + 20 * end.k if max_matvecs is None else max_matvecs
    if not 1 <= end.k <= operator.dim:
        raise ValueError(f"k={end.k} must be between 1 and the dimension {operator.dim}")
    if end.which not in KEYS:
        raise ValueError(f"which={end.which!r} must be one of {', '.join(KEYS)}")
    for name in ("tolerance", "edge_tolerance"):
        if not 0 < getattr(end, name) < 1:
            raise ValueError(f"{name}={getattr(end, name)} must be strictly between 0 and 1")
    if not 0 <= random_part <= 1:
        raise ValueError(f"random_part={random_part} must be in [0, 1]; below 0.1 the end is hardly provable")
    if budget < end.k + 1:
        raise ValueError(f"max_matvecs={budget} must be at least k + 1 = {end.k + 1}")
    return budget


def _first_space(
    operator: SymmetricOperator, start: Tensor | None, random_part: float, generator: torch.Generator
) -> tuple[Krylov, float]:
    """The Krylov space of the start, and the norm of the random part of that start."""
    drawn = random_unit(operator, generator)
    if start is None:
        return Krylov(operator, drawn), 1.0
    if start.shape[-1] != operator.dim or not bool(torch.isfinite(start).all()):
        raise ValueError(f"start has shape {tuple(start.shape)}; it must be finite and end in {operator.dim}")
    given = start.to(drawn).reshape(-1, operator.dim).sum(dim=0)
    if not float(given.norm()) > 0:
        raise ValueError("start sums to zero; leave it out for a random start")
    mixed = (1 - random_part) ** 0.5 * given / given.norm() + random_part**0.5 * drawn
    return Krylov(operator, mixed), float(random_part**0.5 / mixed.norm())


def _external(
    engine: str,
    operator: SymmetricOperator,
    end: End,
    budget: int,
    start: Tensor | None,
    generator: torch.Generator,
) -> Eigenpairs:
    """Another library's pairs, their residuals from fresh products."""
    from .external import pyhessian_pairs, scipy_pairs

    solve = scipy_pairs if engine == "scipy" else pyhessian_pairs
    values, vectors, matvecs = solve(operator, end, budget, start, generator)
    differences = operator @ vectors.T - vectors.T * torch.from_numpy(values).to(vectors)
    pairs = Pairs(values, differences.double().norm(dim=0).cpu().numpy(), vectors)
    nothing = Evidence(0.0, 0.0, 0.0, 1.0, float("nan"))
    found = eigenpairs(pairs, np.full(end.k, np.inf), end, nothing, matvecs + end.k)
    return Eigenpairs(**{**vars(found), "engine": engine})
