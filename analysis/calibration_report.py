"""Every number that is quoted of the delay predictor, recomputed from the data that come with the package."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..runs.calibration import LOCKBOX, Record, load, lockbox, shipped
from ..runs.delay_model import DelayModel, file_digest, load_models
from . import delay_score, delay_validation
from .calibrate import SOURCED
from .delay_limits import Spread, explained, spread
from .delay_score import Score, scored


@dataclass(frozen=True)
class GapClosed:
    """Which share of the distance from the cell's mean to the noise ceiling a predictor has closed.

    The errors are mean |ln(T̂/T)| on held-out seeds; the ceiling's is what other minibatches alone leave.
    """

    cell_mean: float
    ours: float
    ceiling: float
    share: float


def report(*, open_lockbox: bool = False, figures: Path | None = None) -> dict[str, Any]:
    """Every quoted number by title; rows are dataclasses.

    Raises:
        ValueError: the lockbox is to be opened for other models than those that it was opened for.
    """
    everything = load()
    records = lockbox(everything, opened=False)
    cells, seeds = delay_validation.held_out_cells(records), delay_validation.held_out_seeds(records)
    other = [record for record in records if record.fields["task"] != "add"]
    spreads, (coverage, calls) = scatter(records), delay_validation.nested(records)
    by_seed = delay_score.score(records, seeds, reference="cell mean and evidence")
    found: dict[str, Any] = {
        "runs": census(everything),
        "held-out cells": delay_score.score(records, cells, reference="model"),
        "held-out cells, where the successor's law is defined": _defined(records, cells),
        "held-out seeds": by_seed,
        "gap closed on held-out seeds": gap_closed(by_seed, spreads),
        "held-out tasks": delay_score.score(
            other, delay_validation.held_out_tasks(records), reference="model"
        ),
        "interval, nested cross-validation": coverage,
        "within budget, nested cross-validation": calls,
        "spread of ln T": spreads,
        "explained within cells": explained(records),
        "necessity": necessity(everything),
    }
    if open_lockbox:
        found |= lockbox_report(records, lockbox(everything, opened=True), load_models())
        _record_opening(found)
    if figures is not None:
        _draw(found, records, cells, figures)
    return found


def lockbox_report(
    fit: Sequence[Record], test: Sequence[Record], models: Sequence[DelayModel]
) -> dict[str, Any]:
    """Scores, coverage and calls in the lockbox by what was fitted outside it."""
    predictions = delay_validation.fitted_predictions(fit, scored(test))
    seeds = delay_validation.held_out_seeds([*fit, *test])
    mine = {name: values[-len(scored(test)) :] for name, values in seeds.items()}
    at_risk = [record for record in test if record.at_risk]
    model = models[0]
    logs = np.array([model.log_delay(r.evidence.features()) for r in at_risk if r.evidence is not None])
    inside = delay_score.lies_inside(at_risk, logs, model.margin)
    title = f"lockbox, {len(LOCKBOX)} cells"
    return {
        title: delay_score.score(test, predictions, reference="model"),
        f"{title}, held-out seeds": delay_score.score(test, mine, reference="cell mean and evidence"),
        f"{title}, interval": delay_score.coverage_of(at_risk, inside, np.full(len(at_risk), model.margin)),
        f"{title}, within budget": delay_validation.fitted_calls(fit, at_risk, model),
    }


def scatter(records: Sequence[Record]) -> tuple[Spread, ...]:
    """How far the delays of runs scatter that share all but their minibatches, split or initialization.

    The first row is the noise ceiling: branches of one state at its information time. The next two are of
    the cells SOURCED.
    """
    path = shipped().with_name("repeats.json")
    repeats = json.loads(path.read_text("utf-8")) if path.exists() else {}
    cells: dict[str, list[int | None]] = {}
    for record in scored(records):
        cells.setdefault(str(record.cell), []).append(record.delay)
    names = {
        "batches": "minibatches after memorization",
        "initializations": "initialization and minibatches",
        "splits": "split and minibatches",
    }
    known = [spread(text, repeats[name]) for name, text in names.items() if name in repeats]
    some = {str(cell): cells[str(cell)] for cell in SOURCED}
    return (*known, spread(f"seeds, in cells {', '.join(some)}", some), spread("seeds, in all cells", cells))


def gap_closed(scores: Sequence[Score], spreads: Sequence[Spread]) -> GapClosed:
    """How near held-out seeds come to the ceiling, the first of `spreads`."""
    errors = {score.predictor: score.mean_log_error for score in scores}
    ours, mean = errors["cell mean and evidence"], errors["cell mean"]
    ceiling = spreads[0].mean_log_error
    return GapClosed(mean, ours, ceiling, (mean - ours) / (mean - ceiling))


def census(records: Sequence[Record]) -> str:
    """How many runs there are, and why some are not scored."""
    memorized = [record for record in records if record.milestones.memorized is not None]
    early = sum(not record.at_risk for record in memorized)
    censored = sum(record.delay is None for record in memorized)
    never = len(records) - len(memorized)
    return (
        f"{len(records)} runs in {len({r.cell for r in records})} cells; {never} never memorized, "
        f"{early} generalized before their information time, {censored} not within their budget"
    )


def necessity(records: Sequence[Record]) -> str:
    """The claim V_mem > V_post, checked over all runs that generalized after memorization."""
    kept = [r for r in records if r.delay is not None and r.delay > 0 and r.evidence is not None]
    fell = 0
    for record in kept:
        generalized, known = record.milestones.generalized, record.evidence
        if generalized is not None and known is not None:
            fell += known.norm > record.norm_at(generalized.step)
    return (
        f"V at memorization exceeds V at generalization in {fell} of {len(kept)} runs with a positive delay"
    )


def _record_opening(found: Mapping[str, Any]) -> None:
    """Write what the lockbox gave beside the models, once for them."""
    path, models = shipped().with_name("lockbox.json"), file_digest(shipped().with_name("delay_models.json"))
    if path.exists() and json.loads(path.read_text("utf-8"))["models"] != models:
        raise ValueError(
            "open_lockbox: its cells were used to judge other models and can't judge these; "
            "collect a new calibration, with other cells in the lockbox"
        )
    rows = {k: [_plain(row) for row in _rows(v)] for k, v in found.items() if k.startswith("lockbox")}
    path.write_text(json.dumps({"models": models} | rows, indent=1) + "\n", encoding="utf-8")


def _defined(records: Sequence[Record], predictions: Mapping[str, NDArray[np.float64]]) -> tuple[Score, ...]:
    """The scores over the runs whose squared norm at memorization exceeds the successor's V*."""
    kept = np.isfinite(predictions["log ratio, successor"])
    test = [record for record, keep in zip(scored(records), kept, strict=True) if keep]
    return delay_score.score(test, {k: v[kept] for k, v in predictions.items()}, reference="model")


def _plain(row: Any) -> dict[str, Any]:
    """The fields of a row, None for nan, which JSON lacks."""
    return {k: None if isinstance(v, float) and np.isnan(v) else v for k, v in asdict(row).items()}


def _rows(value: Any) -> Sequence[Any]:
    return value if isinstance(value, tuple | list) else [value]


def _draw(
    found: Mapping[str, Any], records: Sequence[Record], cells: Mapping[str, Any], folder: Path
) -> None:
    from .figures.delay import calibration_figures
    from .figures.style import paper, save_figure

    test = scored(records)
    actual = np.array([float(record.delay or 0) for record in test])
    with paper("double"):
        drawn = calibration_figures(
            test,
            actual,
            cells["model"],
            found["held-out cells"],
            margin=load_models()[0].margin,
            ceiling=found["spread of ln T"][0].mean_log_error,
        )
        for name, figure in drawn.items():
            save_figure(figure, folder / name)
