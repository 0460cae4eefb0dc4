import json

import pytest
from grokscope.analysis.commands.main import main
from grokscope.runs import sweep
from grokscope.runs.store import Run

BASE = {
    "modulus": 7, "width": 8, "heads": 2, "feedforward": 8, "batch_size": 16, "steps": 20,
    "snapshot_every": 20, "evaluate_every": 10, "second_moment_every": 0,
}  # fmt: skip
SPEC = {"base": BASE, "grid": {"lr": [1e-3, 1e-2], "seed": [0, 1]}}


def test_grid_times_list():
    found = sweep.entries(
        {"runs": [{"layers": 1}, {"layers": 2}], "grid": {"lr": [1e-3, 1e-2], "seed": [0, 1, 2]}}
    )
    assert len(found) == 12
    assert len({entry.name for entry in found}) == 12
    assert found[0].name.startswith("layers-1_lr-0.001_seed-0_")
    assert found[0].config.layers == 1


def test_seeds_are_shared_by_no_two_configurations():
    found = sweep.entries({"seeds": 3, "first_seed": 10, "grid": {"lr": [1e-3, 1e-2]}})
    assert [entry.config.seed for entry in found] == [10, 13, 11, 14, 12, 15]
    assert all(entry.config.batch_seed == entry.config.seed for entry in found)
    assert [entry.config.lr for entry in found] == [1e-3, 1e-2] * 3


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"bases": {}}, "unknown part 'bases'"),
        ({"grid": {"lr": 1e-3}}, "grid.lr"),
        ({"grid": {"learning_rate": [1]}}, "learning_rate"),
        ({"grid": {"lr": ["fast"]}}, "run 1: lr"),
        ({"runs": [{"lr": 0.1}, {"lr": 0.1}]}, "twice"),
        ({"seeds": 0}, "seeds=0"),
        ({"seeds": "five"}, "seeds"),
    ],
)
def test_errors_name_what_is_wrong(spec, message):
    with pytest.raises(ValueError, match=message):
        sweep.entries(spec)


def test_missing_or_broken_file(tmp_path):
    with pytest.raises(ValueError, match="can't be read"):
        sweep.read_spec(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("[grid")
    with pytest.raises(ValueError, match="not valid TOML"):
        sweep.read_spec(tmp_path / "bad.toml")


def test_finished_are_skipped_unfinished_resumed_failed_listed(tmp_path):
    runs = sweep.entries(SPEC)
    broken = runs[1]
    (tmp_path / broken.name).mkdir(parents=True)
    (tmp_path / broken.name / "run.h5").write_bytes(b"no run")
    statuses = [outcome.status for outcome in sweep.sweep(runs, tmp_path)]
    assert statuses == ["done", "failed", "done", "done"]
    again = sweep.sweep(runs, tmp_path)
    assert [outcome.status for outcome in again] == ["skipped", "failed", "skipped", "skipped"]
    assert again[1].message


def test_two_processes_make_the_same_runs(tmp_path):
    runs = sweep.entries(SPEC)[:2]
    for jobs in (1, 2):
        outcomes = sweep.sweep(runs, tmp_path / str(jobs), jobs=jobs)
        assert [outcome.status for outcome in outcomes] == ["done", "done"]
    one, two = ([Run.open(tmp_path / jobs / entry.name).hash for entry in runs] for jobs in "12")
    assert one == two


def test_commands(tmp_path, capsys):
    lines = [
        "seeds = 2",
        "[grid]",
        "lr = [1e-3, 1e-2]",
        "[base]",
        *(f"{k} = {json.dumps(v)}" for k, v in BASE.items()),
    ]
    (tmp_path / "spec.toml").write_text("\n".join(lines))
    spec, out = str(tmp_path / "spec.toml"), str(tmp_path / "out")
    assert main(["sweep", spec, "--out", out, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "runs": 4,
        "done": 4,
        "skipped": 0,
        "failed": 0,
        "failures": [],
    }
    assert main(["table", out, "--csv"]) == 0
    header, *rows = capsys.readouterr().out.splitlines()
    assert header.startswith("run,lr,seed,last_step,finished,memorized,generalized,delay")
    assert len(rows) == 4
    assert main(["sweep", spec, "--out", out, "--only", "nothing*"]) == 2
    assert main(["table", str(tmp_path / "nowhere")]) == 2


def test_a_damaged_run_is_a_row_with_its_problem(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "run.h5").write_bytes(b"no run")
    (row,) = sweep.summarize(tmp_path)
    assert "no run" in row.problem
