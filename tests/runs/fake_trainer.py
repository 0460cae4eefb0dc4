"""A deterministic trainer without torch: what it records does not depend on where it is interrupted.

As a program (`python fake_trainer.py PATH STEPS [--every BYTES]`) it creates or resumes the run at PATH.
"""

import json
import sys

import numpy as np
from grokscope.geometry.parameters import ParameterTable
from grokscope.runs.config import RunConfig
from grokscope.runs.store import Run, RunWriter

TABLE = ParameterTable(("weight", "bias"), ((4, 12), (12,)), {"tied.weight": "weight"})
SIZE = TABLE.size
ROW = 4 * SIZE


def update(theta, step):
    """theta after `step` updates from theta after step - 1."""
    noise = np.random.default_rng([7, step]).standard_normal(SIZE)
    return (theta * np.float32(0.99) + noise.astype(np.float32)).astype(np.float32)


def start():
    return np.random.default_rng(7).standard_normal(SIZE).astype(np.float32)


def trajectory(steps):
    """Snapshots (steps + 1, SIZE) of an undisturbed run."""
    rows = [start()]
    for step in range(1, steps + 1):
        rows.append(update(rows[-1], step))
    return np.stack(rows)


def record(writer, step, theta):
    moment = theta**2 if step % 5 == 0 else None
    writer.append(step, theta, second_moment=moment)
    writer.log(step, {"train_loss": float(abs(theta).mean()), "train_correct": step})
    if step % 3 == 0:
        writer.log(step, {"squared_norm.weight": float(theta[:48] @ theta[:48])})


def opened(path, steps, commit_bytes):
    config, options = RunConfig(steps=steps), {"commit_bytes": commit_bytes, "commit_seconds": 1e9}
    if (path / "run.h5").exists():
        return RunWriter.resume(path, config, TABLE, **options)
    return RunWriter.create(path, config, TABLE, provenance={"threads": 1}, **options)


def train(path, steps, commit_bytes=7 * ROW):
    """Create or resume the run at `path` and bring it to `steps`; a commit every few snapshots."""
    with opened(path, steps, commit_bytes) as writer:
        step, theta = 0, start()
        if writer.resume_step is not None:
            state = json.loads(writer.resume_state())
            step, theta = state["step"], np.array(state["theta"], np.float32)
        else:
            record(writer, 0, theta)
        while step < steps:
            step, theta = step + 1, update(theta, step + 1)
            record(writer, step, theta)
            if step % 10 == 0:
                writer.keep_state(step, _state(step, theta))
            if writer.due():
                writer.commit(_state(step, theta), step=step)
        writer.finish("steps", resume=_state(step, theta), step=step)
    return Run.open(path)


def _state(step, theta):
    return json.dumps({"step": step, "theta": theta.tolist()}).encode()


if __name__ == "__main__":
    from pathlib import Path

    print("go", flush=True)
    every = int(sys.argv[3]) if len(sys.argv) > 3 else 7 * ROW
    train(Path(sys.argv[1]), int(sys.argv[2]), every)
    print("done", flush=True)
