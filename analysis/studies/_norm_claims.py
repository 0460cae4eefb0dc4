"""What the paper of the norm-separation delay law claims, and what counts as the same."""

from __future__ import annotations

import numpy as np

from ..claim import Claim

CLAIMS = (
    Claim(
        "delay as 1/λ",
        "The delay is inversely proportional to weight decay.",
        "T linear in 1/λ, R² .97", "figure of the λ sweep", "scaling",
        "slope of ln(T_grok − T_mem) on ln λ",
        -1.15, -0.85,
    ),
    Claim(
        "delay as 1/η",
        "The delay is inversely proportional to the learning rate.",
        "T linear in 1/η, R² .92", "figure of the η sweep", "scaling",
        "slope of ln(T_grok − T_mem) on ln η",
        -1.15, -0.85,
    ),
    Claim(
        "log ratio of norms",
        "Divided by ln(V_mem/V_post)/(ηλ) the delay is a constant.",
        ".625 to .434 over λ = .1 to 1", "table 3", "scaling",
        "slope of ln((T_grok − T_mem)ηλ/ln(V_mem/V_post)) on ln λ",
        -0.1, 0.1,
    ),
    Claim(
        "prediction from three inputs",
        "The delay of a run is predicted with a mean error of a third.",
        "34.6 % [30.0, 39.4]", "prediction test, 60 seeds", "number",
        "|T̂/T − 1| of T̂ = ln(V_mem/V_post)/(2ηλ), the arithmetic of the released code, in the first cell",
        0.246, 0.446,
    ),
    Claim(
        "delay ordered by the law over p",
        "Delay and law go together over the moduli.",
        "r = .91", "table 4", "number",
        "Pearson correlation of T̂ and T over the moduli",
        0.8, 1.0,
    ),
    Claim(
        "fitted rate",
        "Fitted as A e^(kt) + C, the squared norm contracts at 1.41 ηλ a step.",
        "1.41", "remark 3.4", "number",
        "−k/(ηλ) from memorization to the end",
        1.2, 1.6,
    ),
    Claim(
        "optimizer speeds up contraction",
        "AdamW contracts the norm faster than weight decay does.",
        "γ ≥ ηλ", "proposition 3.3", "order",
        "−k/(ηλ) from memorization to the end",
        1.0, np.inf,
    ),
    Claim(
        "norm at generalization",
        "Generalization comes when the norm has reached V_post.",
        "T_grok is the passage of V_post", "theorem 3.2", "number",
        "V at generalization over V at the end of the run",
        0.8, 1.25,
    ),
    Claim(
        "necessity",
        "A run that generalizes late has V_mem > V_post.",
        "always", "theorem 3.8", "identity",
        "share of runs with a positive delay in which V_mem exceeds V at the end",
        1.0, 1.0,
    ),
    Claim(
        "norm of memorization",
        "V_mem belongs to the memorizing solution.",
        "V_mem falls with p by finite-width compression", "table 4", "scaling",
        "slope of ln V_mem on ln V at step 0 over scales of the embedding's initialization",
        -0.1, 0.1,
    ),
    Claim(
        "SGD does not generalize",
        "SGD fails where AdamW generalizes.",
        "0 of 5", "table 7", "absence",
        "share of runs that generalize: SGD with the learning rate and decay of AdamW, no momentum",
        0.0, 0.0,
    ),
)  # fmt: skip
