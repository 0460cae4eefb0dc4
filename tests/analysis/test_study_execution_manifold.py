"""The execution-manifold study on tiny runs, and its measurements against direct ones."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from grokscope.analysis import lead_time
from grokscope.analysis.figures.study_execution_manifold import draw
from grokscope.analysis.rows import identity
from grokscope.analysis.studies import _manifold_rows as rows
from grokscope.analysis.studies import execution_manifold as study
from grokscope.runs.intervention_config import intervention_of
from grokscope.runs.store import Run
from grokscope.runs.sweep import entries, sweep

TINY = {"at": 20, "budget": 60, "rates": (0.002, 0.004, 0.008), "rate": 0.004}
SMALL = {
    "modulus": 7, "train_fraction": 0.6, "width": 16, "heads": 2, "feedforward": 16, "batch_size": 16,
    "steps": 60, "log_every": 10, "evaluate_every": 10, "snapshot_every": 10, "state_at": [20],
    "second_moment_every": 20,
}  # fmt: skip
SPEC = {
    "base": SMALL,
    "runs": [
        *({"task": task, "lr": 0.004} for task in ("add", "sub", "mul")),
        *({"task": "add", "lr": rate} for rate in (0.002, 0.008)),
        {"task": "random_labels", "lr": 0.004},
        {"task": "add", "lr": 0.001, "steps": 1, "state_at": []},
    ],
    "seeds": 2,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("manifold")
    assert {one.status for one in sweep(entries(SPEC), home)} == {"done"}
    return home


def test_claims_are_complete_and_specs_are_valid() -> None:
    assert len({claim.name for claim in study.CLAIMS}) == len(study.CLAIMS) >= 4
    for scale in ("quick", "paper"):
        configs = [entry.config for entry in entries(study.spec(scale))]
        assert len({config.seed for config in configs}) == len(configs)
        assert {config.task for config in configs} == {"add", "sub", "mul", "random_labels"}
    untrained = [config for config in configs if config.steps == 1]
    assert len(untrained) == study.SEEDS


def test_arms_are_valid_interventions() -> None:
    (config,) = (entry.config for entry in entries({"base": {"steps": 1500}}))
    for arm in rows.ARMS.values():
        if arm:
            assert intervention_of(replace(config, intervention={"start": 150, **arm})) is not None


def test_findings_answer_the_claims_in_order(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study, "spec", lambda _: SPEC)
    monkeypatch.setattr(study, "_QUICK", TINY)
    monkeypatch.setattr(study, "SEEDS", 2)
    monkeypatch.setattr(lead_time, "_COUNT", 6)
    found = study.measure(folder, scale="quick", released_data=None, jobs=1, progress=identity)
    assert [f.claim for f in found.findings] == [claim.name for claim in study.CLAIMS]
    assert all(f.evidence and len(f.values) == 2 for f in found.findings)
    assert found.arrays["arms"].shape == (len(rows.ARMS), 2, 2)
    assert found.arrays["arms"][1, :, 1].max() != 1.0
    assert found.arrays["components"].shape == (3, 2, 4)
    assert len(draw(found).axes) == 4
    # Nothing generalizes in 60 steps, and the arms are kept: a second call only reads.
    arms = sorted((folder / "arms").glob("*/run.h5"))
    assert len(arms) == 2 * len(rows.ARMS)
    stamps = [path.stat().st_mtime_ns for path in arms]
    study.measure(folder, scale="quick", released_data=None, jobs=1, progress=identity)
    assert [path.stat().st_mtime_ns for path in arms] == stamps


def test_components_are_those_of_a_plain_svd(folder: Path) -> None:
    path = folder / entries(SPEC)[0].name
    run, found = Run.open(path), rows.first_components(path)
    even = np.flatnonzero(run.steps % 10 == 0)
    shares = []
    for one in run.table.matrices():
        if "attn" in one.name:
            where = slice(one.start, one.start + one.rows * one.columns)
            block = np.stack([run.theta(int(i))[where] for i in even]).astype(float)
            values = np.linalg.svd(block - block.mean(axis=0), compute_uv=False) ** 2
            shares.append(values[0] / values.sum())
    assert len(shares) == 4
    assert found.explained == pytest.approx(np.mean(shares), rel=1e-6)
    assert 0 < found.walk < 1


def test_orthogonality_is_dimension_counting_for_nulls(folder: Path) -> None:
    one, two = (folder / entry.name for entry in entries(SPEC)[0:8:7])
    found = rows.orthogonality(one, two, points=3)
    chance = 8 / Run.open(one).table.size
    np.testing.assert_allclose(found[:, 0] ** 2, 1 - found[:, 1] * chance, rtol=1e-9)


def test_float32_defects_exceed_exact_ones_at_the_start(folder: Path) -> None:
    single, exact = rows.initial_defects(folder / entries(SPEC)[6].name, pairs=5)
    assert single > 0
    assert exact > 0
