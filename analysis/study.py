"""What every file in analysis/studies offers: claims, the runs they need, and one measurement."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from numpy.typing import NDArray

from .claim import Claim, Finding, Scale
from .rows import Progress


@dataclass(frozen=True)
class Measured:
    """The findings of a study, a finding for each claim in their order, and what its figure draws."""

    findings: tuple[Finding, ...]
    arrays: Mapping[str, NDArray[Any]] = field(default_factory=dict)


class Study(Protocol):
    """A module in analysis/studies; its figure is `draw(measured)` in analysis/figures/study_<name>.py.

    One whose measurement takes long at paper scale may tell how long, in one process:
    `measuring_seconds(scale) -> float`.
    """

    TITLE: str
    SOURCE: str  # author, year, arXiv
    CLAIMS: tuple[Claim, ...]

    def spec(self, scale: Scale) -> Mapping[str, Any]:
        """The runs, as for `runs.sweep.entries`; empty if the study trains none."""
        ...

    def measure(
        self, folder: Path, *, scale: Scale, released_data: Path | None, jobs: int, progress: Progress
    ) -> Measured:
        """The findings, from finished runs below `folder`; derived runs (branches) are made there too.

        `jobs` processes share the work; no finding depends on how many they are.
        """
        ...
