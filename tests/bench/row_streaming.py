"""What streaming costs: the default run with a snapshot every 20 steps against the same without snapshots."""

import tempfile
import time
from dataclasses import replace
from pathlib import Path
from statistics import median

from grokscope.runs.config import RunConfig
from grokscope.runs.train import train

STEPS, ROUNDS = 300, 5
BARE = RunConfig(
    steps=STEPS, log_every=STEPS, evaluate_every=STEPS, snapshot_every=STEPS, second_moment_every=0
)


def row_streaming():
    """Median over interleaved rounds of the time with snapshots over that without, less one."""
    ratios = []
    for _ in range(ROUNDS):
        bare, streamed = _seconds(BARE), _seconds(replace(BARE, snapshot_every=20))
        ratios.append(streamed / bare - 1)
    return {
        "row": "streaming overhead, a snapshot per 20 steps",
        "ratio": round(median(ratios), 4),
        "goal": 0.03,
        "better": "lower",
        "detail": f"{STEPS} steps of 223,713 parameters, {ROUNDS} rounds: "
        + ", ".join(f"{ratio:+.3f}" for ratio in ratios),
    }


def _seconds(config):
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        train(config, Path(folder) / "run")
        return time.perf_counter() - began
