"""The command line: exit codes, messages, JSON, and what `--help` may cost."""

import json
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest
from grokscope.analysis.commands import all as analyze_all
from grokscope.analysis.commands import main as dispatcher
from grokscope.analysis.commands.main import ANALYSES, COMMANDS, available, main, parse
from grokscope.analysis.commands.output import cell, jsonable, print_table
from grokscope.analysis.commands.train import configuration

TINY = [
    "--modulus",
    "7",
    "--steps",
    "60",
    "--batch-size",
    "16",
    "--width",
    "16",
    "--heads",
    "2",
    "--feedforward",
    "32",
    "--quiet",
]
FOLDER = Path(dispatcher.__file__).parent


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    path = tmp_path_factory.mktemp("a run") / "tiny"
    assert main(["train", "--out", str(path), *TINY]) == 0
    return str(path)


def failed(capsys, *words):
    """(exit code, the message) of a command that prints nothing on stdout."""
    capsys.readouterr()
    code = main(list(words))
    out, err = capsys.readouterr()
    assert out == ""
    assert 1 <= err.count("\n") <= 2
    assert "Traceback" not in err
    return code, err


def json_of(capsys, *words):
    capsys.readouterr()
    assert main(list(words)) == 0
    return json.loads(capsys.readouterr().out)


def test_help_loads_nothing_heavy():
    heavy = "torch numpy h5py matplotlib scipy tyro rich"
    code = (
        "import sys; from grokscope.analysis.commands.main import main; code = main(['--help']);"
        f"print(code, [name for name in '{heavy}'.split() if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "0 []"
    assert "train" in done.stdout


def test_every_listed_command_is_there_and_every_file_is_listed():
    tables = available(COMMANDS), available(ANALYSES)
    listed = {dispatcher._file(name).stem for table in tables for name in table if name != "analyze"}
    assert {"train", "figures", "info", "verify", "pack", "trajectory", "all"} <= listed
    assert listed == {path.stem for path in FOLDER.glob("*.py") if "\ndef command(" in path.read_text()}


@pytest.mark.parametrize(
    "words", [[n] for n in available(COMMANDS)] + [["analyze", n] for n in available(ANALYSES)]
)
def test_every_command_has_help(words, capsys):
    assert main([*words, "--help"]) == 0
    assert f"usage: grokscope {' '.join(words)}" in capsys.readouterr().out


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("grokscope ")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["analyse"], "did you mean analyze"),
        (["analyze", "trajectori", "x"], "did you mean trajectory"),
        (["info", "no/such/run"], "no/such/run"),
        (["info"], "RUN|PATH"),
        (["train", "--lrr", "3"], "--lrr.*did you mean --lr"),
        (["train", "--lr", "fast", "--out", "x"], "--lr"),
        (["train", "--lr", "-1", "--out", "x"], "lr=-1.0 must be positive"),
        (["train"], "--out RUN"),
        (["train", "missing.toml", "--out", "x"], r"missing\.toml"),
        (["figures", "--out", "x"], "at least one run|RUNS|PATH"),
    ],
)
def test_wrong_input_is_2_and_a_line(capsys, words, message):
    code, err = failed(capsys, *words)
    assert code == 2
    assert re.search(message, err), err


def test_without_arguments_the_list_is_shown(capsys):
    assert main([]) == 2
    assert "trajectory" not in capsys.readouterr().err
    assert main(["analyze"]) == 2
    assert "trajectory" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (KeyboardInterrupt(), 130),
        (ValueError("a=1 must be 2\nor so"), 2),
        (FileNotFoundError(2, "no such file", "x"), 2),
        (OSError(28, "no space left", "x"), 1),
    ],
)
def test_what_goes_wrong_becomes_a_code(monkeypatch, capsys, error, code):
    def command():
        raise error

    monkeypatch.setattr(import_module("grokscope.analysis.commands.info"), "command", command)
    assert failed(capsys, "info")[0] == code


def test_an_unexpected_error_keeps_its_traceback(monkeypatch):
    monkeypatch.setattr(dispatcher, "_dispatch", {}.pop)  # it knows no such key
    with pytest.raises(KeyError):
        main(["info"])


def test_a_reader_that_leaves_is_no_news(run):
    words = [sys.executable, "-m", "grokscope.analysis.commands.main", "info", run, "--json"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 1


def test_info_verify_pack(run, capsys, tmp_path):
    info = json_of(capsys, "info", run, "--json")
    assert {"snapshots", "parameters", "first_step", "last_step", "finished"} <= set(info)
    assert {"memorized", "generalized", "hash"} <= set(info)
    assert (info["first_step"], info["last_step"], info["finished"]) == (0, 60, True)
    assert json_of(capsys, "verify", run, "--json")["ok"] is True
    packed = json_of(capsys, "pack", run, "--out", str(tmp_path / "one.h5"), "--json")
    assert Path(packed["path"]).stat().st_size == packed["bytes"]
    assert main(["info", run]) == 0
    assert info["hash"] in capsys.readouterr().out


def test_damage_is_found_with_code_1(tmp_path, capsys):
    path = tmp_path / "damaged"
    main(["train", "--out", str(path), *TINY])
    segment = next((path / "segments").iterdir())
    data = bytearray(segment.read_bytes())
    data[-5] ^= 1
    segment.write_bytes(data)
    capsys.readouterr()
    assert main(["verify", str(path)]) == 1
    assert segment.name in capsys.readouterr().out


def test_analyze_trajectory(run, capsys):
    found = json_of(capsys, "analyze", "trajectory", run, "--json", "--rank", "3")
    assert {"steps", "explained_variance", "random_walk_null"} <= set(found)
    assert len(found["explained_variance"]) == 3
    code, err = failed(capsys, "analyze", "trajectory", run, "--rank", "99")
    assert code == 2
    assert f"{len(found['steps'])} snapshots" in err
    code, err = failed(capsys, "analyze", "trajectory", run, "--parameters", "tokens")
    assert code == 2
    assert "embedding" in err


def test_analyze_all_goes_on_after_a_failure(run, capsys, monkeypatch):
    def command(run, /, *, json=False):
        raise RuntimeError("no luck")

    monkeypatch.setitem(sys.modules, "grokscope.analysis.commands.unlucky", SimpleNamespace(command=command))
    monkeypatch.setattr(analyze_all, "available", lambda table: ["unlucky", "trajectory", "all"])
    capsys.readouterr()
    assert main(["analyze", "all", run, "--json"]) == 1
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert found["failed"] == {"unlucky": "no luck"}
    assert "explained_variance" in found["trajectory"]
    assert "no luck" in err
    assert main(["analyze", "all", run]) == 1
    assert "== trajectory" in capsys.readouterr().out


def test_figures_draw_what_there_is_and_name_what_is_stale(run, capsys, tmp_path):
    main(["analyze", "trajectory", run])
    drawn = json_of(capsys, "figures", run, "--out", str(tmp_path / "one"), "--json")
    names = {Path(path).name for path in drawn["figures"]}
    assert {"accuracy_loss.png", "squared_norm.pdf", "trajectory.png", "explained_variance.pdf"} <= names
    assert all(Path(path).stat().st_size > 1000 for path in drawn["figures"])
    (Path(run) / "trajectory.h5").write_bytes(b"no HDF5")
    assert main(["figures", run, "--out", str(tmp_path / "two")]) == 1
    assert "trajectory.h5" in capsys.readouterr().err
    (Path(run) / "trajectory.h5").unlink()


def test_training_again_changes_nothing_and_another_configuration_is_refused(run, capsys):
    before = json_of(capsys, "info", run, "--json")["hash"]
    assert json_of(capsys, "train", "--out", run, *TINY, "--json")["hash"] == before
    code, err = failed(capsys, "train", "--out", run, *TINY, "--lr", "0.5")
    assert code == 2
    assert "lr" in err


def flags(*words):
    command = import_module("grokscope.analysis.commands.train").command
    args, kwargs = parse(command, words, "grokscope train")
    return configuration(args[0], kwargs["flags"])


def test_flags_stand_above_the_file_and_the_file_above_defaults(tmp_path):
    file = tmp_path / "a.toml"
    file.write_text("lr = 0.5\nseed = 3\nclip = 1.0\n[group_lr]\nembedding = 2.0\n")
    plain = flags(str(file))
    assert (plain.lr, plain.seed, plain.split_seed, plain.clip, plain.width) == (0.5, 3, 3, 1.0, 128)
    over = flags(str(file), "--seed", "5", "--clip", "None", "--batch-seed", "3", "--replacement", "False")
    assert (over.lr, over.seed, over.split_seed, over.batch_seed, over.clip) == (0.5, 5, 5, 3, None)
    assert (over.replacement, over.group_lr) == (False, {"embedding": 2.0})
    assert flags(str(file), "--group-lr", "head=0.1", "embedding=3").group_lr == {
        "head": 0.1,
        "embedding": 3.0,
    }
    assert flags("--state-at", "100", "memorized", "--batch-size", "full").state_at == (100, "memorized")
    file.write_text('lr = "fast"\n')
    with pytest.raises(ValueError, match=r"a\.toml: lr='fast'"):
        flags(str(file))


def test_print_config_is_a_config(capsys, tmp_path):
    assert main(["train", "--print-config", "--lr", "0.25", "--task-options", "n=3"]) == 0
    file = tmp_path / "b.toml"
    file.write_text(capsys.readouterr().out)
    assert flags(str(file)) == flags("--lr", "0.25", "--task-options", "n=3")


def test_own_code_is_imported_only_if_named_on_the_command_line(tmp_path, capsys):
    file = tmp_path / "c.toml"
    file.write_text('task = "evil:task"\n')
    code, err = failed(capsys, "train", str(file), "--out", str(tmp_path / "x"), "--quiet")
    assert code == 2
    assert "evil" in err


def test_json_has_no_nan():
    assert jsonable({"a": [float("nan"), float("inf"), 1.5], "b": (1, None)}) == {
        "a": [None, None, 1.5],
        "b": [1, None],
    }
    assert jsonable(SimpleNamespace) is SimpleNamespace


def test_tables_in_pipes_are_aligned_text(capsys):
    print_table({"name": ["a", "bcd"], "value": [1.0, 12.345678], "ok": [True, None]})
    assert capsys.readouterr().out.splitlines() == [
        "name  value   ok",
        "a         1  yes",
        "bcd   12.35    -",
    ]
    assert [cell(float("nan")), cell(3), cell(1e-9)] == ["nan", "3", "1e-09"]


OWN_CODE = """
import torch


def task(config, *, broken=False):
    if broken:
        return {}["pairs"]
    return torch.arange(8).reshape(4, 2), torch.tensor([0, 1, 0, 1])


class Model(torch.nn.Linear):
    def forward(self, inputs):
        return super().forward(inputs.float()).reshape(3, 5)


def model(config, task):
    return Model(2, 2)
"""


@pytest.mark.parametrize(
    ("module", "words", "line", "said"),
    [
        ("broken_task", ["--task-options", "broken=true"], 7, "KeyError: 'pairs'"),
        ("broken_model", ["--model", "broken_model:model"], 13, "RuntimeError: shape '[3, 5]'"),
        ("broken_import", [], None, "'broken_import' can't be imported: NameError: name 'tensor'"),
    ],
)
def test_what_goes_wrong_in_own_code_is_told_in_one_line(
    module, words, line, said, tmp_path, monkeypatch, capsys
):
    file = tmp_path / f"{module}.py"
    file.write_text("pairs = tensor([1])\n" if line is None else OWN_CODE)
    monkeypatch.chdir(tmp_path)
    base = ["train", "--out", "run", "--steps", "2", "--batch-size", "full", "--quiet"]
    assert main([*base, "--task", f"{module}:task", *words]) == 2
    told = capsys.readouterr().err
    assert said in told
    assert "Traceback" not in told
    if line is not None:
        assert f"grokscope: {file}:{line}: " in told
        monkeypatch.setenv("GROKSCOPE_TRACEBACK", "1")
        with pytest.raises((KeyError, RuntimeError)):
            main([*base, "--task", f"{module}:task", *words])
