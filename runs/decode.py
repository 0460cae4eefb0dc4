"""run.h5 read back: every entry checked before it is used, sizes before anything is allocated."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from ..geometry.parameters import ParameterTable
from .durable import read_file
from .index import (
    FORMAT,
    FORMAT_VERSION,
    INDEX_NAME,
    PIECE,
    STATE,
    USER_BLOCK,
    Index,
    Series,
    StateFile,
    user_block,
)
from .segments import FOLDER, SEGMENT_NAME, DamageError, Piece, Rows

MAX_INDEX = 2**31  # bytes; steps, hashes and metrics of some ten million snapshots
_STATE_NAME = re.compile(r"(resume|state)-\d+(\.\d+)?\.pt", re.ASCII)


def load_index(folder: Path) -> Index:
    """The index of the run in a folder, as of its last commit.

    Raises:
        ValueError: no run there, or `decode` refuses its run.h5.
    """
    file = folder / INDEX_NAME
    if (folder / FOLDER).is_symlink():
        raise ValueError(f"{folder / FOLDER} is a link out of the run; move the whole run, or link to it")
    try:
        data = read_file(file, MAX_INDEX)
    except FileNotFoundError:
        raise ValueError(f"{folder} holds no run (there is no {INDEX_NAME} in it)") from None
    except NotADirectoryError:
        raise ValueError(
            f"{folder} is a file; give a run's folder (a packed run is for other programs)"
        ) from None
    return decode(data, str(file))


def load_state(folder: Path, state: StateFile) -> bytes:
    """The bytes of a state file.

    Raises:
        DamageError: it is missing, or its SHA-256 is not the one in run.h5.
    """
    try:
        data = read_file(folder / state.file)
    except OSError as error:
        raise DamageError(folder, state.file, "missing", str(error.strerror)) from error
    if hashlib.sha256(data).hexdigest() != state.hash:
        raise DamageError(folder, state.file, "altered", f"its SHA-256 is not the one in {INDEX_NAME}")
    return data


def decode(data: bytes, where: str) -> Index:
    """The index in the bytes of run.h5; HDF5 sees them only when their SHA-256 is right.

    Raises:
        ValueError: damaged, of another kind, of a newer format version, or pointing outside the run.
    """
    body = data[USER_BLOCK:]
    if not data.startswith(FORMAT.encode()):
        raise ValueError(f"{where} is no run of grokscope (its first bytes are not 'grokscope run')")
    if data[:USER_BLOCK] != user_block(body):
        raise ValueError(f"{where} is damaged: its bytes do not have the SHA-256 written in its first block")
    try:
        with h5py.File(h5py.h5f.open_file_image(data)) as file:
            return _decoded(file)
    except Exception as error:  # a forged file can make HDF5, h5py and json raise anything
        raise ValueError(f"{where} can't be used: {error}") from error


def _decoded(file: h5py.File) -> Index:
    version = file.attrs.get("format_version")
    if version not in range(1, FORMAT_VERSION + 1):
        raise ValueError(
            f"it has format version {version}; this grokscope reads up to {FORMAT_VERSION}, so upgrade it"
        )
    table, dtype = _decoded_table(_text(file, "parameters") or ""), str(file.attrs["dtype"])
    if dtype not in ("float32", "float64"):
        raise ValueError(f"its dtype {dtype!r} is neither float32 nor float64")
    states = [
        StateFile(name.decode(), int(step), digest.decode())
        for name, step, digest in _array(file, "states", STATE)
    ]
    for state in states:
        _require(_STATE_NAME.fullmatch(state.file), f"the state file {state.file!r} lies outside the run")
    config, provenance = _text(file, "config"), json.loads(_text(file, "provenance") or "[]")
    _require(isinstance(json.loads(config or "{}"), dict), "its configuration is no JSON object")
    _require(all(isinstance(session, dict) for session in provenance), "its provenance is no list of objects")
    return Index(
        config=config,
        table=table,
        dtype=dtype,
        theta=_decoded_rows(file, "", table.size, dtype),
        second_moment=_decoded_rows(file, "second_moment_", table.size, dtype),
        metrics=_decoded_metrics(file),
        resume=next((s for s in states if s.file.startswith("resume")), None),
        states=tuple(s for s in states if s.file.startswith("state")),
        finish_reason=_text(file, "finish_reason"),
        provenance=tuple(provenance),
    )


def _decoded_table(text: str) -> ParameterTable:
    table = json.loads(text)
    names, aliases = tuple(table["names"]), dict(table["aliases"])
    shapes = tuple(tuple(int(n) for n in shape) for shape in table["shapes"])
    _require(all(isinstance(name, str) for name in (*names, *aliases)), "a parameter's name is no text")
    _require(set(aliases.values()) <= set(names), "an alias stands for a parameter that is not there")
    _require(all(n >= 0 for shape in shapes for n in shape), "a parameter has a negative length")
    return ParameterTable(names, shapes, aliases)


def _decoded_rows(file: h5py.File, prefix: str, size: int, dtype: str) -> Rows:
    steps = _array(file, f"{prefix}step", np.dtype("<i8"))
    hashes = tuple(digest.decode() for digest in _array(file, f"{prefix}hash", np.dtype("S64")))
    table = _array(file, f"{prefix}segments", PIECE)
    pieces = tuple(Piece(f.decode(), o, n, r, i, h.decode()) for f, o, n, r, i, h in table.tolist())
    first, row_bytes = 0, size * np.dtype(dtype).itemsize
    for piece in pieces:
        _require(SEGMENT_NAME.fullmatch(piece.file), f"the segment {piece.file!r} lies outside the run")
        fits = piece.first_row == first and piece.rows > 0 and piece.length == piece.rows * row_bytes
        _require(fits and piece.offset >= 0, f"the entry of {piece.file} contradicts itself")
        first += piece.rows
    _require(first == len(steps) == len(hashes), "steps, hashes and segments have different lengths")
    _require(bool(np.all(np.diff(steps) > 0)), "the steps do not rise")
    if pieces:
        _check_virtual(file, prefix.rstrip("_") or "theta", (first, size), pieces)
    return Rows(steps, hashes, pieces)


def _check_virtual(file: h5py.File, name: str, shape: tuple[int, int], pieces: Sequence[Piece]) -> None:
    """What foreign readers are shown must be what the segment table lists."""
    data = _dataset(file, name)
    _require(data.is_virtual and data.shape == shape, f"`{name}` is not a virtual dataset of shape {shape}")
    sources = [(source.file_name, source.dset_name) for source in data.virtual_sources()]
    _require(sorted(sources) == sorted((p.file, name) for p in pieces), f"`{name}` points outside the run")


def _decoded_metrics(file: h5py.File) -> dict[str, Series]:
    if "metrics" not in file:
        return {}
    found = {}
    for name in file["metrics"]:
        step = _array(file, f"metrics/{name}/step", np.dtype("<i8"))
        value = _array(file, f"metrics/{name}/value", np.dtype("<i8"), np.dtype("<f8"))
        _require(len(step) == len(value), f"metric {name} has different numbers of steps and values")
        found[name] = Series(step, value)
    return found


def _dataset(file: h5py.File, name: str) -> h5py.Dataset:
    """A dataset that lies in this very file: no link on the way leads out of it."""
    group = file
    for part in name.split("/"):
        link = group.get(part, getlink=True)
        _require(isinstance(link, h5py.HardLink), f"`{name}` is missing or a link")
        group = group[part]
    _require(isinstance(group, h5py.Dataset), f"`{name}` is no dataset")
    return group


def _array(file: h5py.File, name: str, *dtypes: np.dtype[Any]) -> NDArray[Any]:
    """The whole of a one-dimensional dataset, its size on disk checked before anything is allocated."""
    data = _dataset(file, name)
    _require(
        data.dtype in dtypes and data.ndim == 1, f"`{name}` has type {data.dtype} and shape {data.shape}"
    )
    _require_stored(data, name)
    return np.asarray(data[()])


def _text(file: h5py.File, name: str) -> str | None:
    if name not in file:
        return None
    data = _dataset(file, name)
    kind = h5py.check_string_dtype(data.dtype)
    _require(
        kind is not None and kind.length is not None and data.shape == (),
        f"`{name}` is no text of fixed length",
    )
    _require_stored(data, name)
    return bytes(data[()]).decode()


def _require_stored(data: h5py.Dataset, name: str) -> None:
    size = prod(data.shape) * data.dtype.itemsize
    plain = data.chunks is None and not data.is_virtual and data.external is None
    _require(plain and data.id.get_storage_size() == size, f"`{name}` does not hold what its shape says")


def _require(condition: object, complaint: str) -> None:
    if not condition:
        raise ValueError(complaint)
