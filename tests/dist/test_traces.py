"""One trace of all processes."""

import json

import numpy as np
import pytest
from job_server import command

import graphkit as gk
from graphkit.dist.collectives.buckets import TimedCollective
from graphkit.train.traces import _origin, _transfer_events


def test_one_moment_is_the_same_for_all(on_ranks):
    assert len(set(on_ranks(_origin, 3))) == 1


class Clocks:
    """A store and its transport. Rank 1 is on another machine; its clock is five seconds ahead, with small errors."""

    def __init__(self, rank):
        self.rank = rank
        self.transport = self

    def barrier(self):
        """Wait until all ranks have called this."""

    def gather(self, key, array):
        self.given = array
        return np.stack([array, array + np.array([1, *(5 * 10**9 + n * 1000 for n in range(len(array) - 1))])])


def test_clocks_of_other_machines_are_aligned():
    first, second = Clocks(0), Clocks(1)
    assert _origin(first) == first.given[1]
    assert _origin(second) == second.given[1] + 5 * 10**9 + 4 * 1000


def test_exchanges_of_the_runs_that_were_recorded_are_shown():
    timed_collectives = [
        TimedCollective("before", 4, 5, 8),
        TimedCollective("a", 8, 20, 35),
        TimedCollective("b", 16, 30, 31),
        TimedCollective("lost", 16, 31),
    ]
    events = list(_transfer_events(timed_collectives, (10, 90), 3, 10))
    assert [(e["name"], e["ph"], e["ts"]) for e in events] == [
        ("a", "b", 0.01), ("a", "e", 0.025), ("b", "b", 0.02), ("b", "e", 0.021),
    ]  # fmt: skip
    assert len({e["id"] for e in events}) == 2
    assert {e["pid"] for e in events} == {3}
    assert list(_transfer_events(timed_collectives, None, 3, 10)) == []


@pytest.mark.parametrize(
    "option",
    [
        [],
        pytest.param(["--shard-optimizer"], marks=pytest.mark.full),
        pytest.param(["--bucket-mb", "0.001"], marks=pytest.mark.full),
    ],
)
def test_processes_write_one_trace(jobs, tmp_path, option):
    hidden = gk.relu(gk.nn.linear(gk.flatten(gk.input("x", ["N", 1, 8, 8])), 64))
    gk.Model(gk.nn.linear(hidden, 10), name="net").save(tmp_path / "net.json")
    train = ["train", tmp_path / "net.json", "--data", "digits", "--batch-size", "32", "--kvstore", "dist_sync"]
    train += ["-o", tmp_path / "run"]
    printed = "".join(jobs.run(command(*train, "--profile", tmp_path / "trace.json", *option)))
    assert "time per operator" in printed
    assert printed.count("trace.json") == 1
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    named = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert sorted(named) == [0, 1]
    assert all(name.startswith(f"rank {rank} on ") for rank, name in named.items())
    for rank in (0, 1):
        runs = [e for e in events if e["pid"] == rank and e.get("cat") == "run"]
        assert len(runs) == 10
        begun = {e["id"]: e for e in events if e["pid"] == rank and e["ph"] == "b"}
        ended = {e["id"]: e for e in events if e["pid"] == rank and e["ph"] == "e"}
        assert begun
        assert begun.keys() == ended.keys()
        assert {"loss"} < {e["name"] for e in begun.values()}
        assert all(ended[key]["ts"] > e["ts"] >= 0 for key, e in begun.items())
        assert all(e["args"]["bytes"] > 0 for e in begun.values())
    # All ranks have begun an all-reduce before any rank ends it: their clocks agree.
    sums = [
        {r: [e["ts"] for e in events if e["pid"] == r and e["ph"] == ph and e["name"] == "loss"] for r in (0, 1)}
        for ph in "be"
    ]
    for begins, ends in zip(zip(*sums[0].values(), strict=True), zip(*sums[1].values(), strict=True), strict=True):
        assert max(begins) <= min(ends)
