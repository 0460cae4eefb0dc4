"""How the fields of a result lie in HDF5: arrays, numbers, texts, tuples of them, or None."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np


def encode(name: str, value: Any) -> tuple[str, Any, Any]:
    """(form, data, dtype) of one field for `create_dataset`.

    Raises:
        ValueError: the value is none of the kinds above.
    """
    text = h5py.string_dtype()
    if value is None:
        return "none", 0, None
    if isinstance(value, str):
        return "text", value, text
    if isinstance(value, bool | int | float | np.generic):
        return "number", value, None
    array = np.asarray(value) if isinstance(value, np.ndarray | tuple | list) else np.asarray(None)
    mixed = (
        array.dtype.kind == "U" and isinstance(value, tuple) and not all(isinstance(v, str) for v in value)
    )
    if array.dtype.kind not in "biufcU" or mixed:
        raise ValueError(
            f"{name}: {type(value).__name__} can't be stored; give arrays, numbers, texts or tuples"
        )
    form = "array" if isinstance(value, np.ndarray) else "tuple"
    is_text = array.dtype.kind == "U" or (form == "tuple" and len(value) == 0)
    return form, array.astype(object) if is_text else array, text if is_text else None


def decode(item: Any) -> Any:
    """The value that an HDF5 dataset made by `encode` holds."""
    form = item.attrs["form"]
    if form == "none":
        return None
    is_text = h5py.check_string_dtype(item.dtype) is not None
    value = item.asstr()[()] if is_text else item[()]
    if form == "array":
        return np.asarray(value).astype(str) if is_text else np.asarray(value)
    if form == "tuple":
        return tuple(value.tolist())
    return value if is_text else value.item()


def own_datasets(file: Any, group: str) -> Iterator[tuple[str, Any]]:
    """(name, dataset) of a group, if all of them lie in this very file; none if there is no such group.

    Raises:
        ValueError: one leads out of the file, or its shape promises more than it holds.
    """
    for name in file.get(group, {}):
        link, item = file[group].get(name, getlink=True), None
        if isinstance(link, h5py.HardLink):
            item = file[group][name]
        if not isinstance(item, h5py.Dataset) or item.is_virtual or item.external or item.chunks:
            raise ValueError(f"{group}/{name} is no plain dataset of this file")
        is_text = h5py.check_string_dtype(item.dtype) is not None
        if not is_text and item.id.get_storage_size() != item.size * item.dtype.itemsize:
            raise ValueError(f"{group}/{name} does not hold what its shape says")
        yield name, item


def plain(value: Any) -> Any:
    """A plain Python value for NumPy scalars, bytes and paths."""
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, np.generic):
        return value.item()
    return value.tolist() if isinstance(value, np.ndarray) and value.ndim == 0 else value
