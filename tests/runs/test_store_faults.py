"""Killed at any moment, out of disk at any write: no commit is lost, and a resume ends in the same run."""

import errno
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import fake_trainer as fake
import h5py
import numpy as np
import pytest
from fake_trainer import ROW, TABLE
from grokscope.runs.config import RunConfig
from grokscope.runs.store import Run, RunWriter
from grokscope.runs.verify import verify

TRAINER = Path(fake.__file__)


def python(code, *arguments, **options):
    """A child process that runs `code` with fake_trainer importable."""
    environment = os.environ | {"PYTHONPATH": str(TRAINER.parent), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.Popen(command, env=environment, text=True, stdout=-1, stderr=-1, **options)


def litter(path):
    """Our files that run.h5 does not list."""
    run = Run.open(path)
    rows = (run.index.theta, run.index.second_moment)
    listed = {piece.file for series in rows for piece in series.pieces} | {s.file for s in run.index.states}
    listed |= {"run.h5", "run.lock"} | ({run.index.resume.file} if run.index.resume else set())
    return {file.relative_to(path).as_posix() for file in path.rglob("*") if file.is_file()} - listed


def error_of(act):
    try:
        act()
    except OSError as error:
        return error
    return None


def assert_prefix(path, rows):
    """Whatever is committed is a whole beginning of the undisturbed run."""
    if not (path / "run.h5").exists():
        return
    run = Run.open(path)
    assert verify(run).ok
    assert np.array_equal(np.stack(list(run.rows())), rows[: len(run)])
    assert run.metrics["train_correct"].value.tolist() == list(range(len(run)))


def test_killed_at_twenty_random_moments(tmp_path):
    steps, rng = 1500, random.Random(20)
    rows = fake.trajectory(steps)
    undisturbed = fake.train(tmp_path / "undisturbed", steps, commit_bytes=10**9)
    path, kills = tmp_path / "run", 0
    while kills < 20:
        child = subprocess.Popen(
            [sys.executable, TRAINER, path, str(steps), str(ROW)], stdout=subprocess.PIPE
        )
        child.stdout.readline()  # it starts now
        time.sleep(rng.uniform(0, 0.15))
        child.send_signal(signal.SIGKILL)
        kills += child.wait() == -signal.SIGKILL
        child.stdout.close()
        if kills % 5 == 0:  # the resume that follows each kill checks as well
            assert_prefix(path, rows)
    run = fake.train(path, steps, commit_bytes=50 * ROW)
    assert run.hash == undisturbed.hash
    assert run.metrics["train_loss"].value.tolist() == undisturbed.metrics["train_loss"].value.tolist()
    assert [run.state(step) for step in run.states] == [
        undisturbed.state(step) for step in undisturbed.states
    ]
    assert verify(run).ok
    assert not litter(path)


STEPS = 15  # three commits and a kept state
CALLS = ("write", "fsync", "replace", "unlink")


def fsync(descriptor):
    """Power losses can't be tested here, and a busy disk makes the true one slow."""


def counted(patch, at, strike):
    """Let the system calls from number `at` on, of those that change the disk, run into `strike`."""
    count = 0

    def wrap(call):
        def wrapped(*arguments, **options):
            nonlocal count
            count += 1
            if count >= at:
                strike(call.__name__)
            return call(*arguments, **options)

        return wrapped

    for name in CALLS:
        patch.setattr(os, name, wrap(getattr(os, name)))
    return lambda: count


def test_ended_before_every_single_system_call(tmp_path, monkeypatch):
    """The process ends before call 1, 2, 3, ... of a whole run; each time a resume repairs it."""
    monkeypatch.setattr(os, "fsync", fsync)
    rows, expected = fake.trajectory(STEPS), fake.train(tmp_path / "undisturbed", STEPS).hash
    code, at = 9, 0
    while code == 9:
        at += 1
        path = tmp_path / str(at)
        child = os.fork()
        if child == 0:
            counted(monkeypatch, at, lambda name: os._exit(9))
            fake.train(path, STEPS)
            os._exit(0)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert_prefix(path, rows)
        assert fake.train(path, STEPS).hash == expected
        assert not litter(path)
    assert code == 0
    assert at > 40


def test_any_call_that_fails_is_one_clear_error_and_nothing_is_lost(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", fsync)
    rows, expected = fake.trajectory(STEPS), fake.train(tmp_path / "undisturbed", STEPS).hash

    def fail(name):
        if name != "unlink":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def disturbed(path, at):
        with monkeypatch.context() as patch:
            total = counted(patch, at, fail)  # from then on the disk is full
            return error_of(lambda: fake.train(path, STEPS)), total()

    error, at, calls = None, 0, 0
    while error is not None or calls >= at:
        at += 1
        path = tmp_path / str(at)
        error, calls = disturbed(path, at)
        if error is not None:
            assert error.errno == errno.ENOSPC
            assert str(path) in str(error)
            assert "bytes are needed" in str(error) or "a run needs a folder" in str(error)
        assert not list(path.rglob("*.tmp"))
        assert_prefix(path, rows)
        assert fake.train(path, STEPS).hash == expected
        assert not litter(path)
    assert at > 40


def test_a_full_disk_is_said_and_the_same_command_goes_on(tmp_path):
    path, rows = tmp_path / "run", fake.trajectory(400)
    code = (
        "import resource, sys, fake_trainer, pathlib\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, 30_000))\n"
        "fake_trainer.train(pathlib.Path(sys.argv[1]), 400)\n"
    )
    _, message = python(code, path).communicate()
    assert "OSError: [Errno 27] File too large" in message
    assert "bytes are needed" in message
    assert "run.h5" in message
    assert 7 <= len(Run.open(path)) < 400
    assert_prefix(path, rows)
    assert not list(path.rglob("*.tmp"))
    assert np.array_equal(np.stack(list(fake.train(path, 400).rows())), rows)
    assert not litter(path)


def test_a_writer_that_failed_is_of_no_more_use_and_a_resume_continues(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "full")

    with RunWriter.create(tmp_path, None, TABLE) as writer:
        writer.append(0, fake.start())
        writer.commit(b"state", step=0)
        writer.append(1, fake.start())
        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", full)
            with pytest.raises(OSError, match="full"):
                writer.commit(b"state", step=1)
        for act in (lambda: writer.append(2, fake.start()), writer.commit, lambda: writer.keep_state(2, b"")):
            with pytest.raises(OSError, match="resume the run"):
                act()
    assert not list(tmp_path.rglob("*.tmp"))
    with RunWriter.resume(tmp_path, None, TABLE) as writer:
        assert writer.last_step == 0
        writer.append(1, fake.start())
    assert len(Run.open(tmp_path)) == 2
    assert verify(Run.open(tmp_path)).ok
    assert not litter(tmp_path)


READER = """
import sys, pathlib, numpy as np, h5py, fake_trainer
from grokscope.runs.store import Run
path, rows, loops, seen = pathlib.Path(sys.argv[1]), fake_trainer.trajectory(int(sys.argv[2])), 0, set()
while not (run := Run.open(path)).finished:
    read = np.stack(list(run.rows())) if loops % 2 else np.concatenate([b for _, b in run.columns(7)], axis=1)
    assert np.array_equal(read, rows[:len(run)])
    with h5py.File(path / "run.h5") as file:
        foreign = file["theta"][:]
        assert np.array_equal(foreign, rows[:len(foreign)]) and len(file["step"]) == len(foreign)
    loops += 1
    seen.add(len(run))
print(loops, len(seen))
"""


def test_four_readers_while_it_is_written(tmp_path):
    path, steps = tmp_path / "run", 300
    fake.train(path, 20)
    readers = [python(READER, path, steps) for _ in range(4)]
    writer = RunWriter.resume(path, RunConfig(steps=steps), TABLE)
    rows = fake.trajectory(steps)
    with writer:
        for step in range(21, steps + 1):
            fake.record(writer, step, rows[step])
            if step % 10 == 0:
                writer.commit()
                time.sleep(0.05)
        writer.finish("steps")
    for reader in readers:
        output, errors = reader.communicate(timeout=60)
        assert reader.returncode == 0, errors
        loops, sizes = map(int, output.split())
        assert loops >= 2  # each read it at several states
        assert sizes >= 2


def test_a_second_writer_is_refused_and_the_first_goes_on(tmp_path):
    path = tmp_path / "run"
    with RunWriter.create(path, None, TABLE) as writer:
        writer.append(0, fake.start())
        with pytest.raises(BlockingIOError, match="another process is writing this run"):
            RunWriter.create(path, None, TABLE)
        writer.commit()
        with pytest.raises(BlockingIOError, match="another process is writing this run"):
            RunWriter.resume(path, None, TABLE)
        writer.append(1, fake.start())
    assert len(Run.open(path)) == 2
    with RunWriter.resume(path, None, TABLE) as writer:
        assert writer.last_step == 1


def test_two_trainers_at_once_leave_one_whole_run(tmp_path):
    code = "import sys, pathlib, fake_trainer; fake_trainer.train(pathlib.Path(sys.argv[1]), 300)"
    children = [python(code, tmp_path / "run") for _ in range(3)]
    messages = [child.communicate()[1] for child in children]
    assert any(child.returncode == 0 for child in children)
    assert all("another process" in m for m, c in zip(messages, children, strict=True) if c.returncode)
    assert np.array_equal(np.stack(list(Run.open(tmp_path / "run").rows())), fake.trajectory(300))


def test_few_descriptors_change_nothing(tmp_path):
    path, rows = tmp_path / "run", fake.trajectory(100)
    code = (
        "import os, resource, sys, fake_trainer, pathlib, numpy as np\n"
        "os.fsync = lambda descriptor: None\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (24, 24))\n"
        "run = fake_trainer.train(pathlib.Path(sys.argv[1]), 100, fake_trainer.ROW)\n"
        "np.save(sys.argv[2], np.concatenate([block for _, block in run.columns(7)], axis=1))\n"
    )
    child = python(code, path, tmp_path / "read.npy")
    assert child.communicate()[1] == ""
    assert len(Run.open(path).index.theta.pieces) > 80
    assert np.array_equal(np.load(tmp_path / "read.npy"), rows)
    with h5py.File(path / "run.h5") as file:
        assert np.array_equal(file["theta"][:], rows)


READ_ONLY = """
import os, sys, pathlib, fake_trainer
if os.getuid() == 0:
    os.setuid(65534)  # the superuser may write anywhere
path = pathlib.Path(sys.argv[1])
run = fake_trainer.Run.open(path)
assert len(list(run.rows())) == 21
for target in (path, path / "new"):
    try:
        fake_trainer.train(target, 30)
    except PermissionError as error:
        print(error)
"""


def test_a_read_only_folder_is_read_and_refused_for_writing(tmp_path_factory):
    base = tmp_path_factory.mktemp("readonly")
    for folder in (base, *base.parents[:2]):
        folder.chmod(0o755)
    path = fake.train(base / "run", 20).path
    for item in (path, *path.rglob("*")):
        item.chmod(0o555 if item.is_dir() else 0o444)
    output, errors = python(READ_ONLY, path).communicate()
    assert errors == ""
    assert output.count("a run needs a folder that it may write to") == 2
    assert str(path) in output


def test_a_path_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="a run needs a folder"):
        RunWriter.create(tmp_path / "file", None, TABLE)


def test_a_folder_that_is_not_ours_keeps_its_files(tmp_path):
    (tmp_path / "resume-3.pt").write_text("somebody else's")
    with RunWriter.create(tmp_path, None, TABLE) as writer:
        writer.append(0, fake.start())
    assert (tmp_path / "resume-3.pt").read_text() == "somebody else's"


def test_the_clock_going_backwards_changes_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(time, "time", lambda: -1e9)
    assert np.array_equal(fake.train(tmp_path / "run", 20).theta(20), fake.trajectory(20)[20])
