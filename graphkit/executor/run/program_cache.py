"""The cache of an executor's programs. A program is found by its key, and built if it is missing."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from graphkit import config
from graphkit.collector import without_gc
from graphkit.executor.run.base_program import Group, Key
from graphkit.executor.run.selection import Selection
from graphkit.text import human, short_repr

if TYPE_CHECKING:
    from graphkit.executor.devices.device import Device
    from graphkit.executor.run.executable import CachedProgram
    from graphkit.executor.run.program_log import ProgramLog

# This many of the most recently used programs stay in the cache, however large they are. Training alternates with
# evaluation, and the last batch of each may be smaller.
_MIN_PROGRAMS = 4

# A compiled program takes about this many times the memory of one made from a template.
COMPILED_SIZE_RATIO = 6

P = TypeVar("P", bound="CachedProgram")
Built = TypeVar("Built", bound="CachedProgram", covariant=True)


if TYPE_CHECKING:

    class Builder(Protocol[Built]):
        """Builds programs on one device or on several."""

        def build(self, key: Key, selection: Selection, cache: ProgramCache[Any], *, again: bool) -> Built:
            """Return a program for inputs of these shapes. Raises the same errors as `compile_graph`.

            cache: The cache that keeps the program. The programs for parts of a batch come from it. The builder must
                not refer to it, or else both live until Python collects cycles.
            again: Whether the program replaces one that `needs_recompiling`.
            """

        def readers(self, name: str) -> Sequence[Device]:
            """Return the devices with their own memory that the fed input `name` is copied to.

            With several devices, only the programs built so far are known.
            """


class ProgramCache(Generic[P]):
    """An LRU cache of programs by key. It must be used by one thread at a time.

    GRAPHKIT_CACHE_MB, as it is when the cache is created, limits the bytes of all programs. If they take more, the
    least recently used ones are dropped.

    Args:
        builder: Builds missing programs.
        where: Name of the device, for messages.
        log: Prints what the cache does; None without GRAPHKIT_DEBUG.
    """

    def __init__(self, builder: Builder[P], where: str, log: ProgramLog | None = None):
        self.builder, self._where, self._log = builder, where, log
        self._kept: OrderedDict[Key, P] = OrderedDict()
        self._bytes = 0
        # Reading the environment takes a noticeable part of the time to make a program.
        self._limit = config.CACHE_MB.get() << 20
        self._reserved = 0  # bytes for programs that the native part keeps
        # For the key of a part of a batch, the keys of the programs that run it.
        self._batches: dict[Key, set[Key]] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def find(self, key: Key) -> P | None:
        """Return the program and mark it as recently used, or None if it must be built."""
        program = self._kept.get(key)
        if program is None:
            return None
        self._kept.move_to_end(key)
        for part in program.part_keys:
            self._kept.move_to_end(part)
        if program.needs_recompiling:
            # The program of a batch is always built again, also if the cache has little room: it is small itself, and
            # building it looks up the programs of its parts, which may then be compiled.
            if program.part_keys or self._bytes + COMPILED_SIZE_RATIO * program.kept_bytes <= self._limit:
                return None
            program.clear_needs_recompiling()
        if self._log is not None:
            self._log.found(key)
        return program

    @without_gc
    def build(self, key: Key, selection: Selection) -> P:
        """Build the program, and store it in the cache. Raises the same errors as `compile_graph`."""
        if self._log is None:
            return self._build(key, selection)
        return self._log.built(key, selection, self._build, again=key in self._kept)

    def get(self, key: Key, selection: Selection) -> P:
        """Return the program from the cache, or build it."""
        return self.find(key) or self.build(key, selection)

    @property
    def is_logged(self) -> bool:
        """Whether messages of GRAPHKIT_DEBUG say which programs are used."""
        return self._log is not None

    @property
    def limit(self) -> int:
        """The maximum number of bytes of all programs that the cache keeps."""
        return self._limit

    def reserve(self, nbytes: int) -> None:
        """Leave this many bytes to programs that are kept elsewhere, instead of those of an earlier call."""
        self._limit += self._reserved - nbytes
        self._reserved = nbytes
        self._drop_oldest()

    def keys(self, group: Group) -> list[Key]:
        """Return the keys of the programs of a group."""
        return [key for key in self._kept if key.group == group]

    def _build(self, key: Key, selection: Selection) -> P:
        again = key in self._kept
        if again:
            self._drop(key, "a compiled one replaces it")
        program = self.builder.build(key, selection, self, again=again)
        self._kept[key] = program
        self._bytes += program.kept_bytes
        for part in program.part_keys:
            self._batches.setdefault(part, set()).add(key)
        self._drop_oldest()
        return program

    def _drop_oldest(self) -> None:
        """Drop the least recently used programs while all take more than the limit."""
        while self._bytes > self._limit and len(self._kept) > _MIN_PROGRAMS:
            self._drop(next(iter(self._kept)), f"all take more than {human(self._limit)} (GRAPHKIT_CACHE_MB)")

    def _drop(self, key: Key, reason: str) -> None:
        """Drop a program, and those that run it for parts of a batch. reason: a clause for the log."""
        if self._log is not None:
            self._log.dropped(key, reason)
        program = self._kept.pop(key)
        self._bytes -= program.kept_bytes
        for part in program.part_keys:
            self._batches.get(part, set()).discard(key)
        for batch in [*self._batches.pop(key, ())]:
            self._drop(batch, "a part of it is dropped")

    def __repr__(self) -> str:
        return short_repr(self, self._facts)

    def _facts(self) -> Iterator[str]:
        yield f"of {self._where}"
        yield f"{len(self._kept)} kept"
        yield f"about {human(self._bytes)}"
