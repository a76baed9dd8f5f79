"""How a command reports an error: a line on stderr, an exit code, and with --json an object on stdout."""

from __future__ import annotations

import ast
import re
import signal
import sys
import traceback
from collections.abc import Sequence
from typing import Any

import click

from graphkit.cli._output import print_json
from graphkit.errors import GraphkitError, RuntimeFailure, UsageError, UserCodeError
from graphkit.text import printable

INTERRUPTED = 130


class Interrupted(click.Abort):
    """A signal asked the command to stop; `error` was raised after that.

    An ImportError is not mentioned, because an interrupt during an import may turn into one.
    """

    def __init__(self, number: int, error: Exception):
        what = "terminated" if number == signal.SIGTERM else "interrupted"
        super().__init__(what if isinstance(error, ImportError) else f"{what}; then: {error or type(error).__name__}")
        self.exit_code = 128 + number


_NAME = r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\""""
# Finds the first node in a message of Node.describe, of the importer, or in a list of operators.
_NODE = re.compile(rf"(?:node (?:of )?(?P<name>{_NAME})|unnamed node) \(?(?P<operator>[\w.]+)[()]")
_LISTED = re.compile(rf"^  (?P<operator>[\w.]+): (?P<name>{_NAME})", re.MULTILINE)


def report(error: BaseException, argv: Sequence[str], whole: bool = False) -> int:
    """Print the error and return the exit code. whole: with the traceback."""
    kind, code, message = _kind(error), exit_code_of(error), printable(_message(error))
    expected = isinstance(error, (GraphkitError, click.ClickException, click.Abort))
    if whole or not (expected or isinstance(error, (MemoryError, OSError))):
        traceback.print_exception(error, file=sys.stderr)
    if isinstance(error, UserCodeError) and not whole:
        message += " (for the traceback: graphkit --traceback COMMAND ...)"
    if isinstance(error, click.ClickException):
        error.show()
    elif isinstance(error, click.Abort):
        click.echo(f"graphkit: {message}", err=True)
    elif isinstance(error, MemoryError):
        click.echo(f"graphkit: out of memory: {message}", err=True)
    elif expected or isinstance(error, OSError):
        click.echo(f"graphkit: {message}", err=True)
    else:
        click.echo(f"graphkit: internal error: {kind}: {message}. Please report it, with the traceback above", err=True)
    print_error(error, argv)
    return code


def print_error(error: BaseException, argv: Sequence[str]) -> None:
    """Print the error as JSON on stdout, if the command line has --json."""
    if "--json" in argv:
        message = _message(error)
        command = next((a for a in argv if not a.startswith("-")), None)
        print_json(
            "error",
            {"command": command, "kind": _kind(error), "message": message}
            | _place(message)
            | {"exit_code": exit_code_of(error)},  # last: gk_open reads the end of the output
        )


def _message(error: BaseException) -> str:
    if isinstance(error, click.Abort):
        return str(error) or "interrupted"
    return error.format_message() if isinstance(error, click.ClickException) else str(error)


def _kind(error: BaseException) -> str:
    if isinstance(error, click.Abort):
        return "Interrupted"
    return UsageError.__name__ if isinstance(error, click.ClickException) else type(error).__name__


def exit_code_of(error: BaseException) -> int:
    """Return the exit code of a command that ended with this error."""
    if isinstance(error, click.Abort):
        return int(getattr(error, "exit_code", INTERRUPTED))
    if isinstance(error, (GraphkitError, click.ClickException)):
        return error.exit_code
    return RuntimeFailure.exit_code


def names_node(message: str) -> bool:
    """Return whether an error message names a node of a graph."""
    return _NODE.search(message) is not None


def _place(message: str) -> dict[str, Any]:
    """Return the node and the operator that a message names, or None for both."""
    found = _NODE.search(message) or _LISTED.search(message)
    if found is None:
        return {"node": None, "operator": None}
    name = found["name"]
    return {"node": name and ast.literal_eval(name), "operator": found["operator"].removeprefix("ai.onnx.")}
