"""How work of the dependency engine ends: taken back, closed, let go, interrupted, with the process, in a fork."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest
from engine_operations import fail, held

from graphkit.errors import Cancelled, RuntimeFailure
from graphkit.executor.run.engine import Engine


def wait_for(condition: Callable[[], bool]) -> None:
    """Wait until the condition holds, for at most a minute."""
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


def test_cancel(engine: Engine) -> None:
    gate, variable, ran = held(engine)
    engine.cancel()
    engine.push(lambda: ran.append(100))
    gate.open()
    with pytest.raises(Cancelled, match="was cancelled"):
        engine.wait(variable)
    engine.push(lambda: ran.append(101), writes=[variable])
    engine.wait_all()
    assert sorted(ran) == [100, 101]  # two operations without a common variable: in either order


def test_close_cancels_and_refuses() -> None:
    engine = Engine(2)
    gate, variable, ran = held(engine)
    assert not engine.close(0.01)
    with pytest.raises(RuntimeFailure, match="engine is closed; operation 'print'"):
        engine.push(print)
    gate.open()
    assert engine.close()
    assert engine.close()
    assert ran == []
    with pytest.raises(Cancelled):
        engine.wait(variable)


def test_context_manager() -> None:
    with pytest.raises(KeyError, match="late"), Engine(1) as engine:
        engine.push(lambda: fail("late"))
    engine = Engine(1)
    gate, _, ran = held(engine)

    def is_closed() -> bool:
        try:
            engine.push(lambda: None)
        except RuntimeFailure:
            return True
        return False

    opener = threading.Thread(target=lambda: (wait_for(is_closed), gate.open()))
    opener.start()
    with pytest.raises(ZeroDivisionError), engine:
        raise ZeroDivisionError
    opener.join()
    assert ran == []


def workers_become(count: int) -> bool:
    """Wait until the process has `count` worker threads. Return False after a timeout."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        names = []
        for task in Path("/proc/self/task").iterdir():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
                names.append((task / "comm").read_text().strip())
        if names.count("graphkit-worker") == count:
            return True
        time.sleep(0.01)
    return False


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="threads are counted in /proc")
def test_the_workers_of_an_engine_that_nobody_closes_end() -> None:
    assert workers_become(0)
    gate, _, ran = held(Engine(3))
    assert workers_become(1)
    gate.open()
    assert workers_become(0)
    assert ran == []


def test_references_are_let_go() -> None:
    class Held:
        def __call__(self) -> None:
            pass

    with Engine(1) as engine:
        gate, variable, _ = held(engine)
        work = [Held() for _ in range(50)]
        alive = [weakref.ref(w) for w in work]
        for item in work:
            engine.push(item, writes=[variable])
        del work, item
        engine.cancel()
        gate.open()
        with pytest.raises(Cancelled):
            engine.wait_all()
        assert [r for r in alive if r() is not None] == []


def test_failures_that_refer_to_their_engine_are_collected() -> None:
    import gc

    def leave_behind(waited: bool) -> weakref.ref[Engine]:
        engine = Engine(1)
        variable = engine.variable()

        def work() -> None:
            raise ValueError((engine, variable))

        engine.push(work, writes=[variable])
        if waited:
            with pytest.raises(ValueError, match="Engine"):
                engine.wait(variable)
        while engine.pending:
            time.sleep(0.001)
        return weakref.ref(engine)

    for waited in (False, True):
        gone = leave_behind(waited)
        gc.collect()
        assert gone() is None


def test_old_exceptions_are_let_go() -> None:
    with Engine(1) as engine:
        variable = engine.variable()
        for number in range(100):
            engine.push(lambda n=number: fail(str(n)), writes=[variable])  # type: ignore[misc]
            with pytest.raises(KeyError, match=str(number)):
                engine.wait(variable)
        assert len(engine.raised) < 5


def test_a_wait_can_be_interrupted() -> None:
    # A shell that starts the tests in the background makes them ignore the signal.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with Engine(1) as engine:
            gate, variable, _ = held(engine)

            def wait() -> None:
                threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
                engine.wait(variable)

            with pytest.raises(KeyboardInterrupt):
                wait()
            gate.open()  # it was shut: the wait did not end by itself
            engine.wait(variable)
    finally:
        signal.signal(signal.SIGINT, before)


def test_python_runs_while_a_thread_waits() -> None:
    with Engine(1) as engine:
        gate, variable, _ = held(engine)
        waiter = threading.Thread(target=engine.wait, args=(variable,))
        waiter.start()
        assert sum(itertools.islice(itertools.count(), 100_000)) > 0
        assert waiter.is_alive()
        gate.open()
        waiter.join(60)
        assert not waiter.is_alive()


def run_script(code: str) -> subprocess.CompletedProcess[str]:
    """The process after its end; one that does not end within two minutes raises."""
    code = "import os, sys, threading, time\nfrom graphkit.executor.run import engine\n" + textwrap.dedent(code)
    return subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=300, check=False)


def test_the_process_ends_although_operations_do_not() -> None:
    done = run_script("""
        def sleep():  # blocked outside Python
            time.sleep(1000)
        def spin():  # asks for the GIL while the interpreter goes
            while True:
                time.sleep(0.0001)
        def wait():
            threading.Event().wait()
        engine.EXIT_SECONDS = 0.2
        e = engine.Engine(6)
        for operation in (sleep, spin, wait):
            v = e.variable()
            e.push(operation, writes=[v])
            e.push(operation)
            for _ in range(100):
                e.push(lambda: print("never"), writes=[v])
        time.sleep(0.1)
        print("end")
    """)
    assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")


def test_the_process_lets_running_operations_finish() -> None:
    done = run_script("""
        e = engine.Engine(1)
        started = threading.Event()
        def work():
            started.set()
            time.sleep(0.3)
            print("finished", flush=True)
        e.push(work)
        e.push(lambda: print("never"))
        started.wait()
    """)
    assert (done.returncode, done.stdout, done.stderr) == (0, "finished\n", "")


def test_a_failure_that_nobody_waits_for_does_not_disturb_the_end() -> None:
    done = run_script("""
        e = engine.Engine(1)
        v = e.variable()
        def work():
            raise ValueError((e, v))
        e.push(work, writes=[v])
        while e.pending:
            time.sleep(0.01)
    """)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_has_no_engine_and_can_make_one() -> None:
    done = run_script("""
        import warnings
        warnings.simplefilter("ignore", DeprecationWarning)
        e = engine.Engine(2)
        v = e.variable()
        gate = threading.Event()
        e.push(gate.wait, writes=[v])
        child = os.fork()
        if child == 0:
            for call in (lambda: e.push(print), lambda: e.wait(v), e.wait_all, e.cancel, lambda: e.pending):
                try:
                    call()
                except engine.RuntimeFailure as error:
                    assert "belongs to the parent" in str(error), error
                else:
                    os._exit(9)
            assert e.close()
            with engine.Engine(1) as own:
                own.push(lambda: print("child", flush=True))
            del e, v
            sys.exit(0)
        _, status = os.waitpid(child, 0)
        gate.set()
        e.wait_all()
        print("parent", os.waitstatus_to_exitcode(status))
    """)
    assert (done.returncode, done.stdout, done.stderr) == (0, "child\nparent 0\n", "")
