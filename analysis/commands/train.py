"""`grokscope train`: train a run, or resume an unfinished one."""

from __future__ import annotations

from dataclasses import MISSING, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import tyro
from typing_extensions import TypedDict

from ...runs.config import RunConfig, from_mapping, from_toml, parse_assignment
from .bar import progress
from .output import print_json, print_table


def _flag(name: str, default: Any, hint: Any) -> Any:
    shown = tyro.conf.arg(help="", help_behavior_hint=f"(default: {default})")
    if "dict" in str(hint):
        return Annotated[tuple[str, ...], tyro.conf.arg(metavar="[KEY=VALUE ...]", help_behavior_hint="")]
    return Annotated[hint, shown, tyro.conf.FlagConversionOff]


def _default(field: Any) -> Any:
    return {} if field.default is MISSING else field.default


_HINTS = get_type_hints(RunConfig)
_DICTS = tuple(f.name for f in fields(RunConfig) if f.default is MISSING)
# Not total: a flag that isn't given is absent, so that the TOML file's value stands.
_FLAGS = {f.name: _flag(f.name, _default(f), _HINTS[f.name]) for f in fields(RunConfig)}
if TYPE_CHECKING:
    Flags = dict[str, Any]
else:
    Flags = TypedDict("Flags", _FLAGS, total=False)


def command(
    config: Annotated[Path | None, tyro.conf.Positional, tyro.conf.arg(metavar="[CONFIG.toml]")] = None,
    /,
    *,
    out: Annotated[Path | None, tyro.conf.arg(metavar="RUN")] = None,
    print_config: bool = False,
    allow_drift: bool = False,
    trust_run: bool = False,
    json: bool = False,
    quiet: bool = False,
    flags: Annotated[Flags, tyro.conf.arg(name="")],
) -> int:
    """Train a run into a folder; an unfinished one there is resumed, bit for bit.

    Flags of the configuration stand above the TOML file's values, those above the defaults.

    Args:
        config: TOML file with fields of the configuration.
        out: folder of the run, made if missing.
        print_config: print the configuration as TOML and train nothing.
        allow_drift: resume under another torch, device or thread count; bits may then differ.
        trust_run: import `module:function` tasks and models that the TOML file names.
        json: print one JSON object instead of a table.
        quiet: show no progress bar.
        flags: fields of the configuration.
    """
    chosen = configuration(config, flags)
    if print_config:
        print(chosen.to_toml(), end="")
        return 0
    if out is None:
        raise ValueError("out is missing; give the run's folder as --out RUN")
    trust = trust_run or _named(chosen, flags)
    return _train(chosen, out, trust=trust, allow_drift=allow_drift, json=json, quiet=quiet)


def configuration(path: Path | None, flags: Flags) -> RunConfig:
    """The configuration of a TOML file (the defaults if None) with the given flags on top.

    Raises:
        ValueError: the file can't be read, or a value is of the wrong type or out of bounds.
    """
    table = {name: _parsed(name, value) for name, value in dict(flags).items()}
    return from_mapping(table, source="command line", base=None if path is None else from_toml(path))


def _parsed(name: str, value: Any) -> Any:
    return dict(map(parse_assignment, value)) if name in _DICTS else value


def _named(config: RunConfig, flags: Flags) -> bool:
    """Whether every `module:function` stands on the command line, which is the permission to import it."""
    own = [name for name in ("task", "model") if ":" in getattr(config, name)]
    return all(name in flags for name in own)


def _train(config: RunConfig, out: Path, *, trust: bool, allow_drift: bool, json: bool, quiet: bool) -> int:
    import sys

    from ...runs.train import Diverged, train
    from .info import facts

    try:
        run = train(config, out, progress=progress(quiet=quiet), allow_drift=allow_drift, trust=trust)
    except Diverged as error:
        print(f"grokscope: {error}; what was recorded is in {out}", file=sys.stderr)
        return 1
    found = facts(run)
    if json:
        print_json(found)
    else:
        shown = ("path", "snapshots", "last_step", "finish_reason", "memorized", "generalized")
        print_table({name: [found[name]] for name in shown})
    return 0
