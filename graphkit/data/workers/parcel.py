"""A data set on its way to another process: pickled once for all workers, its arrays in memory that they share."""

from __future__ import annotations

import importlib
import io
import mmap
import os
import pickle
import runpy
import sys
import types
from typing import Any, NamedTuple

from graphkit.data.workers.memory import anonymous, mapped
from graphkit.errors import UsageError

_ALIGNED = 64

# What the script of the process that trains is called in a worker, so that what is under
# `if __name__ == "__main__":` does not run; the name that multiprocessing gives it.
_SCRIPT = "__mp_main__"


class Script(NamedTuple):
    """The module `__main__` of a process: one that has a name, or a file."""

    module: str | None
    path: str | None


class Parcel(NamedTuple):
    """A file with the pickle, and the arrays behind it, each from a beginning to an end in bytes."""

    file: int
    spans: list[tuple[int, int]]
    script: Script | None


class _Pickler(pickle.Pickler):
    """Sees whether something comes from the script."""

    of_script = False

    def reducer_override(self, found: Any) -> Any:
        if isinstance(found, (type, types.FunctionType)) and found.__module__ == "__main__":
            self.of_script = True
        return NotImplemented


def packed(name: str, data: Any) -> Parcel:
    """Raises UsageError, naming the data set, where it cannot be pickled, or a worker could not find what it needs."""
    buffers: list[pickle.PickleBuffer] = []
    stream = io.BytesIO()
    pickler = _Pickler(stream, protocol=5, buffer_callback=buffers.append)
    try:
        pickler.dump(data)
        parts = [stream.getbuffer(), *(buffer.raw() for buffer in buffers)]
    except Exception as error:  # code of whatever the data set holds
        raise UsageError(
            f"{name} cannot be sent to worker processes, because it cannot be pickled: {error}; workers=0 makes its "
            "samples in this process"
        ) from error
    spans, end = [], 0
    for part in parts:
        begin = -(-end // _ALIGNED) * _ALIGNED
        end = begin + part.nbytes
        spans.append((begin, end))
    script = _script(name) if pickler.of_script else None
    file = anonymous("data set", end)
    with mapped(file, end, ahead=False) as memory:
        for part, (begin, end) in zip(parts, spans, strict=True):
            memory[begin:end] = part
    return Parcel(file, spans, script)


def unpacked(parcel: Parcel) -> Any:
    """The data set. Its arrays are of the memory that all workers read; where it writes, it has pages of its own."""
    if parcel.script is not None:
        _import_script(parcel.script)
    memory = memoryview(mmap.mmap(parcel.file, parcel.spans[-1][1], access=mmap.ACCESS_COPY))
    os.close(parcel.file)
    first, *rest = (memory[begin:end] for begin, end in parcel.spans)
    return pickle.loads(first, buffers=rest)


def _script(name: str) -> Script:
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name:
        return Script(spec.name, None)
    path = getattr(main, "__file__", None)
    if path is None or not os.path.isfile(path):
        raise UsageError(
            f"{name} cannot be sent to worker processes: they cannot import its class from an interactive session; put "
            "it into a file and import it, or use workers=0"
        )
    return Script(None, os.path.abspath(path))


def _import_script(script: Script) -> None:
    if _SCRIPT in sys.modules:
        return
    if script.module is not None:
        sys.modules[_SCRIPT] = sys.modules["__main__"] = importlib.import_module(script.module)
        return
    assert script.path is not None, "a script has a name or a file"
    module = types.ModuleType(_SCRIPT)
    # Before it runs: what it defines may ask for its own module, as dataclasses do.
    sys.modules[_SCRIPT] = sys.modules["__main__"] = module
    module.__dict__.update(runpy.run_path(script.path, run_name=_SCRIPT))
