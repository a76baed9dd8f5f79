"""Signs of life of several hosts, as the processes of one host see them."""

import os
import re

import numpy as np
import pytest

from graphkit.dist.hosts.groups import Host
from graphkit.dist.hosts.heartbeats import ENDED, HeartbeatBoard, HeartbeatMonitor


@pytest.fixture
def board(clock):
    path = HeartbeatBoard.create(4, 2)
    found = HeartbeatBoard(path, 4, 2)
    os.unlink(path)
    return found


HOSTS = (Host("one", (0, 1)), Host("two", (2, 3)))


@pytest.fixture
def watch(board):
    made = HeartbeatMonitor(board, range(4), 0, 0.2, HOSTS, 0)
    yield made
    made.end()


@pytest.fixture
def follower(board):
    """The monitor of rank 1. Rank 0, the leader of its host, hears of the other host."""
    made = HeartbeatMonitor(board, range(4), 1, 0.2, HOSTS, 0)
    yield made
    made.end()


def signs(board, clock, **of):
    """Set the reports of the other processes. `of` gives how many seconds ago they were."""
    board.slots["state"][1:] = 1
    for name in ("alive", "progress"):
        board.slots[name][1:] = clock.now - of.get(name, 0.0)
    board.heard[1] = clock.now - of.get("heard", 0.0)
    board.slots["call"][2] = b"sum 'w'"
    board.slots["steps"][2] = 7


@pytest.fixture
def waited(watch, board, clock):
    """Return the result of `lost` after the timeout, for reports of the given age; see `signs`."""

    def wait(**of):
        with watch.for_progress:
            clock.forward(0.4, progress=(watch,))
            signs(board, clock, **of)
            return watch.lost()

    return wait


def test_there_is_hope_for_hosts_that_are_heard_of(waited):
    assert waited() is None


def test_a_silent_host_is_named_with_its_ranks(watch, board, clock, waited):
    reason = waited(heard=5.0)
    assert reason == (
        "host two (ranks 2, 3) has sent no heartbeat for 5 s; rank 2 was last seen in step 7, after sum 'w'"
    )
    board.slots["state"][2:] = ENDED
    with watch.for_progress:
        clock.forward(0.4, progress=(watch,))
        assert "host two" not in (watch.lost() or "")  # it has ended in order


def test_a_rank_of_another_host_that_stalls_is_named(waited):
    assert re.fullmatch(r"rank 1 on one .*; rank 2 on two .* 9 s; .*; rank 3 on two .*", waited(progress=9))


def test_what_a_host_did_since_it_was_heard_of_is_not_held_against_its_ranks(waited):
    assert "two" not in waited(heard=0.1, alive=0.25, progress=0.25)
    assert "rank 3 on two" in waited(heard=0.0, alive=0.25, progress=0.25)


def test_ranks_of_all_hosts_that_wait_are_named(watch, board, clock, waited):
    board.slots["waits"][1:] = clock.now
    assert re.fullmatch(r"all ranks wait for each other: rank 0 on one .*; rank 3 on two .* for 0 s.*", waited())
    board.slots["waits"][3] = np.inf  # it does not wait
    assert waited() is None
    board.slots["waits"][3] = clock.now + 0.3  # when its host was heard of last, it had waited for 0.1 s
    assert waited() is None


def test_other_hosts_are_not_silent_because_the_leader_stopped(board, clock, follower):
    """The leader heard of them shortly before its last heartbeat."""
    with follower.for_progress:
        clock.forward(0.4, progress=(follower,))
        signs(board, clock, heard=0.25)
        board.slots["state"][0], board.slots["alive"][0] = 1, clock.now - 0.15
        assert "two" not in (follower.lost() or "")
        board.heard[1] = clock.now - 0.4
        assert "host two" in follower.lost()


def test_what_is_known_of_others_is_old_where_the_leader_is_silent(board, clock, follower):
    with follower.for_progress:
        clock.forward(0.4, progress=(follower,))
        signs(board, clock, heard=5.0)
        board.slots["state"][0], board.slots["alive"][0] = 1, clock.now - 5
        reason = follower.lost()
    assert "rank 0 on one" in reason
    assert "two" not in reason
