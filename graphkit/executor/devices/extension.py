"""The native extension `graphkit._native`, and oneDNN's library, which it is linked with."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from types import ModuleType

from graphkit import config, cores
from graphkit.errors import MissingDependency
from graphkit.ir.graph import accelerate

_ONEDNN_DISTRIBUTION = "onednn-cpu-gomp"
_ONEDNN_LIBRARY = "libdnnl.so.3"


@cache
def import_extension() -> ModuleType:
    """Import the extension. This registers no kernels.

    Raises:
        ImportError: graphkit was not built. The message names `graphkit._native`.
        MissingDependency: oneDNN, which the extension was built with, is not installed any more.
    """
    native = _imported()
    accelerate(native.GraphSweeps)
    if config.PIN.get():
        native.pin_helpers(cores.nearest())
    return native


def _imported() -> ModuleType:
    # The RPATH of the extension finds oneDNN in an ordinary environment, and package metadata finds it elsewhere.
    try:
        import graphkit._native as native
    except ImportError as error:
        if _ONEDNN_LIBRARY not in str(error):
            raise
        ctypes.CDLL(_onednn_library(error))
        import graphkit._native as native
    return native


def loaded_onednn() -> Path:
    """Return the path of the library of oneDNN that the extension has loaded. Raises MissingDependency.

    The file has the name by which programs look for it.
    """
    with open("/proc/self/maps") as maps:
        loaded = [line.split(maxsplit=5)[-1].strip() for line in maps if "libdnnl" in line]
    for path in map(Path, loaded):
        if path.with_name(_ONEDNN_LIBRARY).exists():
            return path.with_name(_ONEDNN_LIBRARY)
    raise MissingDependency(f"oneDNN's library {_ONEDNN_LIBRARY} was not found")


def _onednn_library(cause: ImportError) -> str:
    import importlib.metadata

    try:
        files = importlib.metadata.files(_ONEDNN_DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    for file in files:
        if file.name == _ONEDNN_LIBRARY:
            return str(file.locate())
    raise MissingDependency(
        f"oneDNN's library {_ONEDNN_LIBRARY} cannot be loaded ({cause}); run pip install --force-reinstall "
        f"{_ONEDNN_DISTRIBUTION}"
    ) from cause
