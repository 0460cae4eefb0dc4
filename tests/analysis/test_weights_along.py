import json
from dataclasses import fields

import numpy as np
import pytest
from grokscope.analysis.commands.main import main
from grokscope.analysis.figures import weights as figures
from grokscope.analysis.result import load
from grokscope.analysis.weights import Question, WeightsCurve, singular_values, weights_along
from grokscope.geometry.parameters import Matrix
from grokscope.runs.store import Run
from tiny_run import tiny


def test_matrices_of_known_rank():
    rng = np.random.default_rng(0)
    left, right = rng.normal(size=4), rng.normal(size=6)
    rotation = np.linalg.qr(rng.normal(size=(5, 5)))[0]
    theta = np.concatenate([np.outer(left, right).ravel(), 3 * rotation.ravel()])
    question = Question((Matrix("one", 0, 4, 6), Matrix("all", 24, 5, 5)))
    row = question(0, theta, None)
    size = np.linalg.norm(left) * np.linalg.norm(right)
    np.testing.assert_allclose(row["norm"], [size, 3 * 5**0.5], rtol=1e-12)
    np.testing.assert_allclose(row["spectral_norm"], [size, 3], rtol=1e-12)
    np.testing.assert_allclose(row["stable_rank"], [1, 5], rtol=1e-12)
    # Rounding leaves tiny singular values, whose entropy is of the order of 1e-15 ln 1e15.
    np.testing.assert_allclose(row["effective_rank"], [1, 5], rtol=1e-10)


def test_along_a_run():
    run = Run.open(tiny())
    curve = weights_along(run, directory=tiny())
    for k, matrix in enumerate(run.table.matrices()):
        assert curve.matrices[k] == matrix.name
        values = singular_values(run.theta(-1 % len(run.steps)), matrix)
        assert curve.norm[-1, k] ** 2 == pytest.approx((values**2).sum())
    assert (curve.stable_rank >= 1).all()
    # ‖W‖_F²/σ₁² ≤ k and the entropy of k shares is at most ln k.
    assert (curve.effective_rank <= np.minimum(curve.rows, curve.columns) * (1 + 1e-12)).all()


def test_squared_norms_add_up_to_the_run_s():
    run = Run.open(tiny())
    curve = weights_along(run, directory=tiny())
    rest = set(range(run.table.size))
    for matrix in run.table.matrices():
        rest -= set(range(matrix.start, matrix.start + matrix.rows * matrix.columns))
    theta = run.theta(0).astype(np.float64)
    vectors = (theta[sorted(rest)] ** 2).sum()
    assert (curve.norm[0] ** 2).sum() + vectors == pytest.approx((theta**2).sum(), rel=1e-12)


def test_command_and_figure(tmp_path, capsys):
    path = tiny()
    words = ["analyze", "weights", str(path), "--snapshots", "3", "--out", str(tmp_path)]
    assert main([*words, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert set(shown) == {field.name for field in fields(WeightsCurve)}
    assert main(words) == 0
    assert "stable rank, random" in capsys.readouterr().out
    run = Run.open(path)
    curve = load(WeightsCurve, run, directory=tmp_path)
    assert len(figures.draw(run, curve)["weights"].axes) == 4
