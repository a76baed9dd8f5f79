"""The simulation of many ranks: closed forms, limits, and sums that are counted message by message."""

from __future__ import annotations

import math

import numpy as np
import pytest
from combinations import in_one_item
from simulation import (
    TOPOLOGIES,
    Cluster,
    Gradient,
    Link,
    Program,
    Setting,
    buckets,
    delays,
    doubling,
    fitted,
    halving,
    ring,
    step_seconds,
    tree,
)

LINK = Link(1e-5, 1e-9, 2e-10)
PROGRAM = Program(
    "three", (Gradient("c", 4_000, 0.5), Gradient("b", 3_000, 0.7), Gradient("a", 1_000, 1.0)), passes=1.0, update=0.25
)
ONE = np.ones(1)
FREE = Link(0.0, 0.0)


def test_without_overlap_one_bucket_is_compute_and_then_a_sum():
    for overlap in (True, False):  # the last gradient is written at the end
        found = step_seconds(PROGRAM, lambda n: 1e-4 * n, ONE, limit=math.inf, overlap=overlap)
        assert found == pytest.approx([1.25 + 0.8])


def test_a_bucket_waits_for_its_last_gradient_and_for_the_one_before():
    seconds = step_seconds(PROGRAM, lambda n: 1e-4 * n, ONE)
    # written at 0.75, 0.95 and 1.25 with the update before; sums of 0.4, 0.3 and 0.1 s
    assert seconds == pytest.approx([max(max(0.75 + 0.4, 0.95) + 0.3, 1.25) + 0.1])
    assert step_seconds(PROGRAM, lambda n: 1e-4 * n, ONE, limit=7000) == pytest.approx([0.95 + 0.7 + 0.1])


def test_buckets_hold_every_byte_in_the_order_of_writing():
    assert [(b.bytes, b.written) for b in buckets(PROGRAM.gradients, 5000)] == [(7000, 0.7), (1000, 1.0)]
    assert [b.bytes for b in buckets(PROGRAM.gradients, 0)] == [4000, 3000, 1000]
    assert buckets((), 10) == []


@in_one_item()
@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_a_network_without_cost_is_perfect_and_one_rank_sends_nothing(topology):
    for ranks in (1, 2, 7, 64, 1024):
        assert Setting(topology, 0).efficiency(PROGRAM, Cluster(FREE, FREE, 4), ranks) == pytest.approx(1)
    assert Cluster(LINK, LINK, call=1.0).sum_seconds(topology, 1, 1e6) == 0


@in_one_item()
@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_more_ranks_and_more_bytes_take_longer(topology):
    cluster = Cluster(Link(1e-6, 1e-10), LINK, 4)
    times = [cluster.sum_seconds(topology, 2**k, 1e6) for k in range(11)]
    assert times == sorted(times)
    assert cluster.sum_seconds(topology, 64, 2e6) > cluster.sum_seconds(topology, 64, 1e6)


def test_sums_of_two_ranks_are_the_same_messages():
    n = 1e6
    assert doubling(2, n, LINK) == pytest.approx(LINK.alpha + n * (LINK.beta + LINK.gamma))
    assert ring(2, n, LINK) == pytest.approx(halving(2, n, LINK))
    assert ring(2, n, LINK) == pytest.approx(2 * LINK.alpha + n * LINK.beta + n / 2 * LINK.gamma)
    assert tree(8, n, LINK) == pytest.approx(3 * (2 * LINK.alpha + 2 * n * LINK.beta + n * LINK.gamma))


@in_one_item()
@pytest.mark.parametrize("p", [2, 3, 5, 8])
def test_a_ring_counted_message_by_message(p):
    """Each chunk is sent p - 1 times for the sum and p - 1 times for the copies, by all ranks at the same time."""
    n, seconds = 6000.0, 0.0
    held = [np.eye(p)[r][:, None] * np.ones(p) for r in range(p)]  # [origin, chunk] in each rank
    for turn in range(2 * (p - 1)):
        adds = turn < p - 1
        sent = [(r, (r - turn if adds else r + p - turn) % p) for r in range(p)]
        arriving = [held[r][:, chunk].copy() for r, chunk in sent]
        for (r, chunk), data in zip(sent, arriving, strict=True):
            target = held[(r + 1) % p]
            target[:, chunk] = target[:, chunk] + data if adds else data
        seconds += LINK.alpha + n / p * (LINK.beta + (LINK.gamma if adds else 0))
    assert all((h == 1).all() for h in held)  # every rank's part, once
    assert ring(p, n, LINK) == pytest.approx(seconds)


def test_two_levels_of_one_rank_each_are_a_ring():
    flat = Cluster(FREE, LINK, 1)
    assert flat.sum_seconds("two-level", 16, 1e6) == pytest.approx(flat.sum_seconds("ring", 16, 1e6))
    fast = Cluster(FREE, LINK, 4)
    # The port's bytes are those of a ring of hosts, not of ranks.
    assert fast.sum_seconds("two-level", 16, 1e6) < fast.sum_seconds("ring", 16, 1e6)
    # A ring goes at the pace of its slowest link, also where that is inside of the hosts.
    slow = Cluster(Link(1e-5, 1e-6), LINK, 4)
    assert slow.sum_seconds("ring", 16, 1e6) > 1.8e6 * 1e-6
    with pytest.raises(KeyError, match="no topology 'star'"):
        flat.sum_seconds("star", 2, 1)


def test_the_slowest_rank_sets_the_pace():
    assert (delays(1024, 0.0, 5, 0) == 1).all()
    one, many = delays(1, 0.1, 20_000, 0), delays(8, 0.1, 20_000, 0)
    assert one.mean() == pytest.approx(1, abs=0.005)
    assert one.std() == pytest.approx(0.1, rel=0.05)
    # The mean of the largest of 8 standard normal draws is 1.4236; a lognormal with 10% leans to the right of that.
    assert many.mean() == pytest.approx(1 + 0.1 * 1.4236, abs=0.02)
    np.testing.assert_array_equal(delays(8, 0.1, 10, 3), delays(8, 0.1, 10, 3))
    late = Setting("ring", 0, cv=0.1).efficiency(PROGRAM, Cluster(FREE, FREE), 8)
    assert 0.84 < late < 0.92


def test_a_slower_device_keeps_its_proportions():
    slow = PROGRAM.scaled(12.5)
    assert (slow.passes, slow.update) == pytest.approx((10, 2.5))
    assert [g.written for g in slow.gradients] == pytest.approx([5, 7, 10])


def test_a_line_is_found_again():
    sizes = [4, 1e3, 1e6, 1e8]
    a, b = fitted(sizes, [3e-6 + 2e-10 * n for n in sizes])
    assert (a, b) == pytest.approx((3e-6, 2e-10))
    a, b = fitted([1.0, 2.0, 3.0], [3.0, 2.0, 1.0])  # falls: no line that is a cost
    assert a >= 0
    assert b >= 0
