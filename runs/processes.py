"""Processes that share the cores: one thread each, and none that outlives the one that began it."""

from __future__ import annotations

import os
import signal
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from threading import Thread
from typing import Any

_POLITE = 10.0  # seconds that an orphan has to commit its run
_WATCHED: set[int] = set()  # callers that this process is or was a child of


@contextmanager
def one_thread() -> Iterator[None]:
    """Within it torch computes on one thread, on which bits depend; afterwards on as many as before."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def parallel(
    function: Callable[..., Any], calls: Iterable[tuple[Any, ...]], *, jobs: int, ordered: bool = True
) -> Iterator[Any]:
    """function(*call) of every call, `jobs` at a time with one thread each; with one job, in this process.

    In the order of the calls, or as they finish. The processes end when this one does, however it ends.

    Raises:
        Exception: what the function raised first.
    """
    if jobs == 1:
        for call in calls:
            yield _alone(os.getpid(), function, *call)
        return
    from joblib import Parallel, delayed

    # A worker whose memory has grown is replaced, and what it was given is done by another: no news.
    warnings.filterwarnings("ignore", message="A worker stopped while some jobs were given")
    kind = "generator" if ordered else "generator_unordered"
    # Arrays as they are: mapped ones, the default for large ones, would be read-only.
    options = {"pre_dispatch": 2 * jobs, "batch_size": 1, "max_nbytes": None}
    pool = Parallel(n_jobs=jobs, return_as=kind, **options)
    yield from pool(delayed(_alone)(os.getpid(), function, *call) for call in calls)


def _alone(parent: int, function: Callable[..., Any], *call: Any) -> Any:
    _end_with(parent)
    with one_thread():
        return function(*call)


def _end_with(parent: int) -> None:
    """Has this process end with `parent` if it is a child of it; one that was begins nothing more."""
    child = os.getppid() == parent
    if child and parent not in _WATCHED:
        _WATCHED.add(parent)
        Thread(target=_watch, args=(parent,), daemon=True).start()
    if parent in _WATCHED and not child:
        os._exit(1)


def _watch(parent: int) -> None:
    """Ends this process once its caller was killed, as nobody waits for what it does."""
    while os.getppid() == parent:
        time.sleep(1)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_POLITE)
    os._exit(1)
