"""`grokscope analyze trajectory`: principal components against random-walk nulls."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import tyro

from ...runs.store import Run
from ..result import save
from ..trajectory import TrajectoryCurve, trajectory_along
from .bar import progress
from .output import print_json, print_table


def command(
    run: Annotated[Path, tyro.conf.Positional],
    /,
    *,
    rank: int | None = None,
    parameters: str | None = None,
    weighting: Literal["time", "subset", "equal"] = "time",
    center: Literal["mean", "first"] = "mean",
    windows: int = 15,
    name: str | None = None,
    out: Path | None = None,
    json: bool = False,
    quiet: bool = False,
) -> int:
    """Principal components of a run's trajectory, beside those of a random walk with its step lengths.

    Columns: explained variance of component k (of the first one for each matrix); expected of a random
    walk, and the difference; of an Ornstein-Uhlenbeck process with the run's decay and persistence (O-U);
    of the run less its decaying initial weights (no decay); cosine of the component with the initial weights.

    Args:
        run: folder of the run.
        rank: number of components; by default 5, or as many as there are.
        parameters: a parameter group, a weight matrix or a name pattern; by default all, and each matrix.
        weighting: weigh snapshots by time, take the largest uniform grid of them, or weigh them equally.
        center: subtract the mean, or the first snapshot.
        windows: number of expanding windows.
        name: name of the result, to keep several.
        out: folder of the result; by default the run's.
        json: print one JSON object.
        quiet: show no progress bar.
    """
    opened = Run.open(run)
    options = {
        "rank": rank,
        "parameters": parameters,
        "weighting": weighting,
        "center": center,
        "windows": windows,
    }
    curve = trajectory_along(
        opened,
        rank=rank,
        parameters=parameters,
        weighting=weighting,
        center=center,
        windows=windows,
        progress=progress(quiet=quiet),
    )
    path = save(curve, opened, name=name, directory=out, options=options)
    if json:
        print_json(curve)
    else:
        _show(curve, path)
    return 0


def _show(curve: TrajectoryCurve, path: Path) -> None:
    print(
        f"{len(curve.steps)} snapshots, steps {curve.steps[0]} to {curve.steps[-1]}, "
        f"{curve.dimension} parameters ({curve.parameters})\n"
        f"weighting: {curve.weighting}; center: {curve.center}; decay {curve.decay:.4g} a step "
        f"({curve.decay_source}), which alone would give {curve.decay_share:.3f} of the variance\n"
        f"saved as {path}"
    )
    print_table(
        {
            "k": list(range(1, len(curve.explained_variance) + 1)),
            "explained": list(curve.explained_variance),
            "random walk": list(curve.random_walk_null),
            "difference": list(curve.explained_variance - curve.random_walk_null),
            "O-U": list(curve.ornstein_uhlenbeck_null),
            "no decay": list(curve.without_decay),
            "cos start": list(curve.initial_cosine),
        }
    )
    if curve.matrices:
        print_table(
            {
                "matrix": curve.matrices,
                "explained": list(curve.matrix_explained[:, 0]),
                "random walk": list(curve.matrix_null[:, 0]),
                "difference": list(curve.matrix_explained[:, 0] - curve.matrix_null[:, 0]),
            }
        )
