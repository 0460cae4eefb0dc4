import numpy as np
import pytest
import torch
from grokscope.geometry.lanczos import lanczos
from grokscope.geometry.operators import dense, hessian_operator
from grokscope.geometry.spectrum import spectral_density, trace
from problems_curvature import matrix_operator, network_objective, with_spectrum

SADDLE = np.r_[3, 2, -2.5, -4, np.linspace(-1, 1, 196)]


def test_weights_sum_to_one_and_moments_match():
    density = spectral_density(matrix_operator(with_spectrum(SADDLE)), probes=40, nodes=20)
    np.testing.assert_allclose(density.weights.sum(axis=1), 1, atol=1e-12)
    assert density.moment(0).value == pytest.approx(1, abs=1e-12)
    for order in (1, 2, 3):
        found = density.moment(order)
        # 4.5 standard errors of a mean over 40 probes: false alarm below 1e-4 for each.
        assert abs(found.value - (SADDLE**order).mean()) < 4.5 * found.stderr
    assert density.matvecs == 800
    assert density.dim == 200


@pytest.mark.parametrize("probes", [1, 3])
def test_moments_of_one_probe_are_exact_for_its_vector(probes):
    # Quadrature with m nodes integrates polynomials of degree 2m - 1 exactly: same moments for any m that is
    # enough.
    operator = matrix_operator(with_spectrum(SADDLE))
    few = spectral_density(operator, probes=probes, nodes=2)
    many = spectral_density(operator, probes=probes, nodes=60)
    for order in range(4):
        assert few.moment(order).value == pytest.approx(many.moment(order).value, rel=1e-9)


@pytest.mark.parametrize(
    ("values", "size"),
    [(np.zeros(30), 1), (np.r_[2.0, np.zeros(29)], 2), (np.r_[np.ones(10), 3 * np.ones(20)], 2)],
)
def test_few_distinct_values(values, size):
    density = spectral_density(matrix_operator(with_spectrum(values)), probes=60, nodes=25)
    assert density.nodes.shape == (60, size)
    assert density.matvecs == 60 * size
    found = density.moment(1)
    assert abs(found.value - values.mean()) <= 4.5 * found.stderr + 1e-12  # false alarm below 1e-4


def test_histogram_shares():
    density = spectral_density(matrix_operator(with_spectrum(SADDLE)), probes=60, nodes=40)
    shares, errors = density.histogram(np.array([-5, -1.5, -0.5, 0.5, 1.5, 4]))
    exact, _ = np.histogram(SADDLE, [-5, -1.5, -0.5, 0.5, 1.5, 4])
    assert (
        abs(shares - exact / 200) < 4.5 * errors + 0.01
    ).all()  # a node may fall on either side of a bin's edge
    assert shares.sum() == pytest.approx(1)


def test_expectation_of_a_function():
    density = spectral_density(matrix_operator(with_spectrum(SADDLE)), probes=40, nodes=40)
    found = density.expectation(lambda a: 1 / (1 + a**2))
    assert abs(found.value - (1 / (1 + SADDLE**2)).mean()) < 4.5 * found.stderr


def test_network_density_in_single_precision():
    objective, theta = network_objective("mlp", dtype=torch.float32)
    operator = hessian_operator(objective, theta)
    exact = dense(operator).double()
    density = spectral_density(operator, probes=30, nodes=40)
    first, second = density.moment(1), density.moment(2)
    assert abs(first.value - float(exact.trace()) / len(theta)) < 4.5 * first.stderr
    assert abs(second.value - float((exact**2).sum()) / len(theta)) < 4.5 * second.stderr


@pytest.mark.parametrize("options", [{}, {"sketch": 6}, {"known": True}])
def test_trace_and_its_error(options):
    matrix = with_spectrum(SADDLE * 10)
    operator = matrix_operator(matrix)
    if "known" in options:
        options = {"known": lanczos(operator, 2, which="magnitude")}
    generator = torch.Generator().manual_seed(5)
    estimates = [trace(operator, probes=8, generator=generator, **options) for _ in range(100)]
    scores = np.array([(e.value - float(matrix.trace())) / e.stderr for e in estimates])
    # Student t with 7 degrees of freedom: |mean of 100| > .6 has probability below 1e-5; the spread is 1.18 ±
    # .1.
    assert abs(scores.mean()) < 0.6
    assert 0.8 < scores.std() < 1.7


def test_known_pairs_reduce_the_error():
    operator = matrix_operator(with_spectrum(np.r_[1000.0, 500.0, np.linspace(-1, 1, 198)]))
    known = lanczos(operator, 2)
    assert trace(operator, known=known).stderr < 0.1 * trace(operator).stderr
    assert trace(operator, sketch=4).stderr < 0.1 * trace(operator).stderr


def test_trace_of_a_diagonal_operator_is_exact():
    found = trace(matrix_operator(torch.diag(torch.arange(5.0))), probes=3)
    assert found.value == pytest.approx(10)
    assert found.stderr == pytest.approx(0, abs=1e-6)


def test_bad_arguments():
    operator = matrix_operator(torch.eye(4))
    with pytest.raises(ValueError, match="probes=0"):
        spectral_density(operator, probes=0)
    with pytest.raises(ValueError, match="sketch=2"):
        trace(operator, sketch=2, known=lanczos(operator))
    assert np.isnan(trace(operator, probes=1).stderr)
