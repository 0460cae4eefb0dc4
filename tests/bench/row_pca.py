"""Exact principal components of a run on disk against scikit-learn's PCA: time and memory.

Each contender opens the same run in a process of its own, reads it and finds ten components; peak memory
is above what importing took. Sizes can be made smaller for a quick look: python -m tests.bench.row_pca 200
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from statistics import median

import numpy as np

SNAPSHOTS, PARAMETERS, RANK, REPEATS = 1000, 290_401, 10, 3
CONTENDERS = {
    "ours": "principal_subspace(run.columns, rank).explained_variance",
    "full": "PCA(rank, svd_solver='full').fit(np.stack(list(run.rows()))).explained_variance_ratio_",
    "randomized": "PCA(rank, random_state=0).fit(np.stack(list(run.rows()))).explained_variance_ratio_",
}
SCRIPT = """
import json, resource, sys, time
import numpy as np
from sklearn.decomposition import PCA
from grokscope.geometry.subspace import principal_subspace
from grokscope.runs.store import Run
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
base, start, rank = peak(), time.perf_counter(), int(sys.argv[2])
run = Run.open(sys.argv[1])
found = {code}
print(json.dumps([time.perf_counter() - start, peak() - base, found.tolist()]))
"""


def row_pca_full():
    return _time_row("full", 15)


def row_pca_randomized():
    return _time_row("randomized", 2)


def row_pca_memory():
    peak = max(memory for _, memory, _ in _measured()["ours"])
    matrix = 4 * SNAPSHOTS * PARAMETERS
    return {
        "row": "pca_memory",
        "ratio": peak / matrix,
        "goal": 0.25,
        "better": "lower",
        "detail": f"peak {peak / 2**20:.0f} MiB above imports, matrix {matrix / 2**20:.0f} MiB; {_size()}",
    }


def _time_row(peer, goal):
    times = {name: median(time for time, _, _ in _measured()[name]) for name in ("ours", peer)}
    found = {name: np.array(_measured()[name][0][2]) for name in ("ours", peer)}
    seconds = f"{times['ours']:.1f} s, scikit-learn {peer} {times[peer]:.1f} s, reading included"
    apart = abs(found["ours"] - found[peer]).max()
    return {
        "row": f"pca_{peer}",
        "ratio": times[peer] / times["ours"],
        "goal": goal,
        "better": "higher",
        "detail": f"exact Gram {seconds}; explained variance differs by {apart:.1e}; {_size()}",
    }


def _size():
    return f"{SNAPSHOTS} snapshots x {PARAMETERS} parameters, {RANK} components, one thread"


@cache
def _measured():
    """(seconds, bytes, explained variance) of each contender, in turns; the slow one once."""
    folder = Path(tempfile.mkdtemp(prefix="bench-pca-"))
    try:
        _write(folder / "run")
        found = {name: [] for name in CONTENDERS}
        for repeat in range(REPEATS):
            for name in CONTENDERS:
                if name != "full" or repeat == 0:
                    found[name].append(_run(name, folder / "run"))
        return found
    finally:
        shutil.rmtree(folder)


def _run(name, path):
    words = [sys.executable, "-c", SCRIPT.format(code=CONTENDERS[name]), str(path), str(RANK)]
    # One thread each: idle threads that spin for work make timings of a shared machine meaningless.
    one = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    return json.loads(subprocess.run(words, capture_output=True, text=True, check=True, env=one).stdout)


def _write(path):
    """A decaying random walk, recorded by our writer."""
    from grokscope.geometry.parameters import ParameterTable
    from grokscope.runs.store import RunWriter

    rng = np.random.default_rng(0)
    theta = rng.standard_normal(PARAMETERS, dtype=np.float32)
    with RunWriter.create(path, None, ParameterTable(("w",), ((PARAMETERS,),), {})) as writer:
        for step in range(SNAPSHOTS):
            writer.append(step, theta)
            if writer.due():
                writer.commit()
            theta = np.float32(0.999) * theta
            theta += np.float32(0.01) * rng.standard_normal(PARAMETERS, dtype=np.float32)


if __name__ == "__main__":
    SNAPSHOTS = int(sys.argv[1]) if len(sys.argv) > 1 else SNAPSHOTS
    for row in (row_pca_full, row_pca_randomized, row_pca_memory):
        print(json.dumps(row()))
