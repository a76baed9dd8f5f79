"""Records whether a signal asked the command to stop.

An interrupt during an import may turn into another exception: some extensions raise ImportError for any exception while
they load. Therefore a command that fails after a signal counts as interrupted.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import NoReturn

# The number of the signal that was received, or None.
_came: int | None = None


def note() -> None:
    """Record Ctrl-C from now on; it still raises KeyboardInterrupt. No effect if SIGINT is ignored or has a handler."""
    main = threading.current_thread() is threading.main_thread()
    if main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupted)


def has_come(number: int) -> None:
    """Record that this signal asked the command to stop."""
    global _came
    _came = number


def came() -> int | None:
    """Return the number of the signal that asked the command to stop, or None."""
    return _came


def _interrupted(number: int, frame: FrameType | None) -> NoReturn:
    has_come(number)
    raise KeyboardInterrupt
