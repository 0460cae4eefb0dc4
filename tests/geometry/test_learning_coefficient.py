"""Closed-form learning coefficients and exact finite-temperature values against the oracle tables."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from grokscope.geometry import finite_beta, learning_coefficient

DATA = Path(__file__).parents[1] / "data"


def table(name, *lists):
    content = json.loads((DATA / f"{name}.json").read_text())
    return [pytest.param(case, id=case["id"]) for key in lists for case in content[key]]


@pytest.mark.parametrize("case", table("learning_coefficients", "reduced_rank"))
def test_reduced_rank_agrees_with_the_table_and_with_the_deep_linear_formula(case):
    shape = (case["input_dim"], case["hidden_dim"], case["output_dim"])
    expected = (case["learning_coefficient"], case["multiplicity"])
    assert learning_coefficient.reduced_rank(*shape, case["true_rank"]) == expected
    assert learning_coefficient.deep_linear(shape, case["true_rank"]) == expected


@pytest.mark.parametrize("case", table("learning_coefficients", "deep_linear"))
def test_deep_linear_agrees_with_the_table(case):
    found = learning_coefficient.deep_linear(case["widths"], case["true_rank"])
    assert found == (case["learning_coefficient"], case["multiplicity"])


@pytest.mark.parametrize("case", table("finite_beta_normal_crossing", "uniform", "gaussian"))
def test_normal_crossing_at_finite_temperature(case):
    options = {"localization": case["gamma"], "center": case["center"]} if "gamma" in case else {}
    found = finite_beta.normal_crossing((case["a"], case["b"]), num_beta=case["nbeta"], **options)
    # Gaussian cases are stored with 12 digits, of which the smallest value has its leading zeros.
    assert found == pytest.approx(case["expected_nbeta_loss"], rel=1e-10)
    limit = learning_coefficient.normal_crossing((case["a"], case["b"]))
    assert limit == (case["limit_learning_coefficient"], case["multiplicity"])


@pytest.mark.parametrize("case", table("finite_beta_reduced_rank", "cases"))
def test_reduced_rank_at_finite_temperature(case):
    shape = (case["input_dim"], case["hidden_dim"], case["output_dim"])
    options = {"num_beta": case["nbeta"], "localization": case["gamma"]}
    expected = pytest.approx(case["expected_nbeta_loss"], rel=1e-8)
    assert finite_beta.reduced_rank(*shape, **options) == expected
    assert finite_beta.reduced_rank(*shape[::-1], **options) == expected


def test_reduced_rank_values_of_the_measurement_rules_and_its_limit():
    found = [finite_beta.reduced_rank(5, 3, 5, num_beta=556, localization=g) for g in (1, 10, 100)]
    assert np.round(found, 2).tolist() == [6.18, 5.14, 1.25]
    cold = finite_beta.reduced_rank(3, 8, 4, num_beta=1e30, localization=1)
    assert cold == pytest.approx(learning_coefficient.reduced_rank(3, 8, 4, 0).value, rel=1e-8)


def test_prior_exponents_multiplicity_and_ignored_coordinates():
    assert learning_coefficient.normal_crossing((2, 2)) == (0.5, 2)
    assert learning_coefficient.normal_crossing((4, 2, 0)) == (0.25, 1)
    assert learning_coefficient.normal_crossing((4, 2), (3, 0)) == (0.5, 1)
    assert learning_coefficient.regular(7) == (3.5, 1)


def test_quadratic_values_of_the_notes():
    options = {"num_beta": 200, "localization": 5}
    curvatures = [1, 0.1, 0.01, 0]
    assert finite_beta.quadratic(curvatures, **options) == pytest.approx(1.03066202091, rel=1e-9)
    assert finite_beta.quadratic(curvatures, step_size=1e-3, **options) == pytest.approx(
        1.05977864358, rel=1e-9
    )
    assert np.isnan(finite_beta.quadratic([-0.025], **options))
    assert np.isnan(finite_beta.quadratic([0.1], step_size=0.2, **options))


def test_quadratic_drift_by_direct_integration():
    a, g, nb, gamma = 0.7, 0.3, 40.0, 5.0
    w = np.linspace(-6, 6, 200_001)
    loss = g * w + a * w**2 / 2
    density = np.exp(-nb * loss - gamma / 2 * w**2)
    expected = nb * np.sum(loss * density) / np.sum(density)
    found = finite_beta.quadratic_drift([a], [g], num_beta=nb, localization=gamma)
    assert found.llc == pytest.approx(expected, rel=1e-9)
    flat = finite_beta.quadratic_drift([0.0], [g], num_beta=nb, localization=gamma)
    assert flat == (pytest.approx(-(nb**2) * g**2 / gamma), 0.0, pytest.approx(-(nb**2) * g**2 / gamma))


def pairs_of(modulus, fraction, seed):
    every = np.stack(np.divmod(np.arange(modulus**2), modulus), 1)
    order = np.random.default_rng(seed).permutation(modulus**2)
    return every[order[: int(fraction * modulus**2)]]


def network_rank(pairs, modulus, width, inputs=None):
    p, generator = modulus, torch.Generator().manual_seed(1)
    if inputs is None:
        inputs = torch.zeros(len(pairs), 2 * p, dtype=torch.float64)
        inputs[torch.arange(len(pairs)), pairs[:, 0]] = 1
        inputs[torch.arange(len(pairs)), pairs[:, 1] + p] = 1
    theta = torch.randn(3 * p * width, generator=generator, dtype=torch.float64)

    def outputs(theta):
        W, V = theta[: 2 * p * width].view(2 * p, width), theta[2 * p * width :].view(p, width)
        values = (inputs @ W) ** 2 @ V.T
        return values - values.mean(0)

    return learning_coefficient.jacobian_rank(outputs, theta)


@pytest.mark.parametrize(("modulus", "width"), [(5, 4), (5, 12), (7, 4), (3, 2), (6, 3)])
@pytest.mark.parametrize("fraction", [0.3, 0.4, 0.6, 1.0])
@pytest.mark.parametrize("seed", [0, 1])
def test_rank_on_modular_data_depends_on_the_split_and_is_what_autograd_finds(modulus, width, fraction, seed):
    pairs = pairs_of(modulus, fraction, seed)
    assert learning_coefficient.modular_rank(pairs, modulus, width) == network_rank(pairs, modulus, width)


def test_published_coefficient_holds_for_gaussian_inputs_and_is_too_large_on_modular_data():
    modulus, width = 5, 4
    pairs = pairs_of(modulus, 1.0, 0)
    inputs = torch.randn(100, 2 * modulus, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    published = learning_coefficient.quadratic_network(modulus, 2 * modulus, width)
    assert published == width * (3 * modulus - 1) / 2
    # Centering over samples takes nothing from Gaussian inputs; on one-hot data K directions are lost.
    assert network_rank(pairs, modulus, width, inputs) / 2 == published
    assert network_rank(pairs, modulus, width) / 2 == published - width / 2


def test_analytic_order_of_lazy_and_feature_learning_is_opposite_to_the_narrative():
    p, K = 53, 1024
    count = int(0.4 * p * p)
    feature = learning_coefficient.quadratic_network(p, 2 * p, K)
    lazy = learning_coefficient.lazy_quadratic_network(p, K, feature_dim=count - 1)
    low, high = learning_coefficient.lazy_quadratic_bounds(p, K)
    assert low <= lazy <= high
    assert lazy < feature
    # At full width no Jacobian on 40 % of the pairs can have the rank that Corollary 5.4 asks for.
    assert learning_coefficient.modular_rank(pairs_of(p, 0.4, 0), p, K) / 2 < feature
    assert learning_coefficient.tangent_kernel(p * (count - 1)) < feature


@pytest.mark.parametrize(
    "call",
    [
        lambda: learning_coefficient.normal_crossing((3, 2)),
        lambda: learning_coefficient.normal_crossing((0, 0)),
        lambda: learning_coefficient.reduced_rank(2, 2, 2, 3),
        lambda: learning_coefficient.deep_linear([4], 0),
        lambda: learning_coefficient.lazy_quadratic_bounds(5, 9),
        lambda: finite_beta.normal_crossing((2, 1), num_beta=10),
        lambda: finite_beta.reduced_rank(7, 6, 7, num_beta=10, localization=1),
    ],
)
def test_bad_arguments_are_refused(call):
    with pytest.raises(ValueError, match="must"):
        call()
