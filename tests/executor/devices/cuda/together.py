"""Tests of many cases whose kernels one call of the compiler compiles: see `together`."""

from __future__ import annotations

import fnmatch
import inspect
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import cases as many
import on_a_card
import pytest
from combinations import Combination, combined, without_parametrize
from emulator import CompilerError, Emulator
from fresh import FRESH

# Tests with none of these fixtures compile nothing.
_COMPILING = {"processor", "emulator", "card", "cards"}


def together(
    full: Callable[..., bool] = lambda **arguments: False,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make one pytest item of all cases that `pytest.mark.parametrize` below this decorator gives a test.

    The cases run until each needs a kernel that is not compiled yet. One call of the compiler compiles all of these
    kernels, and the cases continue, until all have ended. A case has its own `card`, `cards`, `library`, `monkeypatch`
    and `tmp_path`; a test with one of these begins again each time. An item's cases share all other fixtures.

    Args:
        full: Whether a case with these arguments is of the full lane, which has an item of its own for them. Cases
            with the mark `full` are, too.
    """

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        marks = list(getattr(test, "pytestmark", []))
        found = [case._replace(full=case.full or full(**case.arguments)) for case in combined(marks)]
        items = many.items_of(found, lambda case: "cases", lambda case: case.name, lambda case: case.full)
        given = {name for case in found for name in case.arguments}
        fixtures = [name for name in inspect.signature(test).parameters if name not in given]
        shared = [name for name in fixtures if name not in FRESH]

        def run(**arguments: Any) -> None:
            kept = {name: arguments[name] for name in shared}
            fresh = [name for name in fixtures if name in FRESH]
            call = _Call(test, fresh, kept, arguments.get("processor"), arguments["tmp_path"])
            _run(call, arguments["members"])

        asked = dict.fromkeys(("members", "tmp_path", *(["processor"] if _COMPILING & {*fixtures} else []), *shared))
        many.replaced(test, run, asked, without_parametrize(marks))
        return pytest.mark.parametrize("members", items)(run)

    return decorate


class _Call(NamedTuple):
    """A test with its fixtures. fresh: names of those that each case has for itself. processor: None if the test
    compiles nothing.
    """

    test: Callable[..., None]
    fresh: list[str]
    shared: dict[str, Any]
    processor: Emulator | None
    folder: Path

    def __call__(self, case: Combination) -> None:
        if case.skipped is not None:
            pytest.skip(case.skipped)
        with pytest.MonkeyPatch.context() as monkeypatch:
            made = {name: FRESH[name](self.processor, monkeypatch, self.folder) for name in self.fresh}
            self.test(**case.arguments, **self.shared, **made)


class _NotCompiled(BaseException):
    """A case needs a kernel that is not compiled yet. Code under test must not handle it as an error of its own."""


def _run(call: _Call, members: many.Cases) -> None:
    """Run the selected cases and report them as `each_case` does."""
    chosen = [case for case in members if fnmatch.fnmatchcase(case.name, many.selected_pattern)]
    outcomes: Outcomes
    if call.processor is None or on_a_card.WANTED:
        outcomes = {case.name: _outcome(call, case) for case in chosen}
    else:
        outcomes = (_begin_again if call.fresh else _take_turns)(call, call.processor, chosen)

    def report(case: Combination) -> None:
        error = outcomes[case.name]
        if error is not None:
            raise error

    many.run_all(report, members, lambda case: case.name, {})


Outcomes = dict[str, BaseException | None]


def _outcome(call: _Call, case: Combination) -> BaseException | None:
    """The error of a case. None if it passes."""
    try:
        call(case)
    except (Exception, pytest.fail.Exception, pytest.skip.Exception) as error:  # noqa: BLE001 - `_run` raises it
        return error
    return None


def _begin_again(call: _Call, processor: Emulator, waiting: list[Combination]) -> Outcomes:
    """Stop each case that lacks a kernel, and begin again with it when all kernels are compiled that others lack, too.

    Cases that change the process (`card`, `monkeypatch`) cannot wait for each other in the middle.
    """

    def stop() -> None:
        raise _NotCompiled

    outcomes: Outcomes = {}
    while waiting:
        lacking = []
        for case in waiting:
            try:
                with processor.gathering(stop):
                    outcomes[case.name] = _outcome(call, case)
            except _NotCompiled:
                lacking.append(case)
        if not _compile_for_all(processor):
            return outcomes | {case.name: _outcome(call, case) for case in lacking}
        waiting = lacking
    return outcomes


def _compile_for_all(processor: Emulator) -> bool:
    """False if the compiler refuses a source. Then each case compiles its own, and the one with that source fails."""
    try:
        processor.compile_noted()
    except CompilerError:
        return False
    return True


class _Turn(threading.Thread):
    """Runs a case in a thread. The thread stops if the case needs a kernel. One thread runs at a time."""

    def __init__(self, call: _Call, processor: Emulator, case: Combination):
        super().__init__(daemon=True)
        self.case, self.ended = case, False
        self.outcome: BaseException | None = None
        self._call, self._processor = call, processor
        self._resumed, self._stopped = threading.Semaphore(0), threading.Semaphore(0)

    def run(self) -> None:
        self._resumed.acquire()
        try:
            with self._processor.gathering(self.stop):
                self.outcome = _outcome(self._call, self.case)
        except BaseException as error:  # noqa: BLE001 - such as SystemExit, which would end the thread in silence
            self.outcome = error
        finally:
            self.ended = True
            self._stopped.release()

    def stop(self) -> None:
        self._stopped.release()
        self._resumed.acquire()

    def resume(self) -> None:
        """Returns when the case stops or ends."""
        self._resumed.release()
        self._stopped.acquire()


def _take_turns(call: _Call, processor: Emulator, cases: list[Combination]) -> Outcomes:
    """Run all cases until each has ended or lacks a kernel, compile these kernels, and continue."""
    turns = [_Turn(call, processor, case) for case in cases]
    for turn in turns:
        turn.start()
    waiting = turns
    while waiting:
        for turn in waiting:
            turn.resume()
        waiting = [turn for turn in waiting if not turn.ended]
        _compile_for_all(processor)
    for turn in turns:
        turn.join()
    return {turn.case.name: turn.outcome for turn in turns}
