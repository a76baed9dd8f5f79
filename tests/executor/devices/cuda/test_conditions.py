"""If and Loop in recordings: the GPU tests the conditions in its memory, chooses branches and repeats bodies."""

from __future__ import annotations

import itertools
import signal
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from on_a_card import stand_in_alone
from stand_in import Card
from together import together

import graphkit as gk
from graphkit.errors import LimitReached, RuntimeFailure
from graphkit.executor.devices.bound_steps import BoundStep, Choice, NotRecorded
from graphkit.executor.devices.device import Copied
from graphkit.executor.lower.arrays.launched_sum import SumQueue
from graphkit.executor.lower.collaborators import RunAgreement
from graphkit.executor.run.arrays import steps as instance_steps
from graphkit.executor.run.params import ParamStore
from graphkit.executor.run.session import Executor
from graphkit.ir import limits
from graphkit.ir.graph import Graph, Node, Value
from graphkit.ir.types import TensorType
from graphkit.ops import F, registry

RNG = np.random.default_rng(0)


def floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def agree(there: Executor, here: Executor, *runs: dict[str, Any]) -> None:
    """Compare the results of GPU and CPU, also after several replays."""
    for feeds in runs * 3:
        expected, found = here.run(feeds), there.run(feeds)
        assert list(found) == list(expected)
        for name, array in expected.items():
            np.testing.assert_allclose(found[name], array, rtol=1e-5, atol=1e-6, err_msg=name)


def recorded(card: Card, net: gk.Model, *runs: dict[str, Any]) -> None:
    """Check that all steps of a network are one recording, and that only the GPU tests the conditions."""
    there = net.compile("cuda")
    assert not there.plan.fallbacks
    agree(there, net.compile(threads=1), *runs)
    assert card.recordings == 1
    assert not card.interpreted
    before, replays = card.conditions, card.replays
    waits = sum(stream.waits for stream in card.streams)
    there.run(runs[0])
    assert card.conditions > before
    assert card.replays == replays + 1
    assert sum(stream.waits for stream in card.streams) <= waits + 1, "for the end of the run"


# --- branches ---------------------------------------------------------------------------------------


def chosen(p: Any, x: Any) -> Any:
    return gk.cond(p, lambda a: (gk.exp(a), a), lambda a: (a - 1.0, gk.tanh(a * 2.0)), (x,))


@together()
@pytest.mark.parametrize("shape", [(3,), (0,), (2, 5)])
def test_the_branch_that_the_condition_tells(shape: tuple[int, ...], card: Card) -> None:
    x, p = gk.input("x", shape), gk.input("p", [], "bool")
    one, two = chosen(p, x)
    runs = [{"x": floats(*shape), "p": np.array(value)} for value in (True, False)]
    recorded(card, gk.Model({"one": one, "two": two}), *runs)


def test_a_condition_that_the_card_computes(card: Card) -> None:
    x = gk.input("x", [4])
    one, two = chosen(gk.reduce_sum(x) > 0.0, x)
    runs = [{"x": np.full(4, value, np.float32)} for value in (1.0, -1.0, np.nan, np.inf, -np.inf)]
    recorded(card, gk.Model({"one": one * 2.0, "two": two}), *runs)


def test_branches_in_branches(card: Card) -> None:
    x = gk.input("x", [4])
    p, q = gk.input("p", [], "bool"), gk.input("q", [], "bool")

    def inner(a: Any) -> Any:
        return gk.cond(q, lambda b: b + 1.0, lambda b: gk.exp(b), (a,))

    y = gk.cond(p, lambda a: inner(a * 2.0), lambda a: inner(a) - 3.0, (x,))
    feeds = {"x": floats(4)}
    runs = [{**feeds, "p": np.array(p), "q": np.array(q)} for p in (True, False) for q in (True, False)]
    recorded(card, gk.Model({"y": gk.tanh(y)}), *runs)


def test_steps_of_a_branch_share_launches(card: Card, monkeypatch: pytest.MonkeyPatch) -> None:
    xs = [gk.input(f"x{i}", [4]) for i in range(6)]
    ys = gk.cond(gk.input("p", [], "bool"), lambda *a: tuple(map(gk.exp, a)), lambda *a: a, tuple(xs))
    net = gk.Model({f"y{i}": y for i, y in enumerate(ys)})
    there, feeds = net.compile("cuda"), {f"x{i}": floats(4) for i in range(6)}
    agree(there, net.compile(threads=1), *({"p": np.array(p), **feeds} for p in (True, False)))
    launched, run = [], card.emulator.run
    monkeypatch.setattr(card.emulator, "run", lambda kernel, *given: launched.append(kernel) or run(kernel, *given))
    for p, launches in ((True, 2), (False, 1)):
        there.run({"p": np.array(p), **feeds})
        assert len(launched) == launches, "what sets the condition, and all of the branch"
        launched.clear()


@together()
@pytest.mark.parametrize("p", [True, False])
def test_a_fault_is_one_of_the_branch_that_ran(p: bool, card: Card) -> None:
    table, at = gk.input("table", [4, 4]), gk.input("at", [3], "int64")
    y = gk.cond(gk.input("p", [], "bool"), lambda: gk.gather(table, at, axis=0, name="pick"), lambda: gk.exp(table[:3]))
    exe = gk.Model({"y": y * 2.0}).compile("cuda")
    feeds = {"table": floats(4, 4), "at": np.array([0, 3, 1]), "p": np.array(p)}
    for _ in range(4):
        exe.run(feeds)
        with pytest.raises(RuntimeFailure, match=r"pick.*Gather.*: an index is outside") if p else nullcontext():
            exe.run({**feeds, "at": np.array([0, 4, 1])})
    assert card.replays >= 4, "a run that fails is behind one that has met the same arrays"
    assert card.conditions


# --- loops ------------------------------------------------------------------------------------------


def halved(limit: Any = None) -> gk.Model:
    x = gk.input("x", [3])
    y, count = gk.while_loop(
        lambda s: gk.reduce_sum(s[0] * s[0]) > 1.0, lambda s: (s[0] * 0.5, s[1] + 1), (x, np.array(0)), limit
    )
    return gk.Model({"y": y * 1.0, "count": count})


@together()
@pytest.mark.parametrize("limit", [None, 3])
def test_a_loop_goes_on_while_its_condition_holds(limit: int | None, card: Card) -> None:
    """For small numbers, or an empty array, there is no iteration."""
    recorded(card, halved(limit), *({"x": np.full(3, size, np.float32)} for size in (100, 0.1, 7, np.nan, 1e30)))


def loop_of(trips: Value | None, going: Value | None, state: Value, keeps: Callable[..., Value] | None = None) -> Node:
    """state + iteration, and the states before change their places; keeps: the condition, of the iteration."""
    count, flag = Value(TensorType("int64", ()), "i"), Value(TensorType("bool", ()), "flag")
    s, t = Value(state.type, "s"), Value(state.type, "t")
    new = F.add(s, F.cast(count, to="float32"))
    body = Graph([count, flag, s, t], [flag if keeps is None else keeps(count), t, new])
    return Node(registry.find("", "Loop")(body=body, captures=0), (trips, going, state, F.neg(state)))


def executors(inputs: list[Value], outputs: list[Value]) -> tuple[Executor, Executor]:
    net = Graph(inputs, outputs, output_names=[f"y{i}" for i in range(len(outputs))])
    there, here = (Executor(net, ParamStore({}), device=device) for device in ("cuda", "cpu"))
    assert not there.plan.fallbacks
    return there, here


@together()
@pytest.mark.parametrize("shape", [(), (1,)])
def test_a_number_of_iterations_that_is_a_value(shape: tuple[int, ...], card: Card) -> None:
    """The body counts iterations. A negative number means none; a huge number is ended by the condition."""
    x, n = Value(TensorType("float32", (4,)), "x"), Value(TensorType("int64", shape), "n")
    loop = loop_of(n, None, x, lambda count: F.less(count, F.constant(value=np.array(20))))
    there, here = executors([x, n], [F.exp(F.neg(loop.outputs[0])), loop.outputs[1]])
    most = np.iinfo(np.int64).max
    agree(there, here, *({"x": floats(4), "n": np.full(shape, trips)} for trips in (3, 0, -1, 1, 2, 7, most, -most)))
    assert card.recordings == 1
    assert card.conditions


def test_a_condition_that_holds_from_the_start_or_not(card: Card) -> None:
    x, p = Value(TensorType("float32", (4,)), "x"), Value(TensorType("bool", (1,)), "p")
    loop = loop_of(F.constant(value=np.array(5)), p, x)
    there, here = executors([x, p], [F.neg(loop.outputs[0]), loop.outputs[1]])
    agree(there, here, *({"x": floats(4), "p": np.array([p])} for p in (True, False)))
    assert card.recordings == 1
    assert card.conditions


@together()
@pytest.mark.parametrize("shape", [(0,), (2, 0, 3)])
def test_states_of_no_elements(shape: tuple[int, ...], card: Card) -> None:
    x, n = Value(TensorType("float32", shape), "x"), Value(TensorType("int64", ()), "n")
    there, here = executors([x, n], loop_of(n, None, x).outputs)
    agree(there, here, *({"x": floats(*shape), "n": np.array(trips)} for trips in (2, 0, 3)))


def collatz(n: Any) -> Any:
    """Steps to 1, with a branch in each."""
    three, two, one = (np.array(value) for value in (3, 2, 1))

    def step(s: Any) -> Any:
        value, count = s
        return gk.cond(
            gk.ops.F.equal(gk.ops.F.mod(value, two), one), lambda v: v * three + one, lambda v: v / two, (value,)
        ), (count + one)

    return gk.while_loop(lambda s: s[0] > one, step, (n, np.array(0)))[1]


def test_a_branch_in_a_loop(card: Card) -> None:
    net = gk.Model({"steps": collatz(gk.input("n", [], "int64"))})
    exe = net.compile("cuda")
    for _ in range(3):
        for n, steps in ((1, 0), (6, 8), (27, 111), (-5, 0)):
            assert exe.run({"n": np.array(n)})["steps"] == steps
    assert card.recordings == 1
    assert card.conditions > 111


def test_a_branch_in_a_loop_in_a_branch(card: Card) -> None:
    n = gk.input("n", [], "int64")
    y = gk.cond(n > np.array(3), lambda: collatz(n), lambda: n - np.array(7))
    recorded(card, gk.Model({"y": y}), *({"n": np.array(n)} for n in (27, 3, 6, -2)))


def test_a_loop_in_a_loop(card: Card) -> None:
    """The inner one begins anew in each iteration of the outer one."""

    def outer(s: Any) -> Any:
        value, total = s
        inner = gk.while_loop(lambda t: gk.reduce_sum(t) < 10.0, lambda t: t * 1.5, value)
        return value + 1.0, total + inner

    x = gk.input("x", [3])
    value, total = gk.while_loop(lambda s: gk.reduce_sum(s[0]) < 12.0, outer, (x, x * 0.0))
    net = gk.Model({"value": value, "total": total})
    recorded(card, net, *({"x": np.full(3, size, np.float32)} for size in (0.1, 2.5, 9.0, np.nan)))


def test_a_loop_in_a_scan_is_recorded_with_it(card: Card) -> None:
    def step(c: Any, x: Any) -> tuple[Any, Any]:
        new = gk.while_loop(lambda s: gk.reduce_sum(s * s) > 1.0, lambda s: s * 0.5, c + x)
        return new, new

    last, ys = gk.scan(step, gk.input("c", [4]), gk.input("xs", [3, 4]))
    recorded(card, gk.Model({"last": last, "ys": ys}), {"xs": floats(3, 4) * 9, "c": floats(4)})


def test_what_is_stacked_leaves_a_loop_to_the_host(card: Card) -> None:
    count, keep = Value(TensorType("int64", ()), "i"), Value(TensorType("bool", ()), "keep")
    s = Value(TensorType("float32", (4,)), "s")
    body = Graph([count, keep, s], [keep, F.tanh(s), F.exp(s)])
    x, n = Value(TensorType("float32", (4,)), "x"), Value(TensorType("int64", ()), "n")
    loop = Node(registry.find("", "Loop")(body=body, captures=0), (n, None, x))
    there, here = executors([x, n], loop.outputs)
    agree(there, here, *({"x": floats(4), "n": np.array(trips)} for trips in (2, 0, 5)))
    assert not card.conditions
    assert [name.partition(" ")[2] for name in there.plan.host_conditions] == [
        "(Loop): the size of its stacked outputs is data-dependent"
    ]
    assert "the host reads those of" in there.plan.summary()
    assert not here.plan.host_conditions


def test_what_is_interpreted_inside_leaves_conditions_to_the_host(card: Card) -> None:
    x, p = gk.input("x", [2, 2]), gk.input("p", [], "bool")

    def outer(s: Any) -> Any:
        return gk.cond(p, lambda a: a + gk.ops.F.det(a), lambda a: a * 2.0, (s,))

    y = gk.while_loop(lambda s: gk.reduce_sum(s) < 9.0, outer, x)
    net = gk.Model({"y": y})
    there = net.compile("cuda")
    agree(there, net.compile(threads=1), *({"x": np.eye(2, dtype=np.float32), "p": np.array(p)} for p in (True, False)))
    assert not card.conditions
    of_loop, of_branch = there.plan.host_conditions
    assert of_loop.endswith("(If) inside: " + of_branch.partition(": ")[2])
    assert of_branch.endswith("(Det) inside is interpreted")


# --- where loops end --------------------------------------------------------------------------------


def growing() -> gk.Model:
    x = gk.input("x", [3])
    y = gk.while_loop(lambda s: gk.reduce_sum(s * s) >= 0.0, lambda s: s + 1.0, x, gk.input("n", [], "int64"))
    return gk.Model({"y": y * 1.0})


def test_a_loop_without_end_meets_its_limit(card: Card) -> None:
    """The error is the same if the host or the GPU counts. Exactly the allowed number of iterations is accepted."""
    exe = growing().compile("cuda", max_iterations=20)
    x = np.ones(3, np.float32)
    for _ in range(4):
        assert exe.run({"x": x, "n": np.array(20)})["y"].tolist() == [21] * 3
        with pytest.raises(LimitReached, match=r"^node 'while_loop' Loop\(.*\): more than 20 iterations \("):
            exe.run({"x": x, "n": np.array(21)})
    assert card.replays == 4, "runs that fail are behind others that have met the same arrays"
    assert card.conditions == 4


def test_limits_of_runs(card: Card) -> None:
    """A recording has the limit of each run."""
    exe, feeds = growing().compile("cuda"), {"x": np.zeros(3, np.float32), "n": np.array(9)}
    for _ in range(3):
        assert exe.run(feeds)["y"].tolist() == [9] * 3
        for most in (9, 12, 9):
            with limits.limited(iterations=most):
                assert exe.run(feeds)["y"].tolist() == [9] * 3
        assert exe.run(feeds)["y"].tolist() == [9] * 3
        with limits.limited(iterations=8), pytest.raises(LimitReached, match="more than 8 iterations"):
            exe.run(feeds)
    assert card.recordings == 3, "what follows an error begins anew"
    assert card.conditions == 3 * 5


ENDLESS = np.array(np.iinfo(np.int64).max)


def test_a_loop_that_takes_too_long(card: Card) -> None:
    exe, feeds = growing().compile("cuda"), {"x": np.zeros(3, np.float32), "n": np.array(9)}
    for _ in range(3):
        assert exe.run(feeds, timeout=100.0)["y"].tolist() == [9] * 3
    assert card.replays == 2
    for _ in range(2):
        with pytest.raises(LimitReached, match="the time limit is over"):
            exe.run({**feeds, "n": ENDLESS}, timeout=0.2)
        for _ in range(3):
            assert exe.run(feeds)["y"].tolist() == [9] * 3


def test_an_interrupt_ends_a_loop(card: Card, monkeypatch: pytest.MonkeyPatch) -> None:
    """The state of the graph keeps its value: the interrupt comes before a step overwrites it."""
    a, n = Value(TensorType("float32", (4,)), "a", role="state"), Value(TensorType("int64", ()), "n")
    loop = loop_of(n, None, a)
    store = ParamStore({"a": a.tensor}, {"a": np.ones(4, np.float32)})
    exe = Executor(Graph([a, n], [F.neg(loop.outputs[0])], updates=[(a, loop.outputs[1])]), store, device="cuda")
    done, looks = card.done, iter(range(10**6))

    def interrupted(stream: Any) -> bool:
        if next(looks) == 5:
            signal.raise_signal(signal.SIGINT)
        return done(stream)

    for _ in range(2):
        for _ in range(3):
            exe.run({"n": np.array(3)})
        before, iterations = store["a"].copy(), card.iterations
        looks = iter(range(10**6))
        with monkeypatch.context() as patch:
            patch.setattr(card, "done", interrupted)
            with pytest.raises(KeyboardInterrupt):
                exe.run({"n": ENDLESS})
        assert 5 <= card.iterations - iterations <= 7
        np.testing.assert_array_equal(store["a"], before)


def test_a_limit_leaves_states_as_they_were(card: Card) -> None:
    a, n = Value(TensorType("float32", (4,)), "a", role="state"), Value(TensorType("int64", ()), "n")
    loop = loop_of(n, None, a)
    store = ParamStore({"a": a.tensor}, {"a": np.ones(4, np.float32)})
    graph = Graph([a, n], [F.neg(loop.outputs[0])], updates=[(a, loop.outputs[1])])
    exe = Executor(graph, store, device="cuda")
    for _ in range(4):
        before = store["a"].copy()
        with limits.limited(iterations=3), pytest.raises(LimitReached):
            exe.run({"n": np.array(4)})
        np.testing.assert_array_equal(store["a"], before)
        exe.run({"n": np.array(3)})
        assert not np.array_equal(store["a"], before)
    assert card.conditions


def test_deadline_does_not_end_a_run_that_writes(card: Card, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first check of the time would raise an error: in steps, in a recording and in a replay."""
    clock = itertools.count(step=100)
    monkeypatch.setattr(limits, "time", SimpleNamespace(monotonic=lambda: float(next(clock))))
    a, x = Value(TensorType("float32", (4,)), "a", role="state"), Value(TensorType("float32", (4,)), "x")
    i, go, s = Value(TensorType("int64", ()), "i"), Value(TensorType("bool", ()), "go"), Value(a.tensor, "s")
    new = F.add(a, x)
    y = F.loop(np.array(5), None, new, body=Graph([i, go, s], [go, F.tanh(s)]))
    store = ParamStore({"a": a.tensor}, {"a": np.ones(4, np.float32)})
    exe = Executor(Graph([a, x], [y], updates=[(a, new)]), store, device="cuda")
    for number in range(4):
        exe.run({"x": np.ones(4, np.float32)}, timeout=1.0)
        assert store["a"].tolist() == [2 + number] * 4
    assert exe._choice.latest is not None
    assert exe._choice.latest.lowered.memory.donated
    assert card.replays


def test_what_no_kernel_could_compute_repeats_nothing(card: Card) -> None:
    """A later loop does not begin, even if its number of iterations is wrong."""
    counts, at, x = (gk.input("counts", [3], "int64"), gk.input("at", [], "int64"), gk.input("x", [4]))
    trips = gk.gather(counts, at, axis=0, name="pick")
    y = gk.while_loop(lambda s: gk.reduce_sum(s) < 100.0, lambda s: s + 1.0, x, trips)
    exe = gk.Model({"y": y * 2.0}).compile("cuda")
    feeds = {"counts": np.array([2, 4, 6]), "x": np.zeros(4, np.float32)}
    for at in (0, 1, 2):
        assert exe.run({**feeds, "at": np.array(at)})["y"].tolist() == [4 * (at + 1)] * 4
        with pytest.raises(RuntimeFailure, match=r"pick.*: an index is outside"):
            exe.run({**feeds, "at": np.array(3)})
    assert card.replays == card.conditions == 3
    assert card.iterations == 0, "others were run by steps"


def test_a_fault_in_a_loop_ends_it(card: Card) -> None:
    """It names its node, and not the limit that the loop would have met."""
    table, x = gk.input("table", [5]), gk.input("x", [], "int64")

    def step(s: Any) -> Any:
        at, total = s
        return at + np.array(1), total + gk.gather(table, at, axis=0, name="pick")

    _, total = gk.while_loop(lambda s: s[1] > -1.0, step, (x, gk.constant(np.float32(0))))
    exe = gk.Model({"y": total * 2.0}).compile("cuda", max_iterations=100)
    for _ in range(4):
        assert exe.run({"table": np.full(5, -2, np.float32), "x": np.array(3)})["y"] == -4
        before = card.iterations
        with pytest.raises(RuntimeFailure, match=r"pick.*: an index is outside"):
            exe.run({"table": np.ones(5, np.float32), "x": np.array(0)})
        assert card.iterations == before + 6, "five elements, and none"


# --- the stand-in -----------------------------------------------------------------------------------


@together()
@stand_in_alone
@pytest.mark.parametrize(
    ("does", "message"),
    [
        (lambda card, array: card.copy_in(np.ones(1, np.float32), array), "the host's memory is not there"),
        (lambda card, array: card.copy_to_host(array, card.host_memory(4)), "the host's memory is not there"),
        (lambda card, array: card.wait_for(card.event()), "conditions have no events inside"),
        (lambda card, array: card.copy_out(array, None), "nothing is waited for"),
        (lambda card, array: card.alloc(4), "memory that a recording takes"),
    ],
)
def test_what_conditions_must_not_have_inside(does: Callable[[Card, Any], Any], message: str, card: Card) -> None:
    """Tests on the stand-in would fail."""
    stream = card.stream()
    with card.on(stream):
        array, true = card.copy_in(np.ones(1, np.float32)), card.copy_in(np.ones(1, np.bool_))

        def kernel(inputs: Any, outputs: Any, scratch: Any) -> None:
            does(card, array)

        step = BoundStep(kernel, (), (), None)  # type: ignore[arg-type]
        with pytest.raises(AssertionError, match=message):
            card.record(stream, [Choice(true, [step], [])])


def test_the_stand_in_looks_when_its_work_is_done(card: Card) -> None:
    """Not when it is recorded, or given a replay."""
    stream = card.stream()
    with card.on(stream):
        found, one, p = (card.copy_in(np.full(1, value, np.float32)) for value in (0, 1, 0))
        condition = card.copy_in(np.zeros(1, np.bool_))
        copied = Copied(card)
        replay = card.record(stream, [Choice(condition, [copied.step(one, found)], [copied.step(p, found)])])
        for value in (True, False):
            card.copy_in(np.array([value]), condition)
            replay()
            card.copy_in(np.array([not value]), condition)
            assert card.copy_out(found, None) == value


# --- cards without conditions -----------------------------------------------------------------------


@together()
@pytest.mark.parametrize("run", [halved, lambda: gk.Model({"y": collatz(gk.input("n", [], "int64"))})])
def test_the_host_looks_where_a_card_has_no_conditions(run: Callable[[], gk.Model], card: Card) -> None:
    card.has_conditions = False
    net = run()
    feeds: dict[str, Any] = {"x": np.full(3, 9, np.float32)} if "x" in net.graph.input_names else {"n": np.array(27)}
    agree(net.compile("cuda"), net.compile(threads=1), feeds)
    assert not card.conditions


@stand_in_alone
def test_the_host_looks_beside_sums_of_cards(card: Card, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their recordings have nodes that CUDA has in no graph with conditions."""

    class Sums:
        def agree(self, name: str, nbytes: int, can_record: bool, recording: int, structure: int) -> RunAgreement:
            return RunAgreement(can_record, recording, 1)

        def wait(self, done: Callable[[], bool]) -> None:
            assert done()

    def queue(lowered: Any, device: Any, stream: Any) -> SumQueue:
        return SumQueue(device, stream, Sums(), [], [])  # type: ignore[arg-type]

    monkeypatch.setattr(instance_steps, "_sum_queue", queue)
    x, p = gk.input("x", [3]), gk.input("p", [], "bool")
    for _ in range(4):
        x = gk.softmax(x * 2.0, axis=-1)
    net = gk.Model({"y": chosen(p, x)[0]})
    agree(net.compile("cuda"), net.compile(threads=1), *({"x": floats(3), "p": np.array(p)} for p in (True, False)))
    assert card.recordings
    assert not card.conditions


def test_a_recording_that_a_card_refuses(card: Card, monkeypatch: pytest.MonkeyPatch) -> None:
    """From then on, the host tests the conditions. A warning gives the reason."""
    asked = []

    def refused(*given: Any) -> Any:
        asked.append(given)
        raise NotRecorded("device 'cuda:0' cannot record a CUDA graph: cudaGraphInstantiate: cudaErrorNotSupported")

    monkeypatch.setattr(card, "record", refused)
    net = halved()
    there, here, feeds = net.compile("cuda"), net.compile(threads=1), {"x": np.full(3, 9, np.float32)}
    expected = here.run(feeds)
    there.run(feeds)
    with pytest.warns(RuntimeWarning, match="cudaErrorNotSupported; the host runs one step after another"):
        there.run(feeds)
    for _ in range(3):
        for name, array in there.run(feeds).items():
            np.testing.assert_array_equal(array, expected[name])
    assert len(asked) == 1
