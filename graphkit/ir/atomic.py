"""Write files completely or not at all.

A temporary file beside the target is written and synced, then renamed to the target.

A process locks its temporary files and scratch folders. A lock ends with its process. A file without a lock was left
behind by a process that was killed; the next process that writes in the same folder removes it.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from graphkit.errors import RuntimeFailure
from graphkit.ir.locks import try_lock

_SUFFIX = ".graphkit.tmp"
_SCRATCH = "graphkit-scratch-"
_OWNER = "owner"

# Where a file system has no locks, a temporary file older than this belongs to a process that was killed.
_STALE_SECONDS = 3600.0

# Bytes of a write. With larger ones, Linux allocates large pages of its cache, and compacts memory for them if it is
# fragmented: ext4 then writes 0.5 to 1 GB/s in place of 3. Pieces above the size of the buffer are not copied to it.
_BUFFER, _PIECE = 1 << 16, 1 << 17

# Bytes after which the system starts to write them to the disk, while this process produces the next ones.
# Otherwise, Linux starts when the file is complete, and `fsync` waits for all of it.
_EARLY = 1 << 23
_SYNC_FILE_RANGE_WRITE = 2  # of Linux: start, and do not wait

_BINARY = getattr(os, "O_BINARY", 0)


class PendingFile:
    """A temporary file in `folder` for a target called `name`, as a context manager.

    `commit` renames the file to the target. Without `commit`, the file is removed at the end of the context. Raises the
    OSErrors of the file system; the target then stays unchanged.
    """

    def __init__(self, folder: Path, name: str):
        self.folder = folder
        remove_abandoned(folder)
        self.path, descriptor = _locked_file(lambda: folder / f".{name}.{secrets.token_hex(6)}{_SUFFIX}")
        # Stays open until `commit`: its lock tells other processes that the file is in use.
        self._file = os.fdopen(descriptor, "wb", buffering=_BUFFER)
        self._committed = False
        self._written = self._started = 0  # bytes: passed to `write`, and those that go to the disk already

    def write(self, data: Any) -> None:
        view = memoryview(data)
        if view.nbytes <= _PIECE:
            self._file.write(data)
            self._count(view.nbytes)
            return
        view = view.cast("B")
        for start in range(0, view.nbytes, _PIECE):
            piece = view[start : start + _PIECE]
            self._file.write(piece)
            self._count(piece.nbytes)

    def _count(self, size: int) -> None:
        """Count `size` bytes as written; from time to time, start to write them to the disk."""
        self._written += size
        if self._written - self._started >= _EARLY:
            self._file.flush()
            _start_writeback(self._file.fileno(), self._started, self._written - self._started)
            self._started = self._written

    def finish(self) -> None:
        """Write all data to the disk. After this, only the rename can fail."""
        self._file.flush()
        os.fsync(self._file.fileno())

    def commit(self, target: Path) -> None:
        """Finish, and rename over `target` (in the same folder)."""
        self.finish()
        if os.name == "nt":
            self._file.close()
        os.replace(self.path, target)
        self._committed = True
        self._file.close()

    def __enter__(self) -> PendingFile:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._committed:
            # close() flushes, and fails again if the disk is full. The first error is already being raised.
            with contextlib.suppress(OSError):
                self.path.unlink()
            with contextlib.suppress(OSError):
                self._file.close()


def write_whole(path: Path, chunks: Iterable[Any]) -> None:
    """Write a file completely or not at all. Raises RuntimeFailure, which names the file."""
    with writing_of(path), PendingFile(path.parent, path.name) as file:
        for chunk in chunks:
            file.write(chunk)
        file.commit(path)


@contextlib.contextmanager
def writing_of(path: Path) -> Iterator[None]:
    """Context that converts OSErrors into RuntimeFailures which say that `path` cannot be written."""
    try:
        yield
    except OSError as error:
        raise RuntimeFailure(f"{path} cannot be written: {error.strerror or error}") from error


@contextlib.contextmanager
def scratch_folder() -> Iterator[Path]:
    """Context with a temporary folder for this process alone, which is removed at the end.

    First, it removes the folders that killed processes left behind.
    """
    import tempfile

    _remove_abandoned_scratch(Path(tempfile.gettempdir()))
    folder = Path(tempfile.mkdtemp(prefix=_SCRATCH))
    try:
        _, descriptor = _locked_file(lambda: folder / _OWNER)
        try:
            yield folder
        finally:
            os.close(descriptor)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def remove_abandoned(folder: Path) -> None:
    """Remove the temporary files in `folder` whose processes have ended."""
    with contextlib.suppress(OSError):
        for entry in os.scandir(folder):
            if re.fullmatch(_temporary(".+"), entry.name) and _is_abandoned(Path(entry.path)):
                with contextlib.suppress(OSError):
                    os.unlink(entry.path)


def has_pending(target: Path) -> bool:
    """Return whether a `PendingFile` for `target` exists, of any process."""
    pattern = re.compile(_temporary(re.escape(target.name)))
    return any(pattern.fullmatch(name) for name in os.listdir(target.parent))


def sync_folder(folder: Path) -> None:
    """Make renames in `folder` durable, where the system can."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _start_writeback(descriptor: int, offset: int, size: int) -> None:
    """Let the system write a part of a file to the disk, without waiting for it. `fsync` is still necessary."""
    start = _sync_file_range()
    if start is not None:
        # Errors are ignored: not all file systems can do this, and `fsync` reports errors of the disk.
        start(descriptor, offset, size, _SYNC_FILE_RANGE_WRITE)


@functools.cache
def _sync_file_range() -> Callable[[int, int, int, int], int] | None:
    """Return the function of the C library, which releases Python's global lock; None where it is missing."""
    if os.name != "posix":
        return None
    import ctypes  # here, because small files do not need it

    found = getattr(ctypes.CDLL(None), "sync_file_range", None)
    if found is not None:
        found.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
    return found


def _temporary(name: str) -> str:
    """Return the pattern of temporary files for targets whose names match a pattern."""
    return rf"\.{name}\.[0-9a-f]{{12}}{re.escape(_SUFFIX)}"


def _locked_file(choose: Callable[[], Path]) -> tuple[Path, int]:
    """Create and lock a file at a path that `choose` returns. Return path and descriptor, which holds the lock."""
    while True:
        path = choose()
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | _BINARY, 0o666)
        # Before it was locked, another process may have removed the file as abandoned. Then try again.
        if try_lock(descriptor) is not False and path.exists():
            return path, descriptor
        os.close(descriptor)


def _is_abandoned(path: Path) -> bool:
    """Whether the process that wrote a temporary file has ended."""
    try:
        descriptor = os.open(path, os.O_RDWR | _BINARY)
    except OSError:
        return False
    try:
        free = try_lock(descriptor)
        return time.time() - os.fstat(descriptor).st_mtime > _STALE_SECONDS if free is None else free
    finally:
        os.close(descriptor)


def _remove_abandoned_scratch(folder: Path) -> None:
    with contextlib.suppress(OSError):
        for entry in os.scandir(folder):
            # A folder without an owner file is still being created.
            is_scratch = entry.name.startswith(_SCRATCH) and entry.is_dir(follow_symlinks=False)
            if is_scratch and _is_abandoned(Path(entry.path) / _OWNER):
                shutil.rmtree(entry.path, ignore_errors=True)
