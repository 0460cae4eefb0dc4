"""`grokscope import`: make a run from a folder of checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import tyro

from ...runs.checkpoints import Imported, import_checkpoints
from .bar import progress
from .output import print_json, print_table


def command(
    directory: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="CHECKPOINT_DIR")],
    /,
    *,
    out: Annotated[Path, tyro.conf.arg(metavar="RUN")],
    key: str | None = None,
    only: str = "*",
    leave_out: tuple[str, ...] = (),
    buffers: bool = False,
    steps_from: Literal["auto", "name", "inside"] = "auto",
    train_total: int | None = None,
    test_total: int | None = None,
    json: bool = False,
    quiet: bool = False,
) -> int:
    """Make a run from the checkpoints in a folder, all of them or nothing.

    Reads .pt, .pth, .ckpt, .bin (torch.save; nothing in them is run), .safetensors, and folders with one
    model each, sharded or not. Half precision is widened to float32, exactly; float64 stays.

    Args:
        directory: folder with the checkpoints directly in it.
        out: folder of the run, made if missing.
        key: entry of each file that holds the parameters, dotted where nested; looked for by default.
        only: shell-style pattern of checkpoint names; others are left out.
        leave_out: shell-style patterns of tensor names that are no parameters.
        buffers: keep running means and the like as if they were parameters.
        steps_from: the step is in the name, or a number inside; by default whichever tells.
        train_total: number of samples behind a saved `train_correct`.
        test_total: number of samples behind a saved `test_correct`.
        json: print one JSON object.
        quiet: show no progress bar.
    """
    totals = {"train_total": train_total, "test_total": test_total}
    found = import_checkpoints(
        directory,
        out,
        key=key,
        only=only,
        leave_out=leave_out,
        buffers=buffers,
        steps_from=steps_from,
        totals={name: total for name, total in totals.items() if total is not None},
        progress=progress(quiet=quiet),
    )
    if json:
        print_json(found)
    else:
        _show(found)
    return 0


def _show(found: Imported) -> None:
    print(
        f"{found.checkpoints} checkpoints, steps {found.first_step} to {found.last_step} "
        f"({found.steps_from})\n{found.parameters} parameters in {found.dtype}, stored as "
        f"{' and '.join(found.stored_dtypes)}\nsaved as {found.run}"
    )
    facts = {
        "metrics": found.metrics,
        "tensors left out": found.left_out,
        "not read": found.not_read,
        "constant tensors": found.constant,
        "equal snapshots": [" = ".join(map(str, steps)) for steps in found.duplicates],
        "gaps": [f"{gap.missing} between {gap.after} and {gap.before}" for gap in found.gaps],
    }
    for name, values in facts.items():
        if values:
            print(f"{name}: {_shortened(values)}")
    if found.excursions:
        print("far from both neighbors, which are near each other:")
        names = ("step", "tensor", "ratio")
        print_table({name: [getattr(excursion, name) for excursion in found.excursions] for name in names})


def _shortened(values: Sequence[str]) -> str:
    rest = len(values) - 10
    return ", ".join(values[:10]) + (f", and {rest} more" if rest > 0 else "")
