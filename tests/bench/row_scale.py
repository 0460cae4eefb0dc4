"""Import and exact PCA of large checkpoints against reading their bytes once, and the memory it takes."""

import hashlib
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

COUNT = int(os.environ.get("BENCH_CHECKPOINTS", "30"))
ROWS, COLUMNS, MATRICES = 1000, 1000, 50  # 50 million parameters
MEMORY = 2 * 2**30


def row_scale():
    """Seconds of `import` and `trajectory_along` over those of one reading; median of the readings."""
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR", "/tmp")) as folder:
        folder = Path(folder)
        files = _checkpoints(folder / "in")
        readings = [_read(files) for _ in range(3)]
        _forget(files)
        found = json.loads(
            subprocess.run([sys.executable, __file__, folder], check=True, capture_output=True).stdout
        )
    seconds, size = statistics.median(readings), COUNT * MATRICES * ROWS * COLUMNS * 4
    detail = (
        f"{COUNT} checkpoints of {MATRICES * ROWS * COLUMNS:,} float32 (safetensors), page cache emptied; "
        f"reading {size / seconds / 2**20:.0f} MiB/s; import {found['import']:.1f} s (hashed and fsynced), "
        f"PCA {found['pca']:.1f} s, peak memory {found['memory'] / 2**30:.2f} GiB; all is read, hashed and "
        f"written once, then read and hashed once: SHA-256 alone takes 2 x {_hashing(size):.1f} s of one core"
    )
    ratio = (found["import"] + found["pca"]) / seconds
    time_row = {"row": "import_and_pca", "ratio": ratio, "goal": 3, "better": "lower", "detail": detail}
    memory = {"row": "import_and_pca_memory", "ratio": found["memory"] / MEMORY, "goal": 1, "better": "lower"}
    return [time_row, memory | {"detail": "peak resident memory over 2 GiB; " + detail}]


def _hashing(size):
    """Seconds of one core that SHA-256 of so many bytes takes."""
    data, begin = bytes(2**27), time.process_time()
    hashlib.sha256(data)
    return (time.process_time() - begin) * size / len(data)


def _checkpoints(folder):
    """A random walk of models, so that the principal components mean something."""
    folder.mkdir()
    generator = torch.Generator().manual_seed(0)
    matrices = [0.02 * torch.randn(ROWS, COLUMNS, generator=generator) for _ in range(MATRICES)]
    step = 0.001 * torch.randn(ROWS, COLUMNS, generator=generator)
    files = []
    for k in range(COUNT):
        for i, matrix in enumerate(matrices):
            matrix.add_(step.roll(37 * (k * MATRICES + i)))
        files.append(folder / f"step{1000 * k}.safetensors")
        save_file({f"layer{i}.weight": m for i, m in enumerate(matrices)}, files[-1])
    return files


def _forget(files):
    """Drop the files from the page cache, where the system lets us."""
    for file in files:
        descriptor = os.open(file, os.O_RDWR)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def _read(files):
    _forget(files)
    buffer, begin = bytearray(2**24), time.perf_counter()
    for file in files:
        with file.open("rb", buffering=0) as opened:
            while opened.readinto(buffer):
                pass
    return time.perf_counter() - begin


def _measure(folder):
    """In a process of its own: import, forget, analyze; the seconds of each and the peak memory."""
    from grokscope.analysis.trajectory import trajectory_along
    from grokscope.runs.checkpoints import import_checkpoints
    from grokscope.runs.store import Run

    begin = time.perf_counter()
    found = import_checkpoints(folder / "in", folder / "run")
    imported = time.perf_counter()
    assert found.checkpoints == COUNT
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(f"import: {memory / 2**20:.2f} GiB", file=sys.stderr)
    _forget((folder / "run" / "segments").iterdir())
    again = time.perf_counter()
    curve = trajectory_along(Run.open(folder / "run"), rank=min(5, COUNT - 1))
    assert np.isfinite(curve.explained_variance).all()
    memory = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"import": imported - begin, "pca": time.perf_counter() - again, "memory": memory}


if __name__ == "__main__":
    print(json.dumps(_measure(Path(sys.argv[1]))))
