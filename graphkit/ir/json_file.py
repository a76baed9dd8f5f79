"""Read a JSON file within the memory limit."""

from __future__ import annotations

import json
import os
from typing import Any, NoReturn

from graphkit.errors import InvalidModel, RuntimeFailure, UsageError
from graphkit.ir.limits import require_memory
from graphkit.ir.stored import StoredFile

# The objects of a JSON document take up to this many times the bytes of its text.
_EXPANSION = 20


def read_json(path: str | os.PathLike[str], kind: str) -> Any:
    """Return the content of a JSON file.

    Args:
        path: The file.
        kind: Kind of the file, for errors, such as "a graphkit model".

    Raises:
        UsageError: There is no such file.
        RuntimeFailure: The file cannot be read.
        InvalidModel: The file is empty, or not JSON.
        OutOfMemory: Its objects would exceed the memory limit.
    """

    def refuse(token: str) -> NoReturn:
        raise ValueError(f"{token} is not JSON")

    label = repr(os.fspath(path))
    try:
        file = StoredFile(path)
        require_memory(_EXPANSION * file.size, f"{label}, read as JSON")
        text = file.read(0, file.size).tobytes()
    except FileNotFoundError:
        raise UsageError(f"{label}: no such file") from None
    except OSError as error:
        raise RuntimeFailure(f"{label} cannot be read: {error.strerror or error}") from None
    if not text.strip():
        raise InvalidModel(f"{label} is empty")
    try:
        return json.loads(text.decode(), parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        raise InvalidModel(f"{label} is damaged, or not {kind}: it is not valid JSON: {error}") from None
