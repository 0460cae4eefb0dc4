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
        _framed(texts, columns, title)
        return
    padded = [_padded(name, texts[name], columns[name]) for name in texts]
    lines = ["  ".join(line).rstrip() for line in zip(*padded, strict=True)]
    print("\n".join(([title] if title else []) + lines))


def cell(value: Any) -> str:
    """One value as text: four significant digits, yes/no, and a dash for what is not there."""
    if value is None:
        return "-"
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    if isinstance(value, float | np.floating):
        return f"{float(value):.4g}"
    return str(value)


def _padded(name: str, texts: Sequence[str], values: Sequence[Any]) -> list[str]:
    """A column with its name, words to the left and numbers to the right."""
    width = max(len(name), *map(len, texts), 0)
    return [text.ljust(width) if _is_words(values) else text.rjust(width) for text in (name, *texts)]


def _is_words(values: Sequence[Any]) -> bool:
    return all(isinstance(value, str | Path) for value in values)


def _framed(texts: Mapping[str, Sequence[str]], columns: Mapping[str, Sequence[Any]], title: str) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=escape(title) or None, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for name in texts:
        table.add_column(
            escape(name), justify="left" if _is_words(columns[name]) else "right", overflow="fold"
        )
    for row in zip(*texts.values(), strict=True):
        table.add_row(*map(escape, row))
    Console().print(table)
