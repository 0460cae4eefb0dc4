"""Files of torch.save as data: what could run code is refused, never run."""

from __future__ import annotations

import io
import pickle
import re
import warnings
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.serialization import safe_globals


def load(source: Path | bytes, where: str) -> Any:
    """What torch.save wrote, on the CPU; the tensors of a file are mapped, not read.

    Only tensors, containers, numbers and texts are built (`weights_only`). NumPy scalars become numbers.
    NumPy arrays, paths and argument namespaces become `LeftOut`.

    Raises:
        ValueError: it holds Python objects, which could run code; or it is damaged, or no such file.
    """
    try:
        _require_stored(source)
        with safe_globals(_STAND_INS), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch speaks of pickle protocols
            return _loaded(source)
    except pickle.UnpicklingError as error:
        raise ValueError(_refusal(where, str(error))) from None
    except Exception as error:  # whatever a damaged file drives the reader to
        reason = " ".join(str(error).split())[:200]
        raise ValueError(f"{where} can't be read as a file of torch.save: {reason}") from error


class LeftOut:
    """Stands for an object that is known to be harmless and of no use here; whatever made it is not run."""

    def __init__(self, *arguments: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        pass


class _Type:
    """What a pickle says of a NumPy dtype: its code, such as 'f8', and its byte order."""

    def __init__(self, code: str, *options: Any) -> None:
        self.code, self.order = str(code), "<"

    def __setstate__(self, state: Any) -> None:
        self.order = state[1]


def _scalar(kind: Any, data: Any = b"") -> Any:
    """A NumPy scalar as a number, if it is one of a plain kind."""
    if isinstance(kind, _Type) and re.fullmatch(r"[fiu][248]|[iub]1", kind.code) and isinstance(data, bytes):
        order = kind.order if kind.order in "<>" else "<"
        return np.frombuffer(data, np.dtype(order + kind.code), count=1)[0].item()
    return LeftOut()


# By the names that pickles of old and new versions use.
_STAND_INS: list[Any] = [
    *((_scalar, f"numpy.{core}.multiarray.scalar") for core in ("core", "_core")),
    (_Type, "numpy.dtype"),
    *((LeftOut, f"numpy.{core}.multiarray._reconstruct") for core in ("core", "_core")),
    (LeftOut, "numpy.ndarray"),
    (LeftOut, "argparse.Namespace"),
    (LeftOut, "types.SimpleNamespace"),
    *((LeftOut, f"pathlib.{kind}") for kind in ("PosixPath", "WindowsPath", "PurePosixPath")),
]


def _loaded(source: Path | bytes) -> Any:
    if isinstance(source, bytes):
        return torch.load(io.BytesIO(source), map_location="cpu", weights_only=True)
    mapped = zipfile.is_zipfile(source)  # older files have to be read
    return torch.load(source, map_location="cpu", weights_only=True, mmap=mapped)


def _require_stored(source: Path | bytes) -> None:
    """No entry of the archive is compressed or overlaps another, so that nothing can swell.

    Raises:
        ValueError: there is one.
    """
    size = len(source) if isinstance(source, bytes) else source.stat().st_size
    file: Any = io.BytesIO(source) if isinstance(source, bytes) else source
    if not zipfile.is_zipfile(file):
        return
    with zipfile.ZipFile(file) as archive:
        entries = archive.infolist()
    if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
        raise ValueError("its archive is compressed, as TorchScript's are and those of torch.save never")
    if sum(entry.file_size for entry in entries) > size:
        raise ValueError("its archive promises more bytes than there are")


def _refusal(where: str, message: str) -> str:
    found = re.search(r"GLOBAL (\S+)", message)
    if not found:
        return f"{where} is damaged, or holds more than tensors, numbers and texts; it is refused"
    return (
        f"{where} holds a Python object ({found[1]}), which could run code when loaded, so it is refused; if "
        "you trust it, load it yourself and save its tensors and numbers alone, as "
        "torch.save({'model': state_dict, 'step': step}, path)"
    )
