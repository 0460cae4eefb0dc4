"""`grokscope reproduce`: a published study, from training to its verdicts, or all of them as an atlas."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from ...runs.cluster import on_cluster
from ..atlas import accepted, collect, markdown, measured, rows
from ..claim import Scale
from ..parallel import default_jobs
from ..pilot import expected_seconds
from ..reproduction import Reproduction, keep, reproduce, result_path, studies, study, training
from .bar import Progress, progress
from .output import print_json, print_table

if TYPE_CHECKING:
    from ..study import Measured


def command(
    name: Annotated[str | None, tyro.conf.Positional] = None,
    /,
    *,
    all: bool = False,
    scale: Scale = "quick",
    out: Path = Path("out/studies"),
    atlas: Path = Path("docs/atlas.md"),
    kept: bool = False,
    released_data: Path | None = None,
    jobs: int | None = None,
    scheduler: str | None = None,
    quiet: bool = False,
    json: bool = False,
) -> int:
    """Train a study's runs, measure what its paper claims, and set our numbers beside the published ones.

    Finished runs are kept, so the same command goes on after an interruption. OUT receives STUDY.json
    (at paper scale STUDY-paper.json) with claims and findings, and the figure as PNG and PDF.

    Args:
        name: of the study; without it, those there are.
        all: every study, then the atlas of all that is kept in OUT.
        scale: quick takes minutes; paper trains what of the paper's grid claims rest on, and tells how long.
        out: folder of runs, findings and figures.
        atlas: file of the atlas that --all writes; its figures go to a folder of its name.
        kept: with --all, measure nothing and write the atlas of what OUT holds.
        released_data: folder with the files that the paper's authors published.
        jobs: processes that train and measure, each with one thread; by default one per core, at most 4.
        scheduler: address of a Dask scheduler (tcp://...) whose workers train and measure instead.
        quiet: show no progress bar.
        json: print one JSON object instead of a table.
    """
    if all == (name is not None):
        raise ValueError(f"give one study or --all; there are {', '.join(studies())}")
    if released_data is not None and not released_data.is_dir():
        raise ValueError(f"released_data={str(released_data)!r} is no folder; give the one with the files")
    if kept and not all:
        raise ValueError("--kept writes the atlas of what is kept; give it with --all")
    jobs = default_jobs() if jobs is None else jobs
    if jobs < 1:
        raise ValueError(f"jobs={jobs} must be at least 1; give the number of processes")
    found: list[Reproduction] = []
    failed: dict[str, str] = {}
    if not kept:
        with on_cluster(scheduler) if scheduler else nullcontext():
            for one in studies() if all else (str(name),):
                try:
                    found.append(_one(one, scale, out, released_data, jobs, progress(quiet=quiet)))
                except Exception as error:  # one study must not stop the others
                    if not all or os.environ.get("GROKSCOPE_TRACEBACK"):
                        raise
                    failed[one] = str(error)
                    print(f"grokscope: study {one} failed: {error}", file=sys.stderr)
    for message in (message for each in found for message in each.failed_runs):
        print(f"grokscope: run failed: {message}", file=sys.stderr)
    page = _write_atlas(atlas, out) if all else None
    _report(found or collect(out)[0], page, failed, json)
    return 1 if failed else 0


def _one(
    name: str, scale: Scale, out: Path, released_data: Path | None, jobs: int, show: Progress
) -> Reproduction:
    home, words = out / name / scale, _words(name, scale, released_data)
    if scale == "paper":
        _announce(name, home, jobs)
    found, answers = reproduce(
        name, home, scale=scale, released_data=released_data, jobs=jobs, command=words, progress=show
    )
    _draw(name, answers, result_path(out, name, scale).with_suffix(""))
    keep(found, out)
    return found


def _announce(name: str, home: Path, jobs: int) -> None:
    """Say how long it will take before it begins."""
    runs, module = training(name, "paper"), study(name)
    parts = []
    if runs:
        time = _duration(expected_seconds(runs, home, jobs=jobs))
        parts.append(f"{len(runs)} runs, {time} of training if none stops early")
    if hasattr(module, "measuring_seconds"):
        parts.append(f"{_duration(module.measuring_seconds('paper') / jobs)} of measuring")
    text = ", ".join(parts) or "no runs to train"
    print(f"{name}: {text}, by a pilot; the same command goes on after an interruption", file=sys.stderr)


def _duration(seconds: float) -> str:
    return f"about {seconds / 3600:.1f} hours" if seconds > 5400 else f"about {seconds / 60:.0f} minutes"


def _draw(name: str, answers: Measured, stem: Path) -> None:
    module = f"..figures.study_{name.replace('-', '_')}"
    if find_spec(module, __package__) is None:
        return
    from ..figures.style import paper, save_figure

    with paper("double"):
        save_figure(import_module(module, __package__).draw(answers), stem)


def _write_atlas(path: Path, out: Path) -> Path:
    found, stale = collect(out)
    for message in stale:
        print(f"grokscope: {message}", file=sys.stderr)
    pictures = path.with_suffix("")
    pictures.mkdir(parents=True, exist_ok=True)
    links = {}
    for one in found:
        picture = result_path(out, one.study, one.scale).with_suffix(".png")
        if picture.exists():
            shutil.copyfile(picture, pictures / f"{one.study}.png")
            links[one.study] = f"{pictures.name}/{one.study}.png"
    path.write_text(markdown(found, figures=links), encoding="utf-8")
    return path


def _report(found: Sequence[Reproduction], page: Path | None, failed: dict[str, str], as_json: bool) -> None:
    table = rows(found)
    if as_json:
        numbers = {one.study: [row.number for row in table if row.reproduction is one] for one in found}
        print_json({"studies": [asdict(one) for one in found], "numbers": numbers, "failed": failed})
        return
    for one in found:
        mine = [row for row in table if row.reproduction is one]
        print(f"{one.study} ({one.source}), {one.scale} scale, {one.seconds:.0f} s")
        print_table(
            {
                "claim": [row.claim.name for row in mine],
                "published": [row.claim.published for row in mine],
                "ours": [measured(row.claim, row.finding) for row in mine],
                "accepted": [accepted(row.claim) for row in mine],
                "number": [row.number for row in mine],
                "interpretation": [row.finding.interpretation for row in mine],
            }
        )
    if page is not None:
        print(f"atlas: {page}")


def _words(name: str, scale: Scale, released_data: Path | None) -> str:
    words = f"grokscope reproduce {name} --scale {scale}"
    return words + ("" if released_data is None else " --released-data DIR")
