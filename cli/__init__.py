"""Entry point of the `graphkit` command. It handles interrupts while modules load; `_commands` has the commands."""

from __future__ import annotations

import contextlib
import gc
import signal
import sys
from collections.abc import Sequence
from typing import Any

# Thresholds of Python's garbage collector (gc.set_threshold). Collections are rare, because most objects that a command
# creates live until it ends.
_COLLECT_AFTER = (50_000, 20, 100)


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point: run a command and exit with its code. Resets the handler of SIGINT; `invoke` does not."""
    try:
        code = _guarded(sys.argv[1:] if argv is None else argv)
    except KeyboardInterrupt:  # while modules were loading, or before the command began
        if sys.stderr is not None:
            with contextlib.suppress(Exception):  # standard error may be closed
                print("graphkit: interrupted", file=sys.stderr)
        code = 128 + signal.SIGINT
    if signal.getsignal(signal.SIGINT) not in (None, signal.SIG_IGN):
        # The work is done: an interrupt while Python shuts down must not print a traceback.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    # Skip the last garbage collection: the system frees the memory of the process anyway.
    gc.freeze()
    sys.exit(code)


def _guarded(argv: Sequence[str]) -> int:
    """Run a command. Interrupts and closed output streams end it with an exit code instead of a traceback."""
    gc.set_threshold(*_COLLECT_AFTER)
    from graphkit.cli import _interrupts, _streams

    _interrupts.note()
    _streams.watch()
    return _streams.flushed(invoke(argv))


def invoke(argv: Sequence[str]) -> int:
    """Run one command line and return the exit code. In a job of several ranks, a failure ends all of them."""
    from graphkit.cli import _commands

    return _commands.invoke(argv)


def __getattr__(name: str) -> Any:
    """`cli`, the group of all commands, and `COMMANDS`, their names."""
    if name in ("cli", "COMMANDS"):
        from graphkit.cli import _commands

        return getattr(_commands, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
