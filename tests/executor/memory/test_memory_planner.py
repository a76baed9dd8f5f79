"""The memory planner, checked against an independent definition of correct plans."""

from __future__ import annotations

import cProfile
import itertools

import numpy as np
import pytest
from combinations import in_one_item, seeds

from graphkit.executor.memory.first_fit import FirstFit
from graphkit.executor.memory.planner import ALIGNMENT, Layout, Request, aligned, plan_memory

# (4 KiB pages, first step, last step) of a training step of LeNet: every order and sweep leaves a gap of more than 1%.
LENET_STEP = [
    (360, 1, 35), (577, 1, 1), (90, 3, 29), (180, 3, 34), (100, 6, 28), (193, 6, 6), (25, 8, 40), (50, 8, 27),
    (16, 11, 23), (1, 11, 11), (1, 13, 13), (1, 14, 22), (1, 16, 17), (5, 18, 19), (1, 18, 18), (16, 22, 40),
    (1, 22, 22), (1, 24, 25), (25, 26, 27), (1, 26, 26), (100, 27, 32), (25, 29, 30), (322, 29, 29), (1, 31, 33),
    (90, 32, 34), (272, 32, 32), (360, 34, 37), (1, 36, 39), (1, 37, 38), (580, 37, 37), (391, 40, 41), (16, 40, 40),
]  # fmt: skip

SWITCHES = list(itertools.product([False, True], repeat=2))


def random_requests(seed: int, count: int) -> list[Request]:
    """Lifetimes as a program has them: every step writes one result, some take the place of an operand."""
    rng = np.random.default_rng(seed)
    last = [int(min(count, step + 1 + rng.geometric(0.2))) for step in range(count)]
    sizes = [int(rng.choice([0, 4, 64, 100, 4096, 5000, 1 << 20])) for _ in range(count)]
    requests = []
    for step in range(count):
        dying = [i for i in range(step) if last[i] == step and sizes[i] >= sizes[step]]
        candidates = tuple(dying) if rng.random() < 0.6 else ()
        requests.append(Request(sizes[step], step, max(last[step], step), candidates))
    return requests


def assert_sound(requests: list[Request], layout: Layout, *, inplace: bool) -> None:
    """Check that no byte has two owners at one step, unless the later one may reuse memory that is freed there."""
    steps = max((r.last for r in requests), default=0) + 1
    for step in range(steps):
        live = [
            (layout.offsets[i], layout.offsets[i] + r.size, i)
            for i, r in enumerate(requests)
            if r.size and r.first <= step <= r.last
        ]
        live.sort()
        for (_, end, i), (start, _, j) in itertools.pairwise(live):
            if start < end:
                early, late = sorted((i, j), key=lambda k: requests[k].first)
                assert inplace
                assert early in requests[late].inplace
                assert requests[early].last == requests[late].first == step
                assert layout.offsets[early] == layout.offsets[late]
    for offset, request in zip(layout.offsets, requests, strict=True):
        assert offset % ALIGNMENT == 0
        assert offset + request.size <= layout.arena_bytes


@in_one_item("values")
@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize(("inplace", "share"), SWITCHES)
def test_layouts_are_sound(seed: int, inplace: bool, share: bool) -> None:
    requests = random_requests(seed, 150)
    layout = plan_memory(requests, inplace=inplace, share=share)
    assert_sound(requests, layout, inplace=inplace)
    assert layout.naive_bytes == sum(aligned(r.size) for r in requests)
    assert layout.lower_bound <= layout.arena_bytes <= layout.naive_bytes
    if not share and not inplace:
        assert layout.arena_bytes == layout.naive_bytes
    if not inplace:
        assert layout.inplace_count == 0


@in_one_item()
@pytest.mark.parametrize("seed", range(12))
def test_each_technique_helps(seed: int) -> None:
    requests = random_requests(seed, 300)
    arena = {s: plan_memory(requests, inplace=s[0], share=s[1]).arena_bytes for s in SWITCHES}
    assert arena[True, True] < arena[False, False]
    assert arena[True, False] < arena[False, False]
    assert arena[False, True] < arena[False, False]


@in_one_item()
@pytest.mark.parametrize("seed", range(12))
def test_arena_is_near_the_lower_bound(seed: int) -> None:
    layout = plan_memory(random_requests(seed, 400))
    assert layout.arena_bytes <= 1.1 * layout.lower_bound


@in_one_item()
@pytest.mark.parametrize("seed", seeds(20, default=8))
def test_first_fit_and_its_search_are_sound(seed: int) -> None:
    requests = random_requests(seed, 60 + 10 * seed)
    spans = [(aligned(r.size), r.first, r.last) for r in requests]
    live = [sum(size for size, first, last in spans if first <= step <= last) for step in range(len(spans) + 1)]
    bound = max(live)
    # A target that cannot be met: every order and the whole search run.
    offsets = FirstFit(spans, live.index(bound)).search(bound - 1, sum(size for size, _, _ in spans) + 1)
    assert offsets is not None
    arena = max(o + size for o, (size, _, _) in zip(offsets, spans, strict=True))
    assert bound <= arena <= 1.05 * bound
    assert_sound(requests, Layout(tuple(offsets), arena, bound, 0, 0, 0), inplace=False)
    assert offsets == FirstFit(spans, live.index(bound)).search(bound - 1, sum(size for size, _, _ in spans) + 1)


def test_the_search_repairs_what_no_order_finds() -> None:
    requests = [Request(pages * 4096, first, last) for pages, first, last in LENET_STEP]
    layout = plan_memory(requests)
    assert_sound(requests, layout, inplace=False)
    assert layout.arena_bytes == layout.lower_bound


def test_too_many_neighbours_leave_the_sweeps_alone() -> None:
    spans = [(64, 0, 1)] * 3000
    assert FirstFit(spans, 0).search(0, 1 << 40) is None
    assert plan_memory([Request(*span) for span in spans]).arena_bytes == 3000 * 64


def test_lower_bound_is_the_peak_of_live_bytes() -> None:
    requests = random_requests(3, 80)
    layout = plan_memory(requests, inplace=False)
    sums = [sum(aligned(r.size) for r in requests if r.first <= s <= r.last) for s in range(81)]
    assert layout.lower_bound == max(sums)
    assert layout.peak_step == sums.index(max(sums))


def test_chain_in_place_takes_one_buffer() -> None:
    requests = [Request(1000, i, i + 1, (i - 1,) if i else ()) for i in range(50)]
    assert plan_memory(requests).arena_bytes == aligned(1000)
    assert plan_memory(requests, inplace=False).arena_bytes == 2 * aligned(1000)
    assert plan_memory(requests, share=False).arena_bytes == aligned(1000)
    assert plan_memory(requests, inplace=False, share=False).arena_bytes == 50 * aligned(1000)


def test_memory_goes_on_to_one_successor_only() -> None:
    requests = [Request(64, 0, 1), Request(64, 1, 2, (0,)), Request(64, 1, 2, (0,))]
    layout = plan_memory(requests)
    assert layout.offsets[1] != layout.offsets[2]
    assert layout.inplace_count == 1


def test_in_place_needs_the_last_use_and_room() -> None:
    assert plan_memory([Request(64, 0, 5), Request(64, 1, 2, (0,))]).inplace_count == 0
    assert plan_memory([Request(64, 0, 1), Request(128, 1, 2, (0,))]).inplace_count == 0


def test_nothing_and_empty_tensors() -> None:
    assert plan_memory([]).arena_bytes == 0
    layout = plan_memory([Request(0, 0, 3), Request(0, 1, 2, (0,))])
    assert layout == Layout((0, 0), 0, 0, 0, 0, 0)


@pytest.mark.full
def test_work_is_near_linear() -> None:
    """Work is counted in function calls. The bounded search for a smaller arena is skipped for many requests."""

    def work(count: int) -> int:
        rng = np.random.default_rng(0)
        spans = rng.geometric(0.01, count)
        sizes = rng.integers(1, 1 << 16, count)
        requests = [Request(int(s), i, i + int(n)) for i, (s, n) in enumerate(zip(sizes, spans, strict=True))]
        with cProfile.Profile(subcalls=False) as profile:
            layout = plan_memory(requests)
        assert layout.arena_bytes <= 1.5 * layout.lower_bound
        return sum(entry.callcount for entry in profile.getstats())

    assert work(64_000) < 5 * work(16_000)
