"""Work on the workers of a Dask scheduler that somebody else started: no engine of our own.

with on_cluster("tcp://head:8786"):
    sweep(read_spec("spec.toml"), "out")
    spectrum_along(run)
"""

from __future__ import annotations

import pickle
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from importlib import import_module
from pathlib import Path
from typing import Any

_CLIENT: ContextVar[Any] = ContextVar("client", default=None)


@contextmanager
def on_cluster(address: str) -> Iterator[None]:
    """Within it, sweeps and analyses that go snapshot by snapshot run on the workers of `address`.

    Scheduler and workers need this package and the run's folders under the same paths; workers need one
    thread each (`dask worker ADDRESS --nthreads 1`), as bits depend on the number of threads. A worker
    that dies costs its task, which another one begins again, or continues from its last commit.

    Raises:
        ValueError: dask is not installed, or the address makes no sense.
        OSError: no scheduler answers there.
    """
    try:
        client = _distributed().Client(address, timeout=10, set_as_default=False)
    except OSError as error:
        raise OSError(
            f"no scheduler answers at {address}; start one with `dask scheduler`, and workers with "
            f"`dask worker {address} --nthreads 1`"
        ) from error
    token = _CLIENT.set(client)
    try:
        yield
    finally:
        _CLIENT.reset(token)
        client.close()


def connected() -> bool:
    """Whether this is within `on_cluster`."""
    return _CLIENT.get() is not None


def unordered(function: Callable[..., Any], calls: Sequence[tuple[Any, ...]]) -> Iterator[Any]:
    """function(*call) of each call, as the workers finish them.

    Raises:
        Exception: what the function raised first, or KilledWorker when several workers died of one call.
    """
    client = _CLIENT.get()
    futures = [_submitted(function, call) for call in calls]
    with client.as_current():
        finished = _distributed().as_completed(futures)
    try:
        for future in finished:
            yield future.result()
            future.release()
    finally:
        client.cancel(futures)


def ordered(function: Callable[..., Any], calls: Iterable[tuple[Any, ...]]) -> Iterator[Any]:
    """function(*call) of each call, in order; a few calls per worker are under way at a time.

    Raises:
        Exception: as `unordered`.
    """
    waiting: deque[Any] = deque()
    try:
        for call in calls:
            waiting.append(_submitted(function, call))
            if len(waiting) > 3 * max(1, len(_CLIENT.get().nthreads())):
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        _CLIENT.get().cancel(list(waiting))


def _distributed() -> Any:
    try:
        return import_module("distributed")
    except ImportError:
        raise ValueError(
            "a cluster needs dask, which is not installed; `pip install 'grokscope[cluster]'`"
        ) from None


def _submitted(function: Callable[..., Any], call: tuple[Any, ...]) -> Any:
    packed = import_module("cloudpickle").dumps((function, call))
    return _CLIENT.get().submit(_alone, packed, str(Path.cwd()), pure=False)


def _alone(packed: bytes, folder: str) -> Any:
    """The call on a worker with nothing beside it; modules in `folder`, the caller's, can be imported.

    Raises:
        ValueError: the worker has several threads.
    """
    import torch

    threads = _distributed().get_worker().state.nthreads
    if threads != 1:
        raise ValueError(
            f"a worker has {threads} threads; start workers with --nthreads 1, and more of them instead"
        )
    torch.set_num_threads(1)
    if folder not in sys.path:
        sys.path.append(folder)
    function, call = pickle.loads(packed)
    return function(*call)
