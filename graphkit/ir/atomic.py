"""Files that appear whole or not at all: written beside the target, synced, then renamed over it."""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from graphkit.errors import RuntimeFailure

# A temporary file older than this belongs to a process that was killed.
_STALE_SECONDS = 3600.0


class PendingFile:
    """A temporary file in `folder`, for a target called `name`; `commit` renames it, leaving the context removes it.

    Use as a context manager. Raises OSError as the file system does; the target is then as it was.
    """

    def __init__(self, folder: Path, name: str):
        self.folder = folder
        self._prefix = f".{name}."
        self.path = folder / f"{self._prefix}{secrets.token_hex(6)}.tmp"
        self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666)
        self._file = os.fdopen(self._descriptor, "wb", buffering=1 << 20)
        self._committed = False

    def write(self, data: Any) -> None:
        self._file.write(data)

    def finish(self) -> None:
        """Put every byte on the disk; after this only the rename can fail."""
        if not self._file.closed:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()

    def commit(self, target: Path) -> None:
        """Finish, and rename over `target` (in the same folder)."""
        self.finish()
        os.replace(self.path, target)
        self._committed = True

    def __enter__(self) -> PendingFile:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._committed:
            # Closing flushes, which fails again on a full disk; the error that matters is already on its way.
            with contextlib.suppress(OSError):
                self._file.close()
            with contextlib.suppress(OSError):
                self.path.unlink()

    def remove_stale(self) -> None:
        """Remove temporary files for the same target that a killed process left behind."""
        now = time.time()
        for path in self.folder.glob(f"{_literal(self._prefix)}*.tmp"):
            with contextlib.suppress(OSError):
                if path != self.path and now - path.stat().st_mtime > _STALE_SECONDS:
                    path.unlink()


def write_whole(path: Path, chunks: Iterable[Any]) -> None:
    """Write a file so that it is there completely or not at all; raises RuntimeFailure, naming it."""
    try:
        with PendingFile(path.parent, path.name) as file:
            for chunk in chunks:
                file.write(chunk)
            file.commit(path)
            file.remove_stale()
    except OSError as error:
        raise RuntimeFailure(f"{path} cannot be written: {error.strerror or error}") from error


def sync_folder(folder: Path) -> None:
    """Make renames in `folder` durable, where the system can."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _literal(text: str) -> str:
    return "".join(f"[{c}]" if c in "[]*?" else c for c in text)
