"""Functions that a configuration names, and the options that it gives them."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

TRUST = "GROKSCOPE_TRUST_RUN"
"""Set in the environment, it permits what `trust=True` does, in worker processes too."""


def load(name: str, *, field: str, trust: bool) -> Callable[..., Any]:
    """The function that `module:function` names, imported from the current folder or the Python path.

    Importing runs code, so it happens only if `trust` says that the user, not a stored run, named it.

    Raises:
        ValueError: not trusted, no such module or function, or not callable.
    """
    if not (trust or os.environ.get(TRUST)):
        raise ValueError(
            f"{field}={name!r} names code, and a stored run must not run code by itself; "
            "read that code, then permit it with --trust-run (trust=True in Python)"
        )
    module, _, attribute = name.partition(":")
    try:
        found = _import(module)
    except Exception as error:  # importing runs whatever stands there
        kind = "" if isinstance(error, ImportError | ValueError) else f"{type(error).__name__}: "
        raise ValueError(f"{field}={name!r}: module {module!r} can't be imported: {kind}{error}") from error
    function = getattr(found, attribute, None)
    if not callable(function):
        raise ValueError(f"{field}={name!r}: {module!r} has no function {attribute!r}; write module:function")
    return function  # type: ignore[no-any-return]


def options(function: Callable[..., Any], given: Mapping[str, Any], *, field: str) -> dict[str, Any]:
    """The given options, checked against the keyword-only parameters of function that have defaults.

    A whole number is taken for a float; nothing else is converted.

    Raises:
        ValueError: an option that function does not have, or a value of another type than its default.
    """
    parameters = inspect.signature(function).parameters.values()
    defaults = {
        p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is not p.empty
    }
    for name, value in given.items():
        if name not in defaults:
            known = ", ".join(defaults) or "none"
            raise ValueError(f"{field}: unknown option {name!r}; there are: {known}")
        wanted = type(defaults[name])
        if type(value) is not wanted and not (wanted is float and type(value) is int):
            raise ValueError(f"{field}.{name}={value!r} has the wrong type; it must be {wanted.__name__}")
    return {name: type(defaults[name])(value) for name, value in given.items()}


def one_of(value: str, choices: tuple[str, ...], *, field: str) -> str:
    """The value, if it is one of choices.

    Raises:
        ValueError: it is not.
    """
    if value not in choices:
        raise ValueError(f"{field}={value!r} must be one of {', '.join(choices)}")
    return value


def _import(module: str) -> Any:
    """The module; the current folder stays on the path, at its end, for processes that unpickle its names."""
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        return import_module(module)
    finally:
        sys.path.remove(here)
        if here not in sys.path:
            sys.path.append(here)
