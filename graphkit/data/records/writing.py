"""Write record files completely, or not at all."""

from __future__ import annotations

import contextlib
from pathlib import Path
from types import TracebackType

from graphkit.data.records.framing import framed
from graphkit.data.records.index import index_lines, index_of
from graphkit.errors import InputError, RuntimeFailure, UsageError
from graphkit.ir.atomic import PendingFile, sync_folder
from graphkit.text import quantity, short_repr


class RecordWriter:
    """Writes a .rec and its .idx: `with RecordWriter("a.rec") as writer: writer.write(data)`.

    Both files appear when the block ends without an error; existing files stay until then. The bytes are those that
    MXNet writes. If the process is killed, it leaves the old pair, or the records without an index, but never an index
    of other records. Raises RuntimeFailure, which names the file, if it cannot be written.
    """

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self.index = index_of(self.path)
        if self.index == self.path:
            raise UsageError(f"{self.path}: .idx is the suffix of indexes; use .rec for a record file")
        self._positions: list[int] = []
        self._keys: dict[int, None] = {}
        self._size = 0
        self._pending: PendingFile | None = None
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> RecordWriter:
        try:
            self._pending = self._stack.enter_context(PendingFile(self.path.parent, self.path.name))
        except OSError as error:
            raise RuntimeFailure(f"{self.path} cannot be written: {error.strerror or error}") from error
        return self

    def write(self, data: bytes | bytearray | memoryview, key: int | None = None) -> int:
        """Append a record and return its position. key: unique key in the index; default: the number of earlier
        records.
        """
        if self._pending is None:
            raise UsageError(f"{self.path}: write records inside of `with RecordWriter(...) as writer`")
        key = len(self._keys) if key is None else key
        if key in self._keys:
            raise InputError(f"{self.path}: key {key} occurs twice")
        position = self._size
        try:
            for piece in framed(data):
                self._pending.write(piece)
                self._size += len(piece)
        except OSError as error:
            raise RuntimeFailure(f"{self.path} cannot be written: {error.strerror or error}") from error
        self._keys[key] = None
        self._positions.append(position)
        return position

    def __len__(self) -> int:
        return len(self._positions)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        pending, self._pending = self._pending, None
        with self._stack:
            if kind is not None or pending is None:
                return
            try:
                self._commit(pending)
            except OSError as failure:
                raise RuntimeFailure(f"{self.path} cannot be written: {failure.strerror or failure}") from failure

    def _commit(self, pending: PendingFile) -> None:
        with PendingFile(self.index.parent, self.index.name) as index:
            index.write(index_lines(self._keys, self._positions))
            index.finish()
            pending.finish()
            # The old index is removed first, and the new one is written last. Without an index, records are read in
            # file order.
            self.index.unlink(missing_ok=True)
            sync_folder(self.path.parent)
            pending.commit(self.path)
            index.commit(self.index)
        sync_folder(self.path.parent)

    def __repr__(self) -> str:
        return short_repr(self, lambda: [f"{str(self.path)!r}, {quantity(len(self._positions), 'record')}"])
