"""What tests of every room share."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest


@pytest.fixture
def steps() -> Callable[[Callable[[], Any]], int]:
    """How many lines of Python a call executes: what it costs, the same on a busy machine.

    Loops inside of builtin functions (a search in a list) count as one step.
    """

    def count(function: Callable[[], Any]) -> int:
        total = 0

        def trace(_frame: FrameType, event: str, _argument: Any) -> Any:
            nonlocal total
            total += event in ("call", "line")
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            function()
        finally:
            sys.settrace(before)
        return total

    return count
