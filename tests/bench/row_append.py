"""Appending snapshots against writing the same bytes to one file, both fsynced."""

import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
from grokscope.geometry.parameters import ParameterTable
from grokscope.runs.store import RunWriter

SIZE, SNAPSHOTS, ROUNDS = 290_401, 450, 5  # the two-layer transformer; half a GiB


def row_append():
    """Bytes per second of append and commit over those of write and fsync; median of paired rounds."""
    rows = np.random.default_rng(0).standard_normal((8, SIZE)).astype(np.float32)
    ratios, speeds = [], []
    for _ in range(ROUNDS):
        with tempfile.TemporaryDirectory() as folder:
            raw = _seconds(_write_raw, Path(folder) / "raw", rows)
            ours = _seconds(_append, Path(folder) / "run", rows)
        ratios.append(raw / ours)
        speeds.append(SNAPSHOTS * rows[0].nbytes / ours / 2**20)
    detail = (
        f"{SNAPSHOTS} snapshots of {SIZE:,} float32, default commits, hashed; "
        f"{statistics.median(speeds):.0f} MiB/s; one fsync at the end of the raw file; rounds "
        + ", ".join(f"{ratio:.2f}" for ratio in sorted(ratios))
    )
    return {
        "row": "append",
        "ratio": statistics.median(ratios),
        "goal": 0.6,
        "better": "higher",
        "detail": detail,
    }


def _write_raw(path, rows):
    with path.open("wb", buffering=0) as file:
        for i in range(SNAPSHOTS):
            file.write(rows[i % len(rows)])
        os.fsync(file.fileno())


def _append(path, rows):
    table = ParameterTable(("theta",), ((SIZE,),), {})
    with RunWriter.create(path, None, table) as writer:
        for i in range(SNAPSHOTS):
            writer.append(i, rows[i % len(rows)])
            if writer.due():
                writer.commit()


def _seconds(act, path, rows):
    os.sync()
    begin = time.perf_counter()
    act(path, rows)
    took = time.perf_counter() - begin
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    return took
