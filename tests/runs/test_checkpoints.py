"""Folders of checkpoints become runs: whole, in order, reported on; or nothing at all."""

import argparse
import json
import os
import pickle
import shutil

import numpy as np
import pytest
import torch
from grokscope.analysis.commands.main import main
from grokscope.geometry.objective import flatten, parameter_table
from grokscope.runs import checkpoints
from grokscope.runs.checkpoint_steps import Gap, gaps, natural, steps_of
from grokscope.runs.checkpoints import import_checkpoints
from grokscope.runs.store import Run
from grokscope.runs.verify import verify
from safetensors.torch import save_file
from torch import nn


class Small(nn.Module):
    def __init__(self, width=40):
        super().__init__()
        self.embedding = nn.Embedding(11, width)
        self.norm = nn.BatchNorm1d(width)
        self.inner = nn.Linear(width, width)
        self.head = nn.Linear(width, 11)
        self.head.weight = self.embedding.weight

    def forward(self, tokens):
        return self.head(self.inner(self.norm(self.embedding(tokens))))


def models(count, dtype=torch.float32, seed=0):
    """A random walk of models."""
    torch.manual_seed(seed)
    model = Small().to(dtype)
    for _ in range(count):
        with torch.no_grad():
            for p in model.parameters():
                p.add_(0.1 * torch.randn(p.shape).to(dtype))
            model.norm.running_mean.add_(0.1)
        yield model


def written(
    folder, count=4, *, name="step{}.pt", scale=100, wrap=lambda state, step: state, dtype=torch.float32
):
    """Checkpoints of a walk, and the snapshots (count, P) that they ought to give."""
    folder.mkdir(exist_ok=True)
    rows = []
    for k, model in enumerate(models(count, dtype)):
        step = k * scale
        torch.save(wrap(model.state_dict(), step), folder / name.format(step))
        rows.append(flatten(model).to(torch.float64 if dtype == torch.float64 else torch.float32).numpy())
    return np.stack(rows)


def read_all(path):
    run = Run.open(path)
    assert verify(run).ok
    return np.stack(list(run.rows()))


def refused(folder, tmp_path, message, error=ValueError, **options):
    """The import is refused in words, and nothing is left."""
    with pytest.raises(error, match=message):
        import_checkpoints(folder, tmp_path / "new" / "run", **options)
    assert not (tmp_path / "new" / "run" / "run.h5").exists()
    assert not list((tmp_path / "new").rglob("*.h5"))


def test_a_folder_of_state_dicts_is_the_run_that_made_them(tmp_path):
    rows = written(tmp_path / "in", 12)
    found = import_checkpoints(tmp_path / "in", tmp_path / "run")
    run = Run.open(tmp_path / "run")
    assert np.array_equal(read_all(tmp_path / "run"), rows)
    assert run.steps.tolist() == list(range(0, 1200, 100))  # step 1000 after step 900
    assert run.table == parameter_table(Small())  # ties too
    assert run.finished
    assert run.config is None
    assert found.steps_from == "number after 'step'"
    assert found.left_out == ("norm.num_batches_tracked", "norm.running_mean", "norm.running_var")
    assert (found.duplicates, found.gaps, found.excursions, found.constant) == ((), (), (), ())
    assert run.provenance["checkpoints"]["step300.pt"] == 300


def test_buffers_are_kept_where_wanted(tmp_path):
    written(tmp_path / "in")
    found = import_checkpoints(tmp_path / "in", tmp_path / "run", buffers=True, leave_out=["*running_var"])
    assert found.left_out == ("norm.num_batches_tracked", "norm.running_var")
    assert "norm.running_mean" in Run.open(tmp_path / "run").table.names


@pytest.mark.parametrize(
    ("dtype", "stored"),
    [("float16", "float32"), ("bfloat16", "float32"), ("float32", "float32"), ("float64", "float64")],
)
@pytest.mark.parametrize("kind", ["pt", "safetensors"])
def test_every_precision_is_widened_exactly(tmp_path, dtype, stored, kind):
    folder, rows = tmp_path / "in", []
    folder.mkdir()
    for k, model in enumerate(models(3, getattr(torch, dtype))):
        state = {n: p.detach().clone() for n, p in model.named_parameters()}
        save = save_file if kind == "safetensors" else torch.save
        save(state, folder / f"model_{k}.{kind}")
        rows.append(torch.cat([state[n].reshape(-1) for n in sorted(state)]).to(getattr(torch, stored)))
    found = import_checkpoints(folder, tmp_path / "run")
    run = Run.open(tmp_path / "run")
    assert (found.dtype, found.stored_dtypes) == (stored, (f"torch.{dtype}",))
    for i, row in enumerate(rows):
        named = run.table.unflatten(run.theta(i))
        assert np.array_equal(np.concatenate([named[n].reshape(-1) for n in sorted(named)]), row.numpy())


def test_numbers_beside_the_parameters_become_metrics(tmp_path):
    def wrap(state, step):
        return {
            "epoch": step // 10,
            "global_step": step,
            "model_state_dict": {f"module._orig_mod.{name}": tensor for name, tensor in state.items()},
            "optimizer_state_dict": {"state": {0: {"exp_avg": torch.zeros(3)}}, "param_groups": []},
            "train_loss": np.float64(1 / (1 + step)),
            "val/acc": torch.tensor(0.5),
            "metrics": {"train_correct": step},
            "losses_so_far": torch.zeros(77),
            "args": argparse.Namespace(lr=1e-3),
            "name": "mine",
        }

    rows = written(tmp_path / "in", 3, name="{}.pth", wrap=wrap)
    os.rename(tmp_path / "in" / "200.pth", tmp_path / "in" / "final.pth")  # its step is inside only
    found = import_checkpoints(tmp_path / "in", tmp_path / "run", totals={"train_total": 999})
    run = Run.open(tmp_path / "run")
    assert np.array_equal(read_all(tmp_path / "run"), rows)
    assert run.table == parameter_table(Small())
    assert found.steps_from == "number inside"
    assert set(run.metrics) == {"epoch", "train_loss", "val.acc", "train_correct"}
    assert run.metrics["train_loss"].value.tolist() == [1, 1 / 101, 1 / 201]
    assert run.metrics["train_correct"].value.dtype == np.int64
    assert run.provenance["train_total"] == 999
    refused(tmp_path / "in", tmp_path, "give train_total")


def hugging_face(folder, *, shards=1, steps=(500, 1000, 1500), kind="safetensors"):
    rows = []
    for step, model in zip(steps, models(len(steps)), strict=True):
        state = {n: p.detach().clone() for n, p in model.named_parameters()}
        into = folder / f"checkpoint-{step}"
        into.mkdir(parents=True)
        names = sorted(state)
        save = save_file if kind == "safetensors" else torch.save
        stem, suffix = ("model", "safetensors") if kind == "safetensors" else ("pytorch_model", "bin")
        if shards == 1:
            save(state, into / f"{stem}.{suffix}")
        else:
            files = {n: f"{stem}-{k % shards + 1:05}-of-{shards:05}.{suffix}" for k, n in enumerate(names)}
            for file in set(files.values()):
                save({n: state[n] for n in names if files[n] == file}, into / file)
            index = {"metadata": {"total_size": 1}, "weight_map": files}
            (into / f"{stem}.{suffix}.index.json").write_text(json.dumps(index))
        torch.save({"state": {}}, into / "optimizer.pt")
        torch.save({"state": {}}, into / "rng_state.pth")
        log = [{"loss": 10.0 / s, "epoch": s / 10, "step": s} for s in range(100, step + 1, 100)]
        log.append({"eval_loss": 0.5, "step": step})
        (into / "trainer_state.json").write_text(json.dumps({"global_step": step, "log_history": log}))
        rows.append({n: state[n].numpy() for n in names})
    return rows


@pytest.mark.parametrize("kind", ["safetensors", "bin"])
@pytest.mark.parametrize("shards", [1, 3])
def test_hugging_face_checkpoints_sharded_or_not(tmp_path, shards, kind):
    rows = hugging_face(tmp_path / "in", shards=shards, kind=kind)
    found = import_checkpoints(tmp_path / "in", tmp_path / "run")
    run = Run.open(tmp_path / "run")
    assert run.steps.tolist() == [500, 1000, 1500]
    for i, row in enumerate(rows):
        named = run.table.unflatten(run.theta(i))
        assert set(named) == set(row)
        assert all(np.array_equal(named[n], row[n]) for n in row)
    assert run.metrics["train_loss"].step.tolist() == list(range(100, 1501, 100))
    assert run.metrics["test_loss"].step.tolist() == [1500]
    assert found.checkpoints == 3


def test_pythia_folders_with_their_published_faults(tmp_path):
    """step0 equal to step1, a step missing, one with the last shard of another time."""
    folder, steps = tmp_path / "in", [0, 1, 1000, 2000, 4000, 5000, 6000]
    torch.manual_seed(1)
    head, body = torch.zeros(40, 50), torch.zeros(50, 60)
    for k, step in enumerate(steps):
        head, body = head + torch.randn(40, 50) * (k != 1), body + torch.randn(50, 60) * (k != 1)
        into = folder / f"step{step}"
        into.mkdir(parents=True)
        wrong = 20 * torch.ones(50, 60) if step == 4000 else 0
        save_file({"head": head.clone(), "body": body + wrong}, into / "model.safetensors")
        (into / "config.json").write_text("{}")
    found = import_checkpoints(folder, tmp_path / "run")
    assert found.duplicates == ((0, 1),)
    assert found.gaps == (Gap(2000, 4000, 1),)
    assert [(e.step, e.tensor) for e in found.excursions] == [(4000, "all")]
    assert found.steps_from == "number after 'step'"


def test_a_shard_from_elsewhere_is_found_in_its_tensor(tmp_path):
    steps = checkpoints.Excursions(parameter_table(nn.Linear(100, 100)))
    walk = np.random.default_rng(0).standard_normal((9, 10_100)).cumsum(axis=0)
    walk[:, :10_000] *= 1e-3
    walk[5, :10_000] += 0.1
    for k, row in enumerate(walk):
        steps.add(k, row.copy())
    assert [(e.step, e.tensor) for e in steps.found()] == [(5, "weight")]


def test_walks_and_rest_are_no_excursions():
    """Independent points around a mean have ratio 2, walks √2; in 2,000 dimensions both hardly vary."""
    table = parameter_table(nn.Linear(40, 50))
    noise = np.random.default_rng(0).standard_normal((200, table.size))
    for rows in (noise, noise.cumsum(axis=0), np.linspace(0, 1, 200)[:, None] * noise[0]):
        watch = checkpoints.Excursions(table)
        for k, row in enumerate(rows):
            watch.add(k, row.copy())
        assert watch.found() == ()
        assert watch.constant() == ()


def test_constant_tensors_are_named(tmp_path):
    def wrap(state, step):
        return {**state, "mask": torch.ones(4)}

    written(tmp_path / "in", wrap=wrap)
    assert import_checkpoints(tmp_path / "in", tmp_path / "run").constant == ("mask",)


def changed(state, **tensors):
    return {**state, **tensors}


@pytest.mark.parametrize(
    ("at", "change", "message"),
    [
        (200, {"inner.weight": torch.zeros(3, 3)}, r"step200.pt has inner.weight of shape \(3, 3\), not"),
        (300, {"more": torch.zeros(3)}, "step300.pt has more more"),
        (0, {"more": torch.zeros(3)}, "3 checkpoints differ from step0.pt: step100.pt lacks more"),
        (
            300,
            {"inner.bias": torch.full((40,), torch.inf)},
            "step300.pt: inner.bias has entries that are NaN",
        ),
        (100, {"inner.bias": torch.zeros(40, dtype=torch.complex64)}, "complex64"),
        (100, {"inner.bias": torch.zeros(40).to_sparse()}, "sparse"),
        (100, {"inner.bias": torch.zeros(1).expand(10**6)}, "more bytes than"),
    ],
)
def test_one_bad_checkpoint_stops_the_whole_import(tmp_path, at, change, message):
    written(tmp_path / "in", wrap=lambda state, step: changed(state, **change) if step == at else state)
    refused(tmp_path / "in", tmp_path, message)
    good = import_checkpoints(tmp_path / "in", tmp_path / "run", only=f"step[!{str(at)[0]}]*")
    assert good.checkpoints == 3


def test_two_files_of_one_step(tmp_path):
    written(tmp_path / "in")
    shutil.copy(tmp_path / "in" / "step300.pt", tmp_path / "in" / "step_0300.pt")
    found = import_checkpoints(tmp_path / "in", tmp_path / "run")
    assert found.checkpoints == 4
    assert found.not_read == ("step_0300.pt",) or found.not_read == ("step300.pt",)
    shutil.copy(tmp_path / "in" / "step200.pt", tmp_path / "in" / "step_0300.pt")
    refused(tmp_path / "in", tmp_path, "are both of step 300 and differ")


class Exploit:
    """A pickle of it runs a command when it is loaded carelessly."""

    def __init__(self, target):
        self.target = target

    def __reduce__(self):
        return os.system, (f"touch {self.target}",)


@pytest.mark.parametrize("zipped", [True, False])
def test_a_malicious_checkpoint_is_not_run(tmp_path, zipped, capsys):
    pwned = tmp_path / "pwned"
    written(tmp_path / "in", 2)
    evil = {"model": Small().state_dict(), "step": 200, "extra": Exploit(pwned)}
    torch.save(evil, tmp_path / "in" / "step200.pt", _use_new_zipfile_serialization=zipped)
    refused(
        tmp_path / "in", tmp_path, r"step200.pt holds a Python object \(\w+.system\), which could run code"
    )
    assert main(["import", str(tmp_path / "in"), "--out", str(tmp_path / "x")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not pwned.exists()
    pickle.loads(pickle.dumps(Exploit(pwned)))  # it would have worked
    assert pwned.exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (nn.Linear(2, 2), "torch.nn.modules.linear.Linear"),
        ([1, 2], "holds a list, not tensors by name"),
        ({"step": 3}, "holds no tensors by name"),
        (
            {"a": {"w": torch.ones(2)}, "b": {"w": torch.ones(2)}},
            "several sets of tensors; choose with key=: a, b",
        ),
        ({"mask": torch.ones(3, dtype=torch.int64)}, "no floating-point parameters"),
    ],
)
def test_what_is_no_checkpoint_is_refused(tmp_path, content, message):
    (tmp_path / "in").mkdir()
    torch.save(content, tmp_path / "in" / "1.pt")
    refused(tmp_path / "in", tmp_path, message)


def test_the_key_chooses(tmp_path):
    (tmp_path / "in").mkdir()
    for k in (1, 2):
        state = {"teacher": {"w": torch.ones(2) * k}, "student": {"net": {"w": -torch.ones(2) * k}}}
        torch.save(state, tmp_path / "in" / f"{k}.pt")
    import_checkpoints(tmp_path / "in", tmp_path / "run", key="student.net")
    assert read_all(tmp_path / "run").tolist() == [[-1, -1], [-2, -2]]
    refused(tmp_path / "in", tmp_path, "there are: 'teacher', 'student.net'", key="teachers")


@pytest.mark.parametrize("damage", ["cut", "empty", "text", "fifo", "directory"])
def test_a_damaged_file_is_named(tmp_path, damage):
    written(tmp_path / "in")
    file = tmp_path / "in" / "step200.pt"
    data = file.read_bytes()
    file.unlink()
    if damage == "fifo":
        os.mkfifo(file)
    elif damage == "directory":
        file.mkdir()
        (file / "model.safetensors").write_bytes(b"\xff" * 30)
    else:
        file.write_bytes({"cut": data[: len(data) // 2], "empty": b"", "text": b"hello"}[damage])
    refused(tmp_path / "in", tmp_path, "step200.pt")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: (f / "model-00002-of-00003.safetensors").unlink(), "the shard 'model-00002.*is missing"),
        (lambda f: tampered(f, "../checkpoint-500/model-00001-of-00003.safetensors"), r"the shard '\.\./"),
        (lambda f: tampered(f, "model-00002-of-00003.safetensors"), "has no 'embedding.weight'"),
        (lambda f: (f / "model.safetensors.index.json").write_text("[" * 10**5), "is no JSON"),
        (lambda f: (f / "model.safetensors.index.json").write_text("{}"), "no weight_map"),
    ],
)
def test_shards_that_do_not_fit_are_refused(tmp_path, change, message):
    hugging_face(tmp_path / "in", shards=3)
    change(tmp_path / "in" / "checkpoint-1000")
    refused(tmp_path / "in", tmp_path, message)


def tampered(folder, file):
    index = folder / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    content["weight_map"]["embedding.weight"] = file
    index.write_text(json.dumps(content))


def test_an_interrupted_import_leaves_nothing(tmp_path, monkeypatch):
    written(tmp_path / "in")
    real, count = checkpoints._row, 0

    def row(plan, found, out):
        nonlocal count
        count += 1
        if count == 3:
            raise KeyboardInterrupt
        return real(plan, found, out)

    monkeypatch.setattr(checkpoints, "_row", row)
    refused(tmp_path / "in", tmp_path, None, KeyboardInterrupt)
    count = 100
    assert import_checkpoints(tmp_path / "in", tmp_path / "new" / "run").checkpoints == 4
    refused_again = pytest.raises(FileExistsError, match="holds a run already")
    with refused_again:
        import_checkpoints(tmp_path / "in", tmp_path / "new" / "run")


@pytest.mark.parametrize(
    ("names", "numbers", "steps"),
    [
        (["step9.pt", "step10.pt"], None, [9, 10]),
        (["checkpoint-500", "checkpoint-1000"], None, [500, 1000]),
        (["step0", "step143000"], None, [0, 143000]),
        (["epoch=3-step=1200-loss=0.25.ckpt", "epoch=4-step=1600-loss=0.125.ckpt"], None, [1200, 1600]),
        (["run7_model_v2_100.pt", "run7_model_v2_20.pt"], None, [100, 20]),
        (["ckpt.0010.pth", "ckpt.0009.pth"], None, [10, 9]),
        (["epoch_1.pt", "epoch_2.pt"], None, [1, 2]),
        (["12.pt"], None, [12]),
        (["step1.pt", "final.pth"], [{}, {"step": 7}], [1, 7]),
        (["epoch_1.pt", "epoch_2.pt"], [{"step": 10.0}, {"step": 20.0}], [10, 20]),
        (["a.pt", "b.pt"], [{"epoch": 1}, {"epoch": 2}], [1, 2]),
        (["best.pt", "last.pt"], [{"iteration": 5}, {"iteration": 9}], [5, 9]),
    ],
)
def test_steps_are_found(names, numbers, steps):
    assert steps_of(names, numbers or [{}] * len(names))[0] == steps


@pytest.mark.parametrize(
    ("names", "numbers", "options", "message"),
    [
        (["a.pt", "b.pt"], [{}, {}], {}, r"a.pt \(and 1 others\) has no step, neither|a.pt .* has no step"),
        (["1_2.pt", "3_4.pt"], [{}, {}], {}, "has no step"),
        (["epoch_1.pt", "final.pt"], [{"step": 10}, {}], {}, "has no step"),
        (
            ["epoch_1.pt", "e_2.pt", "final.pt"],
            [{"step": 9}, {}, {"step": 20}],
            {},
            "says 9 inside|has no step",
        ),
        (["1.pt", "2.pt"], [{}, {}], {"source": "inside"}, "has no step inside"),
        (["a.pt"], [{"step": 3}], {"source": "name"}, "has no step in its name"),
    ],
)
def test_steps_that_are_not_there_are_missed(names, numbers, options, message):
    with pytest.raises(ValueError, match=message):
        steps_of(names, numbers, **options)


def test_natural_order_and_gaps():
    assert sorted(["step10", "step9", "a", "step9b"], key=natural) == ["a", "step9", "step9b", "step10"]
    assert gaps([0, 1, 2, 4, 8, 16, 500, 1000, 1500]) == ()
    assert gaps([0, 10, 20, 40, 50, 90, 100, 103]) == (Gap(20, 40, 1), Gap(50, 90, 3))
    assert gaps([5]) == ()


def test_the_command_reports(tmp_path, capsys):
    written(tmp_path / "in", 6)
    shutil.copy(tmp_path / "in" / "step100.pt", tmp_path / "in" / "step300.pt")
    (tmp_path / "in" / "step200.pt").unlink()
    (tmp_path / "in" / "notes.txt").write_text("")
    assert main(["import", str(tmp_path / "in"), "--out", str(tmp_path / "a b")]) == 0
    out = capsys.readouterr().out
    for text in ("5 checkpoints, steps 0 to 500", "equal snapshots: 100 = 300", "gaps: 1 between 100 and 300",
                 "not read: notes.txt", "stored as torch.float32"):  # fmt: skip
        assert text in out
    assert main(["import", str(tmp_path / "in"), "--out", str(tmp_path / "b"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["duplicates"] == [[100, 300]]
    assert main(["import", str(tmp_path / "nowhere"), "--out", str(tmp_path / "c")]) == 2
    assert "is no folder" in capsys.readouterr().err
