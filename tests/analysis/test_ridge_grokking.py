import numpy as np
import pytest
from grokscope.analysis.commands.main import main
from grokscope.analysis.reproduction import kept
from grokscope.analysis.studies import _ridge_models as models
from grokscope.analysis.studies import ridge_grokking as study
from grokscope.geometry.ridge_network import Curves


def test_slopes_and_straightness_are_those_of_polyfit():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=6), rng.normal(size=(3, 6))
    for row, slope, r2 in zip(y, study.slopes(x, y), study.straightness(x, y), strict=True):
        assert slope == pytest.approx(np.polyfit(x, row, 1)[0], rel=1e-9)
        assert r2 == pytest.approx(np.corrcoef(x, row)[0, 1] ** 2, rel=1e-9)


def test_more_samples_add_rows():
    few, many = models.Setting(samples=3, features=20), models.Setting(samples=5, features=20)
    np.testing.assert_array_equal(few.descent(1).features, many.descent(1).features[:3])
    np.testing.assert_array_equal(few.descent(1).theta, many.descent(1).theta)


def test_iterated_descent_agrees_with_the_closed_form():
    times = models.descended(range(2), ridge=1e-2)
    np.testing.assert_array_equal(times[:, :2], times[:, 2:])


def test_network_times_are_last_and_first_passages():
    steps = np.array([0, 10, 20, 30])
    train = np.array([[1.0, 0.001, 1.0, 0.001], [1.0, 1.0, 1.0, 1.0]])
    population = np.array([[1.0, 1.0, 0.001, 1.0], [1.0, 1.0, 1.0, 1.0]])
    times = models.network_times(Curves(steps, train, population, train))
    np.testing.assert_array_equal(times, [[20, 20], [np.nan, np.nan]])


@pytest.fixture
def small(monkeypatch):
    """The study on few draws of small models, which decide nothing but run every line."""
    monkeypatch.setitem(study.SEEDS, "quick", (2, 2))
    monkeypatch.setattr(study, "RIDGES", (1e-3, 3e-3, 1e-4, 1e-2))
    monkeypatch.setattr(study, "SAMPLES", (50, 100, 150))
    monkeypatch.setattr(
        study, "feature_times", lambda seed: models.feature_times(seed, features=200, fresh=50)
    )
    monkeypatch.setitem(study.NETWORKS, "quick", models.Network(20, 5, 1e-2, 1200, (0.1, 0.2)))


def test_the_command_answers_every_claim(small, tmp_path, capsys):
    assert main(["reproduce", "ridge-grokking", "--out", str(tmp_path), "--quiet"]) == 0
    assert "memorization bound" in capsys.readouterr().out
    assert {path.name for path in tmp_path.iterdir()} == {
        "ridge-grokking", "ridge-grokking.json", "ridge-grokking.pdf", "ridge-grokking.png",
    }  # fmt: skip
    found = kept(tmp_path / "ridge-grokking.json")
    assert [finding.claim for finding in found.findings] == [claim.name for claim in study.CLAIMS]
    memorized, generalized = (np.array(finding.values) for finding in found.findings[:2])
    assert len(memorized) == 2
    assert (memorized <= 1).all()
    assert (generalized >= 1).all()


def test_an_interrupted_measurement_goes_on(small, tmp_path, monkeypatch):
    made = []

    def counted(cell, seed):
        made.append((cell, seed))
        return models.one_cell(cell, seed)

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(study, "one_cell", counted)
    with monkeypatch.context() as patch:
        patch.setattr(study, "findings", interrupted)
        with pytest.raises(KeyboardInterrupt):
            study.measure(tmp_path, scale="quick")
    drawn = len(made)
    assert drawn > 0
    found = study.measure(tmp_path, scale="quick")
    assert len(made) == drawn  # nothing again
    again = study.measure(tmp_path, scale="quick")
    assert len(made) == 2 * drawn  # all again, as the first was complete
    assert again.findings == found.findings
