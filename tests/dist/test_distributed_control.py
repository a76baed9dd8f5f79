"""Graphs whose ranks need each other, and branches and loops with nodes on several ranks, equal one process."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from combinations import default_at
from graphs_on_ranks import NORMAL, alone, assert_alike, group, normal, parts_of, run_part, with_gradients

import graphkit as gk
from graphkit.dist.wire.messages import Channels
from graphkit.errors import RuntimeFailure, UnsupportedError, UsageError
from graphkit.executor.run.session import Executor
from graphkit.ops import F
from graphkit.passes.training.randomness import bind_rng
from graphkit.passes.training.to_training import to_training

AB, ABC = {"a": 0, "b": 1}, {"a": 0, "b": 1, "c": 2}


def total(x):
    return gk.reduce_sum(x, keepdims=False)


def weight(name):
    return gk.parameter(name, [4, 4], NORMAL)


def dense(x, name):
    return gk.tanh(F.mat_mul(x, weight(name)))


# --- without control flow -------------------------------------------------------------------------------


def cycle():
    """a needs b, which needs a."""
    x = gk.input("x", ["N", 4])
    with group("a"):
        h = dense(x, "a0")
    with group("b"):
        h = dense(h, "b") + x
    with group("a"):
        y = dense(h, "a1") + h
    return gk.Model({"y": y, "loss": gk.reduce_mean(y * y, keepdims=False)}, seed=1)


@pytest.mark.parametrize("groups", [AB, {"a": 1, "b": 0}], ids=str)
def test_ranks_that_need_each_other(on_ranks, groups):
    assert_alike(on_ranks, with_gradients(cycle()), groups, [{"x": normal(3, 4, seed=n)} for n in range(3)])
    # For a second size a program may have other kernels.
    batches = [{"x": normal(n, 4, seed=n)} for n in (3, 5, 1)]
    assert_alike(on_ranks, with_gradients(cycle()), groups, batches, bound=1e-6)


def test_a_value_goes_once_to_each_rank_that_reads_it(on_ranks):
    x = gk.input("x", ["N", 4])
    with group("a"):
        h = gk.tanh(x)
    with group("b"):
        u = gk.exp(h) + gk.sigmoid(h) * h
    with group("c"):
        v = gk.exp(h) * 2.0
    with group("a"):
        y = u + v
    channels = assert_alike(on_ranks, gk.Model({"y": y}), ABC, [{"x": normal(3, 4)}], ranks=3, wanted=[[0, 1, 2]])
    # h to both others; u and v back; y to both.
    assert [sum(c.sent.values()) for c in channels] == [2 + 2, 1, 1]


def summed():
    x = gk.input("x", ["N", 4])
    with group("a"):
        h = dense(x, "a")
    with group("b"):
        h = dense(h, "b")
    with group("a"):
        return gk.Model({"y": h + x, "loss": total(h)}, seed=1)


def test_an_empty_batch(on_ranks):
    batches = [{"x": normal(n, 4)} for n in (0, 3, 0)]
    assert_alike(on_ranks, with_gradients(summed()), AB, batches, bound=1e-6)


def test_all_element_types_cross(on_ranks):
    x = gk.input("x", ["N"])
    with group("a"):
        made = [
            F.cast(x * 3.0, to=kind) for kind in ("bool", "int8", "int64", "uint16", "float16", "bfloat16", "float64")
        ]
    with group("b"):
        found = {f"y{i}": F.cast(v, to="float64") + np.float64(1) for i, v in enumerate(made)}
    assert_alike(on_ranks, gk.Model(found), AB, [{"x": np.abs(normal(5))}])


def test_a_size_that_only_data_tell(on_ranks):
    """Select positive rows. The receiver gets their number from the message."""
    x = gk.input("x", ["N", 4])
    with group("a"):
        rows = F.gather(x, F.squeeze(F.non_zero(F.greater(x[:, 0], np.float32(0))), np.array([0])), axis=0)
    with group("b"):
        y = gk.tanh(rows)
    with group("a"):
        y = F.concat(y, x, axis=0)
    batches = [{"x": x} for x in (normal(6, 4), -np.ones((3, 4), np.float32), normal(2, 4, seed=3))]
    assert_alike(on_ranks, gk.Model({"y": y}), AB, batches)


def test_a_shape_does_not_travel(on_ranks):
    """Every rank computes sizes by shape inference, so they are not sent."""
    x = gk.input("x", ["N", 4])
    with group("a"):
        h = F.concat(gk.tanh(x), x, axis=0)
    with group("b"):
        y = F.expand(np.float32(2), F.shape(h)) * np.float32(3)
    channels = assert_alike(
        on_ranks, gk.Model({"y": y}), AB, [{"x": normal(3, 4)}, {"x": normal(5, 4)}], wanted=[[0, 1]]
    )
    assert channels[0].by_key == {}


def test_strings_do_not_cross():
    x = gk.input("x", ["N"])
    with group("a"):
        h = F.cast(x, to="string")
    with group("b"):
        y = F.cast(h, to="float32")
    with pytest.raises(UsageError, match=r"from rank 0 to rank 1: it is not a tensor of numbers"):
        parts_of(gk.Model({"y": y}).graph, AB, 2)


# --- branches -------------------------------------------------------------------------------------------


def experts():
    """A router on one rank, and an expert on each of two others."""
    x = gk.input("x", ["N", 4])
    with group("a"):
        h = dense(x, "a")
        first = F.greater(total(h), np.float32(0))

    def expert(name):
        with group(name):
            return dense(h, name)

    y = gk.cond(first, lambda: expert("b"), lambda: expert("c"))
    with group("a"):
        loss = gk.reduce_mean(y * y, keepdims=False)
    return gk.Model({"loss": loss}, seed=1)


def test_branches_on_different_ranks(on_ranks):
    net = with_gradients(experts())
    batches = [{"x": s * normal(3, 4)} for s in (1, -1, 1)]
    taken = {float(total) > 0 for total in [np.tanh(b["x"] @ net.params["a"]).sum() for b in batches]}
    assert taken == {True, False}
    assert_alike(on_ranks, net, ABC, batches, ranks=3)


def test_a_branch_that_is_not_taken_sends_nothing(on_ranks):
    """The rank of the other expert hears of the condition alone."""
    net = experts()
    x = normal(3, 4)
    if np.tanh(x @ net.params["a"]).sum() < 0:
        x = -x
    found = on_ranks(lambda store: run_part(store, net, ABC, [{"x": x}], wanted=[[0]]), 3)
    router, taken, other = (channels for _, channels in found)
    assert router.sent == {1: 2, 2: 1}  # condition and h; condition
    assert taken.sent == {0: 1}
    assert other.sent == {}
    assert other.received == {0: 1}


def spanning():
    """Each branch has nodes of both ranks."""
    x = gk.input("x", ["N", 4])
    with group("a"):
        h = dense(x, "a")

    def then():
        with group("a"):
            u = dense(h, "a1")
        with group("b"):
            return dense(u, "b1") + h

    def other():
        with group("b"):
            u = dense(h, "b2")
        with group("a"):
            return dense(u, "a2") * u

    y = gk.cond(F.greater(total(x), np.float32(0)), then, other)
    return gk.Model({"y": y, "loss": gk.reduce_mean(y * y, keepdims=False)}, seed=1)


def test_branches_over_two_ranks(on_ranks):
    batches = [{"x": np.abs(normal(3, 4))}, {"x": -np.abs(normal(5, 4))}]
    assert_alike(on_ranks, with_gradients(spanning()), AB, batches, bound=1e-6)


# --- loops ----------------------------------------------------------------------------------------------


def while_loop(groups="ab", limit=30.0, most=6):
    """Its condition depends on data, and its body goes through all groups."""
    x = gk.input("x", ["N", 4])

    def body(state):
        number, h = state
        for name in groups:
            with group(name):
                h = dense(h, name) * 1.5
        return number + 1, h + state[1]

    going = lambda s: F.less(total(s[1] * s[1]), np.float32(limit))  # noqa: E731
    number, y = gk.while_loop(going, body, (np.int64(0), x), most)
    return gk.Model({"number": number, "loss": gk.reduce_mean(y, keepdims=False)}, seed=1)


@pytest.mark.parametrize("groups", ["ab", "abc", "aba"])
def test_a_body_over_several_ranks(on_ranks, groups):
    batches = [{"x": s * normal(n, 4, seed=n)} for n, s in ((3, 0.1), (5, 1.0), (1, 0.2), (2, 2.5), (2, 100.0))]
    net = with_gradients(while_loop(groups))
    ranks = len(set(groups))
    assert_alike(on_ranks, net, {g: "abc".index(g) for g in groups}, batches, bound=1e-6, ranks=ranks)
    assert len({int(found["number"]) for found in alone(net, batches)}) > 2


def test_messages_of_an_iteration(on_ranks):
    """There and back, and the condition."""
    net, batch = while_loop(), {"x": 0.1 * normal(2, 4)}
    trips = int(alone(net, [batch])[0]["number"])
    assert trips > 1
    first, second = (c for _, c in on_ranks(lambda store: run_part(store, net, AB, [batch], wanted=[None, None])))
    inside = [{k: n for k, n in c.by_key.items() if "/body/" in k} for c in (first, second)]
    assert sorted(n for found in inside for n in found.values()) == [trips] * 3, inside
    assert sum(first.sent.values()) + sum(second.sent.values()) <= 3 * trips + 3


def test_a_loop_of_no_iterations(on_ranks):
    batches = [{"x": 100 * normal(2, 4)}] * 2
    assert int(alone(while_loop(), batches)[0]["number"]) == 0
    assert_alike(on_ranks, with_gradients(while_loop()), AB, batches)


def scan(reverse=False):
    """Two recurrent layers on two ranks. The second one has no scan inputs."""
    x = gk.input("x", ["T", "N", 4])

    def cell(state, row):
        u, v = state
        with group("a"):
            u = gk.tanh(F.mat_mul(row, weight("in")) + F.mat_mul(u, weight("a")))
        with group("b"):
            v = gk.tanh(u + F.mat_mul(v, weight("b")))
        return (u, v), v

    start = gk.tanh(gk.reduce_sum(x, axes=np.array([0]), keepdims=False))
    (u, v), ys = gk.scan(cell, (start, start * 0.5), x, reverse=reverse)
    return gk.Model({"ys": ys, "loss": gk.reduce_mean(ys * ys + u * v, keepdims=False)}, seed=1)


@pytest.mark.parametrize("reverse", [False, True])
def test_a_scan_over_two_ranks(on_ranks, reverse):
    batches = [{"x": normal(t, n, 4, seed=t)} for t, n in ((3, 2), (5, 3), (1, 1))]
    assert_alike(on_ranks, with_gradients(scan(reverse)), AB, batches, bound=1e-6)


def test_a_scan_of_a_length_that_data_tell(on_ranks):
    """The rank that scans nothing gets the length, once."""
    x = gk.input("x", ["N", 4])
    with group("a"):
        rows = F.gather(x, F.squeeze(F.non_zero(F.greater(x[:, 0], np.float32(0))), np.array([0])), axis=0)

    def cell(state, row):
        u, v = state
        with group("a"):
            u = gk.tanh(row + u)
        with group("b"):
            v = gk.tanh(v * 0.5 + 1.0)
        return (u, v), None

    start = gk.reduce_sum(x, axes=np.array([0]), keepdims=False)
    (u, v), _ = gk.scan(cell, (start, start), rows)
    net = gk.Model({"u": u, "v": v})
    batches = [{"x": x} for x in (normal(6, 4), -np.ones((3, 4), np.float32), normal(3, 4, seed=3))]
    first, _ = assert_alike(on_ranks, net, AB, batches)
    (count,) = (n for key, n in first.by_key.items() if key.endswith("/length"))
    assert count == len(batches)


def nested():
    """A branch inside of a loop, whose branches are on different ranks, and a loop inside of one of them."""
    x = gk.input("x", ["N", 4])

    def body(h):
        with group("a"):
            u = dense(h, "a")

        def then():
            def inner(v):
                with group("b"):
                    v = dense(v, "b")
                with group("c"):
                    return dense(v, "c") + u

            return gk.while_loop(lambda v: F.less(total(v * v), np.float32(8)), inner, u, 3)

        def other():
            with group("c"):
                return u * 1.5

        return gk.cond(F.greater(total(u), np.float32(0)), then, other) + h

    y = gk.while_loop(lambda h: F.less(total(h * h), np.float32(60)), body, x, 5)
    return gk.Model({"y": y, "loss": gk.reduce_mean(y, keepdims=False)}, seed=1)


@default_at(0)
@pytest.mark.parametrize("groups", [ABC, {"a": 0, "b": 1, "c": 0}, {"a": 2, "b": 0, "c": 1}], ids=str)
def test_a_branch_in_a_loop_and_a_loop_in_a_branch(on_ranks, groups):
    batches = [{"x": normal(n, 4, seed=n)} for n in (1, 2, 3, 8)]
    assert_alike(on_ranks, with_gradients(nested()), groups, batches, bound=1e-6, ranks=len(set(groups.values())))


def test_second_order_gradients(on_ranks):
    net = gk.grad(while_loop(most=3), of="loss", wrt=["a"])
    graph = net.graph
    loss = total(graph.outputs[0] * graph.outputs[0])
    net = gk.Model.from_graph(graph.replace(outputs=[loss], output_names=["loss"]), dict(net.params))
    net = gk.grad(net, of="loss", wrt=["a", "b"])
    assert_alike(on_ranks, net, AB, [{"x": 0.3 * normal(2, 4)}], bound=1e-5)


def test_random_numbers_are_those_of_one_process(on_ranks):
    x = gk.input("x", ["N", 4])

    def body(h):
        with group("a"):
            h = gk.nn.dropout(gk.tanh(h), 0.3)
        with group("b"):
            return gk.nn.dropout(h * 1.5, 0.3)

    y = gk.while_loop(lambda h: F.less(total(h * h), np.float32(1e6)), body, x, 4)
    net = gk.Model({"y": y})
    net = gk.Model.from_graph(bind_rng(to_training(net.graph, [])), {})
    batches = [{"x": normal(50, 4, seed=n)} for n in range(3)]
    assert_alike(on_ranks, net, AB, batches)
    assert all((found["y"] == 0).any() for found in alone(net, batches))


# --- no barrier, and no deadlock ------------------------------------------------------------------------


def counting():
    """One rank decides the number of iterations, and sends a value to another one in each of them."""
    x = gk.input("x", [])

    def body(state):
        h, sums = state
        with group("a"):
            h = h + np.float32(1)
        with group("b"):
            sums = sums + h * h
        return h, sums

    with group("a"):
        start = x * np.float32(0.5)
    _, sums = gk.while_loop(lambda s: F.less(s[0], np.float32(10)), body, (start, np.float32(0)))
    return gk.Model({"sums": sums})


class Gate:
    """Channels that take nothing before a gate is open."""

    def __init__(self, channels, gate):
        self.send, self._receive, self._gate = channels.send, channels.receive, gate

    def receive(self, *given):
        assert self._gate.wait(60)
        return self._receive(*given)


def test_a_rank_runs_ahead_of_a_slow_one(on_ranks):
    """The first is through all its iterations before the second has taken anything."""
    through, ahead = threading.Event(), {}

    def around(rank, channels):
        if rank == 0:
            send = channels.send

            def counted(*given):
                send(*given)
                if channels.sent[1] == 1 + 2 * 10:  # the condition, and in each iteration a value and the condition
                    ahead.update(sent=channels.sent[1], received=0)
                    through.set()

            channels.send = counted
            return channels
        return Gate(channels, through)

    net, batches = counting(), [{"x": np.float32(0)}]
    found = on_ranks(lambda store: run_part(store, net, AB, batches, wanted=[[1]], around=around))
    assert found[1][0][0]["sums"] == sum(n * n for n in range(1, 11))
    assert ahead == {"sent": 21, "received": 0}
    assert found[0][1].waits == 0


@pytest.mark.parametrize("window", [2, 3, 4, 7])
def test_a_full_window_makes_the_sender_wait(on_ranks, window):
    full = threading.Event()

    def around(rank, channels):
        if rank == 1:
            return Gate(channels, full)
        take = channels._wait_for_acknowledgement

        def waiting(source):
            full.set()
            take(source)

        channels._wait_for_acknowledgement = waiting
        return channels

    net, batches = counting(), [{"x": np.float32(2 * n)} for n in (0, 3, 20)]
    found = on_ranks(lambda store: run_part(store, net, AB, batches, window=window, wanted=[[1]], around=around))
    assert [float(f["sums"]) for f in found[1][0]] == [385, 385 - 14, 0]
    assert found[0][1].waits > 0
    assert found[0][1].ahead[1] == window


def test_a_window_of_one_is_refused(on_ranks):
    def work(store):
        with pytest.raises(UsageError, match="window=1"):
            Channels(store.transport.messages, 1)

    on_ranks(work)


@pytest.mark.parametrize("window", [2, 32])
def test_everybody_sends_before_anybody_receives(on_ranks, window):
    """More values cross both ways than windows take."""
    x = gk.input("x", ["N", 4])
    with group("a"):
        a = [gk.tanh(x * np.float32(i)) for i in range(40)]
    with group("b"):
        b = [gk.exp(x * np.float32(-i)) for i in range(40)]
    with group("a"):
        y = F.sum(*b)
    with group("b"):
        z = F.sum(*a)
    assert_alike(on_ranks, gk.Model({"y": y, "z": z}), AB, [{"x": normal(3, 4)}] * 2, window=window, bound=1e-6)


# --- what cannot be done --------------------------------------------------------------------------------


def test_an_executor_without_channels():
    part = parts_of(cycle().graph, AB, 2)[0]
    with pytest.raises(UnsupportedError, match="no channels"):
        Executor(part.graph, cycle().params).run({"x": normal(2, 4), part.start: np.int64(0)})


def test_control_flow_that_is_not_native():
    """A string inside of a branch: the branch is interpreted, which cannot exchange values."""
    x = gk.input("x", ["N", 4])

    def then():
        with group("a"):
            h = F.cast(F.equal(F.cast(gk.tanh(x), to="string"), F.cast(x, to="string")), to="float32")
        with group("b"):
            return gk.exp(h)

    net = gk.Model({"y": gk.cond(F.greater(total(x), np.float32(0)), then, lambda: x)})

    executor = Executor(parts_of(net.graph, AB, 2)[0].graph, net.params, channels=Channels(None))
    with pytest.raises(UnsupportedError, match=r"exchanges cond/then/.* with another process.*kernel for cast"):
        executor.specialise({"x": (2, 4)})


def test_a_value_of_another_shape_than_expected(on_ranks):
    """Ranks that were given different batches find out."""
    net = cycle()

    def work(store):
        if store.rank == 0:
            with pytest.raises(RuntimeFailure, match=r"the values of .* of rank 1 failed"):
                run_part(store, net, AB, [{"x": normal(2, 4)}])
        else:
            run_part(store, net, AB, [{"x": normal(3, 4)}])

    with pytest.raises(RuntimeFailure, match=r"tanh of rank 0 has the shape \[2, 4\]; \[3, 4\] was inferred"):
        on_ranks(work)


@pytest.mark.parametrize("strict", ["0", "1"])
def test_nothing_counts_as_interpreted(on_ranks, monkeypatch, strict):
    monkeypatch.setenv("GRAPHKIT_STRICT", strict)
    assert_alike(on_ranks, with_gradients(while_loop()), AB, [{"x": normal(2, 4)}], bound=1e-6)
