"""The native kernels of the CPU, one file for each family of operators. A file is imported when a node needs it."""

from __future__ import annotations

from graphkit.executor.devices.cpu._base import describe, native
from graphkit.executor.devices.cpu._index import MODULES, STRING_MODULES
from graphkit.executor.devices.registry import register_modules

# C++ registers the kernels of some operators. Some of these have further rules in the modules of the index.
_DECLARED = {operator: ("_declared", *MODULES.get(operator, ())) for operator in native.operators()}

register_modules("cpu", MODULES | _DECLARED, STRING_MODULES, __name__)

__all__ = ["describe", "native"]
