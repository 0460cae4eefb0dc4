"""run.h5: the index of a run, as one dataclass, and the bytes of it; `decode` is the way back."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any, NamedTuple

import h5py
import numpy as np
from h5py import h5d, h5p, h5s, h5t
from numpy.typing import NDArray

from ..geometry.parameters import ParameterTable
from .segments import LIBVER, NO_ROWS, Rows

FORMAT, FORMAT_VERSION = "grokscope run", 1
INDEX_NAME = "run.h5"
USER_BLOCK = 512
PIECE = np.dtype(
    [("file", "S24"), ("offset", "<i8"), ("length", "<i8"), ("rows", "<i8"), ("first_row", "<i8"),
     ("header_hash", "S64")]
)  # fmt: skip
STATE = np.dtype([("file", "S40"), ("step", "<i8"), ("hash", "S64")])


class Series(NamedTuple):
    """A metric: rising steps (N,) and values (N,), int64 for counts and float64 otherwise."""

    step: NDArray[np.int64]
    value: NDArray[Any]


class StateFile(NamedTuple):
    """A file with the full training state after `step` updates, and its SHA-256."""

    file: str
    step: int
    hash: str


@dataclass(frozen=True, kw_only=True)
class Index:
    """All that run.h5 says; what it does not list does not exist."""

    config: str | None  # canonical JSON of the RunConfig; None for a run of somebody else's loop
    table: ParameterTable
    dtype: str
    theta: Rows = NO_ROWS
    second_moment: Rows = NO_ROWS
    metrics: Mapping[str, Series] = field(default_factory=dict)
    resume: StateFile | None = None
    states: tuple[StateFile, ...] = ()
    finish_reason: str | None = None
    provenance: tuple[Mapping[str, Any], ...] = ()  # one entry per session that differs from the one before


def encode(index: Index) -> bytes:
    """The bytes of run.h5: user block, then HDF5 with a virtual `theta` (T, P) for foreign readers."""
    image = BytesIO()
    with h5py.File(image, "w", libver=LIBVER, userblock_size=USER_BLOCK) as file:
        write_facts(file, index, FORMAT)
        _write_virtual(file, index, "", index.theta)
        _write_virtual(file, index, "second_moment_", index.second_moment)
        states = [index.resume] * (index.resume is not None) + list(index.states)
        file["states"] = np.array(states, STATE)
    body = image.getvalue()[USER_BLOCK:]
    return user_block(body) + body


def write_facts(file: h5py.File, index: Index, kind: str) -> None:
    """Everything but rows and where they lie: what run.h5 and a packed run have in common."""
    file.attrs.update(format=kind, format_version=FORMAT_VERSION, dtype=index.dtype)
    file.attrs["hash"] = chain(index.theta.steps, index.theta.hashes)
    for name, text in _texts(index).items():
        data = text.encode()
        file.create_dataset(name, data=data, dtype=h5py.string_dtype("utf-8", len(data)))
    for prefix, rows in (("", index.theta), ("second_moment_", index.second_moment)):
        file[f"{prefix}step"] = np.asarray(rows.steps, np.int64)
        file[f"{prefix}hash"] = np.array(rows.hashes, "S64")
    for name, series in index.metrics.items():
        file[f"metrics/{name}/step"], file[f"metrics/{name}/value"] = series


def chain(steps: Sequence[int] | NDArray[np.int64], hashes: Sequence[str], start: str = "") -> str:
    """The run's hash: h_0 = SHA-256('grokscope run'), h_i = SHA-256(h_{i-1}, int64 step_i, SHA-256(theta_i)).

    It depends on steps and theta bytes alone, not on how they were cut into commits. `start` continues a
    chain from the hash of the rows before.
    """
    link = bytes.fromhex(start) if start else hashlib.sha256(FORMAT.encode()).digest()
    for step, row in zip(np.asarray(steps).tolist(), hashes, strict=True):
        link = hashlib.sha256(link + step.to_bytes(8, "little", signed=True) + bytes.fromhex(row)).digest()
    return link.hex()


def user_block(body: bytes) -> bytes:
    """The 512 bytes before the HDF5 part `body`: magic, and its SHA-256."""
    text = f"{FORMAT}\nsha256 {hashlib.sha256(body).hexdigest()}\n"
    return text.encode().ljust(USER_BLOCK, b"\0")


def _texts(index: Index) -> dict[str, str]:
    """The text datasets; not attributes, which HDF5 bounds at 64 kB."""
    table = {"names": index.table.names, "shapes": index.table.shapes, "aliases": dict(index.table.aliases)}
    texts = {"parameters": json.dumps(table), "provenance": json.dumps(index.provenance)}
    optional = {"config": index.config, "finish_reason": index.finish_reason}
    return texts | {name: text for name, text in optional.items() if text}


def _write_virtual(file: h5py.File, index: Index, prefix: str, rows: Rows) -> None:
    """Where the rows of a series lie, and a virtual dataset over them."""
    name, shape = prefix.rstrip("_") or "theta", (len(rows.hashes), index.table.size)
    file[f"{prefix}segments"] = np.array([tuple(piece) for piece in rows.pieces], PIECE)
    if not rows.pieces:
        return
    layout, space = h5p.create(h5p.DATASET_CREATE), h5s.create_simple(shape)
    for piece in rows.pieces:  # h5py.VirtualLayout does the same six times slower
        extent = (piece.rows, index.table.size)
        space.select_hyperslab((piece.first_row, 0), extent)
        layout.set_virtual(space, piece.file.encode(), name.encode(), h5s.create_simple(extent))
    h5d.create(file.id, name.encode(), h5t.py_create(np.dtype(index.dtype)), h5s.create_simple(shape), layout)
