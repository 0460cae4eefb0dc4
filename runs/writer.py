"""RunWriter: append, then commit; the rename of run.h5 is the only commit point."""

from __future__ import annotations

import errno
import hashlib
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any

from numpy.typing import NDArray

from ..geometry.parameters import ParameterTable
from . import lock as locks
from .buffer import MetricBuffer, RowBuffer, checked_step
from .config import RunConfig
from .continuation import continued, dropped, last_kept, listed_names, plain_sessions, sweep
from .decode import load_index, load_state
from .draft import Draft
from .durable import make_folder, write_file
from .index import INDEX_NAME, Index, Series, StateFile, encode
from .pace import COMMIT_BYTES, COMMIT_SECONDS, Pace
from .segments import FOLDER, segment_number


class RunWriter:
    """The one writer of a run: `append` snapshots, `log` metrics, `commit` them. A context manager.

    Appending costs a copy: threads hash each row and write it to the next segment meanwhile. A commit
    fsyncs that, names it, and rewrites run.h5, whose size is proportional to the steps, hashes and metrics
    so far (about 100 bytes per snapshot); so commits are paced by `due`: their number grows with the bytes
    written, and ever slower with time. Leaving the context after an error commits what was appended,
    without a new resume state.
    """

    def __init__(
        self,
        path: Path,
        index: Index,
        *,
        listed: set[str],
        lock: int | None,
        pace: Pace,
    ) -> None:
        self.path, self._index, self._lock, self._pace = path, index, lock, pace
        self._threads = ThreadPoolExecutor(2, "grokscope-hash"), ThreadPoolExecutor(1, "grokscope-disk")
        self._theta = RowBuffer("theta", index, index.theta, draft=self._draft, threads=self._threads)
        self._moment = RowBuffer(
            "second_moment", index, index.second_moment, draft=self._draft, threads=self._threads
        )
        self._metrics = MetricBuffer(index.metrics)
        self._listed = listed  # by the run.h5 on disk: not to be overwritten, deleted only once unlisted
        self._numbers = count(1 + max((segment_number(name) for name in listed), default=-1))
        self._dirty = self._failed = False

    @classmethod
    def create(
        cls,
        path: str | Path,
        config: RunConfig | None,
        table: ParameterTable,
        *,
        dtype: str = "float32",
        provenance: Mapping[str, Any] | None = None,
        commit_bytes: int = COMMIT_BYTES,
        commit_seconds: float = COMMIT_SECONDS,
        lock: bool = True,
    ) -> RunWriter:
        """A writer of a new run in folder `path`, which is made if missing; nothing is committed yet.

        Args:
            path: folder of the run.
            config: what is trained; None for a loop that is not ours.
            table: the tensors that theta (P,) concatenates.
            dtype: float32 or float64, of theta and second moments.
            provenance: JSON mapping: library versions, threads, device, revision, parent.
            commit_bytes: `due` after so many appended bytes.
            commit_seconds: `due` after max(commit_seconds, min(2 % of the elapsed time, 600 s)).
            lock: False on a file system without locks.

        Raises:
            FileExistsError: there is a run in the folder.
            BlockingIOError: another process writes a run there.
            OSError: the folder can't be made or written to.
            ValueError: another dtype, no parameters, or a provenance that is no JSON.
        """
        if dtype not in ("float32", "float64") or not table.size:
            raise ValueError(
                f"dtype={dtype!r} with {table.size} parameters; float32 or float64 and at least 1 are needed"
            )
        path, sessions = Path(path), plain_sessions((), provenance)
        make_folder(path / FOLDER)
        used_before = (path / locks.LOCK_NAME).exists()
        with locks.held(path, wanted=lock) as descriptor:
            if (path / INDEX_NAME).exists():
                raise FileExistsError(f"{path} holds a run already; resume it or give another folder")
            if used_before:  # by a writer that ended before its first commit
                sweep(path, set())
            text = None if config is None else config.to_json()
            index = Index(config=text, table=table, dtype=dtype, provenance=sessions)
            return cls(path, index, listed=set(), lock=descriptor, pace=Pace(commit_bytes, commit_seconds))

    @classmethod
    def resume(
        cls,
        path: str | Path,
        config: RunConfig | None,
        table: ParameterTable,
        *,
        at: int | None = None,
        provenance: Mapping[str, Any] | None = None,
        commit_bytes: int = COMMIT_BYTES,
        commit_seconds: float = COMMIT_SECONDS,
        lock: bool = True,
    ) -> RunWriter:
        """A writer at the last commit of an existing run; files that run.h5 does not list are deleted.

        What was recorded after the resume state (after step `at`, if given) is dropped: it comes again,
        bit for bit. A run of a configuration that has no resume state yet begins anew; a run of another
        loop keeps all. More `steps` than before make a finished run unfinished.

        Raises:
            ValueError: no run, another configuration (naming the fields), other parameters, or damage.
            BlockingIOError: another process writes this run.
        """
        path = Path(path)
        load_index(path)  # before a lock file is made in somebody's folder
        with locks.held(path, wanted=lock) as descriptor:
            stored = load_index(path)
            index = continued(stored, config, table, path)
            index = replace(index, provenance=plain_sessions(index.provenance, provenance))
            index = dropped(index, last_kept(index) if at is None else at)
            listed, pace = listed_names(stored), Pace(commit_bytes, commit_seconds)
            sweep(path, listed)
            return cls(path, index, listed=listed, lock=descriptor, pace=pace)

    @property
    def table(self) -> ParameterTable:
        """The tensors that theta concatenates."""
        return self._index.table

    @property
    def finished(self) -> bool:
        """Whether `finish` was called, now or before a resume."""
        return self._index.finish_reason is not None

    @property
    def last_step(self) -> int | None:
        """Step of the last snapshot, committed or not."""
        return self._theta.steps[-1] if self._theta.steps else None

    @property
    def metrics(self) -> dict[str, Series]:
        """Copies of all metrics, committed or not."""
        return self._metrics.series()

    @property
    def provenance(self) -> Mapping[str, Any]:
        """Provenance of the latest session."""
        return self._index.provenance[-1] if self._index.provenance else {}

    @property
    def resume_step(self) -> int | None:
        """Step of the resume state, None without one."""
        return self._index.resume.step if self._index.resume else None

    def resume_state(self) -> bytes | None:
        """The bytes given as `resume` to the last commit that had some, their hash checked.

        Raises:
            ValueError: the file is missing or damaged.
        """
        return load_state(self.path, self._index.resume) if self._index.resume else None

    def append(
        self,
        step: int,
        theta: NDArray[Any],
        *,
        second_moment: NDArray[Any] | None = None,
        allow_nonfinite: bool = False,
    ) -> None:
        """Add the snapshot theta (P,) at `step`, and the optimizer's second moment (P,) if given.

        The arrays are copied. NaN and infinite entries are refused unless `allow_nonfinite`: a diverged
        run ends before, and analyses of what follows would only spread them.

        Raises:
            ValueError: wrong shape or dtype, a step that does not rise, or entries that are not finite.
            OSError: the disk does not take it; the writer is of no more use, a resume continues.
        """
        step = checked_step(step)
        given = ((self._theta, theta), (self._moment, second_moment))
        finite = not allow_nonfinite
        checked = [(to, to.checked(step, row, finite=finite)) for to, row in given if row is not None]
        with self._guard():
            for to, row in checked:
                to.add(step, row)
                self._pace.add(row.nbytes)
        self._dirty = True

    def log(self, step: int, metrics: Mapping[str, int | float]) -> None:
        """Add values of metrics at `step`, at any cadence; integers stay integers.

        Raises:
            ValueError: a name with a slash, or a step that does not rise.
        """
        self._metrics.add(checked_step(step), metrics)
        self._dirty = True

    def due(self) -> bool:
        """Whether it is time to commit: enough bytes, or enough time, since the last commit."""
        return self._pace.due()

    def commit(self, resume: bytes | None = None, *, step: int | None = None) -> None:
        """Make everything appended and logged so far permanent and visible to readers.

        Args:
            resume: full training state from which training goes on; kept until the next one.
            step: the step of that state; the last one logged or appended if not given.

        Raises:
            OSError: the disk did not take it; the last commit is whole, a resume continues from it.
        """
        with self._guard():
            self._theta.flush()
            self._moment.flush()
            state = self._index.resume if resume is None else self._written("resume", step, resume)
            index = replace(
                self._index,
                theta=self._theta.rows(),
                second_moment=self._moment.rows(),
                metrics=self._metrics.series(),
                resume=state,
            )
            write_file(self.path / INDEX_NAME, encode(index))
            before, self._listed, self._index = self._listed, listed_names(index), index
        obsolete = before - self._listed
        for name in obsolete:
            with suppress(OSError):
                (self.path / name).unlink()
        self._dirty = False
        self._pace.committed()

    def keep_state(self, step: int, state: bytes) -> None:
        """Keep the full training state at `step` for good, as state-<step>.pt, listed by the next commit.

        Raises:
            OSError: the disk did not take it.
        """
        step = checked_step(step)
        with self._guard():
            kept = self._written("state", step, state)
        others = tuple(s for s in self._index.states if s.step != step)
        self._index = replace(self._index, states=(*others, kept))
        self._dirty = True

    def finish(self, reason: str, *, resume: bytes | None = None, step: int | None = None) -> None:
        """Commit and mark the run as finished, with the reason in words.

        Raises:
            OSError: the disk did not take it.
        """
        self._index = replace(self._index, finish_reason=reason or "finished")
        self.commit(resume, step=step)

    def close(self) -> None:
        """Commit what is not yet committed and free the run for other writers.

        Raises:
            OSError: the disk did not take it; the run is free nevertheless.
        """
        try:
            if self._dirty and not self._failed:
                self.commit()
        finally:
            self._dirty = False
            for thread in self._threads:
                thread.shutdown(cancel_futures=True)
            self._theta.discard()
            self._moment.discard()
            locks.release(self._lock)
            self._lock = None

    def discard(self) -> None:
        """Free the run without a commit: what was not committed is forgotten, and its files are deleted."""
        self._dirty = False
        with suppress(OSError):
            sweep(self.path, self._listed)
        self.close()

    def __enter__(self) -> RunWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            with suppress(OSError):  # the first error is the one to see
                self.close()

    def _draft(self, name: str) -> Draft:
        return Draft(self.path, next(self._numbers), name, self.table.size, self._index.dtype)

    @contextmanager
    def _guard(self) -> Iterator[None]:
        """After a failure or an interrupt amid writing, only the disk knows where the run stands."""
        if self._failed:
            raise OSError(errno.EIO, "an earlier write of this writer failed; resume the run", str(self.path))
        try:
            yield
        except BaseException:
            self._failed = True
            raise

    def _written(self, kind: str, step: int | None, state: bytes) -> StateFile:
        """The state in a file of a name that run.h5 does not list yet."""
        if step is None:
            step = max(0, self._metrics.last_step, *self._theta.steps[-1:])
        name, copies = f"{kind}-{step}.pt", 0
        while name in self._listed:
            copies += 1
            name = f"{kind}-{step}.{copies}.pt"
        write_file(self.path / name, state)
        return StateFile(name, int(step), hashlib.sha256(state).hexdigest())
