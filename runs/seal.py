"""Sealed files: the first 512 bytes say what the SHA-256 of the rest must be.

HDF5 crashes, hangs or lies on some damaged files, so it sees no byte that is not as it was written.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import BinaryIO

BLOCK = 512
_CHUNK = 2**22


def block(kind: str, digest: str) -> bytes:
    """The first bytes of a file of that kind whose other bytes have that SHA-256."""
    return f"{kind}\nsha256 {digest}\n".encode().ljust(BLOCK, b"\0")


def seal(path: Path, kind: str) -> None:
    """Write the block into a file whose first 512 bytes were left free for it.

    Raises:
        OSError: the file can't be written.
    """
    with path.open("r+b") as file:
        file.seek(BLOCK)
        digest = _digest(file)
        file.seek(0)
        file.write(block(kind, digest))


def check(path: Path, kind: str) -> None:
    """Nothing, if the file is sealed and as it was written.

    Raises:
        OSError: it is not there, of another kind, or damaged.
    """
    with path.open("rb") as file:
        found = file.read(BLOCK)
        if not found.startswith(f"{kind}\n".encode()):
            raise OSError(f"it is no {kind}")
        if found != block(kind, _digest(file)):
            raise OSError("its bytes do not have the SHA-256 written in its first block")


def _digest(file: BinaryIO) -> str:
    found = hashlib.sha256()
    while chunk := file.read(_CHUNK):
        found.update(chunk)
    return found.hexdigest()
