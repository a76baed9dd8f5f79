"""Count the calls of Python functions, which depends neither on the machine nor on its load."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any


def count_calls(function: Callable[[], Any], filename: str | None = None) -> tuple[int, Any]:
    """Return the number of calls of Python functions while `function` runs, with its own, and its result.

    filename: Count only the functions of this file.
    """
    found = 0

    def profile(frame: Any, event: str, argument: object) -> None:
        nonlocal found
        found += event == "call" and filename in (None, frame.f_code.co_filename)

    sys.setprofile(profile)
    try:
        result = function()
    finally:
        sys.setprofile(None)
    return found, result


def require_few_calls(sizes: tuple[int, ...], counts: tuple[int, ...], most: float) -> None:
    """Require fewer than `most` calls for each further node, and as many in large networks as in small ones.

    Args:
        sizes: Numbers of nodes of three networks.
        counts: The calls for each network.
        most: The limit.
    """
    first, second = ((counts[i + 1] - counts[i]) / (sizes[i + 1] - sizes[i]) for i in range(2))
    assert first < most
    assert second < 1.05 * first
