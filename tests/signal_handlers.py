"""Check that tests leave the handlers of signals as they found them."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator

import pytest

_CHECKED = (signal.SIGINT, signal.SIGTERM)


@contextlib.contextmanager
def handlers_unchanged(module: str) -> Iterator[None]:
    """Fail if the tests of a module change what SIGINT or SIGTERM does in this process, and restore the handlers.

    Tests of other modules run in the same process. With another handler they could not be interrupted, or would not
    see the signals that they send to themselves.
    """
    before = {number: signal.getsignal(number) for number in _CHECKED}
    yield
    changed = {number: now for number in _CHECKED if (now := signal.getsignal(number)) != before[number]}
    for number in changed:
        signal.signal(number, before[number])
    if changed:
        listed = "; ".join(f"{number.name} from {before[number]!r} to {now!r}" for number, now in changed.items())
        pytest.fail(
            f"{module} changes handlers of signals: {listed}. Restore them at the end of the test that changes them.",
            pytrace=False,
        )
