"""Functions in Python files of users: FILE.py:FUNCTION, and errors that name the line of the file."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
import traceback
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

from graphkit.errors import GraphkitError, UsageError, UserCodeError, did_you_mean, error_text


def function_of(path: str, name: str) -> Callable[..., Any]:
    """Return a function of a Python file. The file is executed again only if it has changed.

    Raises UsageError if there is no such file or function; for errors in the file see `running`.
    """
    module = module_of(path)
    function: Any = getattr(module, name, None)
    if not callable(function):
        raise UsageError(f"{path} has no function {name!r}{did_you_mean(name, _functions(module))}")
    found: Callable[..., Any] = function
    return found


def module_of(path: str) -> ModuleType:
    """Execute a Python file and return its module. The file is executed again only if it has changed.

    Raises UsageError if there is no such file; for errors in the file see `running`.
    """
    if not Path(path).is_file():
        raise UsageError(f"there is no file {path!r}")
    state = Path(path).stat()
    return _module(path, state.st_mtime_ns, state.st_size)


def _functions(module: ModuleType) -> list[str]:
    """Return the names of the functions that a file defines."""
    members = vars(module).items()
    return [n for n, member in members if callable(member) and getattr(member, "__module__", None) == module.__name__]


@lru_cache(maxsize=16)
def _module(path: str, changed: int, size: int) -> ModuleType:
    """Execute a file, and return its module. changed, size: modification time and size of the file, for the cache."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path!r} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    # Dataclasses and annotations look up their module in sys.modules.
    sys.modules[spec.name] = module
    with running(path):
        spec.loader.exec_module(module)
    return module


@contextlib.contextmanager
def running(path: str) -> Iterator[None]:
    """Add the file's line to errors raised in this context; those that are not graphkit's become UserCodeError."""
    try:
        yield
    except Exception as error:
        where = _line(path, error)
        if isinstance(error, GraphkitError):
            raise error if where is None else type(error)(f"{where}: {error}") from error
        raise UserCodeError(f"{where or path}: {error_text(error)}") from error
    except SystemExit as error:
        raise UserCodeError(f"{path} ends the program (exit {error.code})") from error


def _line(path: str, error: BaseException) -> str | None:
    """Return the last line of the file in the traceback of an error; None if the file does not occur."""
    if isinstance(error, SyntaxError):
        return f"{error.filename}:{error.lineno}"
    own = Path(path).resolve()
    frames = [f for f in traceback.extract_tb(error.__traceback__) if Path(f.filename).resolve() == own]
    return f"{path}:{frames[-1].lineno}, in {frames[-1].name}" if frames else None
