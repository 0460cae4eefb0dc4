"""Reproducing a study: train its runs, measure, and keep what was found as one JSON file."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ..runs.durable import make_folder, write_file
from ..runs.processes import one_thread
from ..runs.provenance import git_revision, provenance
from ..runs.sweep import Entry, entries, sweep
from .claim import Claim, Finding, Scale
from .rows import Progress, identity

if TYPE_CHECKING:
    from .study import Measured, Study


@dataclass(frozen=True)
class Reproduction:
    """What came out of one study, and of which code and command."""

    study: str
    title: str
    source: str
    scale: Scale
    claims: tuple[Claim, ...]
    findings: tuple[Finding, ...]  # one for each claim, in their order
    failed_runs: tuple[str, ...]  # "name: message"
    seconds: float  # of this call, in which runs found finished cost nothing
    command: str
    versions: Mapping[str, Any]
    git_revision: str
    runs: int = 0  # that were trained
    skipped: int = 0  # of them, found finished


def studies() -> tuple[str, ...]:
    """Names of the studies there are, as on the command line."""
    files = Path(__file__).with_name("studies").glob("[!_]*.py")
    return tuple(sorted(file.stem.replace("_", "-") for file in files))


def study(name: str) -> Study:
    """The module of a study.

    Raises:
        ValueError: there is none of that name; the message tells the nearest one.
    """
    if name not in studies():
        near = get_close_matches(name, studies(), n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(studies())}"
        raise ValueError(f"study={name!r} is not known; {hint}")
    return cast("Study", import_module(f".studies.{name.replace('-', '_')}", __package__))


def training(name: str, scale: Scale) -> tuple[Entry, ...]:
    """The runs that a study needs; none if it trains none."""
    spec = study(name).spec(scale)
    return entries(spec, source=f"study {name}") if spec else ()


def reproduce(
    name: str,
    folder: str | Path,
    *,
    scale: Scale,
    released_data: Path | None = None,
    jobs: int = 1,
    command: str = "",
    progress: Progress = identity,
) -> tuple[Reproduction, Measured]:
    """Train what is missing of a study's runs in `folder`, then measure them, `jobs` at a time.

    Runs that are finished are skipped and unfinished ones resumed, so the same call goes on after an
    interruption; those that fail are named in the result, and the measurement decides without them.

    Raises:
        ValueError: no such study, or its findings don't answer its claims one by one.
    """
    module, started = study(name), time.monotonic()
    home = Path(folder).absolute()  # workers of a cluster may stand elsewhere
    make_folder(home)
    wanted = training(name, scale)
    outcomes = sweep(wanted, home, jobs=jobs, trust=True, progress=progress) if wanted else ()
    with one_thread():
        measured = module.measure(
            home, scale=scale, released_data=released_data, jobs=jobs, progress=progress
        )
    _check_answers(module.CLAIMS, measured.findings)
    found = Reproduction(
        study=name,
        title=module.TITLE,
        source=module.SOURCE,
        scale=scale,
        claims=tuple(module.CLAIMS),
        findings=tuple(measured.findings),
        failed_runs=tuple(f"{o.name}: {o.message}" for o in outcomes if o.status == "failed"),
        seconds=time.monotonic() - started,
        command=command,
        versions={k: v for k, v in provenance("cpu").items() if k != "git_revision"},
        git_revision=git_revision(),
        runs=len(outcomes),
        skipped=sum(o.status == "skipped" for o in outcomes),
    )
    return found, measured


def result_path(out: Path, name: str, scale: Scale) -> Path:
    """Where a reproduction is kept: OUT/NAME.json, at paper scale OUT/NAME-paper.json."""
    return out / f"{name}{'' if scale == 'quick' else f'-{scale}'}.json"


def keep(found: Reproduction, out: Path) -> Path:
    """Write a reproduction to its JSON file, which appears whole or not at all; infinities become texts."""
    path = result_path(out, found.study, found.scale)
    make_folder(out)
    write_file(path, (json.dumps(_plain(asdict(found)), indent=1, ensure_ascii=False) + "\n").encode())
    return path


def kept(path: Path) -> Reproduction:
    """The reproduction in a JSON file that `keep` wrote.

    Raises:
        ValueError: it is no such file.
    """
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
        claims = tuple(
            Claim(**{**claim, "low": float(claim["low"]), "high": float(claim["high"])})
            for claim in fields["claims"]
        )
        findings = tuple(
            Finding(**{**finding, "values": tuple(map(float, finding["values"]))})
            for finding in fields["findings"]
        )
        failed = tuple(fields["failed_runs"])
        return Reproduction(**{**fields, "claims": claims, "findings": findings, "failed_runs": failed})
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"{path} is no result of `grokscope reproduce`: {error}; remove it and reproduce it again"
        ) from None


def _check_answers(claims: Sequence[Claim], findings: Sequence[Finding]) -> None:
    asked, answered = [claim.name for claim in claims], [finding.claim for finding in findings]
    if asked != answered:
        raise ValueError(f"findings={answered} must answer the claims {asked}, in their order")


def _plain(value: Any) -> Any:
    """The value in terms of JSON, which has no infinities: they become texts that float() reads."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if hasattr(value, "item"):
        value = value.item()
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
