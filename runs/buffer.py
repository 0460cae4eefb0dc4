"""What a writer has been given and run.h5 does not list yet: rows and metrics."""

from __future__ import annotations

import hashlib
import operator
import re
from array import array
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .draft import Draft
from .durable import byte_view
from .index import Index, Series
from .segments import Rows

PENDING_BYTES = 32 * 2**20  # the memory that rows on their way to disk may use
_METRIC_NAME = re.compile(r"[^/\x00-\x1f]*[^/.\x00-\x1f][^/\x00-\x1f]*")


class _Pending(NamedTuple):
    row: NDArray[Any]
    digest: Future[str]
    written: Future[None]


class RowBuffer:
    """One growing series of row vectors; threads hash and write each row while training goes on."""

    def __init__(
        self,
        name: str,
        index: Index,
        rows: Rows,
        *,
        draft: Callable[[str], Draft],
        threads: tuple[Executor, Executor],
    ) -> None:
        self.steps, self.hashes, self.pieces = rows.steps.tolist(), list(rows.hashes), list(rows.pieces)
        self._name, self._size, self._dtype = name, index.table.size, index.dtype
        self._new_draft, (self._hasher, self._disk) = draft, threads
        self._draft: Draft | None = None
        self._digests: list[str] = []  # of the rows in the draft
        self._pending: deque[_Pending] = deque()  # of those, the last ones: not yet hashed and written
        self._spare: list[NDArray[Any]] = []  # used again: fresh memory costs as much as the copy

    def checked(self, step: int, row: NDArray[Any], *, finite: bool) -> NDArray[Any]:
        """The row, if it can be added at `step`.

        Raises:
            ValueError: wrong shape or dtype, a step that does not rise, or entries that are not finite.
        """
        row = np.asarray(row)
        if row.shape != (self._size,) or row.dtype != self._dtype:
            wanted = f"({self._size},) {self._dtype}"
            raise ValueError(f"{self._name} has shape {row.shape} {row.dtype}; this run takes {wanted}")
        if self.steps and step <= self.steps[-1]:
            raise ValueError(f"step={step} must exceed the last {self._name}'s step, {self.steps[-1]}")
        if finite and not _finite(row):
            count = int((~np.isfinite(row)).sum())
            raise ValueError(
                f"{self._name} at step {step} has {count} entries that are NaN or infinite; "
                "stop there, or pass allow_nonfinite=True"
            )
        return row

    def add(self, step: int, row: NDArray[Any]) -> None:
        """Take a copy of a row to the draft of the next segment.

        Raises:
            OSError: the disk did not take an earlier row.
        """
        self._settle(PENDING_BYTES)
        if self._draft is None:
            self._draft = self._new_draft(self._name)
        copy = self._spare.pop() if self._spare else np.empty(self._size, self._dtype)
        copy[...] = row
        digest, written = self._hasher.submit(_digest, copy), self._disk.submit(self._draft.write, copy)
        self._pending.append(_Pending(copy, digest, written))
        self.steps.append(step)

    def flush(self) -> None:
        """Make a segment of the rows added since the last one.

        Raises:
            OSError: the disk did not take them.
        """
        if self._draft is not None:
            self._settle(0)
            self.pieces.append(self._draft.finish(len(self._digests), first_row=len(self.hashes)))
            self.hashes += self._digests
            self._draft, self._digests = None, []

    def discard(self) -> None:
        """Delete the draft."""
        if self._draft is not None:
            self._draft.discard()

    def rows(self) -> Rows:
        """All rows that lie in segments."""
        return Rows(
            np.array(self.steps[: len(self.hashes)], np.int64), tuple(self.hashes), tuple(self.pieces)
        )

    def _settle(self, limit: int) -> None:
        """Take note of rows that are done; wait for some while more than `limit` bytes are pending."""
        while self._pending:
            row, digest, written = self._pending[0]
            if len(self._pending) * row.nbytes <= limit and not (digest.done() and written.done()):
                break
            written.result()
            self._digests.append(digest.result())
            self._spare.append(row)
            self._pending.popleft()


class MetricBuffer:
    """Growing metrics by name, counts as integers."""

    def __init__(self, metrics: Mapping[str, Series]) -> None:
        self._columns = {name: (array("q", s.step.tolist()), _column(s.value)) for name, s in metrics.items()}

    def add(self, step: int, metrics: Mapping[str, int | float]) -> None:
        """Append one value to each named metric; a metric that gets a fraction becomes float64 as a whole.

        Raises:
            ValueError: a name can't name a dataset, or a metric has a value at this or a later step already.
        """
        for name in metrics:
            if not _METRIC_NAME.fullmatch(name):
                raise ValueError(
                    f"metrics: {name!r} can't be a name; use no slash, e.g. {name.replace('/', '.')!r}"
                )
            if name in self._columns and self._columns[name][0][-1] >= step:
                last = self._columns[name][0][-1]
                raise ValueError(
                    f"step={step}: {name} has a value at step {last} already; log in rising order"
                )
        for name, value in metrics.items():
            self._append(name, step, _number(value))

    @property
    def last_step(self) -> int:
        """The last step that has any value; -1 without metrics."""
        return max((steps[-1] for steps, _ in self._columns.values()), default=-1)

    def series(self) -> dict[str, Series]:
        """Copies of all metrics."""
        return {
            name: Series(np.array(step, np.int64), np.array(value))
            for name, (step, value) in self._columns.items()
        }

    def _append(self, name: str, step: int, value: int | float) -> None:
        kind = "q" if isinstance(value, int) else "d"
        steps, values = self._columns.setdefault(name, (array("q"), array(kind)))
        if values.typecode == "q" and kind == "d":
            values = array("d", values)
            self._columns[name] = (steps, values)
        values.append(value)
        steps.append(step)


def checked_step(step: Any) -> int:
    """The step as an int.

    Raises:
        ValueError: it is no whole number from 0 to 2**63 - 1.
    """
    try:
        whole = operator.index(step)
    except TypeError:
        whole = -1
    if not 0 <= whole < 2**63:
        raise ValueError(f"step={step!r} must be a whole number, at least 0")
    return whole


def until(metrics: Mapping[str, Series], step: float) -> dict[str, Series]:
    """The metrics without what comes after `step`."""
    counts = {name: int(np.searchsorted(s.step, step, side="right")) for name, s in metrics.items()}
    return {
        name: Series(s.step[: counts[name]], s.value[: counts[name]])
        for name, s in metrics.items()
        if counts[name]
    }


def _finite(row: NDArray[Any]) -> bool:
    with np.errstate(all="ignore"):  # one pass without a copy decides nearly always
        return bool(np.isfinite(row.sum()) or np.isfinite(row).all())


def _digest(row: NDArray[Any]) -> str:
    return hashlib.sha256(byte_view(row)).hexdigest()


def _column(values: NDArray[Any]) -> array[Any]:
    return array("q" if values.dtype.kind == "i" else "d", values.tolist())


def _number(value: Any) -> int | float:
    """An int if it is a whole number's type and fits 64 bits, else a float."""
    try:
        whole = operator.index(value)
    except TypeError:
        return float(value)
    return whole if -(2**63) <= whole < 2**63 else float(whole)
