import json
import sys
from dataclasses import replace
from types import ModuleType

import numpy as np
import pytest
from grokscope.analysis import atlas, reproduction
from grokscope.analysis.claim import Claim, Finding
from grokscope.analysis.commands import reproduce as command
from grokscope.analysis.commands.main import main
from grokscope.analysis.pilot import expected_seconds
from grokscope.analysis.reproduction import kept, result_path, studies, study, training
from grokscope.analysis.study import Measured
from grokscope.runs.store import Run

SMALL = {
    "modulus": 5, "width": 8, "heads": 1, "feedforward": 8, "steps": 10, "evaluate_every": 5,
    "snapshot_every": 10, "log_every": 5, "second_moment_every": 0, "stop_after_generalization": None,
}  # fmt: skip
CLAIMS = (
    Claim("one | two", "Losses are below ten.", "< 10", "Table 1", "number", "final train loss", -np.inf, 10),
    Claim("three", "There are three runs.", "3", "Section 2", "identity", "runs", 3, 3, exact=True),
)


def toy(*, base=SMALL):
    """A study of five small runs; its second claim is false."""
    module = ModuleType("grokscope.analysis.studies.toy_study")
    module.TITLE, module.SOURCE, module.CLAIMS = "A toy", "Nobody 2026", CLAIMS
    module.spec = lambda scale: {"base": base, "seeds": 5}

    def measure(folder, *, scale, released_data, jobs, progress):
        runs = [Run.open(path.parent) for path in sorted(folder.glob("*/run.h5"))]
        losses = tuple(float(run.metrics["train_loss"].value[-1]) for run in runs)
        counted = Finding("three", (float(len(runs)),), "not supported", "counted")
        return Measured((Finding("one | two", losses, "supported", "They are"), counted))

    module.measure = measure
    return module


@pytest.fixture
def toys(monkeypatch):
    monkeypatch.setitem(sys.modules, "grokscope.analysis.studies.toy_study", toy())
    for place in (reproduction, atlas, command):
        monkeypatch.setattr(place, "studies", lambda: ("toy-study",))


def run_it(tmp_path, *more):
    return main(["reproduce", *more, "--out", str(tmp_path / "out"), "--quiet"])


def test_every_study_keeps_the_protocol():
    assert "ridge-grokking" in studies()
    for name in studies():
        module = study(name)
        assert module.TITLE
        assert module.SOURCE
        names = [claim.name for claim in module.CLAIMS]
        assert len(names) == len(set(names)) >= 4
        for scale in ("quick", "paper"):
            training(name, scale)  # a specification that can be read


def test_one_study_from_training_to_verdicts(toys, tmp_path, capsys):
    assert run_it(tmp_path, "toy-study") == 0
    shown = capsys.readouterr().out
    assert "consistent" in shown
    assert "refuted" in shown  # exact, so the scale doesn't matter
    found = kept(tmp_path / "out" / "toy-study.json")
    assert found.claims == CLAIMS
    assert len(found.findings[0].values) == 5
    assert found.command == "grokscope reproduce toy-study --scale quick"
    assert "torch" in found.versions


def test_finished_runs_are_kept(toys, tmp_path):
    run_it(tmp_path, "toy-study")
    files = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("run.h5")}
    assert len(files) == 5
    run_it(tmp_path, "toy-study")
    assert {path: path.stat().st_mtime_ns for path in files} == files
    found = kept(tmp_path / "out" / "toy-study.json")
    assert (found.runs, found.skipped) == (5, 5)


def test_failed_runs_are_named(toys, tmp_path, monkeypatch, capsys):
    broken = toy(base={**SMALL, "lr": 1e30, "optimizer": "sgd"})
    monkeypatch.setitem(sys.modules, "grokscope.analysis.studies.toy_study", broken)
    run_it(tmp_path, "toy-study")
    assert "run failed: " in capsys.readouterr().err
    assert len(kept(tmp_path / "out" / "toy-study.json").failed_runs) == 5


def test_json_is_one_object(toys, tmp_path, capsys):
    assert run_it(tmp_path, "toy-study", "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["numbers"] == {"toy-study": ["consistent", "refuted"]}
    assert shown["studies"][0]["claims"][0]["low"] is None


def test_the_atlas_has_a_row_for_each_claim(toys, tmp_path, capsys):
    page = tmp_path / "docs" / "atlas.md"
    assert run_it(tmp_path, "--all", "--atlas", str(page)) == 0
    text = page.read_text()
    rows = [line for line in text.splitlines() if line.startswith("| [toy-study]")]
    assert len(rows) == 2
    assert "one \\| two" in rows[0]
    assert "| consistent | supported | quick |" in rows[0]
    assert "| refuted | not supported | quick |" in rows[1]
    assert "at most 10" in text
    assert f"atlas: {page}" in capsys.readouterr().out


def test_the_atlas_of_what_is_kept_measures_nothing(toys, tmp_path, monkeypatch, capsys):
    run_it(tmp_path, "toy-study")
    monkeypatch.setattr(command, "reproduce", None)
    page = tmp_path / "atlas.md"
    assert run_it(tmp_path, "--all", "--kept", "--atlas", str(page)) == 0
    assert "| [toy-study]" in page.read_text()
    assert run_it(tmp_path, "toy-study", "--kept") == 2


def test_one_failing_study_stops_no_other(toys, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(command, "studies", lambda: ("toy-study", "missing"))
    page = tmp_path / "atlas.md"
    assert run_it(tmp_path, "--all", "--atlas", str(page)) == 1
    assert "study missing failed: study='missing' is not known" in capsys.readouterr().err
    assert "toy-study" in page.read_text()


def test_paper_scale_comes_first_in_the_atlas(toys, tmp_path, capsys):
    run_it(tmp_path, "toy-study")
    assert run_it(tmp_path, "toy-study", "--scale", "paper") == 0
    assert "5 runs, about 0 minutes of training if none stops early" in capsys.readouterr().err
    found, stale = atlas.collect(tmp_path / "out")
    assert [one.scale for one in found] == ["paper"]
    assert not stale


def test_changed_claims_are_told(toys, tmp_path, monkeypatch):
    run_it(tmp_path, "toy-study")
    changed = toy()
    changed.CLAIMS = (replace(CLAIMS[0], high=11), CLAIMS[1])
    monkeypatch.setitem(sys.modules, "grokscope.analysis.studies.toy_study", changed)
    assert "the claims changed since" in atlas.collect(tmp_path / "out")[1][0]


def test_findings_must_answer_the_claims(toys, tmp_path, monkeypatch, capsys):
    wrong = toy()
    wrong.CLAIMS = CLAIMS[::-1]
    monkeypatch.setitem(sys.modules, "grokscope.analysis.studies.toy_study", wrong)
    assert run_it(tmp_path, "toy-study") == 2
    assert "must answer the claims" in capsys.readouterr().err


def test_what_is_kept_comes_back(toys, tmp_path):
    run_it(tmp_path, "toy-study")
    path = result_path(tmp_path / "out", "toy-study", "quick")
    one = kept(path)
    values = (1.0, float("inf"), float("-inf"))
    odd = replace(one, findings=(replace(one.findings[0], values=values), one.findings[1]))
    reproduction.keep(odd, tmp_path / "other")
    assert kept(tmp_path / "other" / "toy-study.json") == odd


def test_foreign_files_are_refused(tmp_path):
    path = tmp_path / "x.json"
    path.write_text('{"claims": []}')
    with pytest.raises(ValueError, match=r"no result of `grokscope reproduce`"):
        kept(path)


def test_wrong_input_is_one_line(tmp_path, capsys):
    for words, message in (
        ([], "give one study or --all; there are"),
        (["ridge-grokking", "--all"], "give one study or --all"),
        (["ridge-groking"], "study='ridge-groking' is not known; did you mean ridge-grokking?"),
        (["ridge-grokking", "--released-data", str(tmp_path / "no")], "is no folder"),
    ):
        assert run_it(tmp_path, *words) == 2
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1


def test_words_for_numbers():
    claim = Claim("x", "x", "x", "x", "number", "x", 0, np.inf)
    assert atlas.accepted(claim) == "at least 0"
    assert atlas.measured(claim, Finding("x", (), "undecided", "")) == "–"
    assert atlas.measured(claim, Finding("x", (1.0,), "undecided", "")) == "1 (n = 1)"
    text = atlas.measured(claim, Finding("x", (1.0, 2.0, 3.0, np.nan), "undecided", ""))
    # Half width t_{.975, 2} / √3 = 4.303 / 1.732.
    assert text == "2 [-0.4841, 4.484] (n = 3, 1 undefined)"


def test_a_pilot_estimates_what_is_left(toys, tmp_path):
    runs = training("toy-study", "paper")
    long = tuple(run._replace(config=replace(run.config, steps=10_000)) for run in runs)
    estimate = expected_seconds(long, tmp_path)
    assert estimate > 0
    assert expected_seconds((), tmp_path) == 0
    reproduction.sweep(runs, tmp_path)
    assert expected_seconds(runs, tmp_path) == 0  # all are finished


@pytest.mark.parametrize("scale", ["quick", "paper"])
def test_no_jobs_are_refused_before_anything_is_done(toys, scale, tmp_path, capsys):
    assert run_it(tmp_path, "toy-study", "--scale", scale, "--jobs", "0") == 2
    assert "jobs=0 must be at least 1" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
