"""Damage is named, and a damaged or hostile run.h5 never reaches HDF5 or leads out of the folder."""

import os
import shutil
from dataclasses import replace

import fake_trainer as fake
import h5py
import numpy as np
import pytest
from fake_trainer import ROW, TABLE
from grokscope.runs.config import RunConfig
from grokscope.runs.decode import load_index
from grokscope.runs.index import USER_BLOCK, encode, user_block
from grokscope.runs.segments import Piece
from grokscope.runs.store import Run, RunWriter
from grokscope.runs.verify import Problem, verify


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return fake.train(tmp_path_factory.mktemp("made") / "run", 40).path


@pytest.fixture
def path(made, tmp_path):
    return shutil.copytree(made, tmp_path / "run")


def problems(path):
    report = verify(Run.open(path))
    assert report.ok == (not report.problems)
    return [(problem.file, problem.kind) for problem in report.problems]


def segment(path, i):
    piece = Run.open(path).index.theta.pieces[i]
    return piece, path / piece.file


def flip(file, position):
    data = bytearray(file.read_bytes())
    data[position] ^= 1
    file.write_bytes(data)


def read_all(path):
    return np.stack(list(Run.open(path).rows()))


def test_a_whole_run_has_no_problems(path):
    report = verify(Run.open(path))
    assert report.ok
    assert report.rows == 41 + 9
    assert report.duplicates == ()


def test_a_missing_segment_is_named(path):
    piece, file = segment(path, 2)
    file.unlink()
    assert problems(path) == [(piece.file, "missing")]
    with pytest.raises(ValueError, match=f"{piece.file} of .* is missing"):
        read_all(path)
    with pytest.raises(ValueError, match=f"{piece.file} of .* is missing"):
        list(Run.open(path).columns(7))
    assert np.array_equal(Run.open(path).theta(0), fake.start())  # other segments are not touched


@pytest.mark.parametrize("size", [0, 100, 463 + ROW, -1])
def test_a_truncated_segment_is_named(path, size):
    piece, file = segment(path, 1)
    os.truncate(file, size if size >= 0 else file.stat().st_size - 1)
    assert problems(path) == [(piece.file, "truncated")]
    with pytest.raises(ValueError, match=f"{piece.file} of .* is truncated"):
        read_all(path)


@pytest.mark.parametrize("row", [0, 3])
def test_a_flipped_bit_is_named_with_its_step(path, row):
    piece, file = segment(path, 1)
    flip(file, piece.offset + row * ROW + 17)
    step = piece.first_row + row
    found = verify(Run.open(path)).problems
    assert found == (Problem(piece.file, "altered", f"1 rows differ from their SHA-256, at step {step}"),)
    with pytest.raises(ValueError, match=f"altered: snapshot {step} "):
        read_all(path)
    with pytest.raises(ValueError, match=f"altered: snapshot {step} "):
        list(Run.open(path).columns(7))


def test_a_flipped_bit_in_the_header_of_a_segment_is_found(path):
    piece, file = segment(path, 1)
    flip(file, 5)
    assert problems(path) == [(piece.file, "altered")]
    assert np.array_equal(read_all(path), fake.trajectory(40))  # our reader does not need it


@pytest.mark.parametrize(("a", "b"), [(0, 1), (0, -1)])
def test_swapped_segments_are_named(path, a, b):
    (first, file), (second, other) = segment(path, a), segment(path, b)
    file.rename(path / "aside")
    other.rename(file)
    (path / "aside").rename(other)
    assert sorted(problems(path)) == sorted([(first.file, "swapped"), (second.file, "swapped")])
    with pytest.raises(ValueError, match=r"of .* is (altered|truncated)"):
        read_all(path)


def test_what_is_no_plain_file_is_neither_followed_nor_waited_for(path):
    piece, file = segment(path, 1)
    file.rename(path.parent / "outside.h5")
    file.symlink_to(path.parent / "outside.h5")
    assert problems(path) == [(piece.file, "missing")]
    file.unlink()
    os.mkfifo(file)
    assert problems(path) == [(piece.file, "missing")]
    shutil.move(path / "segments", path.parent / "elsewhere")
    (path / "segments").symlink_to(path.parent / "elsewhere")
    with pytest.raises(ValueError, match="link out of the run"):
        Run.open(path)


def test_damaged_state_files_are_named(path):
    flip(path / "resume-40.pt", 3)
    (path / "state-20.pt").unlink()
    assert problems(path) == [("state-20.pt", "missing"), ("resume-40.pt", "altered")]
    with (
        RunWriter.resume(path, RunConfig(steps=40), TABLE) as writer,
        pytest.raises(ValueError, match="altered"),
    ):
        writer.resume_state()


def test_equal_neighbors_are_reported_as_duplicates(tmp_path):
    with RunWriter.create(tmp_path, None, TABLE) as writer:
        for step in (0, 10, 20):
            writer.append(step, fake.start() * (step == 0))
    report = verify(Run.open(tmp_path))
    assert report.ok
    assert report.duplicates == (20,)


def test_every_mutated_byte_of_run_h5_is_refused(path):
    file = path / "run.h5"
    data = file.read_bytes()
    positions = np.random.default_rng(3).integers(0, len(data), 300)
    for position in [*range(0, 100), *range(500, 530), *positions.tolist()]:
        mutated = bytearray(data)
        mutated[position] ^= 1 << (position % 8)
        file.write_bytes(mutated)
        with pytest.raises(ValueError, match=r"is damaged|is no run"):
            Run.open(path)


@pytest.mark.parametrize("keep", [0, 10, 511, 512, 600, -1])
def test_a_truncated_or_longer_run_h5_is_refused(path, keep):
    file = path / "run.h5"
    data = file.read_bytes()
    file.write_bytes(data[:keep])
    with pytest.raises(ValueError, match=r"is damaged|is no run"):
        Run.open(path)
    file.write_bytes(data + b"\0")
    with pytest.raises(ValueError, match="is damaged"):
        Run.open(path)


def forged(path, change):
    """run.h5 changed through h5py, with a first block that fits again."""
    file = path / "run.h5"
    with h5py.File(file, "r+") as opened:
        change(opened)
    body = file.read_bytes()[USER_BLOCK:]
    file.write_bytes(user_block(body) + body)


def replaced(name, make):
    def change(file):
        del file[name]
        make(file)

    return change


def table_with(**values):
    def change(file):
        table = file["segments"][:]
        for key, value in values.items():
            table[key][1] = value
        del file["segments"]
        file["segments"] = table

    return change


def virtual_elsewhere(file):
    layout = h5py.VirtualLayout((41, TABLE.size), "float32")
    layout[:] = h5py.VirtualSource("/etc/passwd", "theta", (41, TABLE.size))
    file.create_virtual_dataset("theta", layout)


def sparse(file):
    file.create_dataset("step", (2**40,), "int64")  # 8 TiB, of which nothing is on disk


def external(file):
    file.create_dataset("step", (41,), "int64", external=[("/etc/passwd", 0, 41 * 8)])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: f.attrs.modify("format_version", 2), "format version 2; .* upgrade"),
        (lambda f: f.attrs.modify("dtype", "object"), "dtype 'object'"),
        (
            replaced("step", lambda f: f.update({"step": h5py.ExternalLink("/etc/passwd", "step")})),
            "or a link",
        ),
        (replaced("step", lambda f: f.update({"step": h5py.SoftLink("/hash")})), "or a link"),
        (replaced("step", sparse), "`step` does not hold"),
        (replaced("step", external), "`step` does not hold"),
        (replaced("step", lambda f: f.update({"step": np.zeros(41)})), "`step` has type float64"),
        (replaced("step", lambda f: f.update({"step": np.zeros(41, int)})), "steps do not rise"),
        (replaced("step", lambda f: f.update({"step": np.arange(40)})), "different lengths"),
        (replaced("theta", virtual_elsewhere), "`theta` points outside the run"),
        (table_with(file="../secret"), "'../secret' lies outside"),
        (table_with(file="segments/../../x.h5"), "lies outside"),
        (table_with(rows=10**12), "contradicts itself"),
        (table_with(offset=-1), "contradicts itself"),
        (table_with(file="segments/00000099.h5"), "`theta` points outside the run"),
        (replaced("parameters", lambda f: f.update({"parameters": "{}"})), "no text of fixed length"),
        (
            lambda f: f["states"].write_direct(np.array([("../resume-1.pt", 1, b"")] * 5, f["states"].dtype)),
            "outside",
        ),
    ],
)
def test_a_forged_index_is_refused_in_words(path, change, message):
    forged(path, change)
    with pytest.raises(ValueError, match=message):
        Run.open(path)


def test_a_forged_size_allocates_nothing(path):
    """A segment table that asks for more than its file holds is found before the array is made."""
    index = load_index(path)
    huge = replace(TABLE, shapes=((2**20, 2**20), (12,)))
    rows = index.theta._replace(pieces=(Piece("segments/00000000.h5", 463, huge.size * 4, 1, 0, ""),))
    rows = rows._replace(steps=rows.steps[:1], hashes=rows.hashes[:1])
    forged_index = replace(
        index, table=huge, theta=rows, second_moment=rows._replace(pieces=(), steps=rows.steps[:0], hashes=())
    )
    (path / "run.h5").write_bytes(encode(forged_index))
    run = Run.open(path)
    assert [problem.kind for problem in verify(run).problems if "segments" in problem.file] == ["truncated"]
    with pytest.raises(ValueError, match="truncated"):
        run.theta(0)
    with pytest.raises(ValueError, match="truncated"):
        next(run.columns(huge.size))
