"""The cache of an executor's programs: each is found by its key, and built if it is not there."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any, Generic, Protocol, TypeVar

from graphkit import config
from graphkit.executor.devices.device import Device
from graphkit.executor.run.executable import CachedProgram
from graphkit.executor.run.keys import Key
from graphkit.executor.run.program_log import ProgramLog
from graphkit.executor.run.selection import Selection
from graphkit.text import human, short_repr

# The most recently used programs stay in the cache however large they are: training alternates with evaluation, and the
# last batch is smaller.
_LEAST = 4

# Bytes of a compiled program, in bytes of one built from a template.
COMPILED_BYTES = 6

P = TypeVar("P", bound=CachedProgram)
Built = TypeVar("Built", bound=CachedProgram, covariant=True)


class Builder(Protocol[Built]):
    """Builds programs on one device or on several."""

    def build(self, key: Key, selection: Selection, cache: ProgramCache[Any], *, again: bool) -> Built:
        """Return a program for inputs of these shapes. Raises as `compile_graph`.

        cache: The cache that keeps the program; parts of a batch use its other programs. The builder must not refer to
            it, or else both live until Python collects cycles.
        again: The program replaces one that `needs_recompiling`.
        """

    def readers(self, name: str) -> Sequence[Device]:
        """Return the devices with their own arrays that read the input `name`, as far as programs were built."""


class ProgramCache(Generic[P]):
    """Programs by their keys. For one thread at a time.

    GRAPHKIT_CACHE_MB limits the bytes of all programs. If they take more, the least recently used are dropped. where:
    the device, for messages. log: prints what happens, if GRAPHKIT_DEBUG is set.
    """

    def __init__(self, builder: Builder[P], where: str, log: ProgramLog | None = None):
        self.builder, self._where, self._log = builder, where, log
        self._kept: OrderedDict[Key, P] = OrderedDict()
        self._bytes = 0
        # Programs that run the program of a part, by the key of the part.
        self._wholes: dict[Key, set[Key]] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def find(self, key: Key) -> P | None:
        """Return the program and mark it as used, or None if it must be built."""
        program = self._kept.get(key)
        if program is None:
            return None
        self._kept.move_to_end(key)
        for part in program.part_keys:
            self._kept.move_to_end(part)
        if program.needs_recompiling:
            # A program of parts is built again to see whether the program of a part was.
            if program.part_keys or self._bytes + COMPILED_BYTES * program.kept_bytes <= config.CACHE_MB.get() << 20:
                return None
            program.keep()
        if self._log is not None:
            self._log.found(key)
        return program

    def build(self, key: Key, selection: Selection) -> P:
        """Build the program, and keep it. Raises as `compile_graph`."""
        if self._log is None:
            return self._build(key, selection)
        return self._log.built(key, selection, self._build, again=key in self._kept)

    def get(self, key: Key, selection: Selection) -> P:
        """Return the program, which is built if it must be."""
        return self.find(key) or self.build(key, selection)

    def _build(self, key: Key, selection: Selection) -> P:
        again = key in self._kept
        if again:
            self._drop(key, "a compiled one replaces it")
        program = self.builder.build(key, selection, self, again=again)
        self._kept[key] = program
        self._bytes += program.kept_bytes
        for part in program.part_keys:
            self._wholes.setdefault(part, set()).add(key)
        limit = config.CACHE_MB.get() << 20
        while self._bytes > limit and len(self._kept) > _LEAST:
            self._drop(next(iter(self._kept)), f"all take more than {human(limit)} (GRAPHKIT_CACHE_MB)")
        return program

    def _drop(self, key: Key, reason: str) -> None:
        """Drop a program, and those that run it for parts of a batch. reason: a clause for the log."""
        if self._log is not None:
            self._log.dropped(key, reason)
        program = self._kept.pop(key)
        self._bytes -= program.kept_bytes
        for part in program.part_keys:
            self._wholes.get(part, set()).discard(key)
        for whole in [*self._wholes.pop(key, ())]:
            self._drop(whole, "a part of it is dropped")

    def __repr__(self) -> str:
        return short_repr(self, self._facts)

    def _facts(self) -> Iterator[str]:
        yield f"of {self._where}"
        yield f"{len(self._kept)} kept"
        yield f"about {human(self._bytes)}"
