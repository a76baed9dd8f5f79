"""The cache of programs: the least recently used program is dropped first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from graphkit.executor.run.base_program import Key
from graphkit.executor.run.program_cache import ProgramCache


class Program:
    """A program of 1 MiB that never runs."""

    def __init__(self, part_keys: tuple[Key, ...]):
        self.part_keys, self.kept_bytes, self.needs_recompiling = part_keys, 1 << 20, False


class Builder:
    """Builds programs, and remembers the keys. parts: for the key of a batch, the keys of its parts."""

    def __init__(self, parts: dict[Key, tuple[Key, ...]]):
        self.parts, self.built = parts, list[Key]()

    def build(self, key: Key, selection: Any, cache: Any, *, again: bool) -> Any:
        self.built.append(key)
        return Program(self.parts.get(key, ()))

    def readers(self, name: str) -> Sequence[Any]:
        return ()


A, B, C, D, E, F, BATCH = (Key(0, (), ((size,),)) for size in range(1, 8))


class Cache:
    """A cache with space for `room` instances of `Program`."""

    def __init__(self, room: int, monkeypatch: pytest.MonkeyPatch, parts: dict[Key, tuple[Key, ...]] | None = None):
        monkeypatch.setenv("GRAPHKIT_CACHE_MB", str(room))
        self.builder = Builder(parts or {})
        self.programs: ProgramCache[Any] = ProgramCache(self.builder, "cpu")

    def use(self, *keys: Key) -> list[Key]:
        """Look up these programs in this order. Return the keys of those that had to be built."""
        self.builder.built.clear()
        for key in keys:
            self.programs.get(key, None)  # type: ignore[arg-type]
        return [*self.builder.built]


def test_least_recently_used_program_is_dropped_first(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = Cache(4, monkeypatch)
    assert cache.use(A, B, C, D, A, C) == [A, B, C, D]
    assert cache.use(E, F) == [E, F]  # drops B, then D
    assert cache.use(A, C, E, F) == []
    assert cache.use(B) == [B]  # drops A
    assert cache.use(C, E, F, B) == []
    assert cache.use(A) == [A]


def test_use_of_a_batch_is_use_of_its_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = Cache(5, monkeypatch, {BATCH: (A,)})
    assert cache.use(A, BATCH, B, C, D, BATCH) == [A, BATCH, B, C, D]
    assert cache.use(E) == [E]  # drops B
    assert cache.use(A, BATCH, C, D, E) == []


def test_batch_is_dropped_with_its_part(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = Cache(5, monkeypatch, {BATCH: (A,)})
    assert cache.use(A, BATCH, B, C, D, E) == [A, BATCH, B, C, D, E]
    assert cache.use(B, C, D, E) == []
    assert len(cache.programs) == 4
    assert cache.use(BATCH, A) == [BATCH, A]


def test_four_programs_are_kept_whatever_their_size(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = Cache(1, monkeypatch)
    assert cache.use(A, B, C, D, A, B, C, D) == [A, B, C, D]
    assert cache.use(E, B, C, D, A) == [E, A]
