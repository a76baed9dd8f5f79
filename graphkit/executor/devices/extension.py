"""The native extension `graphkit._native`, and oneDNN's library, which it loads when it needs it."""

from __future__ import annotations

from functools import cache
from types import ModuleType

from graphkit import config
from graphkit.errors import MissingDependency
from graphkit.ir.graph import accelerate

ONEDNN_DISTRIBUTION = "onednn-cpu-gomp"
ONEDNN_LIBRARY = "libdnnl.so.3"


@cache
def import_extension() -> ModuleType:
    """Import the extension. This registers no kernels.

    Raises:
        ImportError: graphkit was not built. The message names `graphkit._native`.
    """
    import graphkit._native as native

    accelerate(native.GraphSweeps)
    if config.PIN.get():
        from graphkit import cores

        native.pin_helpers(cores.nearest())
    return native


def onednn_library(cause: str) -> str:
    """Return the path of oneDNN's library from package metadata. The extension asks if its RPATH leads nowhere.

    Args:
        cause: Why the dynamic linker did not find the library.

    Raises:
        MissingDependency: oneDNN, which the extension was built with, is not installed any more.
    """
    import importlib.metadata

    try:
        files = importlib.metadata.files(ONEDNN_DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    for file in files:
        if file.name == ONEDNN_LIBRARY:
            return str(file.locate())
    raise MissingDependency(
        f"oneDNN's library {ONEDNN_LIBRARY} cannot be loaded ({cause}); run pip install --force-reinstall "
        f"{ONEDNN_DISTRIBUTION}"
    )
