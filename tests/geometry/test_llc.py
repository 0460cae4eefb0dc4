"""Local learning coefficients against exact values at finite temperature, and their verdicts.

Statistical comparisons are at 3 standard errors (false alarm 0.3 % each) of at most 3 %, as the rules ask,
under fixed seeds.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
from grokscope.geometry import finite_beta, llc_chains, llc_diagnostics
from grokscope.geometry.llc import default_num_beta, estimate_llc
from grokscope.geometry.llc_null import hessian_density, quadratic_null
from problems_llc import DOUBLE, linear_network, of_point, regression, without_last_factor


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def minimum(objective, A):
    return torch.linalg.solve(A, -objective.gradient(torch.zeros(len(A), dtype=A.dtype)))


def agrees(found, expected, *, error=0.0):
    """Within 3 standard errors that are at most 3 %; `error` is that of the expectation."""
    assert found.stderr < 0.03 * expected
    assert abs(found.llc - expected) < 3 * np.hypot(found.stderr, error)


@pytest.mark.parametrize(("localization", "batch_size"), [(10, None), (100, 30)])
def test_reduced_rank_at_its_most_singular_point(localization, batch_size):
    objective, theta = linear_network((5, 3, 5))
    options = {"num_beta": 556, "localization": localization}
    found = estimate_llc(
        objective,
        theta,
        step_size=2e-3,
        num_chains=48,
        num_draws=700,
        burn_in=500,
        batch_size=batch_size,
        **options,
    )
    agrees(found, finite_beta.reduced_rank(5, 3, 5, **options))
    assert found.tilted == found.llc
    assert found.drift == 0
    assert found.quadratic == pytest.approx(0, abs=1e-9)  # the Hessian is zero: all of it is excess


def test_reduced_rank_at_a_generic_point_has_another_value():
    widths, options = (5, 3, 5), {"num_beta": 556, "localization": 100}
    objective, theta = linear_network(widths, generic=True)
    expected, error = without_last_factor(widths, theta, **options)
    assert error < 0.002 * expected
    assert expected > 4 * finite_beta.reduced_rank(*widths, **options)  # 7.5 against 6.5 in the limit
    found = estimate_llc(
        objective, theta, step_size=2e-4, num_chains=32, num_draws=500, burn_in=600, **options
    )
    agrees(found, expected, error=error)
    assert found.verdict == "ok"


def test_deep_linear_network():
    widths, options = (2, 2, 2, 2), {"num_beta": 200, "localization": 10}
    objective, theta = linear_network(widths)
    expected, error = without_last_factor(widths, theta, **options)
    assert error < 0.002 * expected
    found = estimate_llc(
        objective, theta, step_size=2e-3, num_chains=96, num_draws=800, burn_in=200, **options
    )
    agrees(found, expected, error=error)


@pytest.mark.parametrize(
    ("exponents", "num_beta", "gamma", "step_size"),
    [((2, 2), 30, 5, 1e-2), ((2, 4), 100, 4, 4e-3), ((4, 4), 100, 4, 4e-3)],
)
def test_normal_crossing(exponents, num_beta, gamma, step_size):
    a, b = exponents
    objective, theta = of_point(lambda theta: theta[0] ** a * theta[1] ** b), torch.zeros(2, dtype=DOUBLE)
    options = {"num_beta": num_beta, "localization": gamma}
    chains = {"num_chains": 256, "num_draws": 1000, "burn_in": 300}
    found = estimate_llc(objective, theta, step_size=step_size, **chains, **options)
    agrees(found, finite_beta.normal_crossing(exponents, **options))


@pytest.mark.parametrize(
    ("averaged", "batch_size", "step_size"), [(False, None, 2e-2), (True, None, 2e-2), (True, 40, 4e-3)]
)
def test_quadratic_loss_away_from_its_minimum(averaged, batch_size, step_size):
    objective, A = regression()
    theta = minimum(objective, A) + torch.linspace(-0.2, 0.3, 6, dtype=DOUBLE)
    values, vectors = torch.linalg.eigh(A)
    options = {"num_beta": 20.0, "localization": 3.0}
    exact = finite_beta.quadratic_drift(values, vectors.T @ objective.gradient(theta), **options)
    chains = {"num_chains": 64, "num_draws": 800, "burn_in": 400, "batch_size": batch_size}
    found = estimate_llc(objective, theta, step_size=step_size, averaged_noise=averaged, **chains, **options)
    null = finite_beta.quadratic(values, step_size=0 if averaged else step_size, **options)
    assert found.quadratic == pytest.approx(null, rel=0.2)  # two probes of a trace over six directions
    assert found.tilted_stderr < 0.03 * null
    # Minibatches inflate the variance by the noise share at most.
    assert found.noise_share < (0.02 if batch_size else 1e-9)
    assert abs(found.tilted - null) < 3 * found.tilted_stderr + found.noise_share * null
    assert abs(found.drift - exact.drift) < 3 * found.drift_stderr
    assert found.drift_stderr < 0.1 * abs(exact.drift)
    assert found.drift == pytest.approx(found.llc - found.tilted)
    assert found.excess == pytest.approx(found.tilted - found.quadratic)
    assert "not at a minimum" in found.reason


def test_negative_values_are_reported_as_they_are():
    objective, _ = regression()
    theta = torch.full((6,), 3.0, dtype=DOUBLE)
    found = estimate_llc(objective, theta, num_beta=20, localization=3, step_size=1e-2)
    assert found.llc < 0 < found.tilted
    assert found.verdict == "suspect"
    assert "negative" in found.reason
    assert "not at a minimum" in found.reason


def test_null_from_the_density_agrees_with_the_dense_spectrum():
    objective, A = regression(dim=40, num_samples=200)
    options = {"num_beta": 30.0, "localization": 2.0, "step_size": 0.01}
    density = hessian_density(objective, torch.zeros(40, dtype=DOUBLE), probes=200)
    null, exact = (
        quadratic_null(density, **options),
        finite_beta.quadratic(torch.linalg.eigvalsh(A), **options),
    )
    assert abs(null.value - exact) < 4 * null.stderr
    assert null.stderr < 0.05 * exact
    assert np.isnan(quadratic_null(density, num_beta=30.0, localization=2.0, step_size=10.0).value)


def test_a_step_that_is_unstable_at_the_point_is_invalid_even_if_chains_stay_finite():
    objective, theta = linear_network((5, 3, 5), generic=True)
    found = estimate_llc(objective, theta, num_beta=556, localization=100, step_size=1e-3, num_draws=50)
    assert found.failed_chains == 0
    assert (found.verdict, found.reason[:13]) == ("invalid", "unstable step")


def saddle(theta):
    return theta[0] ** 2 - 0.5 * theta[1] ** 2 + theta[1] ** 4


def test_no_local_posterior_is_invalid():
    options = {"num_beta": 100, "step_size": 1e-3, "num_draws": 200, "burn_in": 100}
    theta = torch.zeros(2, dtype=DOUBLE)
    found = estimate_llc(of_point(saddle), theta, localization=50, **options)
    assert found.verdict == "invalid"
    assert "-lambda_min = 1 exceeds gamma/(n beta) = 0.5" in found.reason
    assert np.isnan(found.quadratic)
    assert np.isfinite(found.llc)
    assert estimate_llc(of_point(saddle), theta, localization=300, **options).verdict != "invalid"


def test_one_diverging_chain_makes_the_estimate_invalid():
    objective = of_point(lambda theta: theta.pow(4).sum())
    options = {"num_beta": 100, "localization": 1, "num_chains": 8, "num_draws": 300, "burn_in": 50}
    theta = torch.zeros(1, dtype=DOUBLE)
    steps = np.geomspace(0.03, 1, 12)
    found = [estimate_llc(objective, theta, step_size=step, generator=seeded(1), **options) for step in steps]
    failed = [each.failed_chains for each in found]
    assert any(0 < count < 8 for count in failed)  # else the test says nothing about survivors
    for each in found:
        assert (each.verdict == "invalid") == (each.failed_chains > 0)
        assert np.isnan(each.llc) == (each.failed_chains > 0)
        if each.failed_chains:
            assert f"{each.failed_chains} of 8 chains diverged" in each.reason


def test_an_unstable_step_of_a_bounded_gradient_is_a_divergence_too():
    objective = of_point(lambda theta: torch.log(torch.cosh(theta)).sum())
    theta = torch.zeros(3, dtype=DOUBLE)
    found = estimate_llc(
        objective, theta, num_beta=100, localization=1, step_size=300, num_draws=50, burn_in=50
    )
    assert found.verdict == "invalid"


def test_constant_loss_and_frozen_chains_are_suspect():
    constant = of_point(lambda theta: 0 * theta.sum() + 1)
    theta = torch.zeros(3, dtype=DOUBLE)
    found = estimate_llc(
        constant, theta, num_beta=10, localization=1, step_size=0.1, num_draws=50, burn_in=100
    )
    assert (found.llc, found.stderr, found.verdict) == (0, 0, "suspect")
    assert "do not vary" in found.reason
    objective, _ = regression()
    frozen = estimate_llc(
        objective, torch.zeros(6, dtype=DOUBLE), localization=1, step_size=1e-14, num_draws=100, burn_in=50
    )
    assert frozen.verdict == "suspect"
    assert "burn-in" in frozen.reason
    ignored = Objective_ignoring_theta()
    assert estimate_llc(ignored, theta, localization=1, step_size=0.1, num_draws=20, burn_in=5).llc == 0


def Objective_ignoring_theta():  # noqa: N802
    return of_point(lambda theta: torch.ones((), dtype=theta.dtype))


OK = {"num_beta": 20.0, "localization": 3.0, "step_size": 3e-2, "num_draws": 1500, "burn_in": 150}


def test_verdict_is_ok_when_everything_is_and_one_chain_never_is():
    objective, A = regression()
    theta = minimum(objective, A)
    good = estimate_llc(objective, theta, **OK, generator=seeded(2))
    assert (good.verdict, good.reason) == ("ok", "")
    agrees(good, finite_beta.quadratic(torch.linalg.eigvalsh(A), num_beta=20, localization=3))
    assert abs(good.distance / good.radius - 1) < 0.5
    one = estimate_llc(objective, theta, num_chains=1, **OK)
    assert one.verdict == "suspect"
    assert "one chain" in one.reason


def test_published_noise_at_a_large_step_is_doubted():
    objective, A = regression()
    found = estimate_llc(objective, minimum(objective, A), **OK, averaged_noise=False)
    assert "step size adds" in found.reason
    bias = finite_beta.quadratic(torch.linalg.eigvalsh(A), num_beta=20, localization=3, step_size=3e-2)
    bias -= finite_beta.quadratic(torch.linalg.eigvalsh(A), num_beta=20, localization=3)
    assert found.energy_error == pytest.approx(bias, rel=0.1)


def test_seeds():
    objective, A = regression()
    theta = minimum(objective, A)
    options = OK | {"batch_size": 10, "num_draws": 200, "step_size": 1e-3}
    first, again, other = (estimate_llc(objective, theta, **options, generator=seeded(s)) for s in (0, 0, 1))
    assert np.array_equal(first.losses, again.losses)
    assert first.stderr == again.stderr
    correlation = np.corrcoef(np.diff(first.losses), np.diff(other.losses))
    assert np.abs(correlation - np.eye(8)).max() < 0.4  # 200 nearly independent increments: 5.6 sd


def test_burn_in_is_left_out_and_the_first_draw_follows_it():
    objective, A = regression()
    options = OK | {"num_draws": 40, "burn_in": 25}
    theta = minimum(objective, A)
    found = estimate_llc(objective, theta, **options)
    whole = estimate_llc(objective, theta, **options | {"num_draws": 65, "burn_in": 0})
    assert found.losses.shape == (4, 40)
    assert np.array_equal(found.losses[:2], whole.losses[:2, 25:])  # cold chains: same streams, no pilot
    assert np.array_equal(whole.losses[:, 0], np.full(4, objective.value(theta)))
    assert (found.losses[2:, 0] > found.loss).all()  # hot ones begin where their pilots ended


def test_every_option_changes_the_draws():
    objective, A = regression()
    theta = minimum(objective, A) + 0.1
    base = OK | {"num_draws": 30, "burn_in": 20, "batch_size": 20}
    changes = {
        "num_beta": 30.0,
        "localization": 5.0,
        "step_size": 1e-2,
        "num_chains": 3,
        "num_draws": 31,
        "burn_in": 21,
        "batch_size": 21,
        "method": "rmsprop",
        "averaged_noise": False,
        "generator": seeded(5),
    }
    reference = estimate_llc(objective, theta, **base).losses
    for name, value in changes.items():
        found = estimate_llc(objective, theta, **base | {name: value}).losses
        assert found.shape != reference.shape or not np.array_equal(found, reference), name
    untilted = estimate_llc(objective, theta, **base, tilt=False)
    assert np.array_equal(untilted.losses, reference)
    assert np.isnan(untilted.tilted)
    assert np.isnan(untilted.drift)
    assert "nan" not in untilted.reason


def test_whole_data_batches_and_chunks_change_nothing():
    objective, A = regression()
    options = OK | {"num_draws": 30, "burn_in": 20}
    reference = estimate_llc(objective, minimum(objective, A), **options)
    same = estimate_llc(objective, minimum(objective, A), **options, batch_size=80)
    chunked = estimate_llc(objective.with_chunk_size(7), minimum(objective, A), **options)
    assert np.array_equal(same.losses, reference.losses)
    np.testing.assert_allclose(chunked.losses, reference.losses, rtol=1e-9)
    assert same.noise_share == 0


def test_large_stacks_go_chain_by_chain_with_the_same_result(monkeypatch):
    objective, A = regression()
    options = OK | {"num_draws": 20, "burn_in": 10, "batch_size": 16}
    theta = minimum(objective, A) + 0.1
    stacked = estimate_llc(objective, theta, **options)
    monkeypatch.setattr("grokscope.geometry.stacked._STACKED_WORK", 1)
    np.testing.assert_allclose(estimate_llc(objective, theta, **options).losses, stacked.losses, rtol=1e-9)


def test_draws_are_unbiased_for_the_full_loss_and_quieter_than_the_minibatch_loss():
    objective, A = regression()
    theta = minimum(objective, A)
    center = llc_chains.center(objective, theta)
    assert center.loss == pytest.approx(objective.value(theta), rel=1e-12)
    point = theta + 0.05
    truth = objective.value(point) - center.loss
    batches = torch.randint(80, (20_000, 10), generator=seeded())
    raw = torch.func.vmap(objective.sample_loss, (None, 0))(point, batches)
    controlled = raw - center.sample_losses[batches].mean(1)
    assert abs(float(controlled.mean()) - truth) < 4 * float(controlled.std()) / 20_000**0.5
    assert float(controlled.std()) < 0.5 * float(raw.std())


def test_noise_share_is_that_of_the_gradient_covariance():
    objective, _ = regression()
    theta = torch.full((6,), 0.4, dtype=DOUBLE)
    settings = llc_chains.Settings(20.0, 3.0, 1e-2, batch_size=10)
    gradients = torch.stack([objective_gradient(objective, theta, i) for i in range(80)])
    top = float(torch.linalg.eigvalsh(gradients.T.cov())[-1])
    found = llc_diagnostics.noise_share(objective, theta, settings, generator=seeded(), num_samples=80)
    assert found == pytest.approx(1e-2 / 4 * 20**2 * top / 10, rel=1e-9)
    full = replace(settings, batch_size=None)
    assert llc_diagnostics.noise_share(objective, theta, full, generator=seeded()) == 0


def objective_gradient(objective, theta, index):
    return torch.func.grad(lambda point: objective.at(point, torch.tensor([index])))(theta)


def test_mixing_of_known_series():
    white = np.random.default_rng(0).standard_normal((4, 2000))
    found = llc_diagnostics.mixing(white)
    assert found.stderr == pytest.approx(1 / 8000**0.5, rel=0.15)
    assert found.rhat < 1.005
    shifted = white.copy()
    shifted[2:] += 0.2
    assert llc_diagnostics.mixing(shifted).stderrs_apart > 5
    assert llc_diagnostics.mixing(shifted).rhat > 1.003
    assert llc_diagnostics.mixing(np.ones((4, 10))).stderr == 0
    assert np.isnan(llc_diagnostics.mixing(white[:, :3]).rhat)


def test_default_inverse_temperature_counts_samples_not_batches():
    assert default_num_beta(4704) == pytest.approx(4704 / np.log(4704))
    objective, A = regression()
    options = {"localization": 3, "step_size": 1e-3, "num_draws": 10, "burn_in": 0}
    for batch_size in (5, 40):
        found = estimate_llc(objective, minimum(objective, A), batch_size=batch_size, **options)
        assert found.num_beta == pytest.approx(80 / np.log(80))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"step_size": 0}, "step_size=0"),
        ({"localization": -1}, "localization=-1"),
        ({"num_beta": float("nan")}, "num_beta=nan"),
        ({"num_chains": 0}, "num_chains=0"),
        ({"num_draws": 0}, "num_draws=0"),
        ({"burn_in": -1}, "burn_in=-1"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"method": "adam"}, "method='adam'"),
        ({"method": "rmsprop", "localization": 0}, "damping=None"),
    ],
)
def test_bad_options_are_refused(options, message):
    objective, _ = regression()
    with pytest.raises(ValueError, match=message):
        estimate_llc(
            objective, torch.zeros(6, dtype=DOUBLE), **{"localization": 1, "step_size": 0.1} | options
        )


def test_too_few_samples_for_the_default_temperature():
    with pytest.raises(ValueError, match="give num_beta"):
        default_num_beta(2)
