"""`grokscope analyze weights`: norms and ranks of the weight matrices."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro

from ...runs.store import Run
from ..report_tables import matrices
from ..result import save
from ..snapshots import at_most
from ..weights import weights_along
from .bar import progress
from .output import print_json, print_table


def command(
    run: Annotated[Path, tyro.conf.Positional],
    /,
    *,
    snapshots: int = 40,
    steps: tuple[int, ...] = (),
    jobs: int = 1,
    name: str | None = None,
    out: Path | None = None,
    json: bool = False,
    quiet: bool = False,
) -> int:
    """Frobenius and spectral norm, stable and effective rank of every weight matrix.

    Shows the first and the last snapshot, and the stable rank of a random matrix of the same shape.

    Args:
        run: folder of the run.
        snapshots: number of snapshots, spread over the run.
        steps: snapshots at these steps instead.
        jobs: snapshots measured at a time.
        name: name of the result, to keep several.
        out: folder of the result; by default the run's.
        json: print one JSON object.
        quiet: show no progress bar.
    """
    opened = Run.open(run)
    curve = weights_along(
        opened,
        snapshots=at_most(opened, snapshots, steps=steps),
        jobs=jobs,
        name=name,
        directory=out,
        progress=progress(quiet=quiet),
    )
    path = save(curve, opened, name=name, directory=out, options={"snapshots": snapshots})
    if json:
        print_json(curve)
        return 0
    print(f"{len(curve.steps)} snapshots, steps {curve.steps[0]} to {curve.steps[-1]}\nsaved as {path}")
    print_table(matrices(curve))
    return 0
