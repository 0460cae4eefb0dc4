"""A sweep of 16 runs with one thread each, against the same runs in turn with two threads each."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

RUNS, STEPS = 16, 1000  # about the length of the shortest run that generalizes; imports take 2 s a process
SPEC = f"""
[base]
modulus = 59
width = 64
feedforward = 256
batch_size = 256
steps = {STEPS}
snapshot_every = 100
second_moment_every = 0

[grid]
seed = {list(range(RUNS))}
"""
# Each side is a fresh process, so both pay for their imports and neither warms the other up.
_SWEEP = "from grokscope.runs.sweep import *; sweep(read_spec('{spec}'), '{out}', jobs=2)"
_SERIES = """
import torch
torch.set_num_threads(2)
from grokscope.runs.sweep import read_spec
from grokscope.runs.train import train
for entry in read_spec('{spec}'):
    train(entry.config, '{out}/' + entry.name)
"""


def row_sweep() -> dict[str, object]:
    """Median ratio of three pairs of measurements, taken in turn."""
    pairs = [(_seconds(_SERIES), _seconds(_SWEEP)) for _ in range(3)]
    ratios = sorted(series / sweep for series, sweep in pairs)
    series, sweep = min(pairs)
    return {
        "row": "sweep",
        "ratio": ratios[1],
        "goal": 1.6,
        "better": "higher",
        "detail": f"{RUNS} runs of {STEPS} steps: {sweep:.1f} s by two processes with one thread each, "
        f"{series:.1f} s in turn with two threads; ratios {', '.join(f'{r:.2f}' for r in ratios)}",
    }


def _seconds(script: str) -> float:
    with tempfile.TemporaryDirectory() as folder:
        spec = Path(folder) / "spec.toml"
        spec.write_text(SPEC)
        code = script.format(spec=spec, out=Path(folder) / "out")
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True, env=_two_threads())
        return time.perf_counter() - start


def _two_threads() -> dict[str, str]:
    import os

    return {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
