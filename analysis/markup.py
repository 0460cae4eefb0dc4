"""HTML in which whatever is not markup is escaped: names, reasons and configurations are strangers' text."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping, Sequence
from typing import Any


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def element(name: str, /, *children: str, **attributes: Any) -> Markup:
    """`<name attributes>children</name>`; children that are no Markup are escaped, as all attributes are.

    A trailing underscore of an attribute's name is dropped (`class_`), others become hyphens; one that is
    None or False is left out, and True stands alone.
    """
    words = [name]
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        spelled = key.rstrip("_").replace("_", "-")
        words.append(spelled if value is True else f'{spelled}="{html.escape(str(value))}"')
    opening = f"<{' '.join(words)}>"
    if name in ("img", "meta"):
        return Markup(opening)
    return Markup(f"{opening}{joined(*children)}</{name}>")


def joined(*children: str) -> Markup:
    """The children one after the other, escaped where they are no Markup."""
    return Markup("".join(child if isinstance(child, Markup) else html.escape(child) for child in children))


def table(columns: Mapping[str, Sequence[Any]], *, caption: str, sortable: bool = False) -> Markup:
    """A table of columns of equal length by header, in a box that scrolls sideways on narrow screens."""
    head = [_header(name, sortable) for name in columns]
    rows = [
        element("tr", *(_cell(value, first=i == 0) for i, value in enumerate(row)))
        for row in zip(*columns.values(), strict=True)
    ]
    whole = element(
        "table",
        element("caption", caption),
        element("thead", element("tr", *head)),
        element("tbody", *rows),
        class_="sortable" if sortable else None,
    )
    return element("div", whole, class_="wide", tabindex="0", role="region", aria_label=caption)


def embedded(data: Any) -> Markup:
    """JSON for a script element: nothing in it can end the script."""
    text = json.dumps(data, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)


def shown(value: Any) -> str:
    """A value as text: four significant digits, yes or no, a dash for what is not there."""
    if hasattr(value, "item"):
        value = value.item()
    if value is None or value != value:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _header(name: str, sortable: bool) -> Markup:
    if not sortable:
        return element("th", name, scope="col")
    return element("th", element("button", name, type="button"), scope="col", aria_sort="none")


def _cell(value: Any, *, first: bool) -> Markup:
    text = shown(value)
    number = isinstance(value, int | float) or hasattr(value, "item")
    known = number and not isinstance(value, bool) and text not in ("–", "yes", "no")
    attributes = {"class_": "number" if number else None, "data_value": float(value) if known else None}
    return element("th" if first else "td", text, scope="row" if first else None, **attributes)
