"""Curvature as minibatch training meets it: along the gradient of each batch, on that batch."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from .objective import Objective
from .operators import gradient_graph
from .spectrum import Estimate, over_probes


class BatchSharpness(NamedTuple):
    """Mean and standard error over batches; `preconditioned` is NaN without a preconditioner."""

    plain: Estimate
    preconditioned: Estimate


def batch_sharpness(
    objective: Objective,
    theta: Tensor,
    *,
    batch_size: int,
    batches: int = 8,
    diagonal: Tensor | None = None,
    generator: torch.Generator | None = None,
) -> BatchSharpness:
    """E_B[g_Bᵀ H_B g_B / ‖g_B‖²] at theta (P,) over batches B of batch_size samples drawn with replacement.

    g_B and H_B are gradient and Hessian of the batch's mean loss. With the diagonal (P,) of a preconditioner
    P, also E_B[g_Bᵀ P⁻¹ H_B P⁻¹ g_B / g_Bᵀ P⁻¹ g_B]: the same along the preconditioned step. At the edge of
    stability of minibatch SGD the plain one hovers at 2/lr while λ_max(H) stays below (Andreyev and
    Beneventano 2024, 2412.20553). Costs batches · (1 + 2 per form) gradient evaluations on batch_size
    samples.

    Raises:
        ValueError: batch_size or batches is below 1.
    """
    if batch_size < 1 or batches < 1:
        raise ValueError(f"batch_size={batch_size} and batches={batches} must both be at least 1")
    generator = generator or torch.Generator().manual_seed(0)
    rows = []
    for _ in range(batches):
        drawn = torch.randint(objective.num_samples, (batch_size,), generator=generator)
        slope, product = gradient_graph(objective.on(drawn.to(objective.device)), theta)
        step = slope if diagonal is None else slope / diagonal
        plain = _quotient(slope @ product(slope), slope @ slope)
        rows.append((plain, plain if diagonal is None else _quotient(step @ product(step), slope @ step)))
    plain, preconditioned = np.array(rows).T
    missing = Estimate(float("nan"), float("nan"))
    return BatchSharpness(over_probes(plain), missing if diagonal is None else over_probes(preconditioned))


def _quotient(part: Tensor, whole: Tensor) -> float:
    return float(part / whole)  # NaN where a batch has no gradient
