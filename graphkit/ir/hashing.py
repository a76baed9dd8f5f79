"""Hashes of large data, computed in a second thread while the data are read or written.

There are two: SHA-256, and `blake2b8`, which is computed in eight parts at the same time. At least one zero byte is
appended to the data, so that their size is a multiple of 1024 bytes. Part i consists of the 64-bit words i, i + 8,
i + 16, ... of the result. Each part is hashed with BLAKE2b (RFC 7693) to 64 bytes. `blake2b8` is the BLAKE2b, with 32
bytes, of the number of bytes of the data (64 bits), then word 0 of the hash of each part, then word 1 of each, and so
on. All numbers are little-endian.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

import numpy as np

SHA256, BLAKE2B8 = "sha256", "blake2b8"

# Smaller chunks (bytes) are hashed by the calling thread, because handing them over would take longer.
_INLINE = 1 << 16
# For larger data (bytes), importing the native extension takes less time than it saves.
_LONG = 1 << 22

_PARTS, _STRIPE = 8, 1024
_WORDS = _PARTS * 8  # bytes of one word of each part


class Hash(Protocol):
    """A hash of the data that were added."""

    def update(self, data: bytes | memoryview, /) -> None: ...
    def hexdigest(self) -> str: ...


class _Blake2b8:
    """The hash `blake2b8`, without the native extension."""

    def __init__(self) -> None:
        self._parts = [hashlib.blake2b() for _ in range(_PARTS)]
        self._rest = b""
        self._size = 0

    def update(self, data: bytes | memoryview) -> None:
        view = memoryview(data).cast("B")
        self._size += view.nbytes
        if self._rest:
            missing = _WORDS - len(self._rest)
            self._rest += view[:missing]
            view = view[missing:]
            if len(self._rest) < _WORDS:
                return
            self._add(memoryview(self._rest))
        whole = view.nbytes // _WORDS * _WORDS
        self._add(view[:whole])
        self._rest = bytes(view[whole:])

    def _add(self, data: memoryview) -> None:
        if data.nbytes:
            words = np.frombuffer(data, "<u8").reshape(-1, _PARTS)
            for number, part in enumerate(self._parts):
                part.update(np.ascontiguousarray(words[:, number]).data)

    def hexdigest(self) -> str:
        self._add(memoryview(self._rest + bytes(_STRIPE - self._size % _STRIPE)))
        words = np.frombuffer(b"".join([part.digest() for part in self._parts]), "<u8").reshape(_PARTS, 8)
        return hashlib.blake2b(self._size.to_bytes(8, "little") + words.T.tobytes(), digest_size=32).hexdigest()


class _Native:
    """The hash `blake2b8`, computed by the native extension. native: its class `Blake2b8`."""

    def __init__(self, native: Callable[[], Any]) -> None:
        self._native = native()

    def update(self, data: bytes | memoryview) -> None:
        view = memoryview(data)
        if view.nbytes:
            self._native.update(np.frombuffer(view, np.uint8))

    def hexdigest(self) -> str:
        found: str = self._native.hexdigest()
        return found


# Imports the native extension, if it was built. Set by packages above this one.
load_extension: Callable[[], object] | None = None


def _new(name: str, size: int) -> Hash:
    """Return a hash for `size` bytes."""
    if name == SHA256:
        return hashlib.sha256()
    if name != BLAKE2B8:
        raise ValueError(f"there is no hash {name!r}")
    if size >= _LONG and load_extension is not None:
        load_extension()
    # The extension lacks the class while another thread imports it.
    native = getattr(sys.modules.get("graphkit._native"), "Blake2b8", None)
    return _Blake2b8() if native is None else _Native(native)


def hash_of(
    name: str,
    chunks: Iterable[bytes | memoryview],
    consume: Callable[[bytes | memoryview], object] | None = None,
    size: int = 0,
) -> str:
    """Return the hash of all chunks in hexadecimal, and call `consume` with each of them.

    A chunk is hashed while it is consumed and the next one is produced. So a chunk must not change before the second
    one after it is requested.

    Args:
        name: SHA256 or BLAKE2B8.
        chunks: The data.
        consume: Called with each chunk, in this thread.
        size: Number of bytes of all chunks, roughly.
    """
    digest = _new(name, size)
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
