"""The long form of the store's fault tests, with the real trainer, sweep and analyses.

SOAK_KILLS scales everything; 200 by default.
"""

import errno
import multiprocessing
import os
import random
import resource
import signal
import time
from dataclasses import asdict

import numpy as np
import pytest
import torch
from grokscope.analysis import result
from grokscope.analysis.commutator import CommutatorCurve, commutator_along
from grokscope.runs import sweep
from grokscope.runs.config import RunConfig
from grokscope.runs.recorder import Recorder
from grokscope.runs.store import Run
from grokscope.runs.train import train
from grokscope.runs.verify import verify

pytestmark = [pytest.mark.soak, pytest.mark.timeout(4 * 3600)]
KILLS = int(os.environ.get("SOAK_KILLS", "200"))
CONFIG = RunConfig(
    modulus=7, width=16, heads=2, feedforward=32, batch_size=16, lr=3e-3, steps=400,
    log_every=5, evaluate_every=20, snapshot_every=5, second_moment_every=50, state_at=(100, 300),
    stop_after_generalization=None,
)  # fmt: skip
OFTEN = 40_000  # bytes between two commits: a few snapshots
FORK = multiprocessing.get_context("fork")


def forked(act, *arguments, after=None, number=signal.SIGKILL):
    """The exit code of a child that does act, killed `after` so many seconds if it still lives."""
    child = FORK.Process(target=act, args=arguments)
    child.start()
    if after is not None:
        child.join(after)
        if child.is_alive():
            os.kill(child.pid, number)
    child.join()
    return child.exitcode


def quiet(act, *arguments):
    """act in a child whose errors are expected: exit code 3 instead of a traceback."""

    def run():
        try:
            act(*arguments)
        except OSError as error:
            os._exit(3 if error.errno in (errno.EFBIG, errno.EAGAIN, errno.EACCES, errno.EROFS) else 4)

    return run


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    return train(CONFIG, tmp_path_factory.mktemp("soak") / "undisturbed")


def committed(path, whole):
    """Snapshots committed so far, every one of them as in the undisturbed run."""
    if not (path / "run.h5").exists():
        return 0
    run = Run.open(path)
    assert verify(run).ok
    assert run.steps.tolist() == whole.steps[: len(run)].tolist()
    assert run.hashes == whole.hashes[: len(run)]
    return len(run)


def equal(run, whole):
    """Bit for bit the same run, with no litter beside it."""
    assert run.hash == whole.hash
    assert run.finished
    for name, series in whole.metrics.items():
        assert np.array_equal(run.metrics[name].value, series.value, equal_nan=True)
        assert np.array_equal(run.metrics[name].step, series.step)
    for j in range(len(whole.second_moment_steps)):
        assert np.array_equal(run.second_moment(j), whole.second_moment(j))
    assert run.states == whole.states
    assert not list(run.path.rglob("*.tmp"))


def test_training_killed(undisturbed, tmp_path, table):
    rng, kills, runs, seen = random.Random(0), 0, 0, 0
    while kills < KILLS // 2 or seen:
        path = tmp_path / str(runs)
        code = forked(train_often, path, after=rng.uniform(0, 1.2))
        now = committed(path, undisturbed)
        assert now >= seen  # what was committed stays, whatever comes after
        kills, seen = kills + (code == -signal.SIGKILL), now
        if code == 0:
            equal(Run.open(path), undisturbed)
            runs, seen = runs + 1, 0
    table(
        "SIGKILL while training", f"{kills} kills over {runs} runs", "no snapshot lost, every run identical"
    )


def train_often(path):
    train(CONFIG, path, commit_bytes=OFTEN)


def test_sweep_killed(tmp_path, table):
    base = {**asdict(CONFIG), "steps": 100, "state_at": []}
    base = {n: v for n, v in base.items() if v is not None and not n.endswith("_seed")}
    spec = {"base": base, "seeds": 3, "grid": {"lr": [1e-3, 3e-3]}}
    entries = sweep.entries(spec)
    sweep.sweep(entries, tmp_path / "undisturbed")
    rng, kills, sweeps = random.Random(1), 0, 0
    while kills < KILLS // 4:
        out = tmp_path / str(sweeps)
        code = forked(sweep.sweep, entries, out, after=rng.uniform(0, 2.0))
        kills += code == -signal.SIGKILL
        for entry in entries:
            committed(out / entry.name, Run.open(tmp_path / "undisturbed" / entry.name))
        if code == 0 or kills >= KILLS // 4:
            assert {outcome.status for outcome in sweep.sweep(entries, out)} <= {"done", "skipped"}
            for entry in entries:
                equal(Run.open(out / entry.name), Run.open(tmp_path / "undisturbed" / entry.name))
            sweeps += 1
    table("SIGKILL during a sweep", f"{kills} kills over {sweeps} sweeps of 6 runs", "every run identical")


def analyze(path, directory):
    run = Run.open(path)
    result._PAUSE = 0.0  # save after every row, as hours of work do every ten seconds
    options = {"pairs": 2, "split_pairs": 1, "rank": 2, "singular": 1, "name": "soak"}
    curve = commutator_along(run, snapshots=range(0, len(run), 4), directory=directory, **options)
    result.save(curve, run, name="soak", directory=directory)


def test_analyses_killed(undisturbed, tmp_path, table):
    analyze(undisturbed.path, tmp_path / "undisturbed")
    load = {"name": "soak"}
    whole = vars(result.load(CommutatorCurve, undisturbed, directory=tmp_path / "undisturbed", **load))
    rng, kills, done, resumed, again, rows = random.Random(2), 0, 0, 0, 0, 0
    while kills < KILLS // 4 or rows:
        out = tmp_path / str(done)
        enough = kills >= KILLS // 4
        code = forked(analyze, undisturbed.path, out, after=None if enough else rng.uniform(0.1, 1.5))
        kills += code == -signal.SIGKILL
        partials = list(out.glob("*.partial.h5"))
        for partial in partials:
            now = len(result.read(partial)[0]["hashes"])
            assert now >= rows
            resumed, rows = resumed + (rows > 0), max(now, 1)
        if code != 0 and rows and not partials:  # killed between the last row and the result
            again, rows = again + 1, 0
        if code == 0:
            found = vars(result.load(CommutatorCurve, undisturbed, directory=out, **load))
            for name, value in whole.items():
                np.testing.assert_array_equal(np.asarray(found[name]), np.asarray(value))
            assert not list(out.glob("*.partial.h5"))
            done, rows = done + 1, 0
    assert done
    table(
        "SIGKILL during an analysis",
        f"{kills} kills, {resumed} resumed walks, {again} from the start (killed behind the last row), "
        f"{done} finished",
        "rows kept, results identical",
    )


def test_disk_full_again_and_again(undisturbed, tmp_path, table):
    rng, full, path = random.Random(3), 0, tmp_path / "run"

    def limited(limit):
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        quiet(train_often, path)()

    seen, attempts = 0, max(4, KILLS // 4)
    for attempt in range(attempts):
        code = forked(limited, int(rng.uniform(2_000, 12_000 + 120_000 * attempt / attempts)))
        assert code in (0, 3)
        full += code == 3
        now = committed(path, undisturbed)
        assert now >= seen
        assert not list(path.rglob("*.tmp"))
        seen = now
    train_often(path)
    equal(Run.open(path), undisturbed)
    table("full disk", f"{full} of {attempts} attempts ran out of room", "nothing lost, the end identical")


def read_until_finished(path, whole, loops):
    run = None
    while run is None or not run.finished:
        if (path / "run.h5").exists():
            run = Run.open(path)
            rows = np.stack(list(run.rows()))
            assert np.array_equal(rows, np.stack([whole.theta(i) for i in range(len(run))]))
            loops.value += 1


def test_eight_readers(undisturbed, tmp_path, table):
    total, rounds = 0, max(1, KILLS // 40)
    for k in range(rounds):
        path, counts = tmp_path / str(k), [FORK.Value("q", 0) for _ in range(8)]
        readers = [FORK.Process(target=read_until_finished, args=(path, undisturbed, n)) for n in counts]
        for reader in readers:
            reader.start()
        train_often(path)
        equal(Run.open(path), undisturbed)
        for reader in readers:
            reader.join(120)
            assert reader.exitcode == 0
        assert all(count.value for count in counts)
        total += sum(count.value for count in counts)
    table("8 readers", f"{total} whole reads during {rounds} trainings", "every row right")


def test_two_trainers(undisturbed, tmp_path, table):
    rounds, refused = max(2, KILLS // 10), 0
    for k in range(rounds):
        path = tmp_path / str(k)
        pair = [FORK.Process(target=quiet(train_often, path)) for _ in range(2)]
        for process in pair:
            process.start()
        for process in pair:
            process.join()
        codes = sorted(process.exitcode for process in pair)
        assert codes in ([0, 0], [0, 3])  # the later one may find the run finished
        refused += codes[1] == 3
        equal(Run.open(path), undisturbed)
    table("two trainers, one folder", f"{rounds} pairs, {refused} refused", "one whole run each time")


def record(path, start):
    model = torch.nn.Linear(30, 30)
    with Recorder(path, model, resume=start, commit_bytes=OFTEN) as recorder:
        for step in range((start or 0) + (start is not None), 300):
            with torch.no_grad():
                model.weight.fill_(step)
                model.bias.fill_(-step)
            recorder.step(step, loss=step)


def test_recorder_killed(tmp_path, table):
    rng, kills, path, seen = random.Random(4), 0, tmp_path / "run", 0
    while kills < max(3, KILLS // 20):
        start = int(Run.open(path).steps[-1]) if (path / "run.h5").exists() else None
        code = forked(record, path, start, after=rng.uniform(0, 0.2))
        kills += code == -signal.SIGKILL
        now = len(Run.open(path)) if (path / "run.h5").exists() else 0
        assert now >= seen
        seen = now
        if code == 0:
            assert [row[0] for row in Run.open(path).rows()] == list(range(300))
            path, seen = tmp_path / str(kills), 0
    table("SIGKILL in a loop of one's own", f"{kills} kills", "nothing committed was lost")


def test_odd_places_and_clocks(undisturbed, tmp_path, table):
    path = tmp_path / "κυκλικά 学習 \N{PILE OF POO}" / "a b"

    def backwards():
        now = time.time()
        clock = iter(now - 60.0 * k for k in range(10**9))
        time.time = lambda: next(clock)
        train_often(path)

    assert forked(train_often, path, after=0.7) in (0, -signal.SIGKILL)
    assert forked(backwards) == 0
    equal(Run.open(path), undisturbed)
    table("non-ASCII path, clock running backwards", "a killed run resumed", "identical")
    if os.getuid() == 0:
        return  # the superuser may write anywhere; the everyday tests become another user
    for item in (path, *path.rglob("*")):
        item.chmod(0o555 if item.is_dir() else 0o444)
    assert committed(path, undisturbed) == len(undisturbed)
    assert forked(quiet(train, CONFIG, path / "below")) == 3
    table("read-only folder", "read, and refused for writing", "one clear error")
