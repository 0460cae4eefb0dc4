"""RunConfig: everything that decides what a run computes. Imports no torch."""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
import types
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from math import isfinite
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from .intervention_config import intervention_of

Scalar = bool | int | float | str

TASKS = (
    "add", "sub", "mul", "div", "x2_y2", "x2_xy_y2", "x3_xy",
    "multiple", "sampled_pairs", "parity", "s5", "random_labels",
)  # fmt: skip
MODELS = ("transformer", "embedding_mlp", "onehot_mlp", "two_layer")
OPTIMIZERS = ("adamw", "adam", "sgd")
LOSSES = ("cross_entropy", "mse", "stablemax")


@dataclass(frozen=True)
class RunConfig:
    """The configuration of a run; the default is one-layer addition modulo 97, which groks.

    `task` and `model` are a name, or `module:function` of your own. Epoch-free: all times are optimizer
    steps. Two runs with equal configurations have equal parameters, bit for bit, on the same machine
    type, library versions and thread count.
    """

    task: str = "add"
    task_options: dict[str, Scalar] = field(default_factory=dict)
    modulus: int = 97
    train_fraction: float = 0.5
    label_noise: float = 0.0  # fraction of training labels replaced by another class
    model: str = "transformer"
    model_options: dict[str, Scalar] = field(default_factory=dict)
    layers: int = 1
    width: int = 128
    heads: int = 4
    feedforward: int = 512
    optimizer: str = "adamw"
    lr: float = 1e-3
    weight_decay: float = 1.0
    group_lr: dict[str, float] = field(default_factory=dict)  # factor on lr per parameter group
    group_weight_decay: dict[str, float] = field(default_factory=dict)  # weight decay per parameter group
    adaptive_embedding_lr: int = 0  # renew the embedding's lr factor every so many steps; 0: never
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    momentum: float = 0.0  # sgd only
    clip: float | None = None  # bound on the gradient norm
    batch_size: int | Literal["full"] = 512
    replacement: bool = True
    loss: str = "cross_entropy"
    init_scale: float = 1.0
    embedding_init_scale: float = 1.0
    steps: int = 20_000
    stop_after_generalization: int | None = 1_000
    stop_if_predicted_after: int | None = None  # stop at memorization if generalization is predicted later
    seed: int = 0
    init_seed: int | None = None  # these three follow `seed` unless given
    split_seed: int | None = None
    batch_seed: int | None = None
    log_every: int = 10  # norms, gradient and update norms
    evaluate_every: int = 50  # full evaluation on both splits
    snapshot_every: int = 20
    second_moment_every: int = 100  # 0: never
    state_at: tuple[int | Literal["memorized"], ...] = ()
    dtype: Literal["float32", "float64"] = "float32"
    device: str = "cpu"
    intervention: dict[str, Scalar] = field(default_factory=dict)  # see intervention_config

    def __post_init__(self) -> None:
        for name in ("init_seed", "split_seed", "batch_seed"):
            if getattr(self, name) is None:
                object.__setattr__(self, name, self.seed)
        for name, valid, rule in _RULES:
            value = getattr(self, name)
            if not valid(value):
                raise ValueError(f"{name}={value!r} must be {rule}")
        if self.width % self.heads:
            raise ValueError(f"width={self.width} must be a multiple of heads={self.heads}")
        intervention_of(self)

    def digest(self) -> str:
        """SHA-256 of the canonical JSON text; equal configurations have equal digests."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    def to_json(self) -> str:
        """Canonical JSON text: sorted keys, no spaces."""
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> RunConfig:
        """The configuration that `to_json` wrote.

        Raises:
            ValueError: not JSON, an unknown field, or a value of the wrong type or out of bounds.
        """
        return from_mapping(json.loads(text), source="config")

    def to_toml(self) -> str:
        """The configuration as a TOML file that `from_toml` reads; fields without a value are left out."""
        flat = {k: v for k, v in asdict(self).items() if v is not None and not isinstance(v, dict)}
        tables = {k: v for k, v in asdict(self).items() if isinstance(v, dict) and v}
        lines = [f"{name} = {_toml_value(value)}" for name, value in flat.items()]
        for name, table in tables.items():
            lines += ["", f"[{name}]", *(f"{json.dumps(k)} = {_toml_value(v)}" for k, v in table.items())]
        return "\n".join(lines) + "\n"

    def differences(self, other: RunConfig) -> tuple[str, ...]:
        """Names of the fields in which two configurations differ."""
        return tuple(f.name for f in fields(self) if getattr(self, f.name) != getattr(other, f.name))


def from_toml(path: Path) -> RunConfig:
    """The configuration in a TOML file, its types checked like flags.

    Raises:
        ValueError: the file is missing or no TOML, a field is unknown, or a value has the wrong type.
    """
    try:
        table = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(
            f"config={str(path)!r} can't be read: {error.strerror}; give the path of a TOML file"
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"config={str(path)!r} is not valid TOML: {error}") from None
    return from_mapping(table, source=str(path))


def from_mapping(table: Mapping[str, Any], *, source: str, base: RunConfig | None = None) -> RunConfig:
    """A configuration from plain values, over `base` (the defaults if none); every type is checked.

    A change of `seed` renews the three derived seeds unless the table or the base sets them apart.

    Raises:
        ValueError: an unknown field, or a value of the wrong type or out of bounds, naming `source`.
    """
    if not isinstance(table, Mapping):
        raise ValueError(f"{source}: a table of fields is needed, not {type(table).__name__}")
    base = base or RunConfig()
    hints = get_type_hints(RunConfig)
    unknown = sorted(set(table) - set(hints))
    if unknown:
        raise ValueError(f"{source}: unknown field {unknown[0]!r}; the fields are {', '.join(hints)}")
    values = {name: _checked(value, hints[name], f"{source}: {name}") for name, value in table.items()}
    if "seed" in values:
        following = {
            n: None for n in ("init_seed", "split_seed", "batch_seed") if getattr(base, n) == base.seed
        }
        values = following | values
    return replace(base, **values)


def parse_assignment(text: str) -> tuple[str, Any]:
    """('lr', 0.01) from 'lr=0.01': a field and its value in TOML's spelling, bare words taken as text.

    Raises:
        ValueError: there is no '=' in the text.
    """
    name, equals, value = text.partition("=")
    if not equals:
        raise ValueError(f"{text!r} has no '='; write name=value")
    try:
        return name.strip(), tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return name.strip(), value.strip()


def _checked(value: Any, hint: Any, where: str) -> Any:
    """The value as the annotated type, lists as tuples and whole numbers as floats where asked for."""
    for kind in get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,):
        try:
            return _as(value, kind, where)
        except TypeError:
            continue
    raise ValueError(f"{where}={value!r} has the wrong type; it must be {_spelled(hint)}")


def _as(value: Any, kind: Any, where: str) -> Any:
    if kind is type(None) and value is None:
        return None
    if get_origin(kind) is Literal and isinstance(value, str) and value in get_args(kind):
        return value
    if get_origin(kind) is tuple:
        return _as_tuple(value, get_args(kind), where)
    if get_origin(kind) is dict and isinstance(value, Mapping):
        return {str(key): _checked(item, get_args(kind)[1], f"{where}.{key}") for key, item in value.items()}
    if kind is float and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if kind in (int, bool, str) and type(value) is kind:
        return value
    raise TypeError(where)


def _as_tuple(value: Any, kinds: tuple[Any, ...], where: str) -> tuple[Any, ...]:
    items = list(value) if isinstance(value, list | tuple) else [value]
    kinds = kinds[:1] * len(items) if kinds[-1] is Ellipsis else kinds
    if len(kinds) != len(items):
        raise ValueError(f"{where}={value!r} must have {len(kinds)} entries")
    return tuple(_checked(item, kind, where) for item, kind in zip(items, kinds, strict=True))


def _spelled(hint: Any) -> str:
    return (
        hint.__name__
        if isinstance(hint, type)
        else str(hint).replace("typing.", "").replace("NoneType", "None")
    )


def _toml_value(value: Any) -> str:
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_toml_value, value)) + "]"
    return json.dumps(value)


def _known(names: tuple[str, ...]) -> tuple[Any, str]:
    return (lambda v: v in names or ":" in v), f"one of {', '.join(names)}, or module:function"


def _whole(minimum: int) -> tuple[Any, str]:
    return (lambda v: v >= minimum), f"at least {minimum}"


_POSITIVE = (lambda v: isfinite(v) and v > 0), "positive and finite"
_NOT_NEGATIVE = (lambda v: isfinite(v) and v >= 0), "at least 0 and finite"
_FRACTION = (lambda v: 0 <= v < 1), "in [0, 1)"
_SEED = (lambda v: 0 <= v < 2**63), "in [0, 2**63)"

_DEVICE = re.compile(r"(cpu|cuda|mps|xpu)(:\d{1,3})?", re.ASCII)

_RULES = (
    ("task", *_known(TASKS)),
    ("modulus", *_whole(2)),
    ("train_fraction", lambda v: 0 < v < 1, "strictly between 0 and 1"),
    ("label_noise", *_FRACTION),
    ("model", *_known(MODELS)),
    ("layers", *_whole(1)),
    ("width", *_whole(1)),
    ("heads", *_whole(1)),
    ("feedforward", *_whole(1)),
    ("optimizer", lambda v: v in OPTIMIZERS, f"one of {', '.join(OPTIMIZERS)}"),
    ("lr", *_POSITIVE),
    ("weight_decay", *_NOT_NEGATIVE),
    ("group_lr", lambda v: all(isfinite(x) and x >= 0 for x in v.values()), "factors at least 0"),
    ("group_weight_decay", lambda v: all(isfinite(x) and x >= 0 for x in v.values()), "values at least 0"),
    ("adaptive_embedding_lr", *_whole(0)),
    ("betas", lambda v: all(0 <= b < 1 for b in v), "two numbers in [0, 1)"),
    ("eps", *_POSITIVE),
    ("momentum", *_FRACTION),
    ("clip", lambda v: v is None or (isfinite(v) and v > 0), "positive, or absent for no clipping"),
    ("batch_size", lambda v: v == "full" or v >= 1, "at least 1, or 'full'"),
    ("loss", lambda v: v in LOSSES, f"one of {', '.join(LOSSES)}"),
    ("init_scale", *_POSITIVE),
    ("embedding_init_scale", *_POSITIVE),
    ("steps", *_whole(1)),
    ("stop_if_predicted_after", lambda v: v is None or v >= 0, "a step at least 0, or absent to go on"),
    ("stop_after_generalization", lambda v: v is None or v >= 0, "at least 0, or absent to use all steps"),
    ("seed", *_SEED),
    ("init_seed", *_SEED),
    ("split_seed", *_SEED),
    ("batch_seed", *_SEED),
    ("log_every", *_whole(1)),
    ("evaluate_every", *_whole(1)),
    ("snapshot_every", *_whole(1)),
    ("second_moment_every", *_whole(0)),
    ("state_at", lambda v: all(s == "memorized" or s >= 0 for s in v), "steps at least 0, or 'memorized'"),
    ("dtype", lambda v: v in ("float32", "float64"), "float32 or float64"),
    ("device", lambda v: bool(_DEVICE.fullmatch(v)), "cpu, cuda, mps or xpu, with a number as in cuda:1"),
)
