"""`grokscope figures`: draw every result of a run."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import tyro

from ...runs.store import Run
from ..figures.style import Width, paper, save_figure
from ..result import StaleResult, load, names
from .output import print_json

_NOUNS = ("trajectory", "commutator", "spectrum", "llc", "delay", "progress", "weights")
_FIGURES = Path(__file__).parents[1] / "figures"


def command(
    runs: Annotated[tuple[Path, ...], tyro.conf.Positional],
    /,
    *,
    out: Path,
    width: Width = "single",
    results: Path | None = None,
    json: bool = False,
) -> int:
    """Draw training curves and every saved result of the runs, as PNG and PDF.

    A stale result is named and left out; exit code 1 then.

    Args:
        runs: folders of the runs; with several, each gets a folder of its own below OUT.
        out: folder of the figures, made if missing.
        width: of one or two columns of a journal.
        results: folder of the results, if not the run's.
        json: print one JSON object.
    """
    if not runs:
        raise ValueError("runs is empty; give the folder of at least one run")
    drawn: list[Path] = []
    stale: list[str] = []
    for path in runs:
        run = Run.open(path)
        home = out if len(runs) == 1 else out / path.resolve().name
        with paper(width):
            for stem, figure in _figures(run, results, stale):
                drawn += save_figure(figure, home / stem)
    for message in stale:
        print(f"grokscope: {message}", file=sys.stderr)
    if json:
        print_json({"figures": drawn, "stale": stale})
    else:
        print("\n".join(map(str, drawn)))
    return 1 if stale else 0


def _figures(run: Run, directory: Path | None, stale: list[str]) -> Iterator[tuple[str, Any]]:
    """(file name without ending, figure) for all there is to draw; what is stale goes to the list."""
    yield from import_module("..figures.training", __package__).draw(run).items()
    for noun in _NOUNS:
        if not (_FIGURES / f"{noun}.py").exists():
            continue
        for name in names(noun, run, directory=directory):
            try:
                result = load(_result_class(noun), run, name=name, directory=directory)
            except (StaleResult, OSError) as error:
                stale.append(str(error))
                continue
            draw = import_module(f"..figures.{noun}", __package__).draw
            suffix = "" if name is None else f"-{name}"
            yield from ((f"{stem}{suffix}", figure) for stem, figure in draw(run, result).items())


def _result_class(noun: str) -> Any:
    """The class of results of an analysis: the one in its file that has its KIND."""
    module = import_module(f"..{noun}", __package__)
    return next(item for item in vars(module).values() if getattr(item, "KIND", None) == noun)
