"""The cyclic garbage collector is paused in sweeps, and left as it was."""

from __future__ import annotations

import gc
import subprocess
import sys
import textwrap

import pytest

from graphkit.collector import without_gc


def test_pause_ends_after_result_and_after_error() -> None:
    assert gc.isenabled()
    assert not without_gc(gc.isenabled)()
    assert gc.isenabled()
    with pytest.raises(ZeroDivisionError):
        without_gc(lambda: 1 // 0)()
    assert gc.isenabled()


def test_collector_that_user_disabled_stays_disabled() -> None:
    gc.disable()
    try:
        without_gc(int)()
        assert not gc.isenabled()
    finally:
        gc.enable()


def promotes(before: str) -> list[str]:
    """Return, for five pauses of a new process, whether each moved a new object to the oldest generation."""
    code = f"""
        import gc
        from graphkit.collector import without_gc

        {before}
        for _ in range(5):
            made = without_gc(lambda: [[]])()
            print(any(made is found for found in gc.get_objects(generation=2)), gc.get_freeze_count() > 0)
    """
    command = [sys.executable, "-P", "-c", textwrap.dedent(code)]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=300).stdout.splitlines()


def test_first_pauses_promote_their_objects() -> None:
    assert promotes("") == ["True False"] * 4 + ["False False"]


def test_objects_that_user_has_frozen_stay_frozen() -> None:
    assert promotes("gc.freeze()") == ["False True"] * 5


def test_garbage_of_large_pauses_is_bounded() -> None:
    code = """
        import gc
        from graphkit.collector import without_gc

        class Cycle:
            def __init__(self):
                self.itself = self

        def make():
            return [Cycle() for _ in range(120_000)]

        for _ in range(3):
            without_gc(int)()
        held = without_gc(make)()
        print(any(found is held for found in gc.get_objects(generation=2)))
        del held
        most = 0
        for _ in range(12):
            without_gc(make)()
            most = max(most, sum(type(found) is Cycle for found in gc.get_objects()) // 120_000)
        print(most <= 6, most)
    """
    command = [sys.executable, "-P", "-c", textwrap.dedent(code)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300).stdout.splitlines()
    assert done[0] == "True"
    assert done[1].startswith("True"), done
