"""Progress bars: on a terminal only, on stderr, never with --quiet."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

Progress = Callable[..., Iterable[Any]]


def progress(*, quiet: bool = False) -> Progress:
    """A wrapper `bar(iterable, description=..., total=...)` that shows a bar if a person is watching.

    It shows a bar when stderr is a terminal and `quiet` is false; otherwise it returns the iterable.
    """
    return _bar if not quiet and sys.stderr.isatty() else _silent


def _silent(iterable: Iterable[Any], *, description: str = "", total: int | None = None) -> Iterable[Any]:
    return iterable


def _bar(iterable: Iterable[Any], *, description: str = "", total: int | None = None) -> Iterator[Any]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        yield from bar.track(iterable, total=total, description=description)
