"""What commands print: one table, or one JSON object."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np


def print_json(result: Any, *, without: Sequence[str] = (), **more: Any) -> None:
    """Print one JSON object: the fields of a result (dataclass or mapping) and `more`, less `without`.

    Arrays become lists. JSON has neither NaN nor infinity: both become null.
    """
    named = (
        result if isinstance(result, Mapping) else {f.name: getattr(result, f.name) for f in fields(result)}
    )
    print(
        json.dumps(
            {k: jsonable(v) for k, v in {**named, **more}.items() if k not in without}, allow_nan=False
        )
    )


def jsonable(value: Any) -> Any:
    """The value in terms of JSON; NaN and infinities as None."""
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {str(name): jsonable(item) for name, item in value.items()}
    if hasattr(value, "_asdict"):
        return jsonable(value._asdict())
    if isinstance(value, list | tuple | set):
        return [jsonable(item) for item in value]
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: jsonable(getattr(value, field.name)) for field in fields(value)}
    return str(value) if isinstance(value, Path) else value


def print_table(columns: Mapping[str, Sequence[Any]], *, title: str = "") -> None:
    """Print columns of equal length by name: framed on a terminal, plainly aligned text elsewhere."""
    texts = {name: [cell(value) for value in values] for name, values in columns.items()}
    if sys.stdout.isatty():
        _framed(texts, title)
        return
    widths = {name: max(len(name), *map(len, values), 0) for name, values in texts.items()}
    lines = [[name.rjust(widths[name]) for name in texts]]
    lines += [
        [value.rjust(widths[name]) for name, value in zip(texts, row, strict=True)]
        for row in zip(*texts.values(), strict=True)
    ]
    print("\n".join(([title] if title else []) + ["  ".join(line).rstrip() for line in lines]))


def cell(value: Any) -> str:
    """One value as text: four significant digits, yes/no, and a dash for what is not there."""
    if value is None:
        return "-"
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    if isinstance(value, float | np.floating):
        return f"{float(value):.4g}"
    return str(value)


def _framed(texts: Mapping[str, Sequence[str]], title: str) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=escape(title) or None, title_justify="left", box=SIMPLE_HEAD)
    for name in texts:
        table.add_column(escape(name), justify="right")
    for row in zip(*texts.values(), strict=True):
        table.add_row(*map(escape, row))
    Console().print(table)
