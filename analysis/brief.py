"""How a result shows itself in a notebook: a line or two, whatever it holds."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np

_FIELDS = 8


def brief(result: Any) -> str:
    """The first fields of a dataclass, arrays by their ends and shape: for `__repr__` of results.

    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Curve:
    ...     steps: object
    ...     verdict: str
    ...     __repr__ = brief
    >>> Curve(np.arange(0, 300, 10), "ok")
    Curve(steps=[0 … 290] (30), verdict='ok')
    """
    names = [field.name for field in fields(result)]
    shown = [f"{name}={_value(getattr(result, name))}" for name in names[:_FIELDS]]
    rest = len(names) - _FIELDS
    return f"{type(result).__name__}({', '.join(shown)}{f', … {rest} more fields' if rest > 0 else ''})"


def _value(value: Any) -> str:
    if isinstance(value, np.ndarray):
        items, shape = value.ravel().tolist(), " × ".join(map(str, value.shape))
    elif isinstance(value, tuple | list):
        items, shape = list(value), str(len(value))
    else:
        return f"{value:.4g}" if isinstance(value, float) else repr(value)
    if len(items) <= 3:
        return f"[{', '.join(map(_value, items))}]"
    return f"[{_value(items[0])} … {_value(items[-1])}] ({shape})"
