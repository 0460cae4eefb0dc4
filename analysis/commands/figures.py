"""`grokscope figures`: draw every result of a run."""

from __future__ import annotations

import json as text
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import tyro

from ...runs.milestones import milestones
from ...runs.store import Run
from ..figures import overlay
from ..figures.gallery import gallery
from ..figures.style import Width, paper, save_figure
from ..found import digest, found, inputs
from ..synopsis import Align, names_of, synopsis
from .output import jsonable, print_json


def command(
    runs: Annotated[tuple[Path, ...], tyro.conf.Positional],
    /,
    *,
    out: Path,
    width: Width = "single",
    align: Align = "step",
    results: Path | None = None,
    json: bool = False,
) -> int:
    """Draw training curves and every saved result of the runs, as PNG and PDF.

    figures.json beside them has the digest of every input and this command. A stale result is named and
    left out; exit code 1 then.

    Args:
        runs: folders of the runs; with several, each gets a folder of its own below OUT, and figures
            compare_*.png put all of them over one axis.
        out: folder of the figures, made if missing.
        width: of one or two columns of a journal.
        align: time axis of the comparison: steps, steps since memorization or generalization, or both
            milestones at 0 and 1.
        results: folder of the results, if not the run's.
        json: print one JSON object.
    """
    if not runs:
        raise ValueError("runs is empty; give the folder of at least one run")
    if align != "step" and len(runs) == 1:
        raise ValueError(f"align={align!r} compares runs; give at least two")
    opened = dict(zip(names_of(runs), map(Run.open, runs), strict=True))
    everything = {name: found(run, directory=results) for name, run in opened.items()}
    drawn: list[Path] = []
    with paper(width):
        for name, run in opened.items():
            home = out if len(runs) == 1 else out / name
            for stem, figure in gallery(run, everything[name]):
                drawn += save_figure(figure, home / stem)
        if len(runs) > 1:
            compared = {
                name: overlay.Compared(synopsis(run, everything[name].by_kind), milestones(run))
                for name, run in opened.items()
            }
            for stem, figure in overlay.draw(compared, align=align).items():
                drawn += save_figure(figure, out / stem)
    words = ["grokscope", "figures", *map(str, runs), "--out", str(out), "--width", width, "--align", align]
    record = {
        "command": words + ([] if results is None else ["--results", str(results)]),
        "inputs": [inputs(run, everything[name]) for name, run in opened.items()],
        "figures": {str(path.relative_to(out)): digest(path) for path in drawn},
    }
    out.mkdir(parents=True, exist_ok=True)
    (out / "figures.json").write_text(text.dumps(jsonable(record), indent=1, ensure_ascii=False) + "\n")
    return _report(drawn, [message for one in everything.values() for message in one.stale], json)


def _report(drawn: Sequence[Path], stale: Sequence[str], json: bool) -> int:
    for message in stale:
        print(f"grokscope: {message}", file=sys.stderr)
    if json:
        print_json({"figures": drawn, "stale": stale})
    else:
        print("\n".join(map(str, drawn)))
    return 1 if stale else 0
