"""`grokscope analyze NAME RUN RUN ...`: one analysis of many runs, here or on a Dask cluster."""

from __future__ import annotations

import contextlib
import io
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from .output import print_json


class Answer(NamedTuple):
    """What the command printed for one run, and its exit code."""

    run: str
    code: int
    out: str
    err: str


def analyze(name: str, words: Sequence[str], run_one: Callable[[list[str]], int]) -> int:
    """Analysis `name` of every run that leads `words`, with the options that follow.

    `--scheduler ADDRESS` is taken out: with several runs each is one task of the cluster, a single run is
    spread snapshot by snapshot. A run that fails stops no other; the exit code is then 1. With `--json`
    one object is printed, {"runs": {run: result}, "failed": {run: message}}.

    Raises:
        ValueError: no run, or a broken option.
        OSError: no scheduler answers.
    """
    words, address = _without_scheduler(list(words))
    count = next((i for i, word in enumerate(words) if word.startswith("-")), len(words))
    runs, options = words[:count], words[count:]
    if len(runs) < 2:
        from ...runs.cluster import on_cluster

        with on_cluster(address) if address else contextlib.nullcontext():
            return run_one([*runs, *options])
    as_json, failed, found = "--json" in options, {}, {}
    for answer in _answers(name, runs, options, address):
        if answer.code:
            failed[answer.run] = answer.err.strip() or f"exit code {answer.code}"
            print(f"{answer.run}: {failed[answer.run]}", file=sys.stderr)
        elif as_json:
            found[answer.run] = json.loads(answer.out)
        else:
            print(f"== {answer.run}\n{answer.out}", end="", flush=True)
    if as_json:
        print_json({"runs": found, "failed": failed})
    return 1 if failed else 0


def _answers(name: str, runs: list[str], options: list[str], address: str | None) -> Iterator[Answer]:
    calls = [(name, run, options, str(Path.cwd())) for run in runs]
    if address is None:
        yield from (_answer(*call) for call in calls)
        return
    from ...runs.cluster import on_cluster, unordered

    with on_cluster(address):
        yield from unordered(_answer, calls)


def _answer(name: str, run: str, options: list[str], folder: str) -> Answer:
    """The command for one run, in `folder`, its output kept."""
    from .main import main

    out, err = io.StringIO(), io.StringIO()
    with contextlib.chdir(folder), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main(["analyze", name, run, *options])
        except Exception as error:  # one run must not stop the others
            code = 1
            print(f"{type(error).__name__}: {error}", file=err)
    return Answer(run, code, out.getvalue(), err.getvalue())


def _without_scheduler(words: list[str]) -> tuple[list[str], str | None]:
    for i, word in enumerate(words):
        option, equals, value = word.partition("=")
        if option == "--scheduler":
            value = value if equals else "".join(words[i + 1 : i + 2])
            if not value:
                raise ValueError("--scheduler needs the address of a Dask scheduler, such as tcp://host:8786")
            return words[:i] + words[i + (1 if equals else 2) :], value
    return words, None
