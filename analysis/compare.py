"""Two sets of runs against each other: paired differences with intervals."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import exp, isfinite, log, sqrt
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t as student

from ..runs.store import Run
from ..runs.sweep import Summary, summarize, varying

MILESTONES = ("memorized", "generalized", "delay")
_SEEDS = ("seed", "init_seed", "split_seed", "batch_seed")
_EXACT = 12  # clusters up to which every sign is tried
_FLIPS = 20_000


class Interval(NamedTuple):
    """A mean and the bounds that hold it with `confidence`."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class Difference:
    """One quantity in A and in B, over `pairs` pairs in `cells` settings.

    `difference` is the mean of B - A, `ratio` the geometric mean of B / A where all values are positive;
    intervals are None for a single cluster. `p` is that of a sign-flip permutation, `p_holm` the same
    after Holm's correction over all quantities of the comparison. `only_a` and `only_b` count pairs in
    which a milestone was reached on one side only; they are in no mean.
    """

    quantity: str
    pairs: int
    cells: int
    mean_a: float | None
    mean_b: float | None
    difference: Interval | float | None
    ratio: Interval | float | None
    p: float | None
    p_holm: float | None
    only_a: int
    only_b: int


@dataclass(frozen=True)
class Comparison:
    """What differs between the settings of A and B, and between their outcomes.

    `identical` counts pairs whose snapshots at common steps are equal, byte for byte; `parted` is the
    first common step at which they are not, per pair.
    """

    a: str
    b: str
    settings: Mapping[str, tuple[str, str]]
    pairs: tuple[tuple[str, str], ...]
    identical: int
    parted: tuple[int | None, ...]
    unpaired_a: tuple[str, ...]
    unpaired_b: tuple[str, ...]
    confidence: float
    differences: tuple[Difference, ...]


def compare(a: str | Path, b: str | Path, *, confidence: float = 0.95) -> Comparison:
    """The runs below A paired with those below B, and the differences B - A of what came out.

    Two runs are a pair if they agree in every field that varies within A or within B, seeds among them;
    runs without a configuration if their folders have the same name. A and B may be single runs. The
    quantities are the milestones (steps) and the last values of the metrics that all have. Differences
    are averaged within a cell (a setting, seeds apart) and the interval is Student's over cells; with
    one cell it is over its pairs, whose seeds make them independent.

    Raises:
        ValueError: no runs, no pairs, several runs with the same settings, or a bad confidence.
    """
    if not 0 < confidence < 1:
        raise ValueError(f"confidence={confidence} must be strictly between 0 and 1")
    rows_a, rows_b = summarize(a), summarize(b)
    keys, cells = _keys(rows_a, rows_b)
    first, second = _by_key(rows_a, keys, str(a)), _by_key(rows_b, keys, str(b))
    if len(rows_a) == len(rows_b) == 1:
        second = dict(zip(first, second.values(), strict=True))
    shared = [key for key in first if key in second]
    if not shared:
        raise ValueError(
            f"no run below {a} has the settings of one below {b}; they must agree in the fields that vary "
            f"within either: {', '.join(keys) or 'none'}"
        )
    pairs = [(first[key], second[key]) for key in shared]
    groups = [tuple(key[i] for i in cells) for key in shared]
    parted = tuple(_parted(Path(a) / one.name, Path(b) / other.name) for one, other in pairs)
    return Comparison(
        a=str(a),
        b=str(b),
        settings=_settings(pairs),
        pairs=tuple((one.name, other.name) for one, other in pairs),
        identical=parted.count(None),
        parted=parted,
        unpaired_a=tuple(row.name for key, row in first.items() if key not in second),
        unpaired_b=tuple(row.name for key, row in second.items() if key not in first),
        confidence=confidence,
        differences=_differences(pairs, groups, confidence),
    )


def interval(values: Sequence[float] | NDArray[Any], confidence: float) -> Interval | float:
    """Student's interval of the mean of independent values; the value alone if there is but one."""
    count, mean = len(values), float(np.mean(values))
    if count < 2:
        return mean
    half = float(student.ppf((1 + confidence) / 2, count - 1)) * float(np.std(values, ddof=1)) / sqrt(count)
    return Interval(mean, mean - half, mean + half)


def sign_flip(values: Sequence[float] | NDArray[Any]) -> float:
    """The share of sign assignments whose |mean| is at least that of the values: a two-sided p-value.

    Exact up to 12 values, else from 20,000 fixed random assignments, with the given one counted in.
    """
    data = np.asarray(values, np.float64)
    if len(data) <= _EXACT:
        signs = np.array(list(product((1, -1), repeat=len(data))))
    else:
        drawn = np.random.default_rng(0).integers(0, 2, (_FLIPS, len(data))) * 2 - 1
        signs = np.concatenate([np.ones((1, len(data)), int), drawn])
    sums = abs(signs @ data)
    return float(np.mean(sums >= sums[0] * (1 - 1e-12)))  # equal sums in another order of addition


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's adjusted p-values in the given order: rejecting those ≤ α errs at all with probability ≤ α."""
    order = np.argsort(p_values)
    adjusted, running = [0.0] * len(p_values), 0.0
    for rank, i in enumerate(order):
        running = max(running, min(1.0, (len(p_values) - rank) * p_values[i]))
        adjusted[i] = running
    return adjusted


def _keys(a: Sequence[Summary], b: Sequence[Summary]) -> tuple[tuple[str, ...], list[int]]:
    """The fields that tell runs apart within A or within B, and the places of those that are no seeds."""
    inside = [varying([row.config for row in rows]) for rows in (a, b)]
    keys = tuple(dict.fromkeys((*inside[0], *inside[1])))
    return keys, [i for i, name in enumerate(keys) if name not in _SEEDS]


def _by_key(rows: Sequence[Summary], keys: Sequence[str], where: str) -> dict[tuple[str, ...], Summary]:
    found: dict[tuple[str, ...], Summary] = {}
    for row in rows:
        if row.problem:
            raise ValueError(f"run={row.name!r} below {where} can't be read: {row.problem}")
        key = tuple(repr(getattr(row.config, name)) for name in keys) if row.config else (row.name,)
        if key in found:
            raise ValueError(f"{found[key].name} and {row.name} below {where} have the same settings")
        found[key] = row
    return found


def _settings(pairs: Sequence[tuple[Summary, Summary]]) -> dict[str, tuple[str, str]]:
    """The fields in which every pair differs in the same way, with both values."""
    found: dict[str, set[tuple[str, str]]] = {}
    for one, other in pairs:
        if one.config is None or other.config is None:
            continue
        for name in one.config.differences(other.config):
            values = (repr(getattr(one.config, name)), repr(getattr(other.config, name)))
            found.setdefault(name, set()).add(values)
    return {
        n: v if len(vs) == 1 else ("varies", "varies") for n, vs in found.items() for v in [next(iter(vs))]
    }


def _parted(a: Path, b: Path) -> int | None:
    """The first common step at which two runs differ; None if they never do."""
    one, other = Run.open(a), Run.open(b)
    there = dict(zip(other.steps.tolist(), other.hashes, strict=True))
    steps = zip(one.steps.tolist(), one.hashes, strict=True)
    return next((step for step, digest in steps if there.get(step, digest) != digest), None)


def _differences(
    pairs: Sequence[tuple[Summary, Summary]], groups: Sequence[tuple[str, ...]], confidence: float
) -> tuple[Difference, ...]:
    names = [name for name in pairs[0][0].final if "." not in name]  # no parts of others
    metrics = [name for name in names if all(name in row.final for pair in pairs for row in pair)]
    reads: dict[str, Callable[[Summary], float | None]] = {}
    for name in MILESTONES:
        reads[name] = lambda row, name=name: getattr(row, name)  # type: ignore[misc]
    for name in metrics:
        reads[f"final {name}"] = lambda row, name=name: row.final[name]  # type: ignore[misc]
    found = [_difference(name, read, pairs, groups, confidence) for name, read in reads.items()]
    kept = [d for d in found if d is not None]
    tested = [d.p for d in kept if d.p is not None]
    adjusted = iter(holm(tested))
    return tuple(d if d.p is None else _with_holm(d, next(adjusted)) for d in kept)


def _with_holm(difference: Difference, p: float) -> Difference:
    return Difference(**{**vars(difference), "p_holm": p})


def _difference(
    quantity: str,
    read: Callable[[Summary], float | None],
    pairs: Sequence[tuple[Summary, Summary]],
    groups: Sequence[tuple[str, ...]],
    confidence: float,
) -> Difference | None:
    """One quantity; None if no pair has it on both sides and none on one."""
    values = [(read(one), read(other)) for one, other in pairs]
    both = [
        (float(x), float(y), group)
        for (x, y), group in zip(values, groups, strict=True)
        if x is not None and y is not None and isfinite(x) and isfinite(y)
    ]
    only = [sum(v[i] is not None and v[1 - i] is None for v in values) for i in (0, 1)]
    if not both and not any(only):
        return None
    plain = _clustered([y - x for x, y, _ in both], [g for *_, g in both])
    positive = bool(both) and all(x > 0 and y > 0 for x, y, _ in both)
    ratio: Interval | float | None = None
    if positive:
        logs = interval(_clustered([log(y / x) for x, y, _ in both], [g for *_, g in both]), confidence)
        ratio = exp(logs) if isinstance(logs, float) else Interval(*(exp(min(v, 700.0)) for v in logs))
    return Difference(
        quantity=quantity,
        pairs=len(both),
        cells=len({group for *_, group in both}),
        mean_a=float(np.mean([x for x, _, _ in both])) if both else None,
        mean_b=float(np.mean([y for _, y, _ in both])) if both else None,
        difference=interval(plain, confidence) if both else None,
        ratio=ratio,
        p=sign_flip(plain) if len(plain) > 1 else None,
        p_holm=None,
        only_a=only[0],
        only_b=only[1],
    )


def _clustered(values: Sequence[float], groups: Sequence[tuple[str, ...]]) -> list[float]:
    """Means within each cell; the values themselves if there is one cell only."""
    if len(set(groups)) < 2:
        return list(values)
    return [
        float(np.mean([v for v, g in zip(values, groups, strict=True) if g == cell]))
        for cell in dict.fromkeys(groups)
    ]
