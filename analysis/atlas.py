"""The atlas: what became of each paper's claims, as one page of markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from .claim import Claim, Finding, Number, bounds, verdicts
from .reproduction import Reproduction, kept, result_path, studies, study


class Row(NamedTuple):
    """One claim, what was found, and both verdicts."""

    reproduction: Reproduction
    claim: Claim
    finding: Finding
    number: Number


def collect(out: Path) -> tuple[tuple[Reproduction, ...], tuple[str, ...]]:
    """What was kept in `out` for each study, at paper scale rather than quick; and what is out of date.

    Raises:
        ValueError: a file there is no reproduction.
    """
    found, stale = [], []
    for name in studies():
        paths = [path for scale in ("paper", "quick") if (path := result_path(out, name, scale)).exists()]
        if not paths:
            continue
        one = kept(paths[0])
        found.append(one)
        if one.claims != tuple(study(name).CLAIMS):
            stale.append(f"{paths[0]}: the claims changed since; run `{one.command}` again")
    return tuple(found), tuple(stale)


def rows(found: Sequence[Reproduction]) -> tuple[Row, ...]:
    """A row for each claim of all reproductions; Holm's correction is over all of them together."""
    answers = [(one, *pair) for one in found for pair in zip(one.claims, one.findings, strict=True)]
    numbers = verdicts([(claim, finding, one.scale) for one, claim, finding in answers])
    return tuple(Row(*answer, number) for answer, number in zip(answers, numbers, strict=True))


def measured(claim: Claim, finding: Finding) -> str:
    """Our number in words: mean and interval of the primary statistic, and how many values it is from."""
    values = np.asarray(finding.values, dtype=np.float64)
    known = values[np.isfinite(values)]
    missing = f", {len(values) - len(known)} undefined" if len(known) < len(values) else ""
    if not known.size:
        return "–" if not len(values) else f"none{missing}"
    if claim.exact or known.size == 1:
        low, high = known.min(), known.max()
        text = f"{low:.4g}" if low == high else f"{low:.4g} to {high:.4g}"
        return f"{text} ({'exact' if claim.exact else 'n = 1'}{missing})"
    low, high = bounds(claim, finding)
    return f"{known.mean():.4g} [{low:.4g}, {high:.4g}] (n = {known.size}{missing})"


def accepted(claim: Claim) -> str:
    """The range of the primary statistic that counts as the same, in words."""
    if np.isinf(claim.low) and np.isinf(claim.high):
        return "any"
    if np.isinf(claim.low):
        return f"at most {claim.high:.4g}"
    if np.isinf(claim.high):
        return f"at least {claim.low:.4g}"
    return f"{claim.low:.4g} to {claim.high:.4g}"


def markdown(found: Sequence[Reproduction], *, figures: Mapping[str, str]) -> str:
    """The page: one table of all claims, then each study with its figure, statistics and controls.

    `figures` has the link of each study's picture, where there is one.
    """
    table = rows(found)
    sections = [_section(one, table, figures.get(one.study)) for one in found]
    return "\n".join([*_head(found), *_overview(table), *sections]) + "\n"


def _head(found: Sequence[Reproduction]) -> list[str]:
    counted = sum(len(one.claims) for one in found)
    return [
        "# Atlas of claims",
        "",
        f"{counted} claims of {len(found)} papers, each checked by one command. Written by "
        "`grokscope reproduce --all`; don't edit it by hand.",
        "",
        "**Number**: the paper's number by its own definition, against a range that was fixed before the "
        "runs. At paper scale a claim is *reproduced* if the 95 % interval (Student's t over at least five "
        "seeds) lies inside the range, *refuted* if it lies outside and stays significant after Holm's "
        "correction over this page, else *inconclusive*. At quick scale the most that is said is "
        "*consistent* or *inconsistent*. Exact computations have no interval and count at any scale.",
        "",
        "**Interpretation**: what is left of the paper's reading after our controls.",
        "",
    ]


def _overview(table: Sequence[Row]) -> list[str]:
    lines = [
        "| study | claim | published | ours | number | interpretation | scale |",
        "|---|---|---|---|---|---|---|",
    ]
    for one, claim, finding, number in table:
        link = f"[{one.study}](#{one.study})"
        ours = measured(claim, finding)
        cells = (link, claim.name, claim.published, ours, number, finding.interpretation, one.scale)
        lines.append("| " + " | ".join(map(_cell, cells)) + " |")
    return [*lines, ""]


def _section(one: Reproduction, table: Sequence[Row], figure: str | None) -> str:
    lines = [f"## {one.study}", "", f"{one.title}. {one.source}.", ""]
    lines += [f"`{one.command}`: {_effort(one)}, {_code(one)}.", ""]
    if figure is not None:
        lines += [f"![{one.title}]({figure})", ""]
    for row in table:
        if row.reproduction is one:
            lines += _answer(row)
    if one.failed_runs:
        lines += ["", f"Runs that failed: {'; '.join(one.failed_runs)}."]
    return "\n".join([*lines, ""])


def _answer(row: Row) -> list[str]:
    _, claim, finding, number = row
    return [
        f"- **{claim.name}** ({claim.where}, {claim.type}). {_sentence(claim.statement)}",
        f"  Published: {_sentence(claim.published)}",
        f"  Statistic: {claim.statistic}; accepted {accepted(claim)}; ours {measured(claim, finding)}: "
        f"*{number}*.",
        f"  *{finding.interpretation.capitalize()}*: {_sentence(finding.evidence)}",
    ]


def _effort(one: Reproduction) -> str:
    runs = f"{one.runs} runs, " if one.runs else ""
    found = f" ({one.skipped} of the runs were there already)" if one.skipped else ""
    return f"{runs}{one.seconds:.0f} s{found}"


def _code(one: Reproduction) -> str:
    revision = f"revision {one.git_revision[:10]}" if one.git_revision else "an installed package"
    changes = " with local changes" if one.git_revision.endswith("+changes") else ""
    return f"{revision}{changes}, torch {one.versions['torch']}"


def _sentence(text: str) -> str:
    """With a capital, unless it begins with a symbol, and a full stop."""
    first = text.split(maxsplit=1)[0].rstrip(",:;") if text else ""
    if first == "a" or (len(first) > 1 and first.isascii() and first.isalpha()):
        text = text[0].upper() + text[1:]
    return text if text.endswith((".", "!", "?")) else f"{text}."


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
