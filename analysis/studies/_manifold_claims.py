"""The claims of the execution-manifold study, committed before its runs."""

from __future__ import annotations

from ..claim import Claim

CLAIMS = (
    Claim(
        "one component carries each attention matrix",
        "the first principal component of each attention matrix explains 68 to 83 % of its trajectory",
        "68-83 % (83.1 the largest of all matrices)",
        "abstract; figure of PC1 by operation",
        "number",
        "centered PCA on evenly spaced snapshots up to generalization, mean over matrices and over the "
        "operations that generalize, one for each seed",
        0.68,
        0.83,
    ),
    Claim(
        "the defect starts near 2.3",
        "before training the commutator defect of the 290,401-parameter model is small",
        "2.32-2.43",
        "stored results of the repository, step 0",
        "number",
        "median over nine pairs of the float32 defect with η = 1e-3 at initialization, one for each seed",
        2.2,
        2.55,
    ),
    Claim(
        "onset comes first",
        "the defect's onset precedes generalization in every run",
        "12 of 12 at learning rate 1e-3",
        "lead-time table",
        "order",
        "share of learning rates at which the onset by the published rule on float32 defects "
        "comes before test accuracy .9, one for each seed",
        0.99,
        1.0,
    ),
    Claim(
        "leads grow faster than delays",
        "lead times follow a power law of the generalization time with exponent above 1",
        "1.27 ± .03 (R² .97; 1.3 in the first version)",
        "lead-time scaling, as quoted in arXiv 2602.16967",
        "scaling",
        "least squares of log lead on log generalization time over learning rates, one for each seed",
        1.21,
        1.33,
    ),
    Claim(
        "commutators are orthogonal to the manifold",
        "the commutator lies almost wholly outside the subspace of the trajectory",
        "ρ = .9996 at least, .99996 in the mean",
        "integrability section",
        "number",
        "ρ = ‖δ⊥‖/‖δ‖ of exact brackets against two components of every attention matrix, mean over "
        "snapshots, one for each seed",
        0.9996,
        1.0,
    ),
    Claim(
        "suppressing orthogonal flow prevents generalization",
        "without the gradient orthogonal to the manifold no run generalizes",
        "0 of 12 generalize at strength 1",
        "intervention section",
        "absence",
        "share of runs that generalize within the budget, projected gradient, strength 1, one for each seed",
        0.0,
        0.01,
    ),
    Claim(
        "weaker suppression delays it",
        "at strength .75 generalization comes 20 to 25 % later",
        "+600 to +800 steps of about 3,200",
        "intervention section",
        "number",
        "relative change of the generalization time, projected gradient, strength .75, one for each seed",
        0.15,
        0.30,
    ),
    Claim(
        "kicks do nothing",
        "a kick along the orthogonal commutator leaves the generalization time as it is",
        "27 of 27 generalize at about 3,200 steps",
        "intervention section",
        "absence",
        "relative change of the generalization time after one kick of length .015, one for each seed",
        -0.05,
        0.05,
    ),
)
