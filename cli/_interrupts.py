"""Whether a signal has asked the command to end.

An interrupt that comes while modules are loading may come out as another exception, as some extensions turn whatever
is raised while they are loaded into an ImportError. So a command that fails after a signal counts as interrupted.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import NoReturn

# The number of the signal that has come; None without one.
_came: int | None = None


def note() -> None:
    """From now on Ctrl-C is noted, and raises KeyboardInterrupt as before; not where it is ignored, or handled."""
    main = threading.current_thread() is threading.main_thread()
    if main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupted)


def has_come(number: int) -> None:
    """A signal has asked the command to end."""
    global _came
    _came = number


def came() -> int | None:
    """The number of the signal that has asked the command to end; None without one."""
    return _came


def _interrupted(number: int, frame: FrameType | None) -> NoReturn:
    has_come(number)
    raise KeyboardInterrupt
