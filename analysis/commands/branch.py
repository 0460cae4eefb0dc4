"""`grokscope branch`: continue a run from a kept state, with changed fields or another batch stream."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro

from ...runs.config import parse_assignment
from .bar import progress
from .output import print_json


def command(
    run: Annotated[Path, tyro.conf.Positional],
    /,
    *,
    at: str,
    out: Path,
    set: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = (),
    batch_seed: int | None = None,
    trust_run: bool = False,
    quiet: bool = False,
    json: bool = False,
) -> int:
    """Train a new run that leaves RUN at a step whose full state was kept (`state_at`).

    Args:
        run: folder of the parent run.
        at: step of the kept state, or `memorized` for the one kept when memorization was confirmed.
        out: folder of the new run; an unfinished branch there is continued.
        set: a changed field as `field=value`, in TOML's spelling; may be given several times.
        batch_seed: draw the minibatches after the branch from this seed.
        trust_run: import the `module:function` task or model that the run names.
        quiet: show no progress bar.
        json: print one JSON object.
    """
    from ...runs.branch import branch
    from ...runs.milestones import milestones
    from ...runs.store import Run

    parent = Run.open(run)
    found = milestones(parent).memorized
    if at == "memorized" and found is None:
        raise ValueError(f"at=memorized: {run} did not memorize; give a step")
    step = found.confirmed if found is not None and at == "memorized" else _step(at)
    changes = dict(map(parse_assignment, set))
    new = branch(
        parent,
        out,
        at=step,
        changes=changes,
        batch_seed=batch_seed,
        progress=progress(quiet=quiet),
        trust=trust_run,
    )
    reached = milestones(new)
    if json:
        print_json(
            {
                "parent": str(run),
                "step": step,
                "last_step": int(new.steps[-1]),
                "memorized": None if reached.memorized is None else reached.memorized.step,
                "generalized": None if reached.generalized is None else reached.generalized.step,
                "delay": reached.delay,
                "hash": new.hash,
            }
        )
    else:
        print(
            f"{out}: branched from {run} at step {step}, now at step {new.steps[-1]}, delay {reached.delay}"
        )
    return 0


def _step(at: str) -> int:
    if not at.isdigit():
        raise ValueError(f"at={at!r} must be a step or `memorized`")
    return int(at)
