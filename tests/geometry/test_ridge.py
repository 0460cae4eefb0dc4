import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from grokscope.geometry.ridge import RidgeDescent

TABLE = json.loads((Path(__file__).parents[1] / "data" / "ridge_grokking.json").read_text())
# Stored inputs are exact; stored values have 12 digits, and small losses are differences of larger ones.
TOLERANCE = {"rel": 1e-8, "abs": 1e-16}


def descent(case):
    return RidgeDescent(
        features=np.array(case["Phi"]),
        theta=np.array(case["theta0"]),
        teacher=np.array(case["theta_star"]),
        lr=case["lr"],
        ridge=case["ridge"],
        covariance=np.array(case["population_covariance_diagonal"]),
    )


@pytest.mark.parametrize("case", TABLE["cases"], ids=lambda case: case["id"])
class TestAgainstTheOracle:
    def test_times(self, case):
        assert descent(case).memorization_step(case["eps"]) == case["t1"]
        assert descent(case).generalization_step(case["c"]) == case["t2"]

    def test_curves(self, case):
        for name in ("train_loss", "population_loss", "squared_norm"):
            for step, value in case[f"{name}_at"].items():
                found = getattr(descent(case), name)(int(step))
                assert found == pytest.approx(value, **TOLERANCE)

    def test_bounds(self, case):
        run = descent(case)
        assert run.memorization_bound(case["eps"]) == pytest.approx(case["bound_t1_upper"], rel=1e-8)
        bound = run.generalization_bound(case["c"], variance=case["nu2"])
        assert bound == pytest.approx(case["bound_t2_lower"], rel=1e-8)
        exact = run.deterministic_lower_bound(case["c"])
        assert exact == pytest.approx(case["deterministic_t2_lower"], rel=1e-8)
        assert exact <= case["t2"]

    def test_step_by_step_descent_agrees(self, case):
        run, theta = descent(case), np.array(case["theta0"])
        for _ in range(50):
            residual = run.features @ (theta - run.teacher)
            theta = theta - run.lr * (run.features.T @ residual / len(residual) + run.ridge * theta)
        np.testing.assert_allclose(run.at(50), theta, rtol=1e-11, atol=1e-13)


def test_paper_setting():
    """n = 100, m = 1000, eta = 1, ridge 1e-4: over 30 seeds t1 = 211 +- 8, t2 = 22,928 +- 261 (6 sd here)."""
    generator = np.random.default_rng(0)
    features = generator.normal(0, 1000**-0.5, (100, 1000))
    teacher = generator.normal(size=1000)
    run = RidgeDescent(features, generator.normal(size=1000), teacher / np.linalg.norm(teacher), 1.0, 1e-4)
    assert abs(run.memorization_step(0.01) - 211) < 48
    assert abs(run.generalization_step(0.01) - 22_928) < 1566


def test_a_root_of_the_covariance_gives_the_same_curve():
    case = TABLE["cases"][0]
    diagonal = descent(case)
    root = np.diag(np.sqrt(np.array(case["population_covariance_diagonal"])))
    # Any R with the same RᵀR: here rotated by an orthogonal matrix.
    rotation = np.linalg.qr(np.random.default_rng(0).normal(size=root.shape))[0]
    rooted = replace(diagonal, covariance=rotation @ root)
    steps = np.arange(0, 300, 7)
    np.testing.assert_allclose(rooted.population_loss(steps), diagonal.population_loss(steps), rtol=1e-9)
    assert rooted.generalization_step(case["c"]) == case["t2"]
    assert rooted.deterministic_lower_bound(case["c"]) == -np.inf


def test_never():
    case = TABLE["cases"][0]
    assert descent(case).generalization_step(case["population_loss_limit"] / 2) is None
    assert descent(case).memorization_step(case["train_loss_limit"] / 2) is None
    assert descent(case).memorization_step(1e6) is None


def test_divergence_is_refused():
    case = TABLE["cases"][0] | {"lr": 100.0}
    with pytest.raises(ValueError, match=r"lr=100.*diverges"):
        descent(case)
