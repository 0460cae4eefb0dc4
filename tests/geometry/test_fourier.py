import numpy as np
import pytest
from grokscope.geometry.fourier import (
    answer_power,
    discrete_logarithms,
    dominant_frequency,
    fourier_basis,
    frequency_power,
    inverse_participation,
    key_frequencies,
    means_by_answer,
    periodicity,
    phase,
    waves_of_answer,
    wrapped,
)

EXACT = {"rtol": 1e-10, "atol": 1e-12}  # float64 sums over at most 97² terms


def pairs(p):
    return np.divmod(np.arange(p * p), p)


@pytest.mark.parametrize("m", [1, 2, 3, 8, 97])
def test_basis_is_orthonormal_and_made_of_waves(m):
    basis = fourier_basis(m)
    np.testing.assert_allclose(basis @ basis.T, np.eye(m), **EXACT)
    for k in range(1, (m + 1) // 2):
        np.testing.assert_allclose(
            basis[2 * k - 1], np.sqrt(2 / m) * np.cos(2 * np.pi * k * np.arange(m) / m), **EXACT
        )
        np.testing.assert_allclose(
            basis[2 * k], np.sqrt(2 / m) * np.sin(2 * np.pi * k * np.arange(m) / m), **EXACT
        )


@pytest.mark.parametrize("m", [2, 7, 8])
def test_power_is_that_of_the_coordinates_in_the_basis(m):
    values = np.random.default_rng(0).normal(size=(3, m))
    squares = (values @ fourier_basis(m).T) ** 2
    for k in range(m // 2 + 1):
        rows = [row for row in ([0] if k == 0 else [2 * k - 1, 2 * k]) if row < m]
        np.testing.assert_allclose(frequency_power(values)[:, k], squares[:, rows].sum(1), **EXACT)
    np.testing.assert_allclose(frequency_power(values).sum(1), (values**2).sum(1), **EXACT)


def test_periodicity_of_a_wave_and_of_an_impulse():
    j = np.arange(97)
    # A pure wave has two equal coefficients among 96; an impulse has all of them equal.
    assert periodicity(np.cos(2 * np.pi * 5 * j / 97 - 0.3)) == pytest.approx(48, rel=1e-9)
    assert periodicity(3.0 + (j == 4)) == pytest.approx(1, rel=1e-9)
    assert np.isnan(periodicity(np.ones(97)))


def test_frequency_and_phase_are_found_again():
    rng = np.random.default_rng(1)
    frequencies, phases = rng.integers(1, 48, size=20), rng.uniform(-np.pi, np.pi, size=20)
    j = np.arange(97)
    values = 0.7 * np.cos(2 * np.pi * frequencies[:, None] * j / 97 - phases[:, None]) + 2
    np.testing.assert_array_equal(dominant_frequency(values), frequencies)
    np.testing.assert_allclose(wrapped(phase(values, frequencies) - phases), 0, atol=1e-9)


def test_wrapped_angles():
    np.testing.assert_allclose(
        wrapped(np.array([0.0, 3 * np.pi, -np.pi, 7.0])), [0, np.pi, np.pi, 7 - 2 * np.pi]
    )


def test_inverse_participation_of_one_and_of_equal_frequencies():
    assert inverse_participation(np.array([0.0, 5.0, 0.0])) == 1
    assert inverse_participation(np.full((2, 48), 0.1)) == pytest.approx(1 / 48)
    assert np.isnan(inverse_participation(np.zeros(3)))


def test_key_frequencies_leave_the_constant_out():
    power = np.array([100.0, 1, 1, 9, 1, 8])
    np.testing.assert_array_equal(key_frequencies(power), [3, 5])
    np.testing.assert_array_equal(key_frequencies(np.array([9.0, 1.0, 1.1, 1.0])), [2])


@pytest.mark.parametrize("p", [7, 10])
def test_logits_of_waves_have_the_power_put_in(p):
    """L_c(a, b) = Σ_k w_k cos(2πk(a + b − c)/p) has power p³ w_k²/2 at 0 < k < p/2."""
    a, b = pairs(p)
    t, c = (a + b) % p, np.arange(p)
    weights = {1: 2.0, 3: 0.5}
    logits = sum(w * np.cos(2 * np.pi * k * (t[:, None] - c) / p) for k, w in weights.items())
    power = answer_power(logits, t, p)
    expected = np.zeros(p // 2 + 1)
    for k, w in weights.items():
        expected[k] = p**3 * w**2 / 2
    np.testing.assert_allclose(power, expected, atol=1e-9)
    part = waves_of_answer(logits, t, p, [1])
    np.testing.assert_allclose(part, 2 * np.cos(2 * np.pi * (t[:, None] - c) / p), **EXACT)
    np.testing.assert_allclose(waves_of_answer(logits, t, p, [0, 1, 3]), logits, **EXACT)


def test_the_part_in_waves_is_an_orthogonal_projection():
    """Against dense projectors onto the waves cos(2πk(a + b)/p), sin(2πk(a + b)/p) on all pairs."""
    p = 7
    a, b = pairs(p)
    t = (a + b) % p
    logits = np.random.default_rng(2).normal(size=(p * p, 4))
    waves = fourier_basis(p)[[3, 4]][:, t] / np.sqrt(p)  # rows 3 and 4: frequency 2
    np.testing.assert_allclose(waves_of_answer(logits, t, p, [2]), waves.T @ (waves @ logits), **EXACT)
    np.testing.assert_allclose(answer_power(logits, t, p)[2], ((waves @ logits) ** 2).sum(), **EXACT)


def test_means_need_all_pairs():
    with pytest.raises(ValueError, match=r"answers occur 0 to 1 times"):
        means_by_answer(np.zeros((2, 3)), np.array([0, 1]), 3)


@pytest.mark.parametrize("p", [2, 3, 5, 97])
def test_logarithms_turn_products_into_sums(p):
    logarithm = discrete_logarithms(p)
    a, b = (1 + x for x in np.divmod(np.arange((p - 1) ** 2), p - 1))
    np.testing.assert_array_equal(logarithm[a * b % p], (logarithm[a] + logarithm[b]) % (p - 1))
    assert sorted(logarithm) == list(range(-1, p - 1))


def test_logarithms_need_a_prime():
    with pytest.raises(ValueError, match=r"p=8 is not prime"):
        discrete_logarithms(8)
