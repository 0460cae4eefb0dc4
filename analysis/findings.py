"""What was found about a run, in sentences, each with its verdict and what it rests on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from ..runs.milestones import Crossing, milestones

if TYPE_CHECKING:
    from ..runs.store import Run
    from .commutator import CommutatorCurve
    from .delay import DelayCurve
    from .llc import LLCCurve
    from .progress import ProgressCurve
    from .spectrum import SpectrumCurve
    from .surface import Surface
    from .trajectory import TrajectoryCurve

Mark = Literal["good", "doubtful", "bad", ""]


class Finding(NamedTuple):
    """One sentence of the story; `verdict` is a word or two, `mark` how much it is to be trusted."""

    topic: str
    text: str
    verdict: str = ""
    mark: Mark = ""


def findings(run: Run, results: Mapping[str, Any]) -> list[Finding]:
    """The story of a run: milestones, then one finding per result (by kind) that is there."""
    makers: dict[str, Callable[[Any], Finding]] = {
        "delay": _delay,
        "trajectory": _trajectory,
        "commutator": _commutator,
        "spectrum": _spectrum,
        "llc": _llc,
        "progress": _progress,
        "surface": _surface,
    }
    found = milestones(run)
    end = f"by step {found.budget}"
    story = [_reached("Memorized", found.memorized, end), _reached("Generalized", found.generalized, end)]
    if found.delay is not None:
        story.append(Finding("Delay", f"{found.delay} steps from memorization to generalization."))
    return story + [make(results[kind]) for kind, make in makers.items() if kind in results]


def _reached(topic: str, crossing: Crossing | None, end: str) -> Finding:
    if crossing is None:
        return Finding(topic, f"Not {end}.", "not reached", "doubtful")
    after = "at the first evaluation" if crossing.below is None else f"after step {crossing.below}"
    text = f"{after}, not later than {crossing.step}; confirmed at {crossing.confirmed}."
    return Finding(topic, text[0].upper() + text[1:], f"step {crossing.step}", "good")


def _delay(curve: DelayCurve) -> Finding:
    if not np.isfinite(curve.interval).all():
        return Finding("Prediction", curve.reason or "No delay was predicted.", curve.verdict, "doubtful")
    low, high = curve.interval
    text = (
        f"From what was known at step {curve.used_until_step}: {curve.predicted[0]:.0f} steps of delay, "
        f"{100 * curve.coverage:.0f} % interval {low:.0f} to {high:.0f}."
    )
    if curve.delay is not None:
        text += f" It was {curve.delay}, {'inside' if low <= curve.delay <= high else 'outside'}."
    mark: Mark = "good" if curve.verdict == "applies" else "doubtful"
    return Finding("Prediction", f"{text} {curve.reason}".strip(), curve.verdict, mark)


def _trajectory(curve: TrajectoryCurve) -> Finding:
    own, null = curve.explained_variance[0], curve.random_walk_null[0]
    text = (
        f"The first component explains {100 * own:.1f} % of the motion; a random walk with the same step "
        f"lengths gives {100 * null:.1f} %, the decay of the initial weights alone makes "
        f"{100 * curve.decay_share:.1f} % of it."
    )
    return Finding("Trajectory", text, f"{100 * (own - null):+.1f} points over its null")


def _commutator(curve: CommutatorCurve) -> Finding:
    noisy = int((curve.below_floor >= 0.5).sum())
    known = curve.curvature[np.isfinite(curve.curvature)]
    text = f"Batches of {curve.batch_size}: the defect in curvature units runs from {known[0]:.3g}"
    text += f" to {known[-1]:.3g}, at most {known.max():.3g}." if known.size else ": undefined."
    text += f" The published float32 value is mostly rounding at {noisy} of {len(curve.steps)} snapshots."
    mark: Mark = "doubtful" if noisy else "good"
    return Finding("Commutator", text, "float32 noise" if noisy else "above the noise", mark)


def _spectrum(curve: SpectrumCurve) -> Finding:
    top = curve.largest[:, 0]
    proven = int((curve.converged & curve.extremal).sum())
    text = (
        f"The top eigenvalue goes from {top[0]:.3g} to {top[-1]:.3g} (at most {np.nanmax(top):.4g}); the "
        f"lowest found is {np.nanmin(curve.smallest[:, 0]):.3g}. {proven} of {curve.converged.size} pairs "
        "are converged and proven to be the end."
    )
    whole = proven == curve.converged.size
    return Finding("Curvature", text, "proven" if whole else "partly proven", "good" if whole else "doubtful")


def _llc(curve: LLCCurve) -> Finding:
    verdicts = np.asarray(curve.verdict)
    fine = int((verdicts == "ok").sum())
    text = (
        f"Tilted λ̂ from {curve.tilted[0]:.3g} ± {curve.tilted_stderr[0]:.2g} to {curve.tilted[-1]:.3g} ± "
        f"{curve.tilted_stderr[-1]:.2g}; {fine} of {len(verdicts)} estimates are ok."
    )
    mark: Mark = "good" if fine == len(verdicts) else "doubtful" if fine else "bad"
    return Finding("Learning coefficient", text, f"{fine} of {len(verdicts)} ok", mark)


def _progress(curve: ProgressCurve) -> Finding:
    if not curve.order:
        first, last = curve.commutativity_all[[0, -1]]
        return Finding("Circuit", f"Commutativity violation {first:.2g} at first, {last:.2g} at the end.")
    keys = ", ".join(map(str, curve.key_frequencies))
    text = (
        f"Key frequencies {keys} carry {100 * curve.key_share[-1]:.0f} % of the logits' power at the end "
        f"({100 * curve.random_share:.2g} % if they were random), {100 * curve.key_share[0]:.2g} % at first. "
        f"Restricted loss {curve.restricted_loss[-1]:.2g}, excluded loss {curve.excluded_loss[-1]:.2g}."
    )
    most = bool(curve.key_share[-1] > 0.5)
    return Finding("Circuit", text, "waves" if most else "no waves", "good" if most else "doubtful")


def _surface(surface: Surface) -> Finding:
    off = np.abs(np.log(surface.plane_loss / surface.loss))
    worst = int(np.nanargmax(off))
    text = (
        f"In the plane of two components the {surface.split} loss at step {surface.steps[worst]} reads "
        f"{surface.plane_loss[worst]:.3g}; the snapshot has {surface.loss[worst]:.3g}, "
        f"{surface.residual[worst]:.3g} away from the plane. The straight line from step "
        f"{surface.line_steps[0]} to {surface.line_steps[1]} has a barrier of {surface.barrier:.3g}."
    )
    true = float(off[worst]) < np.log(1.25)
    return Finding("Loss surface", text, "true" if true else "not to be read", "good" if true else "doubtful")
