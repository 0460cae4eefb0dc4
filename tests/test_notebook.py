"""The quickstart: ten cells, and in `make soak` every one of them runs."""

import json
from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).parents[1] / "docs" / "quickstart.ipynb"


def cells():
    return [cell for cell in json.loads(NOTEBOOK.read_text())["cells"] if cell["cell_type"] == "code"]


def test_ten_cells_that_compile_and_are_kept_without_outputs():
    assert len(cells()) == 10
    for cell in cells():
        compile("".join(cell["source"]), str(NOTEBOOK), "exec")
        assert cell["outputs"] == []


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_it_runs_from_configuration_to_synoptic_figure(tmp_path):
    nbformat = pytest.importorskip("nbformat", reason="`make soak` installs the notebook extra")
    client = pytest.importorskip("nbclient", reason="`make soak` installs the notebook extra")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    resources = {"metadata": {"path": str(tmp_path)}}
    client.NotebookClient(notebook, timeout=1500, resources=resources).execute()
    done = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(len(str(cell.outputs[0].data["text/plain"])) < 2000 for cell in done)  # results are brief
    assert "image/png" in done[-1].outputs[0].data
