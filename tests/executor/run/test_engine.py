"""The dependency engine: order, priorities, failures, waits, misuse."""

from __future__ import annotations

import contextlib
import threading
import time

import numpy as np
import pytest
from combinations import in_one_item, seeds
from engine_operations import Gate, fail

from graphkit.errors import RuntimeFailure, UsageError
from graphkit.executor.devices.cpu import native
from graphkit.executor.run.engine import Engine

# --- order -----------------------------------------------------------------------------------------


@in_one_item()
@pytest.mark.parametrize("seed", seeds(20, default=8))
def test_random_workloads_give_what_serial_execution_gives(seed: int) -> None:
    """Every operation mixes its operands into its results, so a wrong order changes the result."""
    rng = np.random.default_rng(seed)
    count = int(rng.integers(1, 12))
    with Engine(int(rng.integers(1, 6))) as engine:
        variables = [engine.variable(f"v{i}") for i in range(count)]
        serial, shared = [[i] * 1 for i in range(count)], [[i] * 1 for i in range(count)]

        def mix(state: list[list[int]], reads: list[int], writes: list[int], number: int) -> None:
            value = number
            for i in (*reads, *writes):
                value = (value * 1_000_003 + state[i][-1]) % 2_147_483_647
            for i in writes:
                state[i].append((value + i) % 2_147_483_647)

        for number in range(500):
            reads = [int(i) for i in rng.integers(0, count, rng.integers(0, 4))]
            writes = [int(i) for i in rng.integers(0, count, rng.integers(0, 3))]
            mix(serial, reads, writes, number)
            engine.push(
                lambda r=reads, w=writes, n=number: mix(shared, r, w, n),  # type: ignore[misc]
                reads=[variables[i] for i in reads],
                writes=[variables[i] for i in writes],
                priority=int(rng.integers(-3, 4)),
            )
            if number % 97 == 0:
                chosen = int(rng.integers(0, count))
                engine.wait(variables[chosen])
                assert shared[chosen] == serial[chosen]
        engine.wait_all()
        assert shared == serial
        assert engine.pending == 0


def test_readers_run_together_and_a_writer_alone() -> None:
    with Engine(3) as engine:
        variable = engine.variable()
        together = threading.Barrier(3, timeout=60)
        for _ in range(3):
            engine.push(together.wait, reads=[variable])
        engine.wait(variable, exclusive=True)

        running = 0

        def alone() -> None:
            nonlocal running
            running += 1
            time.sleep(0.001)
            assert running == 1
            running -= 1

        for _ in range(20):
            engine.push(alone, writes=[variable])
        engine.wait(variable)


def test_operations_that_share_nothing_do_not_wait_for_each_other() -> None:
    with Engine(2) as engine:
        gate, slow, fast = Gate(), engine.variable(), engine.variable()
        engine.push(gate, writes=[slow])
        done: list[int] = []
        engine.push(lambda: done.append(1), writes=[fast])
        engine.wait(fast)
        assert done == [1]
        assert engine.pending == 1
        gate.open()


def test_a_variable_named_twice_is_written() -> None:
    with Engine(2) as engine:
        variable, gate = engine.variable(), Gate()
        engine.push(gate, reads=[variable, variable], writes=[variable, variable])
        done: list[bool] = []
        engine.push(lambda: done.append(True), reads=[variable])
        assert gate.started.wait(60)
        assert done == []
        gate.open()
        engine.wait(variable, exclusive=True)
        assert done == [True]


def test_wait_for_a_variable_waits_for_its_writers_and_if_exclusive_for_its_readers() -> None:
    with Engine(2) as engine:
        variable, gate = engine.variable(), Gate()
        engine.push(lambda: None, writes=[variable])
        engine.push(gate, reads=[variable])
        engine.wait(variable)
        assert engine.pending == 1
        threading.Timer(0.05, gate.open).start()
        engine.wait(variable, exclusive=True)
        assert engine.pending == 0


def test_priorities_order_what_is_ready() -> None:
    with Engine(1) as engine:
        gate = Gate()
        engine.push(gate)
        assert gate.started.wait(60)
        ran: list[tuple[int, int]] = []
        pushed = [(priority, number) for number, priority in enumerate([0, 5, -2, 5, 0, 9, -2])]
        for item in pushed:
            engine.push(lambda item=item: ran.append(item), priority=item[0])  # type: ignore[misc]
        gate.open()
        engine.wait_all()
        assert ran == sorted(pushed, key=lambda item: (-item[0], item[1]))


def test_an_operation_may_push_others() -> None:
    with Engine(1) as engine:
        variable, found = engine.variable(), []

        def step(left: int) -> None:
            found.append(left)
            if left:
                engine.push(lambda: step(left - 1), writes=[variable])

        engine.push(lambda: step(100), writes=[variable])
        while engine.pending:
            engine.wait_all()
        assert found == list(range(100, -1, -1))


def test_many_threads_push_and_wait() -> None:
    with Engine(4) as engine:
        variables = [engine.variable() for _ in range(8)]
        counts = [0] * 8

        def add(i: int, j: int) -> None:
            counts[i] += 1
            counts[j] += 1

        def pusher(seed: int) -> None:
            rng = np.random.default_rng(seed)
            for _ in range(1000):
                i, j = (int(n) for n in rng.choice(8, 2, replace=False))
                engine.push(lambda i=i, j=j: add(i, j), writes=[variables[i], variables[j]])  # type: ignore[misc]
                if rng.random() < 0.02:
                    engine.wait(variables[i])

        threads = [threading.Thread(target=pusher, args=(seed,)) for seed in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
        engine.wait_all()
        assert sum(counts) == 2 * 6 * 1000


def test_a_long_chain_and_a_wide_fan() -> None:
    with Engine(3) as engine:
        chain, leaves = engine.variable(), [engine.variable() for _ in range(2000)]
        gate, total = Gate(), [0]
        engine.push(gate, writes=[chain])

        def add() -> None:
            total[0] += 1

        for _ in range(5000):
            engine.push(add, writes=[chain])
        for leaf in leaves:
            engine.push(lambda: None, reads=[chain], writes=[leaf])
        engine.push(lambda: total.append(total[0]), reads=leaves)
        gate.open()
        engine.wait_all()
        assert total == [5000, 5000]


# --- failures --------------------------------------------------------------------------------------


def test_the_exception_itself_comes_out_of_the_wait(engine: Engine) -> None:
    variable = engine.variable()
    engine.push(lambda: fail("lost"), writes=[variable], name="load batch 3")
    with pytest.raises(KeyError, match="lost") as caught:
        engine.wait(variable)
    assert caught.value.__notes__ == ["in operation 'load batch 3' of the engine"]
    assert "fail" in [entry.name for entry in caught.traceback]
    engine.wait(variable)
    engine.wait_all()


def test_operations_after_a_failed_one_do_not_run_and_report_its_cause(engine: Engine) -> None:
    a, b, c, other = (engine.variable(name) for name in "abco")
    gate, ran = Gate(), []
    engine.push(gate, writes=[a])
    engine.push(lambda: fail("cause"), writes=[a])
    engine.push(lambda: ran.append("b"), reads=[a], writes=[b])
    engine.push(lambda: ran.append("c"), reads=[b], writes=[c])
    engine.push(lambda: ran.append("a"), writes=[a])
    engine.push(lambda: ran.append("other"), writes=[other])
    gate.open()
    for variable in (c, a, b):
        with pytest.raises(KeyError, match="cause"):
            engine.wait(variable)
    engine.wait(other)
    assert ran == ["other"]
    engine.push(lambda: ran.append("again"), reads=[a, b], writes=[c])
    engine.wait_all()
    assert ran == ["other", "again"]


def test_what_was_pushed_before_a_wait_stays_poisoned_after_it() -> None:
    with Engine(2) as engine:
        a, b, lock = engine.variable(), engine.variable(), engine.variable()
        gate, ran = Gate(), []
        engine.push(lambda: fail("cause"), writes=[a])
        engine.push(gate, writes=[lock])
        engine.push(lambda: ran.append(1), reads=[a, lock], writes=[b])
        with pytest.raises(KeyError):
            engine.wait(a)
        engine.push(lambda: ran.append(2), reads=[a])
        gate.open()
        with pytest.raises(KeyError):
            engine.wait(b)
        engine.wait_all()
        assert ran == [2]


def test_wait_all_raises_the_oldest_failure_once_and_forgives(engine: Engine) -> None:
    variables = [engine.variable() for _ in range(3)]
    gate = Gate()
    engine.push(gate, writes=variables[:1])
    engine.push(lambda: fail("first"), writes=variables[:1])
    engine.push(lambda: fail("second"), writes=variables[1:2], priority=9)
    engine.push(lambda: fail("third"))
    gate.open()
    with pytest.raises(KeyError, match="first"):
        engine.wait_all()
    engine.wait_all()
    ran: list[int] = []
    engine.push(lambda: ran.append(1), reads=variables)
    engine.wait_all()
    for variable in variables:
        engine.wait(variable)
    assert ran == [1]


def test_a_failure_without_variables_comes_out_of_wait_all(engine: Engine) -> None:
    engine.push(lambda: fail("alone"))
    with pytest.raises(KeyError, match="alone"):
        engine.wait_all()


@in_one_item()
@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, StopIteration, MemoryError])
def test_any_exception_is_carried(engine: Engine, kind: type[BaseException]) -> None:
    def work() -> None:
        raise kind("x")

    variable = engine.variable()
    engine.push(work, writes=[variable])
    with pytest.raises(kind):
        engine.wait(variable)


def test_failures_under_load_reach_exactly_what_depends_on_them() -> None:
    rng = np.random.default_rng(7)
    with Engine(4) as engine:
        variables = [engine.variable() for _ in range(6)]
        unfit: list[str | None] = [None] * 6  # the failure that reached each variable, as serial execution has it
        ran: set[int] = set()
        expected: set[int] = set()
        order: dict[str, int] = {}

        def work(number: int, fails: bool) -> None:
            if fails:
                fail(str(number))
            ran.add(number)

        for number in range(2000):
            picked = [int(i) for i in rng.choice(6, 3, replace=False)]
            reads, writes = picked[:2], picked[2:]
            fails = rng.random() < 0.01
            causes = sorted((order[c], c) for i in picked if (c := unfit[i]) is not None)
            engine.push(
                lambda n=number, f=fails: work(n, f),  # type: ignore[misc]
                reads=[variables[i] for i in reads],
                writes=[variables[i] for i in writes],
            )
            if causes:
                unfit[writes[0]] = causes[0][1]
            elif fails:
                unfit[writes[0]] = str(number)
                order[str(number)] = number
            else:
                expected.add(number)
            if number % 100 == 99:
                chosen = int(rng.integers(0, 6))
                if unfit[chosen] is None:
                    engine.wait(variables[chosen])
                else:
                    with pytest.raises(KeyError, match=f"^'{unfit[chosen]}'"):
                        engine.wait(variables[chosen])
                unfit[chosen] = None
        for variable, cause in zip(variables, unfit, strict=True):
            if cause is not None:
                with pytest.raises(KeyError, match=f"^'{cause}'"):
                    engine.wait(variable)
        with contextlib.suppress(KeyError):  # a failure that another one hid from every variable
            engine.wait_all()
        assert ran == expected


# --- native operations -----------------------------------------------------------------------------


def pool(x: tuple[int, ...] = (1, 1, 4, 4), threads: int = 1):
    window = native.PoolWindow([2, 2], [2, 2], [1, 1], [0, 0], [0, 0])
    return native.MaxPool(x, [*x[:2], x[2] // 2, x[3] // 2], window, threads=threads)


def test_native_kernels_run_in_order_beside_python(engine: Engine) -> None:
    x, y = np.zeros((1, 1, 4, 4), np.float32), np.zeros((1, 1, 2, 2), np.float32)
    source, target = engine.variable(), engine.variable()
    seen = []
    for number in range(200):
        engine.push(lambda n=number: x.fill(n), writes=[source])  # type: ignore[misc]
        engine.push_kernel(pool(), [x], [y, None], reads=[source], writes=[target])
        engine.push(lambda: seen.append(y.copy()), reads=[target])
    engine.wait_all()
    assert [int(a.max()) for a in seen] == list(range(200))


def test_native_operations_are_checked_when_they_are_pushed(engine: Engine) -> None:
    y = np.zeros((1, 1, 2, 2), np.float32)
    with pytest.raises(ValueError, match="'x' got an array of"):
        engine.push_kernel(pool(), [np.zeros((4, 4), np.float32)], [y, None])
    assert engine.pending == 0


def test_workers_share_loops_with_helpers() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((64, 8, 32, 32)).astype(np.float32)
    shape, results = (64, 8, 16, 16), []
    expected = x.reshape(64, 8, 16, 2, 16, 2).max((3, 5))
    with Engine(2) as engine:
        for _ in range(20):
            results += [np.empty(shape, np.float32), np.empty(shape, np.float32)]
            engine.push(lambda y=results[-1]: pool(x.shape, threads=3)([x], [y, None]))  # type: ignore[misc]
            engine.push_kernel(pool(x.shape, threads=3), [x], [results[-2], None])
        engine.wait_all()
    assert all(np.array_equal(y, expected) for y in results)


# --- misuse ----------------------------------------------------------------------------------------


def test_an_operation_cannot_wait_for_its_own_engine(engine: Engine) -> None:
    variable, other = engine.variable(), engine.variable()
    for wait in (lambda: engine.wait(variable), engine.wait_all):
        engine.push(wait, writes=[other])
        with pytest.raises(RuntimeFailure, match="cannot wait for the engine that runs it"):
            engine.wait(other)


def test_wrong_arguments(engine: Engine) -> None:
    with pytest.raises(UsageError, match="callable without arguments, not int"):
        engine.push(3)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="variables of this engine"):
        engine.push(print, reads=[3])  # type: ignore[list-item]
    with pytest.raises(UsageError, match="workers=0"):
        Engine(0)
    with Engine(1) as other, pytest.raises(RuntimeFailure, match="variable of another engine"):
        engine.push(print, reads=[other.variable()])
    with Engine(1) as other, pytest.raises(RuntimeFailure, match="variable of another engine"):
        engine.wait(other.variable())


def test_number_of_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAPHKIT_ENGINE_WORKERS", "3")
    with Engine() as engine:
        assert engine.workers == 3
        together = threading.Barrier(3, timeout=60)
        for _ in range(3):
            engine.push(together.wait)
    assert repr(engine) == "<Engine of 3 workers>"
    assert repr(engine.variable("x")) == "<Variable 'x'>"
