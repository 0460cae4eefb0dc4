"""`grokscope COMMAND`: finds the command's file by name and turns what goes wrong into an exit code.

Exit codes: 0 done, 1 the work failed, 2 the input was wrong, 130 interrupted (what is done is kept).
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from difflib import get_close_matches
from functools import wraps
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any

from .foreign import place

COMMANDS = {
    "train": "train a run, or resume an unfinished one",
    "analyze": "ask a question of a run's snapshots; `grokscope analyze --help` lists them",
    "predict": "forecast when a run will generalize, from nothing later than its information time",
    "branch": "continue a run from a kept state, with changed fields or another batch stream",
    "figures": "draw every result of a run as PNG and PDF",
    "sweep": "train many runs from a grid or list of configurations",
    "table": "one row per run below a folder",
    "compare": "two runs or results side by side",
    "info": "what a run is, how far it got, and its milestones",
    "verify": "check every byte of a run against its hashes",
    "pack": "write a run as one contiguous HDF5 file for other programs",
    "rank": "which signals tell early whether runs generalize: every analysis' and your own",
    "lead": "how far onsets of the commutator lead generalization, over runs, with nulls",
    "calibrate": "renew or score the delay predictor's calibration",
    "import": "make a run from a folder of checkpoints",
    "reproduce": "reproduce a published study",
    "report": "write runs and their results as one HTML page",
}
ANALYSES = {
    "trajectory": "principal components of the trajectory, against random-walk nulls",
    "spectrum": "extreme Hessian eigenvalues and stability thresholds",
    "commutator": "how far minibatch steps fail to commute",
    "llc": "local learning coefficient",
    "delay": "delay law of a finished run: predicted against actual",
    "progress": "progress measures of the learned circuit",
    "weights": "spectra of the weight matrices",
    "surface": "loss over the plane of the trajectory, and along a straight line",
    "all": "every analysis above, one after the other",
}
_HERE = Path(__file__).parent
_MODULES = {"import": "import_", "all": "all"}  # `import` is no module name
_FAILURES = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT, errno.EIO)  # the machine's fault, not the input's

Command = Callable[..., int]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `grokscope` with the given arguments (those of the process by default) and return its exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        with _terminable():
            code = _dispatch(words)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader left; nothing may be written to it any more, not even at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        return _complain("interrupted; the same command goes on from what is saved", 130)
    except (ValueError, OSError) as error:
        if os.environ.get("GROKSCOPE_TRACEBACK"):
            raise
        return _complain(_line(error), 1 if getattr(error, "errno", None) in _FAILURES else 2)
    except Exception as error:
        if os.environ.get("GROKSCOPE_TRACEBACK") or (where := place(error)) is None:
            raise
        whole = "GROKSCOPE_TRACEBACK=1 shows the whole traceback"
        return _complain(f"{where}: {type(error).__name__}: {_line(error)}; {whole}", 2)
    return code


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """SIGTERM ends what runs here as Ctrl-C does: what is done is kept, and other processes end too."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)


def parse(function: Command, words: Sequence[str], prog: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments (args, kwargs) for a typed `command` function, from the words of the command line.

    Raises:
        ValueError: an option is unknown, missing or of the wrong type, in one line.
    """
    import tyro

    @wraps(function)
    def received(*args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return args, kwargs

    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint):
            options = (tyro.conf.FlagCreatePairsOff,)
            found: Any = tyro.cli(received, args=list(words), prog=prog, config=options)
            return found  # type: ignore[no-any-return]
    except SystemExit as stop:
        if stop.code in (0, None):
            raise
        raise ValueError(f"{_one_line(complaint.getvalue())}; see `{prog} --help`") from None


def available(table: dict[str, str], prefix: str = "") -> dict[str, str]:
    """The commands of a table whose file is there, with their summaries."""
    return {name: text for name, text in table.items() if name == "analyze" or _file(name).exists()}


def _dispatch(words: list[str]) -> int:
    table, prog = available(COMMANDS), "grokscope"
    while True:
        if not words or words[0] in ("-h", "--help"):
            print(_help(table, prog), file=sys.stdout if words else sys.stderr)
            return 0 if words else 2
        if words[0] == "--version" and prog == "grokscope":
            from importlib.metadata import version

            print(f"grokscope {version('grokscope')}")
            return 0
        name, words = words[0], words[1:]
        if name not in table:
            raise ValueError(_unknown(name, table, prog))
        asked, prog = prog, f"{prog} {name}"
        if name != "analyze":
            return _analyze(name, words, prog) if asked.endswith("analyze") else _run(name, words, prog)
        table = available(ANALYSES)


def _run(name: str, words: list[str], prog: str) -> int:
    function: Command = import_module(f".{_file(name).stem}", __package__).command
    trusts = "--trust-run" in words and "trust_run" not in signature(function).parameters
    try:
        args, kwargs = parse(function, [w for w in words if not (trusts and w == "--trust-run")], prog)
    except SystemExit:  # after its --help
        return 0
    with _permission() if trusts else contextlib.nullcontext():
        return function(*args, **kwargs)


@contextlib.contextmanager
def _permission() -> Iterator[None]:
    """Here and in processes started from here, a stored run may import the task and model that it names."""
    from ...runs.named import TRUST

    before = os.environ.get(TRUST)
    os.environ[TRUST] = "1"
    try:
        yield
    finally:
        del os.environ[TRUST]
        if before is not None:
            os.environ[TRUST] = before


def _analyze(name: str, words: list[str], prog: str) -> int:
    """One analysis of one run here, or of several runs or on a cluster."""
    several = len(words) > 1 and not words[1].startswith("-")
    if not several and not any(word.partition("=")[0] == "--scheduler" for word in words):
        return _run(name, words, prog)
    from .many import analyze

    return analyze(name, words, lambda one: _run(name, one, prog))


def _file(name: str) -> Path:
    return _HERE / f"{_MODULES.get(name, name)}.py"


def _help(table: dict[str, str], prog: str) -> str:
    width = max(map(len, table), default=0)
    many = "ANALYSIS RUN..." if prog.endswith("analyze") else "COMMAND"
    lines = [f"usage: {prog} {many} [OPTIONS]", ""]
    lines += [f"  {name.ljust(width)}  {text}" for name, text in table.items()]
    lines += ["", f"`{prog} NAME --help` lists the options of one."]
    if prog.endswith("analyze"):
        lines.append("Several RUNs come one after the other; with --scheduler tcp://HOST:PORT the workers of")
        lines.append(
            "that Dask scheduler share them, or the snapshots of a single one. --trust-run imports the"
        )
        lines.append("`module:function` task or model that a run names.")
    return "\n".join(lines)


def _unknown(name: str, table: dict[str, str], prog: str) -> str:
    known = {**COMMANDS, **ANALYSES}
    if name in (COMMANDS if prog == "grokscope" else ANALYSES):
        return f"`{prog} {name}` ({known[name]}) is not part of this version"
    near = get_close_matches(name, table, n=1)
    hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(table)}"
    return f"`{prog}` knows no {name!r}; {hint}"


def _one_line(box: str) -> str:
    """The first paragraph of tyro's framed message, and the option it suggests."""
    lines = [line.strip("│ ").strip() for line in box.splitlines()]
    inner = [line for line in lines if not line.startswith(("╭", "╰"))]
    rules = [i for i, line in enumerate(inner) if line.startswith("─")] + [len(inner)]
    message = " ".join(" ".join(inner[: rules[0]]).split())
    near = re.search(r"Perhaps you meant:\s*\n?\s*(--[\w-]+)", "\n".join(inner))
    message = message[:1].lower() + message[1:].rstrip(".")
    return message + (f" (did you mean {near[1]}?)" if near else "")


def _line(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{error.filename}: {error.strerror}"
    return " ".join(str(error).split()) or type(error).__name__


def _complain(message: str, code: int) -> int:
    print(f"grokscope: {message}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
