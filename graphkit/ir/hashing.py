"""SHA-256 of large data, computed in a second thread while the data are read or written."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor

# Smaller chunks (bytes) are hashed by the calling thread, because handing them over would take longer.
_INLINE = 1 << 16


def sha256_of(
    chunks: Iterable[bytes | memoryview], consume: Callable[[bytes | memoryview], object] | None = None
) -> str:
    """Return the SHA-256 of all chunks in hexadecimal, and call `consume` with each of them.

    A chunk is hashed while it is consumed and the next one is produced. So a chunk must not change before the second
    one after it is requested.
    """
    digest = hashlib.sha256()
    with ThreadPoolExecutor(1, "graphkit-hash") as pool:
        last: Future[None] | None = None
        for chunk in chunks:
            before, last = last, None
            if memoryview(chunk).nbytes > _INLINE:
                last = _submitted(pool, digest.update, chunk)
            if last is None:
                _wait(before)
                before = None
                digest.update(chunk)
            if consume is not None:
                consume(chunk)
            _wait(before)
        _wait(last)
    return digest.hexdigest()


def _submitted(
    pool: ThreadPoolExecutor, update: Callable[[bytes | memoryview], None], chunk: bytes | memoryview
) -> Future[None] | None:
    """Return the work of a thread of the pool; None if no thread starts, as while the interpreter ends."""
    try:
        return pool.submit(update, chunk)
    except RuntimeError:
        return None


def _wait(work: Future[None] | None) -> None:
    if work is not None:
        work.result()
