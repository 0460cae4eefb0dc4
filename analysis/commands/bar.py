"""Progress bars: on a terminal only, on stderr, never with --quiet."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

Progress = Callable[..., Iterable[Any]]


def progress(*, quiet: bool = False) -> Progress:
    """A wrapper `bar(iterable, description=..., total=...)` that shows a bar if a person is watching.

    One line per stage with rate and remaining time, which stays with the time that it took. It shows when
    stderr is a terminal and `quiet` is false; otherwise the wrapper returns the iterable.
    """
    return _bar if not quiet and sys.stderr.isatty() else _silent


def _silent(iterable: Iterable[Any], *, description: str = "", total: int | None = None) -> Iterable[Any]:
    return iterable


def _bar(iterable: Iterable[Any], *, description: str = "", total: int | None = None) -> Iterator[Any]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, Task, TextColumn, TimeRemainingColumn

    class Rate(TextColumn):
        """How many a second, or how long each takes."""

        def render(self, task: Task) -> Any:
            self.text_format = rate(task.finished_speed or task.speed)
            return super().render(task)

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        Rate(""),
        TimeRemainingColumn(elapsed_when_finished=True),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        yield from bar.track(iterable, total=total, description=description)


def rate(speed: float | None) -> str:
    """A speed per second in words: `12.3/s`, or `4.1 s each` for what is slower."""
    if not speed:
        return ""
    return f"{speed:.3g}/s" if speed >= 1 else f"{1 / speed:.3g} s each"
