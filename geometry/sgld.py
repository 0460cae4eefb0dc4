"""Localized Langevin kernels on stacks of parameter vectors: init, step, adapt. State in, state out.

Target: exp(−nβ L(w) − (γ/2)‖w − w*‖²). One step with gradient g of L (full, or of a minibatch), noise ξ
and diagonal preconditioner G (identity for plain SGLD):

    w ← w − (ε/2) G (nβ g + γ(w − w*)) + sqrt(ε G) ξ

G multiplies localization and noise too; otherwise the law of small steps would be another one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

Method = Literal["sgld", "rmsprop"]
METHODS: tuple[Method, ...] = ("sgld", "rmsprop")


class State(NamedTuple):
    """Where a stack of chains stands; leading dimensions are chains, the last one is P."""

    theta: Tensor  # (..., P)
    preconditioner: Tensor | None = None  # (..., P) diagonal of G; None: identity
    last_noise: Tensor | None = None  # (..., P) kept by averaged noise only
    mean_square: Tensor | None = None  # (..., P) running mean of g², not yet corrected for its start
    updates: int = 0  # gradients in mean_square


def init(
    theta: Tensor, *, preconditioner: Tensor | None = None, averaged_noise: Tensor | None = None
) -> State:
    """Chains at theta (..., P).

    Give a `preconditioner` (..., P) for a fixed G. Give `averaged_noise`, a first standard normal draw
    shaped like theta, for the scheme of Leimkuhler & Matthews (2013, arXiv:1203.5428): each step then
    uses the mean of two successive draws. It costs the same, is exact for Gaussian targets at every stable
    step size, and of second order otherwise, where plain SGLD inflates the variance by 1/(1 − ε h/4).

    Raises:
        ValueError: a preconditioner that is not positive and finite.
    """
    if preconditioner is not None and not bool(((preconditioner > 0) & preconditioner.isfinite()).all()):
        raise ValueError("preconditioner must be positive and finite in every coordinate")
    return State(theta, preconditioner, averaged_noise)


def step(
    state: State,
    gradient: Tensor,
    noise: Tensor,
    *,
    center: Tensor,
    num_beta: float,
    localization: float | Tensor,
    step_size: float,
) -> State:
    """The chains one step later; no argument is changed.

    gradient (..., P) of the mean loss at state.theta (unbiased if of a minibatch), noise (..., P) standard
    normal, center w* (P,), nβ = num_beta, γ = localization, ε = step_size.
    """
    theta, scale, last = state.theta, state.preconditioner, state.last_noise
    used = noise if last is None else torch.lerp(last, noise, 0.5)
    if scale is None:
        moved = torch.lerp(theta, center, step_size * localization / 2)
        moved.add_(gradient, alpha=-step_size * num_beta / 2).add_(used, alpha=step_size**0.5)
    else:
        force = torch.sub(theta, center).mul_(localization).add_(gradient, alpha=num_beta)
        moved = torch.addcmul(theta, scale, force, value=-step_size / 2)
        moved.addcmul_(scale.sqrt(), used, value=step_size**0.5)
    return state._replace(theta=moved, last_noise=None if last is None else noise)


def adapt(state: State, gradient: Tensor, *, decay: float = 0.99, damping: float | Tensor) -> State:
    """The same chains with an RMSprop preconditioner that has seen one more gradient (..., P).

    G = damping/(damping + sqrt(v)) with v the running mean of g² at rate `decay`, corrected for its
    start. So G ≤ 1, and coordinates whose root mean square gradient is far below `damping` take the full
    step. Adapt during burn-in only: a G that moves with w drops the term ∂G/∂w of the exact process
    (Li et al. 2016, arXiv:1512.07666), and what is then sampled is not the target.
    """
    squares = gradient.square()
    before = torch.zeros_like(squares) if state.mean_square is None else state.mean_square
    mean_square = torch.lerp(before, squares, 1 - decay)
    updates = state.updates + 1
    root = (mean_square / (1 - decay**updates)).sqrt_()
    return state._replace(preconditioner=damping / (damping + root), mean_square=mean_square, updates=updates)


def draw_noise(generators: Sequence[torch.Generator], like: Tensor) -> Tensor:
    """Standard normal noise (C, P), row c from generators[c] alone; dtype and device of `like` (..., P)."""
    noise = torch.empty(len(generators), like.shape[-1], dtype=like.dtype, device=like.device)
    for row, generator in zip(noise, generators, strict=True):
        row.normal_(generator=generator)
    return noise


def spawn(generator: torch.Generator, count: int) -> list[torch.Generator]:
    """`count` generators on the same device with seeds drawn from `generator`, all different."""
    seeds: list[int] = []
    while len(seeds) < count:
        seed = int(torch.randint(2**32, (), generator=generator, device=generator.device))
        if seed not in seeds:
            seeds.append(seed)
    return [torch.Generator(generator.device).manual_seed(seed) for seed in seeds]
