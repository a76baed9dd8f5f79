"""Cache on disk that processes share, in the folder GRAPHKIT_CACHE.

A file's name contains a digest of everything that its content depends on. Files are written atomically, so that
processes may share a folder.
"""

from __future__ import annotations

import contextlib
import hashlib
from pathlib import Path

import graphkit
from graphkit import debug
from graphkit.errors import RuntimeFailure
from graphkit.ir.atomic import write_whole
from graphkit.named_tuples import NamedTuple


class CacheFailure(RuntimeFailure):
    """The cache folder cannot be read or written."""


class Shelf(NamedTuple):
    """Cache files of one kind in a folder, `most` at most: the oldest are deleted. Methods raise CacheFailure."""

    folder: Path
    kind: str
    suffix: str
    most: int

    def file(self, content: str) -> Path:
        """Return the path of the cached result for the key `content` and this version of graphkit."""
        digest = hashlib.sha256(f"{graphkit.__version__} {self.kind} {content}".encode()).hexdigest()
        return self.folder / f"{self.kind}-{digest[:40]}{self.suffix}"

    def read(self, content: str) -> bytes | None:
        """Return the cached bytes; None if there are none."""
        path = self.file(content)
        try:
            kept = path.read_bytes()
            self._log("read from", path)
            return kept
        except FileNotFoundError:
            self._log("not in", path)
            return None
        except OSError as error:
            raise CacheFailure(f"GRAPHKIT_CACHE: {path} cannot be read: {error.strerror or error}") from error

    def _log(self, what: str, path: Path) -> None:
        if debug.level() >= debug.DECISIONS:
            debug.say(f"cache: {self.kind} {what} {path}")

    def write(self, content: str, data: bytes) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CacheFailure(f"GRAPHKIT_CACHE: {self.folder} cannot be created: {error.strerror or error}") from error
        try:
            write_whole(self.file(content), [data])
        except RuntimeFailure as error:
            raise CacheFailure(f"GRAPHKIT_CACHE: {error}") from error
        self._prune()

    def _prune(self) -> None:
        """If there are more than `most` files, delete the oldest until three quarters of `most` are left."""
        files = list(self.folder.glob(f"{self.kind}-*{self.suffix}"))
        if len(files) <= self.most:
            return
        ages = []
        for path in files:
            # Another process may have deleted the file.
            with contextlib.suppress(FileNotFoundError):
                ages.append((path.stat().st_mtime, path))
        for _, path in sorted(ages)[: len(ages) - self.most * 3 // 4]:
            path.unlink(missing_ok=True)
