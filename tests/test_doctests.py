"""Every example in a docstring gives what it says."""

import doctest
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MODULES = [
    "grokscope." + ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for layer in ("geometry", "runs", "analysis")
    for path in sorted((ROOT / layer).rglob("*.py"))
    if path.name != "__init__.py"
]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    assert doctest.testmod(import_module(name)).failed == 0
