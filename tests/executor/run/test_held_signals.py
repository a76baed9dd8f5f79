"""Blocks that delay signals: order of delivery, and the state after handlers raise exceptions."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
import threading

import pytest

from graphkit.executor.run import interruption
from graphkit.executor.run.interruption import HeldSignals, uninterrupted

INT, TERM = signal.SIGINT, signal.SIGTERM


class Arrived(BaseException):
    """Raised by the handlers of these tests."""


@pytest.fixture
def arrived():
    """The signals whose handlers were called; both have one."""
    found = []
    before = {number: signal.signal(number, lambda n, frame: found.append(n)) for number in (INT, TERM)}
    yield found
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def raising():
    """As `arrived`, of handlers that raise; with every signal, the handlers that were there then."""
    found = []
    handlers = {}

    def handle(number, frame):
        found.append((number, {n: signal.getsignal(n) is handlers[n] for n in handlers}))
        raise Arrived(number)

    before = {}
    for number in (INT, TERM):
        handlers[number] = lambda n, frame: handle(n, frame)
        before[number] = signal.signal(number, handlers[number])
    yield found
    for number, handler in before.items():
        signal.signal(number, handler)


def send(*numbers):
    for number in numbers:
        signal.raise_signal(number)


def usual(found):
    """Whether blocks hold signals as they should, and nothing is left of those before."""
    with uninterrupted:
        send(INT)
        held = not found
    return held and len(found) == 1


def test_the_outermost_block_counts_and_the_second_signal_does_not_wait(arrived):
    with uninterrupted:
        with uninterrupted:
            send(TERM)
        assert not arrived
    assert arrived == [TERM]
    with uninterrupted:
        send(TERM)
        with uninterrupted:
            send(INT)
            assert arrived == [TERM, INT]
        send(INT)
        assert arrived == [TERM, INT, INT]
    assert arrived == [TERM, INT, INT, TERM]


@pytest.mark.parametrize("may", [True, False])
def test_a_predicate_says_whether_a_signal_waits(arrived, may):
    with HeldSignals(lambda: may):
        send(INT, TERM)
        assert bool(arrived) is may
    assert sorted(arrived) == [INT, TERM]


@pytest.mark.parametrize("may", [True, False])
def test_a_run_inside_of_a_step(arrived, may):
    """The first signal waits for the step, the second for no more than the run, unless that may be interrupted."""
    with uninterrupted:
        with HeldSignals(lambda: may):
            send(INT)
            assert arrived == []
            send(TERM)
            assert arrived == ([TERM] if may else [])
        assert arrived == [TERM]
        with HeldSignals(lambda: may):
            pass
        assert arrived == [TERM]
    assert arrived == [TERM, INT]


def test_a_step_inside_of_a_run(arrived):
    allowed = False
    with HeldSignals(lambda: allowed):
        with uninterrupted:
            send(INT, TERM)
        assert arrived == []
        allowed = True
        with uninterrupted:
            pass
        assert sorted(arrived) == [INT, TERM]
    assert len(arrived) == 2


def test_nested_blocks_and_other_threads_leave_handlers_alone(arrived, monkeypatch):
    calls = []
    for name in ("_getsignal", "_set_handler"):
        function = getattr(interruption, name)
        monkeypatch.setattr(interruption, name, lambda *given, f=function: (calls.append(given), f(*given))[1])

    def blocks():
        for _ in range(3):
            with HeldSignals(lambda: True), uninterrupted:
                pass

    with uninterrupted:
        assert len(calls) == 4
        blocks()
        assert len(calls) == 4
    assert len(calls) == 8
    thread = threading.Thread(target=blocks)
    thread.start()
    thread.join()
    assert len(calls) == 8


def test_a_block_in_another_thread_holds_nothing(arrived):
    inside, over = threading.Event(), threading.Event()

    def work():
        with uninterrupted, HeldSignals(lambda: False):
            inside.set()
            over.wait(60)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        assert inside.wait(60)
        send(INT)
        assert arrived == [INT]
        with uninterrupted:
            send(TERM)
            over.set()
            thread.join()
            assert arrived == [INT], "its end is not that of this one"
        assert arrived == [INT, TERM]
    finally:
        over.set()
        thread.join()


def test_handlers_that_raise_at_the_end_of_a_block(raising):
    def fails():
        with HeldSignals(lambda: False):
            send(INT, TERM)
            raise ValueError

    with pytest.raises(Arrived) as caught:
        fails()
    # Both took effect, and each found the handlers of before.
    assert sorted(raising) == [(INT, {INT: True, TERM: True}), (TERM, {INT: True, TERM: True})]
    errors = [caught.value, caught.value.__context__, caught.value.__context__.__context__]
    assert [type(e) for e in errors] == [Arrived, Arrived, ValueError]
    raising.clear()
    with pytest.raises(Arrived):
        assert usual(raising)


def test_a_second_signal_that_raises_leaves_the_blocks(raising):
    def block():
        with uninterrupted, HeldSignals(lambda: True):
            send(INT)
            send(TERM)
            pytest.fail("the second does not wait")

    with pytest.raises(Arrived) as caught:
        block()
    assert [number for number, _ in raising] == [TERM, INT]
    assert caught.value.args == (INT,)
    assert caught.value.__context__.args == (TERM,)
    raising.clear()
    with pytest.raises(Arrived):
        usual(raising)
    assert raising == [(INT, {INT: True, TERM: True})]


@pytest.mark.parametrize("call", range(4))
def test_a_signal_while_a_block_is_entered_or_left(raising, monkeypatch, call):
    """After each change of a handler, send both signals. One or both still have the old handler."""
    set_handler, count = interruption._set_handler, iter(range(100))

    def interrupted(number, handler):
        set_handler(number, handler)
        if next(count) == call:
            for each in (INT, TERM):
                try:
                    send(each)
                except Arrived:
                    if each == TERM:
                        raise

    mine = [signal.getsignal(number) for number in (INT, TERM)]
    monkeypatch.setattr(interruption, "_set_handler", interrupted)
    with pytest.raises(Arrived), HeldSignals(lambda: False):
        send(INT)
    monkeypatch.undo()
    assert [signal.getsignal(number) for number in (INT, TERM)] == mine
    assert {number for number, _ in raising} == {INT, TERM}
    raising.clear()
    with pytest.raises(Arrived):
        usual(raising)
    assert raising == [(INT, {INT: True, TERM: True})]


def test_a_handler_that_the_block_installs_stays(arrived):
    others = []
    with uninterrupted:
        held = signal.signal(INT, lambda number, frame: others.append(number))
        send(INT)
        assert others == [INT]
    send(INT)
    assert others == [INT, INT]
    # Back to what was there inside: without a block, it is what was there before.
    signal.signal(INT, held)
    send(INT)
    assert arrived == [INT]


def test_signals_without_a_handler_of_python_are_left_alone(arrived):
    signal.signal(TERM, signal.SIG_IGN)
    with uninterrupted:
        assert signal.getsignal(TERM) is signal.SIG_IGN
        send(TERM, INT)
        assert arrived == []
    assert arrived == [INT]


def run(code):
    command = [sys.executable, "-P", "-W", "ignore", "-c", textwrap.dedent(code)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_process_that_is_forked_inside_of_a_block_holds_nothing():
    code = """
    import os, signal, threading
    from graphkit.executor.run.interruption import HeldSignals, uninterrupted

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    def child():
        good = signal.getsignal(signal.SIGINT) is signal.default_int_handler
        try:
            signal.raise_signal(signal.SIGINT)
            good = False
        except KeyboardInterrupt:
            pass
        try:
            with uninterrupted:
                signal.raise_signal(signal.SIGINT)
                inside = True
            good = False
        except KeyboardInterrupt:
            good = good and inside
        return good

    def forked():
        pid = os.fork()
        if pid == 0:
            os._exit(0 if child() else 1)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    codes = []
    with uninterrupted, HeldSignals(lambda: False):
        codes.append(forked())
        thread = threading.Thread(target=lambda: codes.append(forked()))
        thread.start()
        thread.join()
        assert signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    print(codes)
    """
    assert run(code) == "[0, 0]\n"


def test_two_signals_at_random_moments():
    """If exceptions occur between any two instructions, every block is entered and left completely."""
    code = """
    import signal, sys, threading
    from graphkit.executor.run.interruption import HeldSignals, uninterrupted

    class Arrived(BaseException): pass
    taken = []
    def handle(number, frame):
        taken.append(number)
        while frame is not top:  # elsewhere nothing catches it
            if frame.f_code is blocks.__code__:
                raise Arrived
            frame = frame.f_back
    def blocks():
        with uninterrupted:
            with HeldSignals(lambda: True):
                with uninterrupted:
                    pass
    top = sys._getframe()
    both = (signal.SIGINT, signal.SIGTERM)
    for number in both:
        signal.signal(number, handle)
    main, go, sent = threading.get_ident(), threading.Semaphore(0), []
    def sender():
        for number in range(ROUNDS):
            go.acquire()
            signal.pthread_kill(main, signal.SIGINT)
            for _ in range(number % 50):
                pass
            signal.pthread_kill(main, signal.SIGTERM)
            sent.append(number)
    threading.Thread(target=sender, daemon=True).start()
    sys.setswitchinterval(1e-5)
    for number in range(ROUNDS):
        taken.clear()
        go.release()
        while len(sent) == number or len(taken) < 2:
            try:
                blocks()
            except Arrived:
                pass
        assert sorted(taken) == [*both], (number, taken)
        assert all(signal.getsignal(n) is handle for n in both), number
        taken.clear()
        with uninterrupted:
            signal.raise_signal(signal.SIGINT)
            assert not taken, number
        assert taken == [signal.SIGINT], number
    print("as usual")
    """
    assert run(code.replace("ROUNDS", "1000")) == "as usual\n"
