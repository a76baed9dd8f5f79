"""States on several devices after a run fails or is interrupted between its parts."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

import numpy as np
import pytest
from stand_in import Card

import graphkit as gk
from graphkit.errors import LimitReached, NotFinite, OutOfMemory, RuntimeFailure
from graphkit.executor.run.divided import run as divided_run
from graphkit.executor.run.divided.run import DividedRun
from graphkit.executor.run.params import ParamStore
from graphkit.executor.run.session import Executor
from graphkit.ir.graph import Graph, Value
from graphkit.ir.types import TensorType
from graphkit.ops import F

CARDS: dict[str | None, str] = {"first": "cuda:0", "second": "cuda:1"}
MIXED: dict[str | None, str] = {"first": "cpu", "second": "cuda:1"}
DEVICES = {"two cards": CARDS, "host and card": MIXED, "card and host": {"first": "cuda:0", "second": "cpu"}}
AT, LABELS = np.array([0, 4, 2]), np.array([0, 1, 2])


@pytest.fixture(params=DEVICES)
def devices(request: pytest.FixtureRequest, cards: list[Card]) -> dict[str | None, str]:
    return DEVICES[request.param]


def trainer(devices: dict[str | None, str]) -> gk.Trainer:
    """Both groups look up rows of a table with five rows."""
    with gk.attr_scope(ctx_group="first"):
        table = gk.parameter("table", (5, 4), init=gk.init.Normal())
        h = gk.nn.linear(gk.gather(table, gk.input("at", ["N"], "int64"), axis=0), 6, name="one")
    with gk.attr_scope(ctx_group="second"):
        other = gk.parameter("other", (5, 6), init=gk.init.Normal())
        h = h + gk.gather(other, gk.input("then", ["N"], "int64"), axis=0, name="later")
        net = gk.Model(gk.nn.linear(gk.tanh(h * gk.input("scale", ())), 3, name="two"), seed=0)
    optimizer = gk.optim.SGD(0.1, momentum=0.9)
    return gk.Trainer(net, "softmax_cross_entropy", optimizer, device=devices, seed=0)


def step(run: gk.Trainer, at: np.ndarray = AT, then: np.ndarray = AT, scale: float = 1.0) -> float:
    return float(run.step({"at": at, "then": then, "scale": np.float32(scale)}, LABELS))


def feeds() -> dict[str, Any]:
    """Return the feeds of a step for the executor. A trainer would delay interrupts to the end of a step."""
    return {"at": AT, "then": AT, "scale": np.float32(1), "target": LABELS, "learning_rate": np.float32(0.1)}


def states(run: gk.Trainer) -> dict[str, np.ndarray]:
    return {name: np.array(array) for name, array in run.executor.params.items()}


def unchanged(run: gk.Trainer, before: dict[str, np.ndarray]) -> bool:
    return all(np.array_equal(array, before[name]) for name, array in states(run).items())


def test_an_error_in_any_part_leaves_all_states(devices: dict[str | None, str]) -> None:
    run = trainer(devices)
    bad = np.array([0, 5, 2])
    for _ in range(3):
        step(run)
        before, rng = states(run), run.executor.rng
        for wrong in ({"at": bad}, {"then": bad}, {"at": bad, "then": bad}):
            with pytest.raises(RuntimeFailure, match=r"index|out of bounds") as raised:
                step(run, **wrong)
            assert ("later" in str(raised.value)) == ("at" not in wrong), "the first fault is told"
            assert unchanged(run, before)
        with pytest.raises(NotFinite, match="The parameters are unchanged"):
            step(run, scale=np.nan)
        assert unchanged(run, before)
        assert run.executor.rng == rng
    assert np.isfinite(step(run))
    assert not unchanged(run, before)


def test_a_failure_of_memory_leaves_all_states(devices: dict[str | None, str], cards: list[Card]) -> None:
    run = trainer(devices)
    step(run)
    before, executor = states(run), run.executor
    given = {**feeds(), "at": AT[:2], "then": AT[:2], "target": LABELS[:2]}
    memory = {card: card.alloc for card in cards}
    for left in range(0, 40, 3):

        def alloc(nbytes: int, card: Card, counted: list[int]) -> Any:
            counted[0] -= 1
            if counted[0] < 0:
                raise MemoryError(f"{nbytes} bytes")
            return memory[card](nbytes)

        counted = [left]
        for card in cards:
            card.alloc = lambda nbytes, card=card, counted=counted: alloc(nbytes, card, counted)  # type: ignore[method-assign, misc]
        try:
            executor.run(given)
            break
        except OutOfMemory:
            assert unchanged(run, before)
        finally:
            for card in cards:
                card.alloc = memory[card]  # type: ignore[method-assign]
    else:
        pytest.fail("it takes memory without end")
    assert left > 0
    assert not unchanged(run, before)


@pytest.mark.parametrize("part", range(4))
def test_an_interrupt_between_parts_leaves_all_states(
    devices: dict[str | None, str], part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert threading.current_thread() is threading.main_thread()
    run = trainer(devices)
    step(run)
    before, rng = states(run), run.executor.rng
    begin = DividedRun._begin
    begun = []

    def interrupted(self: DividedRun, *given: Any) -> None:
        begun.append(given)
        if len(begun) == part + 1:
            os.kill(os.getpid(), signal.SIGINT)
        begin(self, *given)

    monkeypatch.setattr(DividedRun, "_begin", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run.executor.run(feeds())
    assert len(begun) == part + 1
    assert unchanged(run, before)
    assert run.executor.rng == rng
    monkeypatch.undo()
    assert np.isfinite(step(run))


def test_an_interrupt_while_states_are_written_waits_for_all(
    devices: dict[str | None, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, other = trainer(devices), trainer(devices)
    for each in (run, other):
        step(each)
    write = DividedRun.write
    launched = []

    def interrupted(self: DividedRun) -> list[Any]:
        late = [r for r, part in zip(self._runs, self._division.parts, strict=True) if part.runs_last]
        launch = late[1].launch

        def launch_later() -> None:
            launched.append(self)
            os.kill(os.getpid(), signal.SIGINT)
            launch()

        late[1].launch = launch_later  # type: ignore[method-assign]
        return write(self)

    monkeypatch.setattr(DividedRun, "write", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run.executor.run(feeds())
    assert launched
    monkeypatch.undo()
    other.executor.run(feeds())
    assert unchanged(run, states(other)), "the whole step was made"


def test_a_deadline_is_for_what_writes_no_states(
    devices: dict[str | None, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = trainer(devices)
    step(run)
    before = states(run)
    with pytest.raises(LimitReached):
        run.executor.run(feeds(), timeout=1e-9)
    assert unchanged(run, before)
    write = DividedRun.write

    def late(self: DividedRun) -> list[Any]:
        token = divided_run.limits._inside.set(divided_run.limits.current()._replace(deadline=0.0))
        try:
            return write(self)
        finally:
            divided_run.limits._inside.reset(token)

    monkeypatch.setattr(DividedRun, "write", late)
    run.executor.run(feeds(), timeout=60)
    changed = [name for name, array in states(run).items() if not np.array_equal(array, before[name])]
    assert {"table", "other"} <= set(changed)


def test_row_sparse_tables(devices: dict[str | None, str]) -> None:
    def trained(device: Any) -> gk.Trainer:
        with gk.attr_scope(ctx_group="first"):
            h = gk.reduce_sum(gk.nn.embedding(gk.input("at", ["N", 2], "int64"), 5, 4, name="t"), np.array([1]))
        with gk.attr_scope(ctx_group="second"):
            net = gk.Model(gk.nn.linear(gk.reshape(h, np.array([-1, 4])), 3, name="fc"), seed=0)
        run = gk.Trainer(net, "softmax_cross_entropy", gk.optim.SGD(0.1), device=device, seed=0, lazy=["t_weight"])
        for turn in range(3):
            run.step({"at": np.array([[turn, 1], [1, 4]])}, LABELS[:2])
        return run

    for name, array in states(trained("cpu")).items():
        np.testing.assert_allclose(states(trained(devices))[name], array, rtol=1e-3, atol=1e-6)


def counters(devices: dict[str | None, str], build: Any, **arrays: np.ndarray) -> tuple[Executor, ParamStore]:
    values = {name: Value(TensorType("float32", a.shape), name, role="state") for name, a in arrays.items()}
    store = ParamStore({name: v.tensor for name, v in values.items()}, arrays)
    return Executor(build(**values), store, device=devices), store


def test_states_that_both_devices_read(devices: dict[str | None, str]) -> None:
    """Each is updated with the other's old value, and outputs are old values."""

    def both(a: Value, b: Value) -> Graph:
        with gk.attr_scope(ctx_group="first"):
            new_a, seen = F.add(F.mul(a, a), b), F.neg(a)
        with gk.attr_scope(ctx_group="second"):
            new_b, other = F.sub(F.mul(b, b), a), F.neg(b)
        return Graph([a, b], [a, seen, other, new_b, b], updates=[(a, new_a), (b, new_b)])

    exe, store = counters(devices, both, a=np.full(3, 1, np.float32), b=np.full(3, 2, np.float32))
    a, b = 1.0, 2.0
    for _ in range(3):
        found = [array.tolist() for array in exe.run({}).values()]
        new_a, new_b = a * a + b, b * b - a
        assert found == [[a] * 3, [-a] * 3, [-b] * 3, [new_b] * 3, [b] * 3]
        a, b = new_a, new_b
        assert (store["a"].tolist(), store["b"].tolist()) == ([a] * 3, [b] * 3)


def test_states_that_change_places(devices: dict[str | None, str]) -> None:
    def swapped(a: Value, b: Value) -> Graph:
        with gk.attr_scope(ctx_group="first"):
            one = F.neg(a)
        with gk.attr_scope(ctx_group="second"):
            two = F.neg(b)
        return Graph([a, b], [one, two], updates=[(a, b), (b, a)])

    exe, store = counters(devices, swapped, a=np.ones(4, np.float32), b=np.full(4, 2, np.float32))
    for turn in range(4):
        one, two = (1.0, 2.0) if turn % 2 == 0 else (2.0, 1.0)
        assert [array.tolist() for array in exe.run({}).values()] == [[-one] * 4, [-two] * 4]
        assert (store["a"].tolist(), store["b"].tolist()) == ([two] * 4, [one] * 4)


def test_a_view_of_a_state_is_its_old_value(devices: dict[str | None, str]) -> None:
    """One that another part of the same device reads when the new value is written."""

    def viewed(a: Value, b: Value) -> Graph:
        with gk.attr_scope(ctx_group="first"):
            flat = F.reshape(a, np.array([4]))
            new_a = F.mul(a, F.reshape(F.tanh(flat), np.array([2, 2])))
        with gk.attr_scope(ctx_group="second"):
            new_b = F.add(b, flat)
        return Graph([a, b], [F.exp(flat)], updates=[(a, new_a), (b, new_b)])

    start = np.array([[1, 2], [3, 4]], np.float32) / 8
    exe, store = counters(devices, viewed, a=start, b=np.zeros(4, np.float32))
    a, b = start, np.zeros(4, np.float32)
    for _ in range(4):
        found = next(iter(exe.run({}).values()))
        np.testing.assert_allclose(found, np.exp(a.reshape(4)), rtol=1e-6)
        a, b = a * np.tanh(a), b + a.reshape(4)
        np.testing.assert_allclose(store["a"], a, rtol=1e-5)
        np.testing.assert_allclose(store["b"], b, rtol=1e-5)


def test_states_of_the_host_are_written_where_they_are(cards: list[Card]) -> None:
    run = trainer(MIXED)
    step(run)
    store = run.executor.params
    before = {name: store.donate(name) for name in ("table", "one_weight", "table/momentum")}
    step(run)
    for name, array in before.items():
        assert array is not None
        assert store.donate(name) is array, name


def test_what_the_host_writes_is_seen_on_all_devices(devices: dict[str | None, str]) -> None:
    run, alone = trainer(devices), trainer({None: "cpu"})
    for each in (run, alone):
        step(each)
        for name in ("table", "two_bias"):
            each.net.params[name] = np.full_like(each.net.params[name], 0.25)
    np.testing.assert_allclose(step(run), step(alone), rtol=1e-4)
    for name, array in states(alone).items():
        np.testing.assert_allclose(states(run)[name], array, rtol=1e-3, atol=1e-5)


def test_samples_without_any(devices: dict[str | None, str]) -> None:
    """The loss of an empty batch is NaN, on several devices as on one."""
    run, nothing = trainer(devices), np.zeros(0, np.int64)
    step(run)
    before = states(run)
    with pytest.raises(NotFinite):
        run.step({"at": nothing, "then": nothing, "scale": np.float32(1)}, nothing)
    assert unchanged(run, before)
