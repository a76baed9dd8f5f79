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
            before = last
            if memoryview(chunk).nbytes > _INLINE:
                last = pool.submit(digest.update, chunk)
            else:
                if before is not None:
                    before.result()
                last = before = None
                digest.update(chunk)
            if consume is not None:
                consume(chunk)
            if before is not None:
                before.result()
        if last is not None:
            last.result()
    return digest.hexdigest()
