"""The native layout of arenas: no two blocks that live at one step overlap, and it is about as good as the plan."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

import pytest
from combinations import full, in_one_item

from graphkit.executor.devices.cpu import native
from graphkit.executor.memory.planner import Request, aligned, is_valid_layout, plan_memory


def requests(rng: random.Random, count: int) -> list[Request]:
    """Return the requests of a chain of steps. Each writes a block, sometimes in place, that a later one reads."""
    made: list[Request] = []
    dying: dict[int, list[int]] = {}
    for step in range(count):
        size = rng.choice([0, 1, 64, 1000, 4096, rng.randrange(1 << 20)])
        last = min(count, step + rng.randrange(1, 8))
        dying.setdefault(last, []).append(len(made))
        made.append(Request(size, step, last, tuple(dying.get(step, ())[:2])))
        if rng.random() < 0.3:
            made.append(Request(rng.randrange(1 << 16), step, step))
    return made


def laid_out(requests: Iterable[tuple[int, int, int, Sequence[int]]]) -> tuple[list[int], int]:
    """Return the offsets and the size of the arena for requests (bytes, first step, last step, inplace)."""
    given = list(requests)
    kept = native.MemoryRequests([(first, last, list(inplace)) for _, first, last, inplace in given])
    # The sizes come anew for each layout.
    kept.lay_out([0] * len(given))
    return kept.lay_out([size for size, *_ in given])


@in_one_item()
@pytest.mark.parametrize("seed", range(40))
def test_blocks_do_not_overlap(seed: int) -> None:
    rng = random.Random(seed)
    made = requests(rng, rng.randrange(1, 80))
    offsets, arena = laid_out((r.size, r.first, r.last, r.inplace) for r in made)
    assert is_valid_layout(made, offsets)
    assert arena == max((o + aligned(r.size) for o, r in zip(offsets, made, strict=True) if r.size), default=0)
    planned = plan_memory(made)
    assert planned.lower_bound <= arena
    assert arena <= 1.35 * planned.arena_bytes


def test_a_size_for_each_request() -> None:
    with pytest.raises(native.Error, match="as many sizes as requests"):
        native.MemoryRequests([(0, 1, [])]).lay_out([1, 2])


def test_nothing_needs_nothing() -> None:
    assert laid_out([]) == ([], 0)
    assert laid_out([(0, 0, 3, ())]) == ([0], 0)


@pytest.mark.parametrize("count", [20_000, full(100_000)])
def test_many_blocks(count: int) -> None:
    made = requests(random.Random(0), count)
    offsets, _ = laid_out((r.size, r.first, r.last, r.inplace) for r in made)
    assert is_valid_layout(made, offsets)
