"""Calls in processes that share the cores, and what becomes of them when their caller is killed."""

import fcntl
import os
import signal
import subprocess
import sys
import time

import pytest
from grokscope.analysis.commands.main import main
from grokscope.runs.processes import parallel
from grokscope.runs.store import Run
from grokscope.runs.sweep import read_spec

SPEC = """
seeds = 3
[base]
modulus = 5
width = 16
heads = 2
feedforward = 32
batch_size = 16
steps = 100_000
stop_after_generalization = 1_000_000
second_moment_every = 0
"""


def whereabouts(number):
    return number, os.getpid()


@pytest.mark.parametrize(("jobs", "ordered"), [(1, True), (2, True), (2, False)])
def test_every_call_is_answered_once(jobs, ordered):
    found = list(parallel(whereabouts, ((n,) for n in range(9)), jobs=jobs, ordered=ordered))
    numbers = [number for number, _ in found]
    assert (numbers if ordered else sorted(numbers)) == list(range(9))
    assert (os.getpid() in {home for _, home in found}) == (jobs == 1)


def wait_until(condition, *, seconds=120):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.1)


def is_free(lock):
    """Whether no process trains there."""
    with lock.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
    return True


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_nobody_trains_on_when_a_sweep_is_killed(number, tmp_path):
    (tmp_path / "spec.toml").write_text(SPEC)
    words = ["sweep", str(tmp_path / "spec.toml"), "--out", str(tmp_path / "runs"), "--jobs", "2"]
    command = [sys.executable, "-m", "grokscope.analysis.commands.main", *words, "--quiet"]
    sweep = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    names = [entry.name for entry in read_spec(tmp_path / "spec.toml")]
    files = [tmp_path / "runs" / name / "run.h5" for name in names[:2]]
    wait_until(lambda: all(file.exists() for file in files))
    sweep.send_signal(number)  # to it alone, not to its workers
    if number == signal.SIGTERM:
        assert "interrupted; the same command goes on" in sweep.communicate()[1]
        assert sweep.returncode == 130
    else:
        assert sweep.wait() == -signal.SIGKILL
    wait_until(lambda: all(is_free(file.with_name("run.lock")) for file in files))
    assert all(not Run.open(file.parent).finished for file in files)
    assert not (tmp_path / "runs" / names[2]).exists()  # nor is the next one begun


def test_sigterm_is_an_interruption(monkeypatch, capsys):
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(
        "grokscope.analysis.commands.main._dispatch", lambda _: os.kill(os.getpid(), signal.SIGTERM)
    )
    assert main(["info"]) == 130
    assert "interrupted" in capsys.readouterr().err
    assert signal.getsignal(signal.SIGTERM) == before
