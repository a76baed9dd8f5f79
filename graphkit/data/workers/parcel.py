"""Send a data set to workers: it is pickled once for all of them, and its arrays are in memory that they share."""

from __future__ import annotations

import importlib
import io
import mmap
import os
import pickle
import runpy
import sys
import types
from typing import Any

from graphkit.data.workers.memory import anonymous, mapped
from graphkit.errors import UsageError
from graphkit.named_tuples import NamedTuple

_ALIGNED = 64

# Name of the training script's module in a worker, as in multiprocessing.
# It is not "__main__", so that code under `if __name__ == "__main__":` does not run.
_SCRIPT = "__mp_main__"


class Script(NamedTuple):
    """The module `__main__` of a process, by its module name or by the path of its file."""

    module: str | None
    path: str | None


class Parcel(NamedTuple):
    """A file with the pickle, followed by the arrays. spans: (begin, end) of each in bytes."""

    file: int
    spans: list[tuple[int, int]]
    script: Script | None


class _Pickler(pickle.Pickler):
    """Sets `of_script` if the data set needs a class or function of the script."""

    of_script = False

    def reducer_override(self, found: Any) -> Any:
        if isinstance(found, (type, types.FunctionType)) and found.__module__ == "__main__":
            self.of_script = True
        return NotImplemented


def packed(name: str, data: Any) -> Parcel:
    """Pickle a data set into a new file. Raises UsageError, which names it, if workers cannot unpickle it."""
    buffers: list[pickle.PickleBuffer] = []
    stream = io.BytesIO()
    pickler = _Pickler(stream, protocol=5, buffer_callback=buffers.append)
    try:
        pickler.dump(data)
        parts = [stream.getbuffer(), *(buffer.raw() for buffer in buffers)]
    except Exception as error:  # the objects in the data set may run any code
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
    """Return the data set. Its arrays are copy-on-write: workers share the pages until one of them writes."""
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
    # Registered before the script runs, because class definitions such as dataclasses look up their module.
    sys.modules[_SCRIPT] = sys.modules["__main__"] = module
    module.__dict__.update(runpy.run_path(script.path, run_name=_SCRIPT))
