"""One checkpoint, whatever wrote it: named tensors, the numbers beside them, and a log."""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from .safe_load import load

Numbers = dict[str, int | float]

FILES = (".pt", ".pth", ".ckpt", ".bin", ".safetensors")
# What a folder that is one checkpoint holds, the first that is there.
_INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
_MODELS = ("model.safetensors", "pytorch_model.bin", "model.pt", "model.pth", "checkpoint.pt", "model.ckpt")
_NO_MODEL = re.compile(
    r"(optim|opt_|sched|lr_sched|rng|random_state|training_args|scaler|grad_scaler|amp)", re.IGNORECASE
)
# Where programs put the parameters in a checkpoint, the most explicit names first.
_KEYS = ("model_state_dict", "state_dict", "model", "model_state", "params", "parameters", "weights", "net",
         "network", "module")  # fmt: skip
_METRICS = ("metrics", "stats", "log", "logs", "scores", "losses")
_MAX_JSON = 2**28


class Part(NamedTuple):
    """A tensor that is not read yet."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    load: Callable[[], Tensor]
    place: tuple[int, ...] = ()  # equal for tensors that share their memory


@dataclass(frozen=True)
class Checkpoint:
    """`name` below the folder; tensors by name, numbers saved beside them, and a trainer's log of entries."""

    name: str
    parts: Mapping[str, Part]
    numbers: Numbers
    log: tuple[Mapping[str, Any], ...] = ()
    left_out: tuple[str, ...] = field(default=())  # other sets of tensors in the same file


def find(directory: Path) -> list[Path]:
    """The checkpoints directly below a folder: files, and folders that are one checkpoint each.

    Raises:
        ValueError: there is no such folder.
    """
    if not directory.is_dir():
        raise ValueError(f"directory={str(directory)!r} is no folder; give one that holds checkpoints")
    if _model_file(directory, _INDEXES):
        return [directory]  # its files are shards
    return [path for path in sorted(directory.iterdir()) if _is_checkpoint(path)]


def read(path: Path, name: str, *, key: str | None = None) -> Checkpoint:
    """The checkpoint at `path`, its tensors not read yet where the format allows.

    `key` names the entry that holds the parameters, dotted where nested; by default it is looked for.

    Raises:
        ValueError: refused, damaged, or no or several sets of parameters in it.
    """
    if not path.is_dir():
        return _file(path, name, key)
    index = _model_file(path, _INDEXES)
    model = _model_file(path, _MODELS)
    state = path / "trainer_state.json"
    found = _sharded(index, name, key) if index else _file(model or _only_file(path), name, key)
    if not state.exists():
        return found
    trainer = _json(state, f"{name}/{state.name}")
    numbers = {k: trainer[k] for k in ("global_step", "epoch") if isinstance(trainer.get(k), int | float)}
    log = tuple(entry for entry in trainer.get("log_history") or () if isinstance(entry, Mapping))
    return Checkpoint(name, found.parts, {**found.numbers, **numbers}, log, found.left_out)


def fetch(path: Path) -> None:
    """Ask the system to read a checkpoint's files into memory: mapped pages come one by one otherwise."""
    if not hasattr(os, "posix_fadvise"):
        return
    for file in _files(path) if path.is_dir() else [path]:
        with suppress(OSError):
            descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            try:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_WILLNEED)
            finally:
                os.close(descriptor)


def _is_checkpoint(path: Path) -> bool:
    if path.is_dir():
        return bool(_model_file(path, (*_INDEXES, *_MODELS)) or len(_files(path)) == 1)
    return path.suffix in FILES and not _NO_MODEL.match(path.name)


def _model_file(folder: Path, names: tuple[str, ...]) -> Path | None:
    return next((folder / name for name in names if (folder / name).exists()), None)


def _files(folder: Path) -> list[Path]:
    return [p for p in sorted(folder.iterdir()) if p.suffix in FILES and not _NO_MODEL.match(p.name)]


def _only_file(folder: Path) -> Path:
    return _files(folder)[0]


def _file(path: Path, name: str, key: str | None) -> Checkpoint:
    _require_plain(path, name)
    if path.suffix == ".safetensors":
        return _safetensors(path, name)
    return _nested(load(path, name), name, key, size=path.stat().st_size)


def _safetensors(path: Path, name: str) -> Checkpoint:
    """Tensors of a safetensors file, and the numbers in its metadata."""
    try:
        with safe_open(path, framework="pt") as file:
            parts = {}
            for key in file.keys():  # noqa: SIM118  (it is no mapping)
                part = file.get_slice(key)
                dtype = _SAFE_DTYPES.get(part.get_dtype(), torch.complex64)
                parts[key] = Part(tuple(part.get_shape()), dtype, partial(_from_safetensors, path, key))
            metadata = file.metadata() or {}
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{name} can't be read as safetensors: {error}") from error
    return Checkpoint(name, parts, dict(_parsed(metadata)))


def _from_safetensors(path: Path, key: str) -> Tensor:
    with safe_open(path, framework="pt") as file:
        tensor: Tensor = file.get_tensor(key)
        return tensor


_SAFE_DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8,
    "U16": torch.int32, "U32": torch.int64, "U64": torch.int64, "BOOL": torch.bool,
}  # fmt: skip


def _sharded(index: Path, name: str, key: str | None) -> Checkpoint:
    """All shards that an index file lists, which lie beside it.

    Raises:
        ValueError: a shard is missing, lies elsewhere, or lacks a tensor that the index promises.
    """
    places = _json(index, f"{name}/{index.name}").get("weight_map")
    if not isinstance(places, Mapping) or not places:
        raise ValueError(f"{name}/{index.name} has no weight_map")
    files = {str(file) for file in places.values()}
    for file in sorted(files):
        if Path(file).name != file or not (index.parent / file).exists():
            raise ValueError(f"{name}: the shard {file!r} that {index.name} lists is missing")
    shards = {file: _file(index.parent / file, f"{name}/{file}", key).parts for file in sorted(files)}
    parts = {}
    for tensor, file in places.items():
        if tensor not in shards[file]:
            raise ValueError(f"{name}: the shard {file!r} has no {tensor!r}, which {index.name} lists there")
        parts[tensor] = shards[file][tensor]
    return Checkpoint(name, parts, {})


def _nested(content: Any, name: str, key: str | None, *, size: int) -> Checkpoint:
    """Parameters and numbers in what torch.save wrote, at most `size` bytes of them."""
    if not isinstance(content, Mapping):
        kind = type(content).__name__
        raise ValueError(f"{name} holds a {kind}, not tensors by name; save a model's state_dict()")
    sets = dict(_tensor_sets(content))
    chosen = _chosen(sets, name, key)
    tensors = {str(k): v for k, v in sets[chosen].items() if isinstance(v, Tensor)}
    if any(tensor.layout != torch.strided or tensor.is_quantized for tensor in tensors.values()):
        raise ValueError(f"{name} holds sparse or quantized tensors; save plain ones")
    if sum({_place(tensor): tensor.nbytes for tensor in tensors.values()}.values()) > size:
        raise ValueError(f"{name} promises tensors of more bytes than it has ({size:,})")
    parts = {k: Part(tuple(v.shape), v.dtype, partial(_itself, v), _place(v)) for k, v in tensors.items()}
    others = tuple(sorted(other or "(top level)" for other in sets if other != chosen))
    return Checkpoint(name, parts, dict(_numbers(content, tensors)), left_out=others)


def _itself(tensor: Tensor) -> Tensor:
    return tensor


def _place(tensor: Tensor) -> tuple[int, ...]:
    return (tensor.data_ptr(), *tensor.shape, *tensor.stride())


def _tensor_sets(content: Mapping[Any, Any], path: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """(dotted path, mapping) of everything that looks like a state dict; the path of the top level is ''."""
    tensors = [v for v in content.values() if isinstance(v, Tensor) and v.ndim]
    if tensors and (depth == 0 or 2 * len(tensors) >= len(content)):
        yield path, content
    for key, value in content.items():
        inner = isinstance(value, Mapping) and isinstance(key, str) and not _NO_MODEL.match(key)
        if inner and depth < 3:
            yield from _tensor_sets(value, f"{path}.{key}".lstrip("."), depth + 1)


def _chosen(sets: Mapping[str, Any], name: str, key: str | None) -> str:
    """The path of the parameters among several sets of tensors.

    Raises:
        ValueError: none, or no way to choose.
    """
    if key is not None:
        if key not in sets:
            there = ", ".join(repr(path) for path in sets) or "none"
            raise ValueError(f"key={key!r} holds no tensors in {name}; there are: {there}")
        return key
    nested = [path for path in sets if path] or list(sets)
    known = [path for k in _KEYS for path in nested if path.split(".")[-1] == k]
    if not nested:
        raise ValueError(f"{name} holds no tensors by name")
    if not known and len(nested) > 1:
        raise ValueError(f"{name} holds several sets of tensors; choose with key=: {', '.join(nested)}")
    return (known or nested)[0]


def _numbers(content: Mapping[Any, Any], tensors: Mapping[str, Tensor]) -> Iterator[tuple[str, int | float]]:
    """Numbers at the top level and in its `metrics`, not those among the parameters."""
    for key, value in content.items():
        if isinstance(value, Mapping) and key in _METRICS:
            yield from _numbers(value, {})
        elif isinstance(key, str) and key not in tensors:
            number = value.item() if isinstance(value, Tensor) and value.numel() == 1 else value
            if isinstance(number, int | float) and not isinstance(number, bool):
                yield key.replace("/", "."), number


def _parsed(metadata: Mapping[str, str]) -> Iterator[tuple[str, int | float]]:
    for key, text in metadata.items():
        if re.fullmatch(r"[+-]?\d{1,18}", text):
            yield key.replace("/", "."), int(text)
        elif re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", text):
            yield key.replace("/", "."), float(text)


def _json(path: Path, name: str) -> dict[str, Any]:
    _require_plain(path, name)
    if path.stat().st_size > _MAX_JSON:
        raise ValueError(f"{name} is larger than {_MAX_JSON:,} bytes")
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{name} is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise ValueError(f"{name} holds no JSON object")
    return found


def _require_plain(path: Path, name: str) -> None:
    """Neither a pipe, which would block, nor missing; links are followed, as download caches use them."""
    if not path.exists() or not stat.S_ISREG(path.stat().st_mode):
        raise ValueError(f"{name} is no plain file")
