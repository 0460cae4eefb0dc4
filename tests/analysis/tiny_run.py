"""A tiny trained run with every analysis there is, made once for all tests that only look at it."""

from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from grokscope.analysis.commands.main import ANALYSES, available, main
from grokscope.analysis.delay import delay_along
from grokscope.analysis.result import save
from grokscope.runs.store import Run, Series

TRAIN = (
    "--modulus 7 --steps 400 --batch-size 16 --width 16 --heads 2 --feedforward 32 --lr 0.01 "
    "--evaluate-every 20 --snapshot-every 20 --second-moment-every 20 --train-fraction 0.8 --quiet"
)
OPTIONS = {
    "commutator": "--snapshots 5 --pairs 2 --split-pairs 1 --rank 3 --jobs 1 --quiet",
    "spectrum": "--snapshots 4 --quiet",
    "llc": "--snapshots 3 --max-gradients 400 --jobs 1 --quiet",
    "surface": "--size 5 --points 5 --snapshots 5 --quiet",
}
_kept: list[TemporaryDirectory] = []  # removed when the tests end


def tiny(seed=0, *, analyzed=True) -> Path:
    """The folder of the run; what an analysis of it can't do is left out."""
    return _made(seed, analyzed)


@cache
def _made(seed, analyzed):
    _kept.append(TemporaryDirectory())
    path = Path(_kept[-1].name) / f"tiny-{seed}"
    assert main(["train", "--out", str(path), *TRAIN.split(), "--seed", str(seed)]) == 0
    for noun in available(ANALYSES) if analyzed else ():
        if noun != "all":
            main(["analyze", noun, str(path), *OPTIONS.get(noun, "").split()])
    return path


@cache
def grokked(seed=0) -> Run:
    """The same run with drawn accuracies, memorized at step 100 and generalized at 240, and its delay.

    Models this small don't grok in seconds; what is drawn about a run must not depend on luck.
    """
    run = Run.open(tiny(seed))
    steps = run.metrics["train_correct"].step
    totals = (int(run.provenance[f"{split}_total"]) for split in ("train", "test"))
    drawn = {
        f"{split}_correct": Series(steps, np.clip(total * steps // top, 0, total))
        for split, total, top in zip(("train", "test"), totals, (100, 240), strict=True)
    }
    run = replace(run, index=replace(run.index, metrics={**run.metrics, **drawn}))
    save(delay_along(run), run)
    return run
