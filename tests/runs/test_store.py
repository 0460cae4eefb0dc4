"""Round trips: what was appended is what is read, by us and by plain h5py."""

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import fake_trainer as fake
import h5py
import numpy as np
import pytest
from fake_trainer import ROW, SIZE, TABLE
from grokscope.geometry.parameters import ParameterTable
from grokscope.runs.config import RunConfig
from grokscope.runs.index import chain
from grokscope.runs.pack import pack
from grokscope.runs.store import Run, RunWriter
from grokscope.runs.verify import info, verify

GOLDEN = Path(__file__).parent.parent / "data" / "run_v1"


@pytest.fixture(autouse=True)
def _no_fsync(monkeypatch):
    """Power losses are not tested here, and a busy disk makes fsync slow."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.fixture
def run(tmp_path):
    return fake.train(tmp_path / "run", 60)


def test_reads_what_was_appended(run):
    rows = fake.trajectory(60)
    assert len(run) == 61
    assert run.steps.tolist() == list(range(61))
    assert run.dtype == "float32"
    assert run.table == TABLE
    assert all(np.array_equal(run.theta(i), rows[i]) for i in range(61))
    assert np.array_equal(run.theta(-1), rows[-1])
    assert np.array_equal(np.stack(list(run.rows())), rows)
    assert np.array_equal(np.stack(list(run.rows([40, 3, 3]))), rows[[40, 3, 3]])
    assert run.second_moment_steps.tolist() == list(range(0, 61, 5))
    assert np.array_equal(run.second_moment(2), rows[10] ** 2)


@pytest.mark.parametrize("width", [1, 7, SIZE, 10 * SIZE])
@pytest.mark.parametrize("indices", [None, [5, 60, 0, 5]])
def test_columns_are_the_matrix_in_blocks(run, width, indices):
    rows = fake.trajectory(60)
    rows = rows if indices is None else rows[indices]
    blocks = list(run.columns(width, indices=indices))
    assert [where.start for where, _ in blocks] == list(range(0, SIZE, width))
    assert np.array_equal(np.concatenate([block for _, block in blocks], axis=1), rows)


def test_metrics_keep_their_steps_and_integers(run):
    correct, norm = run.metrics["train_correct"], run.metrics["squared_norm.weight"]
    assert correct.value.dtype == np.int64
    assert correct.value.tolist() == correct.step.tolist() == list(range(61))
    assert norm.value.dtype == np.float64
    assert norm.step.tolist() == list(range(0, 61, 3))


def test_a_count_that_becomes_a_fraction_is_a_float(tmp_path):
    with RunWriter.create(tmp_path, None, TABLE) as writer:
        writer.append(0, fake.start())
        writer.log(0, {"loss": 0})
        writer.log(1, {"loss": 0.5})
        writer.log(2, {"loss": np.int64(3), "big": 2**70})
    metrics = Run.open(tmp_path).metrics
    assert metrics["loss"].value.tolist() == [0.0, 0.5, 3.0]
    assert metrics["big"].value.tolist() == [2.0**70]


def test_the_run_hash_chains_steps_and_bytes(run, tmp_path):
    assert run.hash == chain(run.steps, run.hashes)
    one_commit = fake.train(tmp_path / "other", 60, commit_bytes=10**9)
    assert one_commit.hash == run.hash
    assert chain(run.steps[40:], run.hashes[40:], start=chain(run.steps[:40], run.hashes[:40])) == run.hash
    assert chain(run.steps + 1, run.hashes) != run.hash


def test_identity_ignores_the_number_of_steps_only(run, tmp_path):
    assert fake.train(tmp_path / "longer", 70).identity == run.identity
    with RunWriter.create(tmp_path / "other", RunConfig(lr=0.1), TABLE) as writer:
        writer.append(0, fake.start())
    assert Run.open(tmp_path / "other").identity != run.identity


def test_a_longer_run_continues_a_finished_one(run):
    longer = fake.train(run.path, 90)
    assert longer.config.steps == 90
    assert longer.finished
    assert np.array_equal(np.stack(list(longer.rows())), fake.trajectory(90))
    assert verify(longer).ok


def test_fewer_steps_or_another_configuration_is_refused_by_name(run):
    with pytest.raises(ValueError, match="steps"):
        RunWriter.resume(run.path, RunConfig(steps=59), TABLE)
    with pytest.raises(ValueError, match=r"width \(128 there, 64 here\), lr \(0.001 there, 0.5 here\)"):
        RunWriter.resume(run.path, RunConfig(steps=60, lr=0.5, width=64), TABLE)
    with pytest.raises(ValueError, match="configuration"):
        RunWriter.resume(run.path, None, TABLE)
    with pytest.raises(ValueError, match="other parameters"):
        RunWriter.resume(run.path, RunConfig(steps=60), ParameterTable(("w",), ((SIZE,),), {}))
    with pytest.raises(FileExistsError, match="resume"):
        RunWriter.create(run.path, RunConfig(steps=60), TABLE)
    RunWriter.resume(run.path, RunConfig(steps=60), TABLE).close()  # the refusals hold no lock


def test_what_follows_the_resume_state_is_dropped(tmp_path):
    rows = fake.trajectory(30)
    with RunWriter.create(tmp_path, None, TABLE) as writer:
        for step in range(20):
            writer.append(step, rows[step])
            writer.log(step, {"loss": step})
            if step in (4, 9):
                writer.commit(b"state", step=step)
    assert len(Run.open(tmp_path)) == 20
    with RunWriter.resume(tmp_path, None, TABLE) as writer:
        assert (writer.resume_step, writer.resume_state(), writer.last_step) == (9, b"state", 9)
        for step in range(10, 31):
            writer.append(step, rows[step])
            writer.log(step, {"loss": step})
    run = Run.open(tmp_path)
    assert np.array_equal(np.stack(list(run.rows())), rows)
    assert run.metrics["loss"].step.tolist() == list(range(31))
    assert verify(run).ok
    with RunWriter.resume(tmp_path, None, TABLE, at=14) as writer:
        assert (writer.last_step, writer.resume_step) == (14, 9)
        writer.append(15, rows[15])
    assert np.array_equal(np.stack(list(Run.open(tmp_path).rows())), rows[:16])
    with RunWriter.resume(tmp_path, None, TABLE, at=5) as writer:
        assert (writer.last_step, writer.resume_step) == (5, None)


def test_kept_states_stay_and_old_resume_states_go(run):
    assert run.states == (10, 20, 30, 40, 50, 60)
    assert json.loads(run.state(50))["step"] == 50
    with pytest.raises(ValueError, match="step=51"):
        run.state(51)
    assert [file.name for file in run.path.glob("resume*")] == ["resume-60.pt"]
    assert len(list(run.path.glob("state*"))) == 6


def test_two_resume_states_of_one_step_never_overwrite_each_other(tmp_path):
    with RunWriter.create(tmp_path, None, TABLE) as writer:
        writer.append(0, fake.start())
        writer.commit(b"first", step=0)
        writer.commit(b"second", step=0)
        assert writer.resume_state() == b"second"
        assert [file.read_bytes() for file in tmp_path.glob("resume*")] == [b"second"]


def test_an_error_inside_the_context_commits_what_was_appended(tmp_path):
    def diverge():
        with RunWriter.create(tmp_path, None, TABLE) as writer:
            writer.append(0, fake.start())
            raise RuntimeError("diverged")

    with pytest.raises(RuntimeError, match="diverged"):
        diverge()
    run = Run.open(tmp_path)
    assert len(run) == 1
    assert not run.finished


def test_a_run_without_configuration_and_with_float64(tmp_path):
    rows = np.random.default_rng(1).standard_normal((3, SIZE))
    with RunWriter.create(tmp_path, None, TABLE, dtype="float64") as writer:
        for step, row in enumerate(rows):
            writer.append(step, row)
        writer.finish("imported")
    run = Run.open(tmp_path)
    assert run.config is None
    assert run.finish_reason == "imported"
    assert run.identity == "{}\n" + run.hashes[0]
    assert np.array_equal(np.stack(list(run.rows())), rows)
    with h5py.File(tmp_path / "run.h5") as file:
        assert np.array_equal(file["theta"][:], rows)


@pytest.mark.parametrize(
    ("step", "theta", "message"),
    [
        (5, np.zeros(SIZE, np.float32), "step=5 must exceed"),
        (6, np.zeros(SIZE + 1, np.float32), r"theta has shape \(61,\)"),
        (6, np.zeros(SIZE, np.float64), "this run takes .* float32"),
        (6, np.full(SIZE, np.nan, np.float32), "60 entries that are NaN"),
        (6, np.full(SIZE, np.inf, np.float32), "60 entries that are NaN"),
    ],
)
def test_append_refuses(tmp_path, step, theta, message):
    with RunWriter.create(tmp_path, None, TABLE) as writer:
        writer.append(5, fake.start())
        with pytest.raises(ValueError, match=message):
            writer.append(step, theta)
        writer.append(7, np.full(SIZE, 3e38, np.float32))  # its sum overflows, its entries do not
        writer.append(8, np.full(SIZE, np.nan, np.float32), allow_nonfinite=True)
    assert np.isnan(Run.open(tmp_path).theta(2)).all()


@pytest.mark.parametrize("name", ["val/loss", "", "..", "a\nb"])
def test_log_refuses_names_that_name_no_dataset(tmp_path, name):
    with RunWriter.create(tmp_path, None, TABLE) as writer:
        writer.log(0, {"loss": 1.0})
        with pytest.raises(ValueError, match="can't be a name"):
            writer.log(1, {"loss": 1.0, name: 1.0})
        with pytest.raises(ValueError, match="step=0: loss has a value at step 0"):
            writer.log(0, {"loss": 1.0})
        assert writer.metrics["loss"].step.tolist() == [0]


@pytest.mark.parametrize("step", [-1, 1.5, 2**63, "3", None])
def test_steps_are_whole_numbers(tmp_path, step):
    with RunWriter.create(tmp_path, None, TABLE) as writer:
        for act in (
            lambda: writer.append(step, fake.start()),
            lambda: writer.log(step, {"loss": 1.0}),
            lambda: writer.keep_state(step, b""),
        ):
            with pytest.raises(ValueError, match="whole number"):
                act()
        writer.append(np.int64(3), fake.start())
        writer.log(np.int64(3), {"loss": np.float32(1)})
    assert Run.open(tmp_path).steps.tolist() == [3]


def test_create_refuses_what_it_could_not_write(tmp_path):
    with pytest.raises(ValueError, match="provenance"):
        RunWriter.create(tmp_path / "run", None, TABLE, provenance={"device": object()})
    with pytest.raises(ValueError, match="dtype='float16'"):
        RunWriter.create(tmp_path / "run", None, TABLE, dtype="float16")
    with pytest.raises(ValueError, match="0 parameters"):
        RunWriter.create(tmp_path / "run", None, ParameterTable((), (), {}))
    RunWriter.create(tmp_path / "run", None, TABLE).close()


def test_only_snapshots_that_exist(run):
    for i in (61, -62):
        with pytest.raises(ValueError, match=f"snapshot {i} does not exist; the run has 61"):
            run.theta(i)
    with pytest.raises(ValueError, match="width=0"):
        next(run.columns(0))


@pytest.mark.parametrize("content", [None, b"", b"\x89HDF\r\n\x1a\n" + bytes(2000), b"hello"])
def test_what_is_no_run_is_called_so(tmp_path, content):
    if content is not None:
        (tmp_path / "run.h5").write_bytes(content)
    with pytest.raises(ValueError, match="no run"):
        Run.open(tmp_path)
    with pytest.raises(ValueError, match="no run"):
        RunWriter.resume(tmp_path, None, TABLE)
    assert not (tmp_path / "run.lock").exists()


def test_a_run_can_be_pickled(run):
    again = pickle.loads(pickle.dumps(run))
    assert again.hash == run.hash
    assert np.array_equal(again.theta(7), run.theta(7))


@pytest.mark.parametrize("name", ["moved", "with space", "mit Ümläut 漢字"])
def test_plain_h5py_reads_a_moved_run_from_anywhere(run, tmp_path, name, monkeypatch):
    target = run.path.rename(tmp_path / name)
    monkeypatch.chdir("/")
    rows = fake.trajectory(60)
    with h5py.File(target / "run.h5") as file:
        assert np.array_equal(file["theta"][:], rows)
        assert np.array_equal(file["second_moment"][:], rows[::5] ** 2)
        assert file["step"][-1] == 60
        assert file["hash"][3].decode() == run.hashes[3]
        assert file["metrics/train_correct/value"][60] == 60
        assert json.loads(file["config"][()])["steps"] == 60
        assert json.loads(file["parameters"][()])["names"] == ["weight", "bias"]
        assert (file.attrs["format"], file.attrs["format_version"]) == ("grokscope run", 1)
        assert file.attrs["hash"] == run.hash
    assert verify(Run.open(target)).ok


def test_pack_makes_one_contiguous_file(run, tmp_path):
    path = pack(run, tmp_path / "packed.h5")
    run.path.rename(tmp_path / "away")
    rows = fake.trajectory(60)
    with h5py.File(path) as file:
        assert np.array_equal(file["theta"][:], rows)
        assert not file["theta"].is_virtual
        assert file["theta"].chunks is None
        assert np.array_equal(file["second_moment"][:], rows[::5] ** 2)
        assert file["metrics/train_loss/value"].shape == (61,)
    with pytest.raises(FileExistsError):
        pack(run, path)
    with pytest.raises(ValueError, match="no run"):
        Run.open(path.parent)


def test_a_packed_run_is_no_folder(run, tmp_path):
    with pytest.raises(ValueError, match="is a file; give a run's folder"):
        Run.open(pack(run, tmp_path / "run.h5"))


def test_pack_leaves_nothing_when_a_segment_is_missing(run, tmp_path):
    next((run.path / "segments").iterdir()).unlink()
    with pytest.raises(ValueError, match="missing"):
        pack(run, tmp_path / "packed.h5")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["run"]


def test_info_knows_the_facts(run):
    facts = json.loads(json.dumps(info(run)))
    assert facts["snapshots"] == 61
    assert facts["parameters"] == SIZE
    assert (facts["first_step"], facts["last_step"], facts["finished"]) == (0, 60, True)
    assert facts["hash"] == run.hash
    assert facts["bytes"] == (61 + 13) * ROW
    assert facts["provenance"] == {"threads": 1}
    with RunWriter.create(run.path.parent / "empty", None, TABLE) as writer:
        writer.finish("nothing to do")
    empty = Run.open(run.path.parent / "empty")
    assert info(empty)["first_step"] is None
    assert list(empty.rows()) == []


def test_sessions_on_other_machines_are_recorded(run):
    with RunWriter.resume(run.path, RunConfig(steps=61), TABLE, provenance={"threads": 2}) as writer:
        assert not writer.finished
        writer.append(61, fake.start())
    again = Run.open(run.path)
    assert again.provenance == {"threads": 2}
    assert again.index.provenance == ({"threads": 1}, {"threads": 2})


def test_names_shapes_and_metrics_without_limit(tmp_path):
    names = tuple(f"layer.{i:05d}.{'x' * 40}" for i in range(3000))  # beyond the 64 kB of an attribute
    table = ParameterTable(names, ((1,),) * 3000, {})
    with RunWriter.create(tmp_path, None, table) as writer:
        writer.append(0, np.zeros(3000, np.float32))
        writer.log(0, {f"norm.{name}": 1.0 for name in names[:300]})
    run = Run.open(tmp_path)
    assert run.table == table
    assert len(run.metrics) == 300


def test_the_store_needs_no_torch():
    code = "import sys, grokscope.runs.store, grokscope.runs.verify; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_first_format_is_read_forever():
    """Written by `python tests/runs/fake_trainer.py tests/data/run_v1 30 2880` at format version 1."""
    run = Run.open(GOLDEN)
    assert run.hash == "7256116441ff0ee4fc20b0f06e0afd366df9c6716a2ff499f954936c5f9c7b18"
    assert np.array_equal(np.stack(list(run.rows())), fake.trajectory(30))
    assert verify(run).ok
    assert run.config.modulus == 97
    assert run.metrics["train_correct"].value.tolist() == list(range(31))
    assert run.second_moment_steps.tolist() == list(range(0, 31, 5))
    assert json.loads(run.state(20))["step"] == 20
