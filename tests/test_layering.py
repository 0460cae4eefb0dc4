"""Who may import what: geometry <- runs <- analysis, and who opens HDF5, draws and prints."""

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LAYERS = {
    "geometry": {"geometry"},
    "runs": {"geometry", "runs"},
    "analysis": {"geometry", "runs", "analysis"},
}
FILES = [path for layer in LAYERS for path in sorted((ROOT / layer).rglob("*.py"))]
# The run's file format has these hands; nobody else knows that it is HDF5.
STORE = {"store", "writer", "index", "decode", "segments", "pack", "durable", "provenance"}
GEOMETRY_NEEDS = {"torch", "numpy", "scipy", "arviz_stats", "pyhessian"}


def imports(path):
    """(level, dotted name) of every import in a file, at the top or inside functions."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((0, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.level, node.module or ""
            yield from ((node.level, f"{node.module or ''}.{alias.name}".lstrip(".")) for alias in node.names)


def own_layer(path, level, name):
    """The package of ours that a relative import reaches."""
    parts = path.relative_to(ROOT).parent.parts
    reached = parts[: len(parts) - level + 1]
    return reached[0] if reached else name.split(".")[0]


def outside(path):
    return {name.split(".")[0] for level, name in imports(path) if level == 0}


def by_name(path):
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", FILES, ids=by_name)
def test_imports_point_downward_and_are_relative(path):
    layer = path.relative_to(ROOT).parts[0]
    reached = {own_layer(path, level, name) for level, name in imports(path) if level}
    assert reached - {""} <= LAYERS[layer]
    assert not outside(path) & {"grokscope", "geometry", "runs", "analysis", "api"}


@pytest.mark.parametrize("path", FILES, ids=by_name)
def test_packages_stay_where_they_belong(path):
    layer, packages = path.relative_to(ROOT).parts[0], outside(path)
    if layer == "geometry":
        assert packages <= GEOMETRY_NEEDS | set(sys.stdlib_module_names)
    if "h5py" in packages:
        allowed = {"runs": STORE, "analysis": {"result", "encoding"}}[layer]
        assert path.stem in allowed
    if packages & {"matplotlib", "mpl_toolkits"}:
        assert path.parent == ROOT / "analysis" / "figures"
    if packages & {"rich", "tyro"}:
        assert path.parent == ROOT / "analysis" / "commands"


@pytest.mark.parametrize("path", FILES, ids=by_name)
def test_only_commands_print(path):
    calls = [node.func for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    prints = [call for call in calls if isinstance(call, ast.Name) and call.id == "print"]
    assert not prints or path.parent == ROOT / "analysis" / "commands"


def test_the_face_only_hands_on():
    tree = ast.parse((ROOT / "api" / "__init__.py").read_text())
    defined = [node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    assert set(defined) <= {"__getattr__", "__dir__"}


def test_the_rules_would_notice(tmp_path):
    bad = ROOT / "geometry" / "nothing.py"
    assert own_layer(bad, 2, "runs.store") == "runs"
    assert own_layer(bad, 1, "lanczos") == "geometry"
    assert own_layer(ROOT / "analysis" / "commands" / "x.py", 3, "runs.store") == "runs"
    assert own_layer(ROOT / "analysis" / "commands" / "x.py", 2, "result") == "analysis"
