"""Groups are convex, ordered, deterministic and as large as possible; the time is linear."""

from __future__ import annotations

import random
import time

import pytest

from graphkit.passes.distribution.convex import Division, divide


def drawn(seed: int, count: int) -> tuple[list[list[int]], list[bool]]:
    rng = random.Random(seed)
    reach, share = rng.choice([3, 8, count]), rng.choice([0.3, 0.6, 0.9])
    operands = [
        [rng.randrange(max(0, i - reach), i) for _ in range(rng.randint(0, 3))] if i else [] for i in range(count)
    ]
    return operands, [rng.random() < share for _ in range(count)]


def edges_between(operands: list[list[int]], division: Division) -> set[tuple[int, int]]:
    part_of = {i: place for place, part in enumerate(division.parts) for i in part}
    assert sorted(part_of) == list(range(len(operands)))
    return {(part_of[j], part_of[i]) for i, read in enumerate(operands) for j in read if part_of[i] != part_of[j]}


@pytest.mark.parametrize("first", range(0, 200, 100))
def test_groups_are_convex_and_maximal(first: int) -> None:
    """If parts are in topological order, no path leaves a group and returns to it, and no two depend on each other."""
    for seed in range(first, first + 100):
        operands, supported = drawn(seed, 2 + seed % 60)
        division = divide(operands, supported)
        edges = edges_between(operands, division)
        assert all(a < b for a, b in edges)
        groups = set(division.groups)
        for place, part in enumerate(division.parts):
            assert {supported[i] for i in part} == {place in groups}
            assert place in groups or len(part) == 1
        after: dict[int, set[int]] = {place: set() for place in range(len(division.parts))}
        for a, b in sorted(edges, reverse=True):
            after[a] |= {b}
        reached: dict[int, set[int]] = {}
        for place in reversed(range(len(division.parts))):
            reached[place] = after[place].union(*(reached[b] for b in after[place]))
        for a, b in edges:
            if a in groups and b in groups:
                assert any(b in reached[c] for c in after[a] - {b}), f"seed {seed}: {a} and {b} could be one group"


def test_connected_elements_are_one_group() -> None:
    assert divide([[], [0], [1], [2]], [True] * 4).parts == [[0, 1, 2, 3]]


def test_unconnected_elements_are_apart() -> None:
    assert divide([[], [], [0, 1]], [True, True, False]).groups == [0, 1]


def test_path_through_another_element_divides_a_group() -> None:
    division = divide([[], [0], [0, 1]], [True, False, True])
    assert division == Division([[0], [1], [2]], [0, 2])


def test_group_waits_for_another_operand() -> None:
    """0 -> 1 are one group although 1 also reads 3, which comes after 2."""
    division = divide([[], [], [1], [0, 2]], [True, False, False, True])
    assert division.parts[division.groups[0]] == [0, 3]
    assert division.parts == [[1], [2], [0, 3]]


def test_empty_graph() -> None:
    assert divide([], []) == Division([], [])


def test_equal_graphs_give_equal_groups() -> None:
    for seed in range(5):
        assert divide(*drawn(seed, 200)) == divide(*drawn(seed, 200))


@pytest.mark.full
@pytest.mark.parametrize("period", [2, 3, 10])
def test_hundred_thousand_elements_take_seconds(period: int) -> None:
    count = 100_000
    operands = [[j for j in (i - 1, i // 2) if 0 <= j < i] for i in range(count)]
    begin = time.process_time()
    division = divide(operands, [i % period != 0 for i in range(count)])
    assert time.process_time() - begin < 30
    assert all(a < b for a, b in edges_between(operands, division))
