"""The options of an intervention: what is done to the steps of a run, checked without torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from math import isfinite
from typing import TYPE_CHECKING, Any, get_type_hints

if TYPE_CHECKING:
    from .config import RunConfig

_WHERE = {"kind", "directions", "parameters", "rank", "part", "scope", "start", "source", "draw"}
KINDS = {
    "project_gradient": _WHERE | {"strength", "every", "freeze_decay"},
    "project_update": _WHERE | {"strength", "every", "match_length", "freeze_decay"},
    "penalty": _WHERE | {"strength", "freeze_decay"},
    "kick": _WHERE | {"displacement", "push"},
    "noise": _WHERE | {"displacement", "push", "every"},
    "sham": _WHERE | {"every", "push"},
}
"""Each kind with the options that it knows."""
DIRECTIONS = ("trajectory", "past", "matched", "random")


@dataclass(frozen=True)
class Intervention:
    """What is done to the updates after step `start`, given orthonormal directions B (k, P).

    `part` says on which part of a vector v it acts: v − BᵀBv ("orthogonal") or BᵀBv ("inside"), of all
    coordinates or (`scope`) of the weight matrices that have directions only. By `kind`:

    - project_gradient: g ← g − strength · part(g), after clipping and before the optimizer, every `every`
      steps. As published (Xu 2026, arXiv 2602.16746), whose penalty is the same every tenth step; Adam
      divides by its root second moment, so that for strength < 1 little is changed where all of g shrinks.
    - project_update: the same for the final update Δθ of the optimizer, weight decay included. With
      `match_length` the new update is as long as the old one.
    - penalty: adds strength · part(θ − μ), the gradient of (strength/2)‖part(θ − μ)‖², μ the source's mean.
    - kick: once at `start`, θ moves by `displacement` along part(push), between gradient and optimizer step.
    - noise: the same every `every` steps.
    - sham: all random numbers and products of a noise, without moving anything.
    """

    kind: str
    directions: str = "trajectory"  # of the source run, whole or "past" up to start; or drawn at random
    parameters: str = "attention"  # group or name pattern of the weight matrices that have directions
    rank: int = 2  # directions for each of these matrices
    part: str = "orthogonal"
    scope: str = "all"
    strength: float = 1.0
    start: int = 500
    every: int = 1
    displacement: float = 0.0
    push: str = "gaussian"  # or "commutator": a bracket of two minibatches
    match_length: bool = False
    freeze_decay: bool = False  # no weight decay outside these matrices from start on
    source: str = ""  # folder of the run that gives the directions; a branch's parent by default
    draw: int = 0  # another number gives other random directions and pushes

    @property
    def needs_source(self) -> bool:
        """Whether snapshots of another run are needed."""
        return self.directions in ("trajectory", "past") or self.kind == "penalty"


def intervention_of(config: RunConfig) -> Intervention | None:
    """The intervention that a configuration asks for, None for none.

    Raises:
        ValueError: an unknown kind or option, an option of another kind, or a value out of bounds.
    """
    given = config.intervention
    if not given:
        return None
    kind = given.get("kind")
    if kind not in KINDS:
        raise ValueError(f"intervention: kind={kind!r} must be one of {', '.join(KINDS)}")
    for name in given:
        if name not in KINDS[str(kind)]:
            known = ", ".join(sorted(KINDS[str(kind)]))
            raise ValueError(f"intervention: {name!r} is no option of {kind}, which has {known}")
    options = Intervention(**{name: _typed(name, value) for name, value in given.items()})
    for name, valid, rule in _RULES:
        if not valid(getattr(options, name)):
            raise ValueError(f"intervention: {name}={getattr(options, name)!r} must be {rule}")
    _check_together(options, config)
    return options


def _check_together(options: Intervention, config: RunConfig) -> None:
    if options.kind in ("kick", "noise") and options.displacement == 0:
        raise ValueError(f"intervention: displacement is missing; a {options.kind} needs its length")
    if options.freeze_decay and config.optimizer != "adamw":
        raise ValueError(
            f"intervention: freeze_decay needs optimizer='adamw', whose decay can be taken back; "
            f"{config.optimizer} adds it to the gradient"
        )
    if options.kind == "penalty" and options.scope != "matrices":
        raise ValueError("intervention: penalty needs scope='matrices': only they have a mean to go back to")
    if options.directions == "random" and options.scope != "all":
        raise ValueError("intervention: random directions need scope='all'; 'matched' ones lie in matrices")
    if options.start >= config.steps:
        raise ValueError(f"intervention: start={options.start} must be below steps={config.steps}")


def _typed(name: str, value: Any) -> Any:
    kind = _TYPES[name]
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind:
        raise ValueError(f"intervention: {name}={value!r} must be of type {kind.__name__}")
    return value


def _one_of(*names: str) -> tuple[Any, str]:
    return (lambda v: v in names), f"one of {', '.join(names)}"


_TYPES: Mapping[str, type] = get_type_hints(Intervention)
_RULES = (
    ("directions", *_one_of(*DIRECTIONS)),
    ("part", *_one_of("orthogonal", "inside")),
    ("scope", *_one_of("all", "matrices")),
    ("push", *_one_of("gaussian", "commutator")),
    ("strength", lambda v: isfinite(v) and v >= 0, "at least 0 and finite"),
    ("displacement", lambda v: isfinite(v) and v >= 0, "at least 0 and finite"),
    ("rank", lambda v: v >= 1, "at least 1"),
    ("every", lambda v: v >= 1, "at least 1"),
    ("start", lambda v: v >= 0, "at least 0"),
    ("draw", lambda v: 0 <= v < 1000, "in [0, 1000)"),
)
assert {f.name for f in fields(Intervention)} == set().union(*KINDS.values())
