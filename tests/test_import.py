import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_the_package_is_found_from_the_folder_above_a_clone_of_its_name(tmp_path):
    os.symlink(ROOT, tmp_path / "grokscope")
    code = "import grokscope; from grokscope.runs import config; print(grokscope.__version__)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip()


def test_importing_the_package_loads_neither_torch_nor_numpy():
    code = "import sys, grokscope; assert not {'torch', 'numpy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
