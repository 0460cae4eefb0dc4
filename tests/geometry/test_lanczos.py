import numpy as np
import pytest
import torch
from grokscope.geometry.lanczos import extreme_pairs, lanczos
from grokscope.geometry.operators import (
    SymmetricOperator,
    dense,
    ggn_operator,
    hessian_operator,
    preconditioned,
)
from problems_curvature import CASES, matrix_operator, network_objective, oracle_objective, with_spectrum

KEYS = {"largest": lambda v: -v, "smallest": lambda v: v, "magnitude": lambda v: -abs(v)}
SPECTRA = {
    "zero": np.zeros(40),
    "rank one": np.r_[5.0, np.zeros(39)],
    "rank one, negative": np.r_[-5.0, np.zeros(39)],
    "identity": np.ones(40),
    "two-valued": np.r_[np.full(12, 3.0), np.ones(48)],
    "clustered": np.r_[3, 3 - 1e-6, 3 - 2e-6, 2, np.linspace(0, 1, 76)],
    "saddle": np.r_[3, 2, -2.5, -4, np.linspace(-1, 1, 76)],
    "tiny": 1e-8 * np.r_[3, 2.5, -2, np.linspace(-1, 1, 77)],
    "decaying": 2.0 ** -np.arange(60),
}


def expected(values, which, k):
    values = np.sort(np.asarray(values, dtype=float))
    return values[np.argsort(KEYS[which](values), kind="stable")][:k]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("which", KEYS)
@pytest.mark.parametrize("name", SPECTRA)
def test_known_spectra(name, which, dtype):
    spectrum, k = SPECTRA[name], 4
    matrix = with_spectrum(spectrum, dtype=dtype)
    scale = abs(spectrum).max()
    found = lanczos(matrix_operator(matrix), k, which=which, tolerance=1e-3)
    rounding = 100 * torch.finfo(dtype).eps * scale  # sums over up to 80 entries
    assert bool(found.extremal.all())
    assert found.complete
    distances = abs(found.values.numpy()[:, None] - spectrum).min(axis=1)
    assert (distances <= found.residuals.numpy() + rounding).all()
    exact = expected(spectrum, which, k)
    # The default tolerance leaves values within 1e-3 of the width of the spectrum unordered.
    np.testing.assert_allclose(found.values, exact, rtol=0, atol=1e-3 * np.ptp(spectrum) + rounding)
    assert (KEYS[which](found.edges.numpy()) <= KEYS[which](exact) + rounding).all()
    residuals = (matrix @ found.vectors.T - found.vectors.T * found.values.to(dtype)).norm(dim=0)
    np.testing.assert_allclose(residuals, found.residuals, rtol=1e-2, atol=rounding)
    np.testing.assert_allclose(found.vectors @ found.vectors.T, np.eye(k), atol=100 * torch.finfo(dtype).eps)
    assert found.roundoff <= rounding


@pytest.mark.parametrize(
    "name", ["zero", "rank one", "identity", "two-valued", "clustered", "saddle", "tiny"]
)
def test_known_spectra_converge(name):
    found = lanczos(matrix_operator(with_spectrum(SPECTRA[name])), 4)
    assert bool(found.converged.all())


def test_whole_spectrum_and_one_dimension():
    matrix = with_spectrum(SPECTRA["saddle"][:12])
    found = lanczos(matrix_operator(matrix), 12, max_matvecs=500)
    np.testing.assert_allclose(found.values, torch.linalg.eigvalsh(matrix).flip(0), atol=1e-12)
    single = lanczos(matrix_operator(torch.tensor([[-2.0]])), 1)
    assert single.values.tolist() == [-2.0]


def test_scaling_the_operator_scales_everything():
    matrix = with_spectrum(SPECTRA["saddle"])
    base = lanczos(matrix_operator(matrix), 3)
    for factor in (2.0**-30, 2.0**40):  # powers of two round alike, so the answer is the same to the last bit
        other = lanczos(matrix_operator(factor * matrix), 3)
        assert (base.values * factor).tolist() == other.values.tolist()
        assert base.matvecs == other.matvecs
        assert base.extremal.tolist() == other.extremal.tolist()


@pytest.mark.parametrize("kind", ["mlp", "transformer"])
@pytest.mark.parametrize("which", ["largest", "smallest"])
def test_network_hessians_against_dense(kind, which):
    objective, theta = network_objective(kind)
    operator = hessian_operator(objective, theta)
    values = torch.linalg.eigvalsh(dense(operator)).numpy()
    found = lanczos(operator, 3, which=which, tolerance=1e-5)
    np.testing.assert_allclose(found.values, expected(values, which, 3), rtol=1e-5)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_closed_form_ends(case):
    objective, theta = oracle_objective(case)
    operator = hessian_operator(objective, theta, l2=case["l2"])
    upper, lower = extreme_pairs(operator, tolerance=1e-6)
    exact = case["eigenvalues"]
    # A residual of 1e-6 leaves an error of at most 1e-6 of the value; the floor is rounding.
    np.testing.assert_allclose(
        [upper.values[0], lower.values[0]], [exact[-1], exact[0]], rtol=1e-6, atol=1e-12
    )


def test_wishart_edge():
    samples, dim = 400, 200
    data = torch.randn(samples, dim, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    matrix = data.T @ data / samples
    found = lanczos(matrix_operator(matrix), 5, tolerance=1e-6)
    np.testing.assert_allclose(found.values, torch.linalg.eigvalsh(matrix).flip(0)[:5], rtol=1e-9)
    # Marchenko-Pastur; finite-size fluctuations are of order dim^(-2/3) = 3 %.
    assert float(found.values[0]) == pytest.approx((1 + (dim / samples) ** 0.5) ** 2, rel=0.05)


def test_copies_missed_by_one_space_are_found_or_denied():
    operator = matrix_operator(with_spectrum(np.r_[5, 5, 4, 4, 4, np.linspace(-1, 1, 75)]))
    found = lanczos(operator, 5)
    np.testing.assert_allclose(found.values, [5, 5, 4, 4, 4], rtol=1e-6)
    assert found.complete
    distinct = lanczos(operator, 2, multiplicity=False)
    np.testing.assert_allclose(distinct.values, [5, 4], rtol=1e-6)
    assert not distinct.complete


def test_warm_start_cannot_hide_a_crossing():
    matrix = with_spectrum(np.r_[5.0, 4.9, np.linspace(-1, 1, 198)])
    _, vectors = torch.linalg.eigh(matrix)
    second = vectors[:, -2]
    blind = lanczos(matrix_operator(matrix), start=second, random_part=0.0)
    assert blind.converged.all()
    assert float(blind.values[0]) == pytest.approx(4.9, rel=1e-6)  # a true pair, but not the first one
    assert not blind.extremal.any()
    seeing = lanczos(matrix_operator(matrix), start=second)
    assert float(seeing.values[0]) == pytest.approx(5.0, rel=1e-3)
    assert seeing.extremal.all()


def test_a_warm_start_for_several_pairs_proves_the_end_in_their_complement():
    values = torch.cat([torch.tensor([5.0, 4, 4, 3]), torch.linspace(-1, 1, 96)]).double()
    operator, generator = matrix_operator(torch.diag(values)), torch.Generator().manual_seed(0)
    cold = lanczos(operator, 3, generator=generator)
    nearby = cold.vectors + 0.02 * torch.randn(cold.vectors.shape, generator=generator, dtype=torch.float64)
    warm = lanczos(operator, 3, start=nearby)
    assert warm.complete
    assert bool(warm.extremal.all())
    assert bool(warm.converged.all())
    torch.testing.assert_close(warm.values, values[:3], rtol=1e-5, atol=0)
    assert warm.matvecs < cold.matvecs
    crossed = lanczos(operator, 3, start=torch.eye(100, dtype=torch.float64)[1:4])  # 5 was not there before
    torch.testing.assert_close(crossed.values, values[:3], rtol=1e-5, atol=0)


def test_a_good_warm_start_costs_less_than_a_cold_one_up_to_the_proof():
    matrix = with_spectrum(2.0 ** -np.arange(300.0).clip(max=40))
    operator = matrix_operator(matrix)
    exact = lanczos(operator, tolerance=1e-8).vectors
    cold = lanczos(operator, tolerance=1e-6, max_matvecs=4)
    warm = lanczos(operator, tolerance=1e-6, max_matvecs=4, start=exact)
    assert float(warm.residuals[0]) < float(cold.residuals[0])


def test_unconverged_pairs_say_so():
    matrix = with_spectrum(np.linspace(0, 1, 200))
    found = lanczos(matrix_operator(matrix), 2, max_matvecs=6, tolerance=1e-6)
    assert not found.converged.any()
    assert not found.extremal.any()
    assert not found.complete
    assert found.matvecs <= 6
    assert bool((found.edges >= found.values).all())


def test_both_ends_from_one_space():
    matrix = with_spectrum(SPECTRA["saddle"])
    upper, lower = extreme_pairs(matrix_operator(matrix), 2, 2, tolerance=1e-4)
    np.testing.assert_allclose(upper.values, [3, 2], rtol=1e-6)
    np.testing.assert_allclose(lower.values, [-4, -2.5], rtol=1e-6)
    assert upper.matvecs == lower.matvecs
    assert bool((upper.extremal & lower.extremal).all())


def test_every_product_is_counted():
    matrix, count = with_spectrum(SPECTRA["saddle"]), [0]

    def product(v):
        count[0] += 1
        return matrix @ v

    operator = SymmetricOperator(product, len(matrix), matrix.dtype, matrix.device)
    for engine in ("lanczos", "scipy", "pyhessian"):
        count[0] = 0
        found = lanczos(operator, 3, engine=engine)
        assert found.matvecs == count[0]
        assert found.engine == engine
    count[0] = 0
    assert extreme_pairs(operator)[0].matvecs == count[0]


def test_preconditioned_sharpness_of_a_network():
    objective, theta = network_objective("mlp")
    diagonal = torch.rand(len(theta), generator=torch.Generator().manual_seed(2), dtype=theta.dtype) + 0.01
    operator = preconditioned(hessian_operator(objective, theta), diagonal)
    exact = torch.linalg.eigvals(
        torch.diag(1 / diagonal) @ dense(hessian_operator(objective, theta))
    ).real.max()
    assert float(lanczos(operator, tolerance=1e-6).values[0]) == pytest.approx(float(exact), rel=1e-9)


def test_gauss_newton_ends():
    objective, theta = network_objective("mlp")
    operator = ggn_operator(objective, theta)
    exact = torch.linalg.eigvalsh(dense(operator))
    upper, lower = extreme_pairs(operator, tolerance=1e-6)
    assert float(upper.values[0]) == pytest.approx(float(exact[-1]), rel=1e-9)
    assert float(lower.values[0]) == pytest.approx(0, abs=1e-12)


def test_roundoff_of_single_precision_covers_the_error():
    objective, theta = network_objective("transformer", dtype=torch.float32)
    exact_objective, exact_theta = network_objective("transformer")
    found = lanczos(hessian_operator(objective, theta), tolerance=1e-5)
    exact = lanczos(hessian_operator(exact_objective, exact_theta), tolerance=1e-8)
    assert torch.equal(exact_theta.float(), theta)
    # Theta itself is rounded once more between the two precisions, hence not below one relative eps.
    error = abs(float(found.values[0] - exact.values[0]))
    assert error < 10 * found.roundoff + 1e-6 * float(exact.values[0])


def test_same_generator_same_bits_and_no_global_randomness():
    operator = matrix_operator(with_spectrum(SPECTRA["saddle"]))
    state = torch.get_rng_state()
    for engine in ("lanczos", "scipy", "pyhessian"):
        first, second = (lanczos(operator, 2, engine=engine) for _ in range(2))
        assert torch.equal(first.values, second.values)
        assert torch.equal(first.vectors, second.vectors)
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"k": 0}, "k=0 must be between 1 and the dimension 80"),
        ({"k": 81}, "k=81"),
        ({"which": "middle"}, "which='middle'"),
        ({"tolerance": 0.0}, "tolerance=0.0"),
        ({"random_part": 1.5}, "random_part=1.5"),
        ({"max_matvecs": 1}, "max_matvecs=1"),
        ({"engine": "arpack"}, "engine='arpack'"),
        ({"start": torch.ones(3)}, r"start has shape \(3,\)"),
        ({"start": torch.zeros(80)}, "sums to zero"),
    ],
)
def test_bad_arguments(options, message):
    operator = matrix_operator(with_spectrum(SPECTRA["saddle"]))
    with pytest.raises(ValueError, match=message):
        lanczos(operator, **options)


def test_products_that_are_not_finite():
    matrix = with_spectrum(SPECTRA["saddle"])
    matrix[3, 3] = float("nan")
    with pytest.raises(ValueError, match="not finite"):
        lanczos(matrix_operator(matrix))
