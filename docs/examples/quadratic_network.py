"""The quadratic network of arXiv:2603.01192, scaled down: estimated against analytic coefficients over K.

    python docs/examples/quadratic_network.py [MODULUS [FRACTION]]

f = V (Wᵀx)² on one-hot pairs, outputs centered over the samples, at a random realizable point. Columns: the
estimate by Langevin chains, what the Hessian predicts at this temperature and localization, half of the
Jacobian rank on these pairs, the published ½ K(3p − 1) (features) and ½ p K (lazy), and the verdict with
its reason: what only the localization holds relaxes in thousands of steps, more than the burn-in here.
"""

import sys

import numpy as np
import torch
from grokscope.geometry import learning_coefficient as known
from grokscope.geometry.llc import estimate_llc
from grokscope.geometry.llc_null import hessian_density
from grokscope.geometry.objective import Objective

NUM_BETA, LOCALIZATION = 1e5, 300.0


def modular_pairs(modulus, fraction, seed=0):
    """A random share of all pairs (N, 2)."""
    every = np.stack(np.divmod(np.arange(modulus**2), modulus), 1)
    return np.random.default_rng(seed).permutation(every)[: round(fraction * modulus**2)]


def quadratic_network(pairs, modulus, width, seed=0):
    """The loss ½ mean ‖(f − f*)(I − 11ᵀ/N)‖² and the point theta* that made its targets."""
    generator = torch.Generator().manual_seed(seed)
    theta = torch.randn(3 * modulus * width, generator=generator, dtype=torch.float64)
    inputs = torch.zeros(len(pairs), 2 * modulus, dtype=torch.float64)
    inputs[np.arange(len(pairs)), pairs[:, 0]] = 1
    inputs[np.arange(len(pairs)), pairs[:, 1] + modulus] = 1

    def outputs(theta):
        hidden, readout = theta.split([2 * modulus * width, modulus * width])
        values = (inputs @ hidden.view(-1, width)).square() @ readout.view(modulus, width).T / width**0.5
        return values - values.mean(0)

    targets = outputs(theta)

    def loss(theta, indices):
        return (outputs(theta) - targets)[indices].square().sum(-1).mean() / 2

    return Objective(loss, len(pairs)), theta


def estimate(pairs, modulus, width, *, num_chains=32, burn_in=1500, num_draws=2000):
    """λ̂ by chains whose step is 1.5 over the largest curvature of their potential."""
    objective, theta = quadratic_network(pairs, modulus, width)
    density = hessian_density(objective, theta, probes=32, nodes=64)
    step_size = 1.5 / (NUM_BETA * density.nodes.max() + LOCALIZATION)
    return estimate_llc(
        objective,
        theta,
        num_beta=NUM_BETA,
        localization=LOCALIZATION,
        step_size=step_size,
        num_chains=num_chains,
        burn_in=burn_in,
        num_draws=num_draws,
        density=density,
    )


def main(modulus=5, fraction=1.0):
    """Print the table over K."""
    torch.set_num_threads(1)
    pairs = modular_pairs(modulus, fraction)
    print(
        f"p = {modulus}, {len(pairs)} of {modulus**2} pairs, n beta = {NUM_BETA:g}, gamma = {LOCALIZATION:g}"
    )
    print(f"{'K':>3} {'estimate':>14} {'Hessian':>8} {'rank/2':>7} {'K(3p-1)/2':>10} {'pK/2':>6}  verdict")
    for width in (1, 2, 3, 4, 6, 8):
        found = estimate(pairs, modulus, width)
        half = known.modular_rank(pairs, modulus, width) / 2
        feature = known.quadratic_network(modulus, 2 * modulus, width)
        lazy = known.lazy_quadratic_network(modulus, width, len(pairs) - 1)
        print(
            f"{width:3d} {found.llc:8.2f} ± {found.stderr:.2f} {found.quadratic:9.2f} {half:7.1f} "
            f"{feature:10.1f} {lazy:6.1f}  {found.verdict}: {found.reason}",
            flush=True,
        )


if __name__ == "__main__":
    main(*(kind(word) for kind, word in zip((int, float), sys.argv[1:], strict=False)))
