"""`grokscope analyze progress`: restricted and excluded loss, key frequencies, commutativity."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro

from ...runs.store import Run
from ..pairs import COMMUTATIVE, GROUPS
from ..progress import ProgressCurve, progress_along
from ..result import save
from ..snapshots import at_most
from .bar import progress
from .output import print_json, print_table


def applies(run: Run) -> bool:
    """Whether the run's task has progress measures at all."""
    return run.config is not None and run.config.task in {*GROUPS, *COMMUTATIVE}


def command(
    run: Annotated[Path, tyro.conf.Positional],
    /,
    *,
    snapshots: int = 40,
    steps: tuple[int, ...] = (),
    factor: float = 2.0,
    jobs: int = 1,
    name: str | None = None,
    out: Path | None = None,
    json: bool = False,
    quiet: bool = False,
) -> int:
    """How far the circuit of a modular task has grown, from the logits on all pairs.

    Columns: train and test loss; restricted loss (test pairs, only the key frequencies of the answer
    kept); excluded loss (training pairs, these taken out); share of the logits' power in key frequencies,
    and in all frequencies; inverse participation ratio over frequencies; commutativity violation on
    pairs whose transpose was not trained on; accuracy on test pairs whose transpose was not trained on.

    Args:
        run: folder of the run.
        snapshots: number of snapshots, spread over the run.
        steps: snapshots at these steps instead.
        factor: a frequency is key if its power at the last snapshot is so many times the mean.
        jobs: snapshots measured at a time.
        name: name of the result, to keep several.
        out: folder of the result; by default the run's.
        json: print one JSON object.
        quiet: show no progress bar.
    """
    opened = Run.open(run)
    curve = progress_along(
        opened,
        snapshots=at_most(opened, snapshots, steps=steps),
        factor=factor,
        jobs=jobs,
        name=name,
        directory=out,
        progress=progress(quiet=quiet),
    )
    path = save(curve, opened, name=name, directory=out, options={"factor": factor, "snapshots": snapshots})
    if json:
        print_json(curve)
    else:
        _show(curve, path)
    return 0


def _show(curve: ProgressCurve, path: Path) -> None:
    keys = ", ".join(map(str, curve.key_frequencies))
    group = "no group, so no frequencies"
    if curve.order:
        group = (
            f"group of order {curve.order}; key frequencies at the last snapshot {keys}, "
            f"with share {curve.random_share:.2g} of random logits"
        )
    print(f"{curve.task}: {group}\nsaved as {path}")
    print_table(
        {
            "step": list(curve.steps),
            "train": list(curve.train_loss),
            "test": list(curve.test_loss),
            "restricted": list(curve.restricted_loss),
            "excluded": list(curve.excluded_loss),
            "key share": list(curve.key_share),
            "waves": list(curve.wave_share),
            "participation": list(curve.participation),
            "commutativity": list(curve.commutativity),
            "unseen accuracy": list(curve.unseen_accuracy),
        }
    )
