"""Every file of a run, mutated: a clear error or the right answer; no crash, no hang, no wrong number."""

import ast
import io
import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from grokscope.analysis import result
from grokscope.analysis.trajectory import TrajectoryCurve, trajectory_along
from grokscope.runs import safe_load
from grokscope.runs.checkpoints import import_checkpoints
from grokscope.runs.config import RunConfig
from grokscope.runs.index import encode
from grokscope.runs.milestones import milestones
from grokscope.runs.rebuild import rebuild
from grokscope.runs.seal import BLOCK, seal
from grokscope.runs.segments import DamageError
from grokscope.runs.store import Run
from grokscope.runs.train import train
from grokscope.runs.verify import info, verify
from mutations import in_children, mutated
from safetensors.torch import save_file

CONFIG = RunConfig(
    modulus=5, width=8, heads=2, feedforward=8, batch_size=8, steps=30, log_every=5,
    evaluate_every=10, snapshot_every=5, second_moment_every=15, state_at=(10,),
)  # fmt: skip
ROW = 4 * 700
CLEAR = (ValueError, OSError)
LONG = 1000
COUNT = [8, pytest.param(LONG, marks=pytest.mark.soak)]
RIGHT = "a clear error or the right answer"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A finished run with several segments, a kept state, a result, and an interrupted walk."""
    path = tmp_path_factory.mktemp("made") / "run"
    run = train(CONFIG, path, commit_bytes=7 * ROW)
    result.save(trajectory_along(run, rank=2), run)

    def measure(index, theta, before):
        if index == 3:
            raise KeyboardInterrupt
        return {"norm": float(theta @ theta), "_handed_on": theta}

    with pytest.raises(KeyboardInterrupt):
        result.walk(run, range(5), measure, kind="norms", options={})
    return path


def answers(path, *, resumed=True):
    """All that can be read of a run, as comparable bytes; what says that it is damaged is left out."""
    run, found = Run.open(path), {}
    reads = {
        "rows": lambda: b"".join(row.tobytes() for row in run.rows()),
        "columns": lambda: np.concatenate([block for _, block in run.columns(97)], axis=1).tobytes(),
        "moments": lambda: b"".join(
            run.second_moment(j).tobytes() for j in range(len(run.second_moment_steps))
        ),
        "metrics": lambda: {n: (s.step.tobytes(), s.value.tobytes()) for n, s in run.metrics.items()},
        "states": lambda: [run.state(step) for step in run.states],
        "facts": lambda: (run.hash, run.identity, run.steps.tolist(), info(run), milestones(run)),
        "result": lambda: {
            n: np.asarray(v).tobytes() for n, v in vars(result.load(TrajectoryCurve, run)).items()
        },
        "partial": lambda: str(result.read(path / "norms.partial.h5")),
    }
    if resumed:
        reads["resumed"] = lambda: train(CONFIG, path).hash
    for name, read in reads.items():
        try:
            found[name] = read()
        except CLEAR as error:
            assert str(error).strip()
    return found, verify(run)


def paths_apart(found, path):
    return json.loads(json.dumps(found, default=repr).replace(json.dumps(str(path))[1:-1], ""))


@pytest.mark.parametrize("count", COUNT)
def test_every_file_of_a_run(made, tmp_path, count, table):
    whole, report = answers(made)
    assert report.ok
    assert len(whole) == 9
    names = sorted(file.relative_to(made).as_posix() for file in made.rglob("*") if file.is_file())
    assert {"run.h5", "segments/00000000.h5", "state-10.pt", "trajectory.h5", "norms.partial.h5"} <= set(
        names
    )
    contents = {name: (made / name).read_bytes() for name in names}
    others = list(contents.values())
    expected = paths_apart(whole, made)

    def act(rng):
        path = tmp_path / str(rng.random())
        shutil.copytree(made, path)
        data = mutated(contents[name], rng, others)
        (path / name).write_bytes(data)
        try:
            found, report = answers(path, resumed=name.endswith(".pt"))
        except CLEAR as error:
            assert name == "run.h5"
            assert str(path) in str(error)
            return
        finally:
            shutil.rmtree(path)
        read = paths_apart(found, path)
        assert read == {part: expected[part] for part in read}
        if name.startswith("segments"):
            assert report.ok == data.startswith(contents[name]), report  # what follows is never read
        elif name.endswith(".pt"):
            assert report.ok == (data == contents[name]), report

    for k, name in enumerate(names):
        failures = in_children(act, range(1000 * k, 1000 * k + count))
        assert not failures, (name, failures[:3])
    if count == LONG:
        table("mutated files of a run", f"{count} each of {len(names)} files", RIGHT)


@pytest.mark.parametrize("count", COUNT)
def test_texts_in_run_h5_that_are_hostile_but_whole(made, tmp_path, count, table):
    """run.h5 with the right SHA-256, its JSON texts changed: what they say is checked like a stranger's."""
    index = Run.open(made).index
    words = [
        "1e999",
        "null",
        "[]",
        "{}",
        '"__import__(\\"os\\").system(\\"touch pwned\\")"',
        "-1",
        "NaN",
        "1e30",
    ]

    def text(original, rng):
        if rng.random() < 0.5:
            return mutated(original.encode(), rng).decode("utf-8", "replace").replace("\0", " ")
        content = json.loads(original)
        key = rng.choice(sorted(content))
        return json.dumps({**content, key: "@"}).replace('"@"', rng.choice(words))

    def act(rng):
        path = tmp_path / str(rng.random())
        shutil.copytree(made, path)
        forged = replace(index, config=text(index.config, rng))
        (path / "run.h5").write_bytes(encode(forged))
        try:
            run = Run.open(path)
            assert np.array_equal(run.theta(0), Run.open(made).theta(0))
            rebuild(run)
        except CLEAR as error:
            assert str(error).strip()
        finally:
            shutil.rmtree(path)

    failures = in_children(act, range(4 * count))
    assert not failures, failures[:3]
    if count == LONG:
        table("hostile texts in a sealed run.h5", f"{4 * count} configurations", RIGHT)


@pytest.mark.parametrize("count", COUNT)
@pytest.mark.parametrize("kind", ["zip", "legacy", "safetensors"])
def test_checkpoints(tmp_path, kind, count, table):
    state = {"a.weight": torch.arange(600.0).reshape(20, 30), "a.bias": torch.ones(30), "b": torch.ones(9)}
    content, name = {"model": state, "step": 3, "loss": np.float64(0.5)}, "1.pt"
    if kind == "safetensors":
        name = "1.safetensors"
        save_file(state, tmp_path / name, {"step": "3", "loss": "0.5"})
    else:
        torch.save(content, tmp_path / name, _use_new_zipfile_serialization=kind == "zip")
    data = (tmp_path / name).read_bytes()

    def act(rng):
        folder = tmp_path / str(rng.random())
        (folder / "in").mkdir(parents=True)
        (folder / "in" / name).write_bytes(mutated(data, rng, [b"\xff" * 4096]))
        try:
            found = import_checkpoints(folder / "in", folder / "run")
            assert found.parameters <= len(data)  # nothing swells
        except CLEAR as error:
            assert str(error).strip()
            assert not (folder / "run" / "run.h5").exists()
        finally:
            shutil.rmtree(folder)

    failures = in_children(act, range(4 * count))
    assert not failures, failures[:3]
    if count == LONG:
        table(f"mutated checkpoints, {kind}", f"{4 * count} files", RIGHT)


class Exploit:
    def __init__(self, target):
        self.target = target

    def __reduce__(self):
        return open, (str(self.target), "w")


def test_a_malicious_resume_state_is_not_run(made, tmp_path):
    """Its SHA-256 is right: it was put there by whoever made the run."""
    path, target = shutil.copytree(made, tmp_path / "run"), tmp_path / "pwned"
    buffer = io.BytesIO()
    torch.save({"step": 30, "theta": Exploit(target)}, buffer)
    from grokscope.runs.store import RunWriter

    run = Run.open(path)
    longer = replace(CONFIG, steps=40)
    with RunWriter.resume(path, longer, run.table, provenance=run.provenance) as writer:
        writer.commit(buffer.getvalue(), step=30)
    with pytest.raises(ValueError, match=r"holds a Python object \(\S*open\), which could run code"):
        train(longer, path)
    assert not target.exists()
    with pytest.raises(ValueError, match="not one of this trainer"):
        _with_state(path, longer, {"step": 30})
    torch.load(io.BytesIO(buffer.getvalue()), weights_only=False)  # it would have worked
    assert target.exists()


def _with_state(path, config, content):
    from grokscope.runs.store import RunWriter

    buffer = io.BytesIO()
    torch.save(content, buffer)
    run = Run.open(path)
    with RunWriter.resume(path, config, run.table, provenance=run.provenance) as writer:
        writer.commit(buffer.getvalue(), step=30)
    train(config, path)


def test_a_stored_run_imports_nothing_by_itself(made, tmp_path, monkeypatch):
    path = shutil.copytree(made, tmp_path / "run")
    (tmp_path / "evil.py").write_text("open('pwned', 'w')\ndef f(*_, **__): pass\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    index = Run.open(path).index
    for field in ("task", "model"):
        text = json.dumps({**json.loads(index.config), field: "evil:f"})
        (path / "run.h5").write_bytes(encode(replace(index, config=text)))
        with pytest.raises(ValueError, match="must not run code by itself"):
            rebuild(Run.open(path))
    assert not (tmp_path / "pwned").exists()


def linked(file):
    del file["values/scores"]
    import h5py

    file["values/scores"] = h5py.ExternalLink("/etc/passwd", "scores")


def virtual(file):
    import h5py

    del file["values/scores"]
    layout = h5py.VirtualLayout((3, 2), "float64")
    layout[:] = h5py.VirtualSource("/etc/passwd", "scores", (3, 2))
    file.create_virtual_dataset("values/scores", layout)


def sparse(file):
    del file["values/scores"]
    file.create_dataset("values/scores", (2**40,), "float64")


def external(file):
    del file["values/scores"]
    file.create_dataset("values/scores", (2,), "float64", external=[("/etc/passwd", 0, 16)])


@pytest.mark.parametrize("change", [linked, virtual, sparse, external])
def test_a_result_that_leads_outside_is_refused(made, tmp_path, change):
    import h5py

    path = shutil.copytree(made, tmp_path / "run")
    with h5py.File(path / "trajectory.h5", "r+") as file:
        change(file)
    with pytest.raises(OSError, match="SHA-256"):
        result.load(TrajectoryCurve, Run.open(path))
    seal(path / "trajectory.h5", result.SEAL)  # by whoever made it
    with pytest.raises(OSError, match=r"no plain dataset|does not hold"):
        result.load(TrajectoryCurve, Run.open(path))


def called(file):
    """Dotted names of all calls in a source file."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            yield node.func.id
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            yield ast.unparse(node.func)


def test_the_sources_evaluate_no_text():
    root = Path(__file__).parents[2]
    forbidden = {"eval", "exec", "compile", "__import__", "pickle.load", "pickle.loads", "os.system"}
    allowed = {"cluster.py": {"pickle.loads"}}  # what a scheduler sends that the user named, and trusts
    for file in [
        f for layer in ("api", "geometry", "runs", "analysis") for f in (root / layer).rglob("*.py")
    ]:
        assert set(called(file)) & forbidden <= allowed.get(file.name, set()), file


def test_the_fuzz_would_notice():
    def act(rng):
        import ctypes
        import time

        kind = rng.randrange(4)
        if kind == 0:
            ctypes.string_at(0)
        elif kind == 1:
            time.sleep(60)
        elif kind == 2:
            raise KeyError("wrong")

    reasons = " ".join(reason for _, reason in in_children(act, range(12), batch=4, seconds=1))
    assert all(word in reasons for word in ("SIGSEGV", "SIGKILL", "KeyError"))


def test_damage_has_its_own_error():
    assert issubclass(DamageError, ValueError)
    assert BLOCK == 512
    with pytest.raises(ValueError, match="x is damaged, or holds more"):
        safe_load.load(b"nothing", "x")
