"""A real Dask scheduler with two real workers on loopback, one of which is killed during the work."""

import json
import os
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from grokscope.analysis import atlas, reproduction
from grokscope.analysis.claim import Claim, Finding
from grokscope.analysis.commands import reproduce
from grokscope.analysis.commands.main import main
from grokscope.analysis.commands.many import _without_scheduler
from grokscope.analysis.parallel import each
from grokscope.analysis.result import walk
from grokscope.analysis.study import Measured
from grokscope.runs import cluster, sweep
from grokscope.runs.cluster import on_cluster, ordered, unordered
from grokscope.runs.named import load
from grokscope.runs.store import Run
from grokscope.runs.verify import verify

pytest.importorskip("distributed", reason="dask is not installed: pip install 'grokscope[cluster]'")

SPEC = """
seeds = 3
[base]
modulus = 5
width = 16
heads = 2
feedforward = 32
batch_size = 16
steps = 150
log_every = 50
snapshot_every = 10
second_moment_every = 0
"""


class Cluster:
    """A scheduler and workers as processes of their own."""

    def __init__(self, folder):
        self.folder, self.processes = folder, []
        file = folder / "scheduler.json"
        where = ["--host", "127.0.0.1", "--port", "0", "--no-dashboard"]
        self.start("scheduler", *where, "--scheduler-file", str(file))
        wait_until(file.exists)
        self.address = json.loads(file.read_text())["address"]
        self.workers = [self.worker() for _ in range(2)]

    def worker(self, *, threads=1):
        options = ["--nthreads", str(threads), "--no-nanny", "--no-dashboard", "--death-timeout", "60"]
        return self.start("worker", self.address, *options, "--local-directory", str(self.folder))

    def start(self, kind, *words):
        log = (self.folder / f"{kind}-{len(self.processes)}.log").open("w")
        environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parent)}
        command = [sys.executable, "-m", "dask", kind, *words]
        self.processes.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))
        return self.processes[-1]

    def stop(self):
        for process in self.processes:
            process.kill()
            process.wait()


def wait_until(condition, *, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.05)


@pytest.fixture(scope="module")
def dask(tmp_path_factory):
    started = Cluster(tmp_path_factory.mktemp("dask"))
    yield started
    started.stop()


def norms(index, theta, before):
    return {"squared_norm": float(theta @ theta), "alone": before is None}


def double(x):
    if x < 0:
        raise ValueError(f"x={x} must be positive")
    return 2 * x


def test_a_sweep_survives_the_death_of_a_worker(dask, tmp_path, capsys, monkeypatch):
    (tmp_path / "spec.toml").write_text(SPEC)
    entries = sweep.read_spec(tmp_path / "spec.toml")
    sweep.sweep(entries, tmp_path / "here")
    words = [str(tmp_path / "spec.toml"), "--out", str(tmp_path / "there"), "--scheduler", dask.address]
    command = [sys.executable, "-m", "grokscope.analysis.commands.main", "sweep", *words, "--json"]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    wait_until(lambda: len(list((tmp_path / "there").glob("*/run.lock"))) >= 2)
    dask.workers[0].send_signal(signal.SIGKILL)
    assert json.loads(child.communicate()[0])["done"] == len(entries) == 3
    assert dask.workers[0].wait() == -signal.SIGKILL
    for entry in entries:
        run = Run.open(tmp_path / "there" / entry.name)
        assert verify(run).ok
        assert run.finished
        assert run.hash == Run.open(tmp_path / "here" / entry.name).hash
    one_analysis_of_many_runs(dask, tmp_path, entries, capsys)
    one_command_over_the_snapshots(dask, str(tmp_path / "here" / entries[0].name), capsys)
    the_snapshots_of_one_run(dask, Run.open(tmp_path / "here" / entries[0].name), monkeypatch)
    a_study(dask, tmp_path, monkeypatch, capsys)


def one_analysis_of_many_runs(dask, tmp_path, entries, capsys):
    capsys.readouterr()
    runs = [str(tmp_path / "there" / entry.name) for entry in entries[:2]]
    options = ["--rank", "2", "--json"]
    words = [*runs, str(tmp_path / "nowhere"), *options, "--scheduler", dask.address]
    assert main(["analyze", "trajectory", *words]) == 1
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert "holds no run" in err
    assert list(found["failed"]) == [str(tmp_path / "nowhere")]
    for run in runs:
        assert main(["analyze", "trajectory", run, *options]) == 0
        assert json.loads(capsys.readouterr().out) == found["runs"][run]


def one_command_over_the_snapshots(dask, run, capsys):
    options = ["--snapshots", "3", "--pairs", "2", "--split-pairs", "1", "--rank", "2", "--singular", "1"]
    found = []
    for where in (["--jobs", "2"], ["--scheduler", dask.address]):
        assert main(["analyze", "commutator", run, *options, "--json", *where]) == 0
        found.append(json.loads(capsys.readouterr().out))
    assert found[0] == found[1]


def the_snapshots_of_one_run(dask, run, monkeypatch):
    folder = Path(run.path).parent
    (folder / "tripling.py").write_text("def triple(x):\n    return 3 * x\n")
    monkeypatch.chdir(folder)  # where the user's own module lies; workers started elsewhere
    options = {"kind": "norms", "options": {}}
    here = walk(run, range(12), norms, **options)
    with on_cluster(dask.address):
        there = walk(run, range(12), norms, **options)
        assert list(ordered(double, ((i,) for i in range(30)))) == list(range(0, 60, 2))
        assert sorted(unordered(double, [(i,) for i in range(5)])) == [0, 2, 4, 6, 8]
        assert list(ordered(load("tripling:triple", field="x", trust=True), [(3,)])) == [9]
        with pytest.raises(ValueError, match="x=-1 must be positive"):
            list(ordered(double, [(1,), (-1,), (2,)]))
    assert np.array_equal(here["squared_norm"], there["squared_norm"])
    assert there["alone"].all()
    assert not here["alone"][1:].any()
    assert not cluster.connected()


def last_loss(path):
    return float(Run.open(path).metrics["train_loss"].value[-1]), os.getpid()


def a_study(dask, tmp_path, monkeypatch, capsys):
    """Trained and measured on the workers, in a folder that was given relative to here."""
    module = ModuleType("grokscope.analysis.studies.toy_study")
    module.TITLE, module.SOURCE = "A toy", "Nobody 2026"
    module.CLAIMS = (Claim("one", "Losses fall.", "< 10", "Table 1", "number", "loss", -np.inf, 10),)
    module.spec = lambda scale: tomllib.loads(SPEC)

    def measure(folder, *, scale, released_data, jobs, progress):
        runs = [(path.parent,) for path in sorted(folder.glob("*/run.h5"))]
        found = list(each(last_loss, runs, jobs=jobs))
        assert os.getpid() not in {home for _, home in found}
        return Measured((Finding("one", tuple(loss for loss, _ in found), "supported", "they do"),))

    module.measure = measure
    monkeypatch.setitem(sys.modules, "grokscope.analysis.studies.toy_study", module)
    for place in (reproduction, atlas, reproduce):
        monkeypatch.setattr(place, "studies", lambda: ("toy-study",))
    monkeypatch.chdir(tmp_path)
    words = ["reproduce", "toy-study", "--out", "studies", "--quiet", "--json"]
    assert main([*words, "--scheduler", dask.address]) == 0
    (found,) = json.loads(capsys.readouterr().out)["studies"]
    assert len(found["findings"][0]["values"]) == found["runs"] == 3
    assert found["skipped"] == 0
    assert not found["failed_runs"]


def test_workers_with_several_threads_are_refused(dask):
    worker = dask.worker(threads=2)
    from distributed import Client

    with Client(dask.address, set_as_default=False) as client:
        wait_until(lambda: 2 in client.nthreads().values())
        (name,) = [name for name, threads in client.nthreads().items() if threads == 2]
        with pytest.raises(ValueError, match="2 threads; start workers with --nthreads 1"):
            client.submit(cluster._alone, b"", "", workers=[name]).result()
    worker.kill()


def test_nobody_there_is_one_clear_line(tmp_path, capsys, monkeypatch):
    (tmp_path / "spec.toml").write_text(SPEC)
    words = ["sweep", str(tmp_path / "spec.toml"), "--out", str(tmp_path / "x")]
    from distributed import Client

    impatient = lambda address, **options: Client(address, **{**options, "timeout": 1})  # noqa: E731
    monkeypatch.setattr("distributed.Client", impatient)
    assert main([*words, "--scheduler", "tcp://127.0.0.1:9"]) == 2
    assert "no scheduler answers at tcp://127.0.0.1:9" in capsys.readouterr().err


def test_without_dask_it_is_said(monkeypatch, capsys, tmp_path):
    monkeypatch.setitem(sys.modules, "distributed", None)
    assert main(["analyze", "trajectory", str(tmp_path), "--scheduler=tcp://127.0.0.1:9"]) == 2
    assert "grokscope[cluster]" in capsys.readouterr().err


def test_the_address_is_taken_out_wherever_it_stands():
    assert _without_scheduler(["a", "--scheduler", "tcp://x", "-b"]) == (["a", "-b"], "tcp://x")
    assert _without_scheduler(["a", "--scheduler=tcp://x"]) == (["a"], "tcp://x")
    assert _without_scheduler(["a"]) == (["a"], None)
    with pytest.raises(ValueError, match="needs the address"):
        _without_scheduler(["a", "--scheduler"])
