"""`grokscope calibrate`: the delay predictor's data, model and scores."""

from __future__ import annotations

from dataclasses import asdict, fields
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from .output import print_json, print_table

_SPEC = Path("docs/configs/sweeps/calibration.toml")


def command(
    work: Annotated[Literal["collect", "branch", "fit", "score"], tyro.conf.Positional],
    /,
    *,
    runs: Path = Path("out/calibration"),
    spec: Path = _SPEC,
    figures: Path | None = None,
    open_lockbox: bool = False,
    jobs: int = 1,
    json: bool = False,
) -> int:
    """Renew the calibration of the delay predictor, or recompute its scores from the shipped data.

    `grokscope sweep docs/configs/sweeps/calibration.toml --out RUNS` makes the runs; then `branch` repeats
    some of them from memorization with other batches, `collect` writes the compact data file, `fit` the
    model, and `score` prints every number that the README quotes. Runs of
    docs/configs/sweeps/delay_sources.toml in RUNS-sources, if there are any, show what decides a delay.

    Args:
        work: what to do.
        runs: folder of the sweep's runs.
        spec: specification that the sweep was made from.
        figures: folder that receives the figures of `score`.
        open_lockbox: let `score` also judge the cells that no choice may look at, and keep what it found.
        jobs: branches trained at a time.
        json: print one JSON object.
    """
    from .. import calibrate, calibration_report

    if work == "score":
        report = calibration_report.report(open_lockbox=open_lockbox, figures=figures)
        _show(report) if not json else print_json(report)
        return 0
    done = {
        "collect": lambda: calibrate.collect_runs(spec, runs),
        "branch": lambda: calibrate.branch_runs(spec, runs, jobs=jobs),
        "fit": calibrate.fit_installed,
    }[work]()
    print_json(done) if json else print("\n".join(f"{name}: {value}" for name, value in done.items()))
    return 0


def _show(report: dict[str, Any]) -> None:
    for title, rows in report.items():
        rows = rows if isinstance(rows, (list, tuple)) else [rows]
        names = [field.name for field in fields(rows[0])] if hasattr(rows[0], "__dataclass_fields__") else []
        if names:
            print_table({name: [asdict(row)[name] for row in rows] for name in names}, title=f"\n{title}")
        else:
            print(f"\n{title}: {rows[0]}")
