"""The `graphkit` command. What runs before everything else is loaded is here; the commands are in `_commands`."""

from __future__ import annotations

import contextlib
import gc
import signal
import sys
from collections.abc import Sequence
from typing import Any

# Objects that a command makes before Python's cyclic collector looks at the young ones, and how often it looks at all.
# What a command imports and builds stays until it ends.
_COLLECT_AFTER = (50_000, 20, 100)


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point: run a command and exit with its code."""
    try:
        code = _guarded(sys.argv[1:] if argv is None else argv)
    except KeyboardInterrupt:  # while modules were loading, or before the command has begun
        if sys.stderr is not None:
            with contextlib.suppress(Exception):  # there is nowhere to say that this cannot be said
                print("graphkit: interrupted", file=sys.stderr)
        code = 128 + signal.SIGINT
    if signal.getsignal(signal.SIGINT) not in (None, signal.SIG_IGN):
        # All is done: what Python does at its end is not worth a traceback.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    # The system takes back what is left: Python need not look through all of it for cycles before it ends.
    gc.freeze()
    sys.exit(code)


def _guarded(argv: Sequence[str]) -> int:
    """Run a command, with streams and an interrupt that end it by an exit code, and not by a traceback."""
    gc.set_threshold(*_COLLECT_AFTER)
    from graphkit.cli import _interrupts, _streams

    _interrupts.note()
    _streams.watch()
    return _streams.flushed(invoke(argv))


def invoke(argv: Sequence[str]) -> int:
    """Run one command line; return the exit code. In a job of several ranks a failure ends all of them."""
    from graphkit.cli import _commands

    return _commands.invoke(argv)


def __getattr__(name: str) -> Any:
    """`cli`, the group of all commands, and `COMMANDS`, their names."""
    if name in ("cli", "COMMANDS"):
        from graphkit.cli import _commands

        return getattr(_commands, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
