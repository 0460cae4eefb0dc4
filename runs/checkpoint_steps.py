"""At which step a checkpoint was taken, by its name or a number inside; and which steps are missing."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import PurePath
from typing import Literal, NamedTuple

Source = Literal["auto", "name", "inside"]

_WORDS = (
    r"(?:global_?)?steps?|iter(?:ation)?s?|it|updates?|batch(?:es)?",
    r"checkpoints?|ckpt|cp|snapshot|model",
    r"epochs?|ep",
)
_KEYS = (("step", "global_step", "steps", "iteration", "iterations", "iter", "num_updates"), ("epoch",))


class Gap(NamedTuple):
    """Steps that a regular schedule would have had strictly between two that are there."""

    after: int
    before: int
    missing: int


def steps_of(
    names: Sequence[str], numbers: Sequence[Mapping[str, float]], *, source: Source = "auto"
) -> tuple[list[int], str]:
    """The step of each checkpoint, and in words where it was found.

    A number saved inside under `step`, `global_step`, `iteration`, ... counts first, if all have it; then
    the number in the names that follows a word for it (`step1000`, `checkpoint-500`, `epoch=3-step=1200`),
    or the only one that varies, where names without a number take the one inside; last an `epoch` inside.

    Raises:
        ValueError: a checkpoint has no step, or its name and its inside disagree where both are needed.
    """
    inside, epochs = ([_inside(found, keys) for found in numbers] for keys in _KEYS)
    named, word = _named([_stem(name) for name in names])
    if source == "auto" and None in inside and None in named:
        merged = [b if a is None else a for a, b in zip(named, inside, strict=True)]
        if None not in merged:
            _require_agreement(names, named, inside)
        named = merged
    choices = {"inside": (inside, "number inside"), "name": (named, word), "epoch": (epochs, "epoch inside")}
    allowed = {"auto": ("inside", "name", "epoch"), "inside": ("inside", "epoch"), "name": ("name",)}[source]
    for choice in allowed:
        found = [step for step in choices[choice][0] if step is not None]
        if len(found) == len(names):
            return found, choices[choice][1]
    where = {"auto": "neither in its name nor inside", "inside": "inside", "name": "in its name"}[source]
    tried = inside if source == "inside" else named
    lacking = [name for name, step in zip(names, tried, strict=True) if step is None]
    more = f" (and {len(lacking) - 1} others)" if len(lacking) > 1 else ""
    raise ValueError(f"{lacking[0]}{more} has no step {where}; leave it out, or put the step in its name")


def natural(name: str) -> list[tuple[int, str | int]]:
    """A sort key by which step9 comes before step10."""
    return [(0, int(part)) if part.isdecimal() else (1, part) for part in re.split(r"(\d+)", name) if part]


def gaps(steps: Sequence[int]) -> tuple[Gap, ...]:
    """Where a regular schedule is interrupted: longer than the interval before, which then comes again.

    Schedules that grow, or end on an odd step, have no gaps.
    """
    intervals = [b - a for a, b in pairwise(steps)]
    found, usual = [], intervals[0] if intervals else 0
    for i, interval in enumerate(intervals):
        if interval > usual and usual in intervals[i + 1 :]:
            found.append(Gap(steps[i], steps[i + 1], -(-interval // usual) - 1))
        else:
            usual = interval
    return tuple(found)


def _inside(numbers: Mapping[str, float], keys: Sequence[str]) -> int | None:
    for key in keys:
        if key in numbers and float(numbers[key]).is_integer() and numbers[key] >= 0:
            return int(numbers[key])
    return None


def _stem(name: str) -> str:
    path = PurePath(name)
    return path.stem if path.suffix in (".pt", ".pth", ".ckpt", ".bin", ".safetensors") else path.name


def _named(stems: Sequence[str]) -> tuple[list[int | None], str]:
    """The number in each name that means the step, None where there is none, and what tells it apart."""
    numbered = [stem for stem in stems if re.search(r"\d", stem)]
    for words in _WORDS:
        pattern = re.compile(rf"(?<![A-Za-z])({words})[-_=. ]*(\d+)(?![\d.]*\d)", re.IGNORECASE)
        matches = {stem: pattern.findall(stem) for stem in numbered}
        if all(len(found) == 1 for found in matches.values()) and _tells_apart(
            [f[0][1] for f in matches.values()]
        ):
            word = matches[numbered[0]][0][0]
            return [int(matches[s][0][1]) if s in matches else None for s in stems], f"number after {word!r}"
    rows = {stem: re.findall(r"\d+", stem) for stem in numbered}
    alike = len({re.sub(r"\d+", "#", stem) for stem in numbered}) == 1
    varying = [k for k, column in enumerate(zip(*rows.values(), strict=False)) if _tells_apart(column)]
    if not alike or len(varying) != 1:
        return [None] * len(stems), ""
    return [int(rows[s][varying[0]]) if s in rows else None for s in stems], "number that varies in the names"


def _tells_apart(numbers: Sequence[str]) -> bool:
    """Whether these are different numbers, or a single one."""
    return len({int(number) for number in numbers}) > 1 or len(numbers) == 1


def _require_agreement(
    names: Sequence[str], named: Sequence[int | None], inside: Sequence[int | None]
) -> None:
    """Where some names need the number inside, the others' names must mean the same numbers."""
    for name, a, b in zip(names, named, inside, strict=True):
        if a is not None and b is not None and a != b:
            raise ValueError(
                f"{name} says {b} inside, and other checkpoints have no step but the one inside or in the "
                "name; take one for all with steps_from=name or steps_from=inside"
            )
