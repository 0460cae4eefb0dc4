"""grokscope: loss-landscape geometry and training dynamics of grokking.

The everyday names, loaded on first use so that `import grokscope` costs nothing.
"""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .runs.config import RunConfig
    from .runs.prediction import DelayMonitor
    from .runs.recorder import Recorder
    from .runs.store import Run
    from .runs.train import train

__version__ = version("grokscope")
__all__ = ["DelayMonitor", "Recorder", "Run", "RunConfig", "__version__", "train"]

_HOME = {
    "DelayMonitor": ".runs.prediction",
    "Recorder": ".runs.recorder",
    "Run": ".runs.store",
    "RunConfig": ".runs.config",
    "train": ".runs.train",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'grokscope' has no attribute {name!r}")
    return getattr(import_module(_HOME[name], __name__), name)
