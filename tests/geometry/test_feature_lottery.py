from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from grokscope.geometry.addition_network import descend, from_modes, ghost_ratio, gradient, logits
from grokscope.geometry.feature_lottery import Modes, blow_up_time, flow, lottery, modes, velocity
from torch.nn import functional

CASES = json.loads((Path(__file__).parents[1] / "data/feature_ode.json").read_text())["cases"]
cases = pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])


def start_of(case: dict) -> Modes:
    return Modes(*(np.array([case[name]]) for name in ("alpha0", "beta0", "phi0", "psi0")))


def random_modes(shape: tuple[int, ...], *, seed: int, size: float = 1.0) -> Modes:
    stream = np.random.default_rng(seed)
    return Modes(*(size * stream.uniform(0.1, 1, (2, *shape))), *stream.uniform(-np.pi, np.pi, (2, *shape)))


@cases
def test_trajectories_against_the_table(case: dict) -> None:
    times = case["times"][: len(case["alpha"])]
    found = flow(start_of(case), times, modulus=case["p"])
    # The table's own precision is 1e-9.
    np.testing.assert_allclose(found.alpha[:, 0], case["alpha"], rtol=2e-9)
    np.testing.assert_allclose(found.beta[:, 0], case["beta"], rtol=2e-9)
    for name in ("phi", "psi"):
        np.testing.assert_allclose(np.sin(getattr(found, name)[:, 0] - case[name]), 0, atol=2e-9)
    start = start_of(case)
    np.testing.assert_allclose(
        np.ravel(velocity(start, modulus=case["p"])), case["initial_derivative"], rtol=1e-9
    )
    wanted = (case["invariant_alpha2_minus_2beta2"], case["invariant_alpha2_beta_sinD"])
    np.testing.assert_allclose(np.ravel(start.invariants), wanted, rtol=1e-9)


def test_invariants_are_kept_and_phases_align() -> None:
    start = random_modes((50,), seed=1)
    last = 0.9 * blow_up_time(start, modulus=7).min()
    found = flow(start, [last / 2, last], modulus=7)
    for before, after in zip(start.invariants, found.invariants, strict=True):
        np.testing.assert_allclose(after, np.broadcast_to(before, after.shape), rtol=1e-6, atol=1e-8)
    assert (np.cos(found.misalignment[-1]) > np.cos(start.misalignment)).all()


def test_blow_up_time_against_integration() -> None:
    """Near its end β = p/(2(T − t)) for whatever start, also for modes that first fall."""
    start = random_modes((40,), seed=2)
    end = blow_up_time(start, modulus=5)
    for i, last in enumerate(end):
        alone = Modes(*(part[i : i + 1] for part in start))
        beta = float(flow(alone, [0.999 * last], modulus=5, tolerance=1e-12).beta[0, 0])
        # The next order of β(T − t) is (1 − t/T)² times the invariants.
        assert beta * 0.001 * last * 2 / 5 == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize(
    ("alpha", "beta", "misalignment", "expected"),
    [
        (np.sqrt(2.0), 1.0, 0.0, 0.5),  # aligned on α = √2 β: β' = 2β²
        (1.0, 0.0, 0.0, np.pi / np.sqrt(8)),  # c = 1, e = 0: ∫ du/(2√u (1 + 2u)) from 0
        (1.0, 1.0, np.pi, np.inf),  # opposed and α² < 2β²: α only falls to zero
    ],
)
def test_blow_up_time_in_elementary_cases(
    alpha: float, beta: float, misalignment: float, expected: float
) -> None:
    start = Modes(*(np.array([value]) for value in (alpha, beta, misalignment / 2, 0.0)))
    found = blow_up_time(start, modulus=1)[0]
    # sin π is 1e-16, not 0, so never is late: the logarithm of 1e-16.
    assert found == pytest.approx(expected) if np.isfinite(expected) else found > 10


def test_flow_is_refused_beyond_its_end() -> None:
    start = start_of(CASES[0])
    with pytest.raises(ValueError, match="a mode is infinite at 19"):
        flow(start, [20.0], modulus=23)


def test_modes_and_weights_are_inverse() -> None:
    start = random_modes((4, 5), seed=3)
    found = modes(*from_modes(start, modulus=11))
    for a, b in zip(found, start, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-12)
    with pytest.raises(ValueError, match="odd p"):
        modes(np.zeros((2, 4)), np.zeros((2, 4)))


def test_gradient_against_autograd() -> None:
    stream = np.random.default_rng(4)
    theta, xi = stream.standard_normal((2, 6, 7))
    loss, by_theta, by_xi = gradient(theta, xi)
    inputs, outputs = (torch.tensor(w, requires_grad=True) for w in (theta, xi))
    a, b = torch.cartesian_prod(torch.arange(7), torch.arange(7)).unbind(1)
    scores = (inputs[:, a] + inputs[:, b]).square().T @ outputs
    value = functional.cross_entropy(scores, (a + b) % 7)
    value.backward()
    assert loss == pytest.approx(value.item(), rel=1e-12)
    np.testing.assert_allclose(by_theta, inputs.grad, atol=1e-13)
    np.testing.assert_allclose(by_xi, outputs.grad, atol=1e-13)
    np.testing.assert_allclose(logits(theta, xi).reshape(49, 7), scores.detach(), atol=1e-12)


def test_euler_of_the_network_follows_the_reduced_flow() -> None:
    """Twelve units with five frequencies each; the difference is of first order in step and in logits."""
    apart = []
    for size in (0.02, 0.01):
        start = random_modes((12, 5), seed=5, size=size)
        last = 0.6 * blow_up_time(start, modulus=11).min()
        *_, (_, theta, xi) = descend(*from_modes(start, modulus=11), step_size=last / 1000, steps=[1000])
        wanted, found = flow(start, [last], modulus=11), modes(theta, xi)
        apart.append(np.abs(found.alpha - wanted.alpha[0]).max() / size)
        assert np.abs(np.sin(found.phi - wanted.phi[0])).max() < 0.02
    # Logits fall by eight, so what remains at the smaller size is the step's own error, below 1 %.
    assert apart[1] < apart[0]
    assert apart[1] < 0.01


def test_euler_converges_to_the_reduced_flow_at_first_order() -> None:
    start = random_modes((3, 5), seed=6, size=1e-4)
    last = 0.8 * blow_up_time(start, modulus=11).min()
    wanted = flow(start, [last], modulus=11).beta[0]
    errors = []
    for steps in (100, 200, 400):
        *_, (_, theta, xi) = descend(*from_modes(start, modulus=11), step_size=last / steps, steps=[steps])
        errors.append(np.abs(modes(theta, xi).beta - wanted).max())
    np.testing.assert_allclose(np.divide(errors[:-1], errors[1:]), 2, rtol=0.15)


def test_lottery_names_the_frequency_that_outgrows_the_others() -> None:
    start = random_modes((30, 5), seed=7)
    end = blow_up_time(start, modulus=11)
    for unit, winner in enumerate(lottery(start, modulus=11)):
        alone = Modes(*(part[unit] for part in start))
        grown = flow(alone, [0.9999 * end[unit].min()], modulus=11)
        assert 1 + grown.alpha[0].argmax() == winner


def test_ghosts_of_the_majority_vote() -> None:
    """All frequencies with 16 evenly spaced phases each, aligned: exactly the flawed indicator."""
    p, phases = 11, 2 * np.pi * np.arange(16) / 16
    waves = 2 * np.pi * np.arange(1, 6)[:, None, None] * np.arange(p) / p
    theta = np.cos(waves + phases[:, None]).reshape(-1, p)
    xi = np.cos(waves + 2 * phases[:, None]).reshape(-1, p)
    scores = logits(theta, xi)
    assert ghost_ratio(scores) == pytest.approx(0.5, abs=1e-12)
    # A correct indicator has none.
    a, b = np.divmod(np.arange(p * p), p)
    assert ghost_ratio(np.eye(p)[(a + b) % p].reshape(p, p, p)) == pytest.approx(0, abs=1e-12)
