import json
from math import log

import numpy as np
import pytest
from grokscope.analysis import calibration_report, delay_fit, delay_score, released_delay
from grokscope.analysis.commands.main import main
from grokscope.analysis.delay import DelayCurve, delay_along
from grokscope.analysis.figures import delay as figures
from grokscope.analysis.figures.style import panels
from grokscope.analysis.result import load, save
from grokscope.geometry.norm_law import contraction_rate
from grokscope.runs.calibration import load as load_records
from grokscope.runs.calibration import lockbox
from grokscope.runs.config import RunConfig
from grokscope.runs.delay_model import load_models
from grokscope.runs.prediction import predict_run
from grokscope.runs.train import train
from scipy.optimize import minimize
from scipy.stats import norm

CONFIG = RunConfig(
    modulus=13, width=64, feedforward=32, batch_size="full", lr=2e-3, weight_decay=0.3, train_fraction=0.7,
    steps=300, evaluate_every=20, second_moment_every=0, snapshot_every=300, stop_after_generalization=None,
)  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return train(CONFIG, tmp_path_factory.mktemp("runs") / "run")


def test_the_law_starts_at_memorization_and_decays_at_its_rate(run):
    curve = delay_along(run)
    rate = contraction_rate(lr=2e-3, weight_decay=0.3)
    after = curve.norm_steps >= curve.memorized
    assert np.isnan(curve.law[~after]).all()
    slopes = np.diff(np.log(curve.law[after])) / np.diff(curve.norm_steps[after])
    np.testing.assert_allclose(slopes, -rate, rtol=1e-9)
    assert curve.decay_rate == pytest.approx(rate)
    assert curve.law[after][0] == pytest.approx(curve.norm_memorized)


def test_the_post_mortem_repeats_the_forecast(run):
    curve, forecast = delay_along(run), predict_run(run)
    assert dict(zip(curve.predictors, curve.predicted, strict=True))["model"] == forecast.predicted_delay
    assert tuple(curve.interval) == forecast.interval
    assert curve.used_until_step == forecast.used_until_step
    assert curve.predictors[-1] == "published (leaky)"


def test_it_is_saved_loaded_and_drawn(run, tmp_path):
    curve = delay_along(run)
    save(curve, run, directory=tmp_path)
    again = load(DelayCurve, run, directory=tmp_path)
    np.testing.assert_array_equal(again.predicted, curve.predicted)
    assert again.predictors == curve.predictors
    assert set(figures.draw(run, again)) == {"delay"}


def test_commands(run, tmp_path, capsys):
    assert main(["predict", str(run.path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    keys = {
        "memorized",
        "predicted_delay",
        "interval",
        "coverage",
        "probability",
        "verdict",
        "used_until_step",
    }
    assert keys <= set(found)
    assert main(["predict", str(run.path)]) == 0
    assert "used nothing after step" in capsys.readouterr().out
    assert main(["analyze", "delay", str(run.path), "--out", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["memorized"] == found["memorized"]
    assert main(["predict", str(tmp_path)]) == 2


@pytest.mark.parametrize("k", range(len(delay_fit.RECIPES)))
def test_the_shipped_models_maximize_their_likelihood(k):
    """A second route to the coefficients: our own censored log-normal likelihood, minimized by SciPy."""
    model, recipe = load_models()[k], delay_fit.RECIPES[k]
    records = [r for r in lockbox(load_records(), opened=False) if r.at_risk]
    assert (model.runs, model.cells) == (len(records), len({r.cell for r in records}))
    z = np.nan_to_num((delay_fit.design(records, recipe) - model.centers) / np.array(model.scales))
    squared = [recipe.features.index(name) for name in recipe.squared]
    x = np.column_stack([z, z[:, squared] ** 2])
    # lifelines penalizes terms in units of their deviation, and ln sigma too
    spread = np.array([0.0, 1.0, *x.var(axis=0, ddof=1)])
    low, high = np.log([r.bounds for r in records]).T

    def loss(parameters):
        mean, deviation = parameters[0] + x @ parameters[2:], np.exp(parameters[1])
        chance = norm.cdf((high - mean) / deviation) - norm.cdf((low - mean) / deviation)
        return -np.log(chance).mean() + recipe.penalizer / 2 * (spread * parameters**2).sum()

    slopes = [*model.coefficients, *(model.squares[i] for i in squared)]
    fitted = np.array([model.intercept, log(model.sigma), *slopes])
    found = minimize(loss, fitted, method="BFGS")
    assert loss(fitted) - found.fun < 1e-4
    np.testing.assert_allclose(found.x[2:], slopes, atol=0.02)  # optimizers stop at 1e-5 in the loss
    assert found.x[0] == pytest.approx(model.intercept, abs=0.005)


@pytest.mark.parametrize("k", range(len(delay_fit.RECIPES)))
def test_records_and_models_agree_on_what_is_known(k):
    model, records = load_models()[k], lockbox(load_records(), opened=False)
    known = [r.evidence.features() for r in records if r.at_risk]
    assert not any(model.outside(features) for features in known)
    assert all(model.knows(features) for features in known)


def test_every_number_of_the_report_has_its_place(tmp_path):
    records = lockbox(load_records(), opened=False)
    assert "runs in" in calibration_report.census(records)
    assert "with a positive delay" in calibration_report.necessity(records)
    test = delay_score.scored(records)
    actual = np.array([float(r.delay) for r in test])
    rows = delay_score.score(records, {"model": actual, "double": 2 * actual}, reference="model")
    drawn = figures.calibration_figures(test, actual, actual * 1.1, rows, margin=0.5, ceiling=0.1)
    assert set(drawn) == {"delay_predicted", "delay_errors", "delay_law"}


def test_plots_go_onto_given_axes(run):
    _, axes = panels()
    figures.plot_delay(delay_along(run), axes[0, 0])
    assert axes[0, 0].get_ylabel() == "squared norm ‖θ‖²"


def released(folder, kappa=1.0):
    """Curves that contract at kappa times the rate of decay alone and generalize at a quarter of V_mem."""
    runs = []
    for seed, lam in enumerate((0.5, 0.5, 1.0, 1.0)):
        rate = 2e-3 * lam * kappa
        end = round(log(4) / rate / 200) * 200
        steps = np.arange(0, 800 + end + 2001, 200)
        norms = 13_000 * np.exp(-rate * steps)
        runs.append(
            {
                "seed": seed, "p": 97, "eta": 1e-3, "lam": lam, "T_mem": 800, "T_grok": 800 + end,
                "V_at_mem": norms[4], "V_final": norms[4] / 4, "fit": {"rate_fit": 1 - rate},
                "logs": {"steps": steps.tolist(), "V_t": norms.tolist()},
            }
        )  # fmt: skip
    for name in ("full_results1.json", "full_results2.json"):
        (folder / name).write_text(json.dumps({"runs": runs}))
    bare = [{k: v for k, v in run.items() if k not in ("logs", "eta", "lam")} for run in runs[2:]]
    (folder / "full_results9.json").write_text(json.dumps(bare))


def test_released_curves(tmp_path):
    released(tmp_path)
    found = released_delay.norm_separation(tmp_path)
    assert found["published"]["mape, published arithmetic"] < 0.1  # delays are rounded to 200 steps
    scores = {(s.data, s.predictor): s for s in found["scores"]}
    assert scores["one setting", "published (leaky)"].n == 4
    assert scores["mul", "local rate"].undefined == 2  # no curves there
    assert np.isfinite(scores["mul", "model"].mape)
    assert found["violations of V_mem > V_final"][0] == "one setting: 0 of 4"
    with pytest.raises(ValueError, match="full_results1"):
        released_delay.norm_separation(tmp_path / "nowhere")
