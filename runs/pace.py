"""When to commit: often enough to lose little, seldom enough to cost little."""

from __future__ import annotations

from time import monotonic

COMMIT_BYTES, COMMIT_SECONDS = 256 * 2**20, 10.0
_SHARE, _LONGEST = 0.02, 600.0


class Pace:
    """Commits are due after so many bytes, or max(`seconds`, min(2 % of the elapsed time, 600 s))."""

    def __init__(self, size: int = COMMIT_BYTES, seconds: float = COMMIT_SECONDS) -> None:
        self._size, self._seconds, self._bytes = size, seconds, 0
        self._started = self._committed = monotonic()

    def add(self, size: int) -> None:
        """Note that so many bytes were appended."""
        self._bytes += size

    def due(self) -> bool:
        """Whether it is time to commit."""
        now = monotonic()
        pause = max(self._seconds, min(_SHARE * (now - self._started), _LONGEST))
        return self._bytes >= self._size or now - self._committed >= pause

    def committed(self) -> None:
        """Note that all is committed now."""
        self._bytes, self._committed = 0, monotonic()
