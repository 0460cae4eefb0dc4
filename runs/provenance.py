"""Where a run came from: library versions, threads, device and source revision."""

from __future__ import annotations

import platform
import subprocess
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

# A resumed run is bit for bit the undisturbed one only while these stay the same.
EXACTNESS = ("torch", "threads", "device", "machine")


def provenance(device: str) -> dict[str, Any]:
    """Versions, thread count, device, machine type and git revision, as plain values."""
    packages = {name: _version(name) for name in ("grokscope", "torch", "numpy", "h5py")}
    return packages | {
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
        "device": f"{device} {torch.cuda.get_device_name(device)}" if device.startswith("cuda") else device,
        "machine": platform.machine(),
        "git_revision": git_revision(),
    }


def drift(stored: Mapping[str, Any], current: Mapping[str, Any]) -> list[str]:
    """What differs between two provenances that could change the bits of a trajectory, in words."""
    return [
        f"{key} was {stored.get(key)}, is {current[key]}"
        for key in EXACTNESS
        if stored.get(key) != current[key]
    ]


def git_revision() -> str:
    """The commit of the checkout that this package runs from, with `+changes`; empty if it is none."""
    here = Path(__file__).resolve().parent.parent
    if not (here / ".git").exists():
        return ""
    revision = _git(here, "rev-parse", "HEAD")
    return revision + ("+changes" if revision and _git(here, "status", "--porcelain") else "")


def _git(folder: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""
