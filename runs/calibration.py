"""Calibration data of the delay predictor: logged curves and outcomes of a sweep, in one compact file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .evidence import Curve, Evidence, Setting, evidence
from .milestones import Crossing, Milestones, milestones
from .store import Run
from .sweep import Entry

WINDOW = 100
"""Steps after the information time up to which curves are kept, for predictors that wait longer."""

LOCKBOX = tuple(range(2, 65, 4))
"""Cells, counted from 1, that no choice may look at; opened once, at the end."""

_CURVES = ("squared_norm", "gradient_norm", "update_norm", "train_loss", "train_correct")
_GROUPS = ("embedding", "attention", "feedforward", "norm", "head")
_CROSSINGS = ("memorized", "generalized", "first_memorized", "first_generalized")
_HIDDEN = ("test_loss", "test_accuracy")
_FIELDS = ("task", "modulus", "layers", "width", "train_fraction", "embedding_init_scale")


@dataclass(frozen=True)
class Record:
    """One run of the calibration: what could be known, and what happened.

    `curves` end WINDOW steps after the information time; `norm` is V at every evaluation to the end, part
    of the outcome. `cell` counts from 1; runs of one cell differ in their seeds only. `hidden` holds test
    loss and accuracy at the information time: no prediction may see them, they show what a leak would be
    worth.
    """

    cell: int
    seed: int
    setting: Setting
    fields: Mapping[str, Any]
    milestones: Milestones
    curves: Mapping[str, Curve]
    norm: Curve
    hidden: Mapping[str, float] = field(default_factory=dict)

    @cached_property
    def evidence(self) -> Evidence | None:
        """What was known at the information time; None if the run never memorized."""
        memorized = self.milestones.memorized
        return None if memorized is None else evidence(self.setting, memorized, self.curves)

    @property
    def at_risk(self) -> bool:
        """Whether memorization is known and generalization came later than that, or never."""
        memorized, generalized = self.milestones.memorized, self.milestones.generalized
        return memorized is not None and (generalized is None or generalized.step > memorized.confirmed)

    @property
    def delay(self) -> int | None:
        """Generalization step minus memorization step; None if censored."""
        return self.milestones.delay

    @property
    def bounds(self) -> tuple[float, float]:
        """The interval that certainly holds the delay; its upper end is infinite for a censored run."""
        memorized, generalized = self.milestones.memorized, self.milestones.generalized
        if memorized is None:
            raise ValueError(f"cell={self.cell} seed={self.seed} never memorized; it has no delay")
        if generalized is None:
            return float(self.milestones.budget - memorized.step), np.inf
        low = max((generalized.below or 0) - memorized.step, 1)
        return float(low), float(generalized.step - (memorized.below or 0))

    def norm_at(self, step: int) -> float:
        """V at an evaluated step, an outcome."""
        return float(np.interp(step, *self.norm))


def collect(entries: Sequence[Entry], directory: str | Path, *, seeds: int) -> list[Record]:
    """The records of a finished sweep; entry i belongs to cell i mod (number of entries / seeds) + 1.

    Raises:
        ValueError: a run is missing or unfinished, or was stopped because of a prediction.
    """
    cells = len(entries) // seeds
    return [_record(Run.open(Path(directory) / e.name), i % cells + 1, e) for i, e in enumerate(entries)]


def save(records: Sequence[Record], path: str | Path) -> Path:
    """Write records to a compressed NumPy file (float32 curves); the same records give the same bytes."""
    arrays: dict[str, NDArray[Any]] = {name: np.array([r.fields[name] for r in records]) for name in _FIELDS}
    arrays |= {name: np.array([getattr(r, name) for r in records]) for name in ("cell", "seed")}
    for name in ("lr", "weight_decay", "train_total", "total", "parameters"):
        arrays[name] = np.array([getattr(r.setting, name) for r in records])
    for name in _CROSSINGS:
        arrays[name] = np.array([_packed(getattr(r.milestones, name)) for r in records])
    for name in _HIDDEN:
        arrays[f"hidden/{name}"] = np.array([r.hidden.get(name, np.nan) for r in records])
    arrays["budget"] = np.array([r.milestones.budget for r in records])
    for name in sorted({name for r in records for name in r.curves} | {"norm"}):
        curves = [r.norm if name == "norm" else r.curves[name] for r in records]
        arrays[f"length/{name}"] = np.array([len(curve[0]) for curve in curves])
        arrays[f"step/{name}"] = np.concatenate([curve[0] for curve in curves]).astype(np.int32)
        arrays[f"value/{name}"] = np.concatenate([curve[1] for curve in curves]).astype(np.float32)
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    with Path(path).open("wb") as file:
        np.savez_compressed(file, allow_pickle=False, **arrays)
    return Path(path)


def load(path: str | Path | None = None) -> list[Record]:
    """The records in a file that `save` wrote, or those that come with the package."""
    with np.load(path or shipped()) as stored:
        arrays = {name: stored[name] for name in stored.files}
    curves = {
        name.split("/", 1)[1]: list(_cut(arrays, name)) for name in arrays if name.startswith("length/")
    }
    return [_unpacked(arrays, curves, i) for i in range(len(arrays["cell"]))]


def shipped() -> Path:
    """The calibration file of this installation."""
    return Path(str(files(__package__))) / "data" / "calibration.npz"


def lockbox(records: Sequence[Record], *, opened: bool) -> list[Record]:
    """The records inside (opened) or outside the lockbox."""
    return [record for record in records if (record.cell in LOCKBOX) == opened]


def curves_of(metrics: Mapping[str, Any], *, until: int | None = None) -> dict[str, Curve]:
    """The curves of a run's metrics that predictions may use: no test metric is among them."""
    names = [name for name in metrics if name in _CURVES or name.startswith("squared_norm.")]
    found = {}
    for name in names:
        steps, values = np.asarray(metrics[name].step), np.asarray(metrics[name].value, dtype=np.float64)
        kept = slice(None) if until is None else steps <= until
        found[name] = (steps[kept].astype(np.float64), values[kept])
    return found


def _record(run: Run, cell: int, entry: Entry) -> Record:
    if not run.finished or run.config is None:
        raise ValueError(f"run={str(run.path)!r} is not finished; run the sweep again")
    if str(run.finish_reason).startswith("predicted"):
        raise ValueError(f"run={str(run.path)!r} was stopped by a prediction; it can't calibrate one")
    found, curves = milestones(run), curves_of(run.metrics)
    end = None if found.memorized is None else found.memorized.confirmed + WINDOW
    kept = [name for name in curves if "." not in name or name.split(".")[1] in _GROUPS]
    totals = {f"{split}_total": int(run.provenance[f"{split}_total"]) for split in ("train", "test")}
    evaluated = np.isin(curves["squared_norm"][0], curves["train_correct"][0])
    return Record(
        cell=cell,
        seed=run.config.seed,
        setting=Setting.of(run.config, parameters=run.table.size, **totals),
        fields={name: getattr(run.config, name) for name in _FIELDS},
        milestones=found,
        curves={name: _short(curves[name], end) for name in kept},
        norm=(curves["squared_norm"][0][evaluated], curves["squared_norm"][1][evaluated]),
        hidden={} if found.memorized is None else _hidden(run, found.memorized.confirmed),
    )


def _hidden(run: Run, step: int) -> dict[str, float]:
    """Test loss and accuracy at the last evaluation up to `step`."""
    loss, right = (float(np.interp(step, *run.metrics[name][:2])) for name in ("test_loss", "test_correct"))
    return {"test_loss": loss, "test_accuracy": right / int(run.provenance["test_total"])}


def _short(curve: Curve, end: int | None) -> Curve:
    """The curve up to `end`, thinned to steps of 20 long before it."""
    steps, values = curve
    if end is None:
        kept = steps % 100 == 0
    else:
        kept = (steps <= end) & ((steps > end - WINDOW - 200) | (steps % 20 == 0))
    return steps[kept], values[kept]


def _packed(crossing: Crossing | None) -> tuple[int, int, int]:
    if crossing is None:
        return -1, -1, -1
    return (-1 if crossing.below is None else crossing.below), crossing.step, crossing.confirmed


def _crossing(packed: NDArray[np.int64]) -> Crossing | None:
    below, step, confirmed = map(int, packed)
    return None if step < 0 else Crossing(None if below < 0 else below, step, confirmed)


def _cut(arrays: Mapping[str, NDArray[Any]], name: str) -> Iterator[Curve]:
    name = name.split("/", 1)[1]
    ends = np.cumsum(arrays[f"length/{name}"])[:-1]
    steps, values = (
        np.split(arrays[f"{part}/{name}"].astype(np.float64), ends) for part in ("step", "value")
    )
    return zip(steps, values, strict=True)


def _unpacked(arrays: Mapping[str, NDArray[Any]], curves: Mapping[str, list[Curve]], i: int) -> Record:
    numbers = {
        name: arrays[name][i].item() for name in ("lr", "weight_decay", "train_total", "total", "parameters")
    }
    crossings = {name: _crossing(arrays[name][i]) for name in _CROSSINGS}
    return Record(
        cell=int(arrays["cell"][i]),
        seed=int(arrays["seed"][i]),
        setting=Setting(**numbers),
        fields={name: arrays[name][i].item() for name in _FIELDS},
        milestones=Milestones(**crossings, budget=int(arrays["budget"][i])),
        curves={name: curve[i] for name, curve in curves.items() if name != "norm"},
        norm=curves["norm"][i],
        hidden={name: float(arrays[f"hidden/{name}"][i]) for name in _HIDDEN},
    )
