"""Known learning coefficients λ: limits of nβ(E[L] − L(w*)) as nβ → ∞, in closed form.

A coefficient belongs to the most singular true parameter; at other true points the local value can be
larger, and a sampler at finite nβ sees another number again (`finite_beta`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components
from torch import Tensor


class Coefficient(NamedTuple):
    """λ and its multiplicity m: the free energy is n L + λ log n − (m − 1) log log n + O(1)."""

    value: float
    multiplicity: int


def regular(num_parameters: int) -> Coefficient:
    """λ = d/2 of a regular model (invertible Fisher information) with d = num_parameters (Schwarz 1978)."""
    return Coefficient(num_parameters / 2, 1)


def normal_crossing(exponents: Sequence[int], prior_exponents: Sequence[int] | None = None) -> Coefficient:
    """λ = min_j (h_j + 1)/e_j for L = ∏ w_j^{e_j} and prior ∏ |w_j|^{h_j}; m counts the minimizers.

    Watanabe, Algebraic Geometry and Statistical Learning Theory (2009). `exponents` e are even; an
    exponent of 0 leaves its coordinate out. `prior_exponents` h are 0 unless given.

    Raises:
        ValueError: an odd or negative exponent (the loss would have no minimum at 0), or all are 0.
    """
    if any(e < 0 or e % 2 for e in exponents) or not any(exponents):
        raise ValueError(f"exponents={tuple(exponents)} must be even and at least 0, one of them positive")
    priors = prior_exponents if prior_exponents is not None else [0] * len(exponents)
    ratios = [Fraction(h + 1, e) for e, h in zip(exponents, priors, strict=True) if e]
    return Coefficient(float(min(ratios)), ratios.count(min(ratios)))


def reduced_rank(input_dim: int, hidden_dim: int, output_dim: int, true_rank: int) -> Coefficient:
    """λ and m of y = B A x with A (H, M), B (N, H) and a true map of rank r.

    Aoyagi & Watanabe (2005), Neural Networks 18: four cases of M = input_dim, H = hidden_dim,
    N = output_dim, r = true_rank. Holds where both factors have rank exactly r.

    Raises:
        ValueError: true_rank exceeds one of the widths.
    """
    _check_rank(true_rank, (input_dim, hidden_dim, output_dim))
    M, H, N, r = input_dim, hidden_dim, output_dim, true_rank
    if N + r > M + H:
        return Coefficient((H * M - H * r + N * r) / 2, 1)
    if M + r > N + H:
        return Coefficient((H * N - H * r + M * r) / 2, 1)
    if H + r > M + N:
        return Coefficient(M * N / 2, 1)
    eighths = -((H + r) ** 2) - M**2 - N**2 + 2 * (H + r) * (M + N) + 2 * M * N
    odd = (M + H + N + r) % 2
    return Coefficient((eighths + odd) / 8, 1 + odd)


def deep_linear(widths: Sequence[int], true_rank: int) -> Coefficient:
    """λ and m of y = W_L … W_1 x with widths [input, …, output] and a true map of rank r.

    Aoyagi (2024), Neural Networks 172. With excesses M_s = width_s − r, sorted, Σ the l + 1 smallest for
    which their sum S obeys l max_Σ M ≤ S < l min_outside M, and a = S − (⌈S/l⌉ − 1) l:
    λ = (r(in + out) − r²)/2 + a(l − a)/(4l) − (l − 1) S²/(4l) + ½ Σ_{i<j ∈ Σ} M_i M_j, m = a(l − a) + 1.

    Raises:
        ValueError: fewer than two widths, or true_rank exceeds one of them.
    """
    _check_rank(true_rank, widths)
    chosen = _narrow_excesses(sorted(width - true_rank for width in widths))
    depth, total = len(chosen) - 1, sum(chosen)
    a = total - (-(-total // depth) - 1) * depth
    pairs = Fraction(total**2 - sum(m * m for m in chosen), 2)
    outer = Fraction(true_rank * (widths[0] + widths[-1]) - true_rank**2, 2)
    value = outer + pairs / 2 + Fraction(a * (depth - a) - (depth - 1) * total**2, 4 * depth)
    return Coefficient(float(value), a * (depth - a) + 1)


def _narrow_excesses(excesses: list[int]) -> list[int]:
    for count in range(2, len(excesses)):
        total, depth = sum(excesses[:count]), count - 1
        if depth * excesses[count - 1] <= total < depth * excesses[count]:
            return excesses[:count]
    return excesses


def _check_rank(true_rank: int, widths: Sequence[int]) -> None:
    if len(widths) < 2 or not 0 <= true_rank <= min(widths):
        raise ValueError(
            f"true_rank={true_rank} must be between 0 and the smallest of widths={tuple(widths)}"
        )


def quadratic_network(num_outputs: int, input_dim: int, width: int) -> float:
    """λ = ½ min(K(p + d − 1), p d(d + 1)/2) of f = V σ(Wᵀx), σ(t) = t², as published.

    arXiv:2603.01192 Corollary 4.2 with p = num_outputs, d = input_dim, K = width. With d = 2p it is
    Corollary 5.4 (feature learning): ½ K(3p − 1) below the second bound. Its hypothesis (inputs with
    second moments of full rank) fails on one-hot modular data, where half of `modular_rank` is right.
    """
    p, d, K = num_outputs, input_dim, width
    return min(K * (p + d - 1), p * d * (d + 1) // 2) / 2


def lazy_quadratic_network(num_outputs: int, width: int, feature_dim: int) -> float:
    """λ = ½ p min(l, K) when W is frozen and V alone is learned (arXiv:2603.01192, Theorem 5.2).

    p = num_outputs, K = width, l = feature_dim the dimension that the features span on the data.
    """
    return num_outputs * min(feature_dim, width) / 2


def lazy_quadratic_bounds(modulus: int, width: int) -> tuple[float, float]:
    """p(2p − 1)/2 ≤ λ ≤ pK/2 for 2p − 1 < K ≪ p² (arXiv:2603.01192, Corollary 5.3), p = modulus, K = width.

    Raises:
        ValueError: width is not above 2p − 1, where the corollary says nothing.
    """
    if width <= 2 * modulus - 1:
        raise ValueError(f"width={width} must exceed 2p - 1 = {2 * modulus - 1} for Corollary 5.3")
    return modulus * (2 * modulus - 1) / 2, modulus * width / 2


def tangent_kernel(rank: int) -> float:
    """λ = r/2 of a linearized network whose Jacobian has rank r (arXiv:2603.01192, Theorem 5.1)."""
    return rank / 2


def modular_rank(pairs: NDArray[np.int64], modulus: int, width: int) -> int:
    """Generic Jacobian rank of the quadratic network on one-hot pairs (N, 2), outputs centered over samples.

    min(K(3p − 1 − c − u), p(N − 1) − (p − K)₊(N − 1 − K)₊) with p = modulus, K = width, c the number
    of connected components of the bipartite graph whose edges are the pairs, and u the number of
    operand slots that occur in no pair. Half of it is the local λ at a generic realizable point. The
    first term lies below the published K(3p − 1): w_a + s, w'_b − s leaves (w_a + w'_b)² as it is, once
    per component, and an absent operand is never seen.
    """
    p, K, N = modulus, width, len(pairs)
    left, right = pairs[:, 0], pairs[:, 1] + p
    graph = coo_matrix((np.ones(N), (left, right)), shape=(2 * p, 2 * p))
    absent = 2 * p - len(np.unique(np.concatenate([left, right])))
    components = connected_components(graph, directed=False)[0] - absent
    shared = max(p - K, 0) * max(N - 1 - K, 0)
    return int(min(K * (3 * p - 1 - components - absent), p * (N - 1) - shared))


def jacobian_rank(outputs: Callable[[Tensor], Tensor], theta: Tensor) -> int:
    """Rank of the Jacobian of outputs(theta (P,)) -> (...), by SVD with NumPy's default threshold.

    At a true point where the rank is locally constant the local learning coefficient is half of it.
    Give theta in float64. Cost: P forward-mode products and an SVD of (outputs, P).
    """
    jacobian = torch.func.jacfwd(lambda point: outputs(point).reshape(-1))(theta)
    return int(torch.linalg.matrix_rank(jacobian))
