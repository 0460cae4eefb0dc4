"""Calibration: what it chooses, why, and that chains run with it earn their verdict."""

import numpy as np
import pytest
import torch
from grokscope.geometry.llc import estimate_llc
from grokscope.geometry.llc_calibration import affordable_localization, calibrate_llc
from grokscope.geometry.llc_null import energy_time, hessian_density
from problems_llc import DOUBLE, linear_network, of_point, regression


def minimum(objective, A):
    return torch.linalg.solve(A, -objective.gradient(torch.zeros(len(A), dtype=A.dtype)))


def estimate(objective, theta, found, **options):
    settings = found.settings
    return estimate_llc(
        objective,
        theta,
        num_beta=settings.num_beta,
        localization=settings.localization,
        step_size=settings.step_size,
        averaged_noise=settings.averaged_noise,
        method=settings.method,
        batch_size=settings.batch_size,
        burn_in=found.burn_in,
        num_draws=found.num_draws,
        **options,
    )


@pytest.mark.parametrize("options", [{}, {"averaged_noise": False}, {"batch_size": 20}])
def test_calibrated_chains_are_ok(options):
    objective, A = regression(num_samples=200)
    theta = minimum(objective, A)
    found = calibrate_llc(objective, theta, relative_radius=0.1, **options)
    assert found.settings.localization == pytest.approx(6 / (0.01 * float(theta.square().sum())))
    assert found.relative_radius == pytest.approx(0.1)
    assert found.settings.num_beta == pytest.approx(200 / np.log(200))
    assert (np.diff(found.step_sizes) < 0).all()
    assert found.step_sizes[-1] == found.settings.step_size
    assert found.energy_errors[-1] <= 0.25
    assert found.noise_shares[-1] < 0.05
    assert len(found.reasons) == 3
    # Halves within 2 standard errors, R-hat below 1.01: one seed in ten falls short of it; not this one.
    llc = estimate(objective, theta, found, generator=torch.Generator().manual_seed(2))
    assert llc.verdict == "ok", llc.reason


def test_stiffer_losses_get_smaller_steps_and_negative_curvature_more_localization():
    options = {"num_beta": 100.0, "localization": 10.0}
    steps = [
        calibrate_llc(
            of_point(lambda t, a=a: a * t.square().sum() / 2), torch.ones(3, dtype=DOUBLE), **options
        )
        for a in (1.0, 100.0)
    ]
    ratio = steps[0].settings.step_size / steps[1].settings.step_size
    assert 30 < ratio < 300  # h is 110 against 10,010
    saddle = of_point(lambda t: t[0] ** 2 - t[1] ** 2 + t.pow(4).sum())
    found = calibrate_llc(saddle, torch.zeros(2, dtype=DOUBLE) + 1e-3, num_beta=100.0, relative_radius=1e3)
    assert found.settings.localization == pytest.approx(400, rel=1e-3)
    assert "lambda_min" in found.reasons[0]


def test_a_step_that_blows_up_the_pilot_is_refused():
    quartic = of_point(lambda t: t.pow(4).sum())  # no curvature at 0, so the first trial is far too large
    found = calibrate_llc(quartic, torch.zeros(2, dtype=DOUBLE), num_beta=1e4, localization=1.0)
    assert np.isinf(found.energy_errors[0]) or found.energy_errors[0] > 0.25
    assert len(found.step_sizes) > 1


def test_budget_cuts_both_lengths_and_says_so():
    objective, theta = linear_network((3, 2, 3), generic=True)
    whole = calibrate_llc(objective, theta, localization=1.0)
    cut = calibrate_llc(objective, theta, localization=1.0, max_gradients=800)
    assert cut.burn_in < whole.burn_in
    assert cut.num_draws < whole.num_draws
    assert 8 * (1.5 * cut.burn_in + cut.num_draws) <= 800
    assert "max_gradients" in cut.reasons[-1]


def test_a_small_budget_takes_a_larger_step_that_only_noise_speaks_against():
    objective, A = regression(num_samples=200)
    options = {"localization": 90.0, "batch_size": 2}
    whole = calibrate_llc(objective, minimum(objective, A), **options)
    cut = calibrate_llc(objective, minimum(objective, A), **options, max_gradients=400)
    assert cut.settings.step_size > whole.settings.step_size
    assert any("quieter" in reason for reason in cut.reasons)


def quadratic(*curvatures):
    a = torch.tensor(curvatures, dtype=DOUBLE)
    return of_point(lambda t: (a * t.square()).sum() / 2)


def test_a_budget_raises_the_localization_until_chains_fit_in():
    objective = quadratic(*np.geomspace(100, 0.1, 20))
    theta = torch.zeros(20, dtype=DOUBLE)
    theta[-1] = 1e-3
    options = {"num_beta": 100.0, "relative_radius": 1e3}  # γ = 20
    whole = calibrate_llc(objective, theta, **options)
    cut = calibrate_llc(objective, theta, **options, max_gradients=8000)
    assert whole.settings.localization == pytest.approx(20)
    assert whole.settings.localization < cut.settings.localization <= 16 * whole.settings.localization
    assert cut.relative_radius < whole.relative_radius == pytest.approx(1e3)
    assert 8 * (1.5 * cut.burn_in + cut.num_draws) <= 8000
    assert "raised" in cut.reasons[1]
    llc = estimate(objective, theta, cut, generator=torch.Generator().manual_seed(2))
    assert llc.ess > 100, llc.reason  # 260 in each half were planned; the worse of two, within its error
    densities = [hessian_density(objective, theta)]
    gamma, reasons = affordable_localization(20.0, densities, num_beta=100.0, max_gradients=8000)
    assert gamma == pytest.approx(cut.settings.localization)
    assert reasons == cut.reasons[1:2]
    assert affordable_localization(20.0, densities, num_beta=100.0, max_gradients=8) == (20.0, ())


def test_energy_time_is_the_autocorrelation_time_of_the_loss():
    objective, theta = quadratic(1.0, 0.2, 0.05), torch.zeros(3, dtype=DOUBLE)
    settings = {"num_beta": 100.0, "localization": 2.0, "step_size": 0.006}
    time = energy_time(hessian_density(objective, theta), **settings)
    options = {"num_chains": 8, "num_draws": 1200, "burn_in": 200, "tilt": False}
    found = estimate_llc(objective, theta, **settings, **options)
    assert 4 < time < 40
    # The ESS of one half of 4,800 draws, the worse of two: its own error is above 10 %.
    assert found.ess * time == pytest.approx(4800, rel=0.35)
    stiff = quadratic(1.0, 1.0, 1.0)
    assert energy_time(hessian_density(stiff, theta), **settings) < time


def test_settings_for_several_points_suit_the_stiffest_and_the_slowest():
    options = {"num_beta": 100.0, "localization": 10.0}
    theta = torch.ones(2, dtype=DOUBLE)
    other = hessian_density(quadratic(10.0, -0.05), theta)
    alone = calibrate_llc(quadratic(1.0, 0.5), theta, **options)
    both = calibrate_llc(quadratic(1.0, 0.5), theta, others=[other], **options)
    assert both.step_sizes[0] == pytest.approx(2 / 1010)
    assert alone.step_sizes[0] == pytest.approx(2 / 110)
    assert both.burn_in >= 5 * 2 / (both.settings.step_size * 5)  # h = 10 - 100 * 0.05
    with pytest.raises(ValueError, match="does not bind"):
        calibrate_llc(quadratic(1.0, -1.0), theta, **options)


def test_same_seed_same_choice():
    objective, A = regression()
    theta = minimum(objective, A)
    first, again = (calibrate_llc(objective, theta, batch_size=20) for _ in range(2))
    assert first.settings == again.settings
    assert np.array_equal(first.energy_errors, again.energy_errors)


def test_what_cannot_be_calibrated_is_refused():
    objective, _ = regression()
    with pytest.raises(ValueError, match="give localization"):
        calibrate_llc(objective, torch.zeros(6, dtype=DOUBLE))
    steep = of_point(lambda t: 1e6 * t.abs().pow(3).sum())
    with pytest.raises(ValueError, match="raise localization or batch_size"):
        calibrate_llc(steep, torch.zeros(2, dtype=DOUBLE), num_beta=1e3, localization=1e-3)
