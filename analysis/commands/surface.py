"""`grokscope analyze surface`: the loss over the plane of the trajectory, and along a straight line."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import tyro

from ...runs.store import Run
from ..objectives import load_objective
from ..result import save
from ..snapshots import at_most
from ..surface import Surface, surface_along
from .bar import progress
from .output import print_json, print_table


def command(
    run: Annotated[Path, tyro.conf.Positional],
    /,
    *,
    split: Literal["train", "test"] = "train",
    size: int = 21,
    margin: float = 0.15,
    points: int = 41,
    between: tuple[int, int] | None = None,
    snapshots: int = 48,
    objective: str | None = None,
    name: str | None = None,
    out: Path | None = None,
    json: bool = False,
    quiet: bool = False,
) -> int:
    """Loss over the plane of the first two components of the trajectory, and between two snapshots.

    Columns: the loss that a snapshot has, the loss of its projection onto the plane, and how far it is
    from there.

    Args:
        run: folder of the run.
        split: data that the loss is taken on.
        size: points of the grid along each component.
        margin: how far the grid reaches over the trajectory, in parts of its range.
        points: points on the straight line.
        between: steps of the snapshots that the line joins; by default memorization and generalization.
        snapshots: number of snapshots whose true loss is taken.
        objective: module:function that returns the loss of a run without configuration.
        name: name of the result, to keep several.
        out: folder of the result; by default the run's.
        json: print one JSON object.
        quiet: show no progress bar.
    """
    opened = Run.open(run)
    found = surface_along(
        opened,
        objective=None if objective is None else load_objective(objective, opened),
        split=split,
        size=size,
        margin=margin,
        points=points,
        between=between,
        snapshots=at_most(opened, snapshots),
        name=name,
        directory=out,
        progress=progress(quiet=quiet),
    )
    options = {"split": split, "size": size, "margin": margin, "points": points, "snapshots": snapshots}
    path = save(found, opened, name=name, directory=out, options=options)
    if json:
        print_json(found)
    else:
        _show(found, path)
    return 0


def _show(found: Surface, path: Path) -> None:
    share = 100 * found.explained_variance
    start, stop = found.line_steps
    print(
        f"{found.split} loss over the plane of components 1 ({share[0]:.1f} %) and 2 ({share[1]:.1f} %)\n"
        f"straight line from step {start} to step {stop}: barrier {found.barrier:.4g} above the chord\n"
        f"saved as {path}"
    )
    print_table(
        {
            "step": found.steps.tolist(),
            "loss": list(found.loss),
            "on the plane": list(found.plane_loss),
            "distance": list(found.residual),
        }
    )
