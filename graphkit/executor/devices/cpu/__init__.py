"""The native kernels of the CPU, one file for each family of operators. A file is imported when a node needs it."""

from __future__ import annotations

from graphkit.executor.devices.cpu._base import describe, native
from graphkit.executor.devices.cpu._index import MODULES, STRING_MODULES
from graphkit.executor.devices.registry import register_modules

# Operators whose kernels C++ registers. Some have further rules in the modules of the index.
_DECLARED = dict.fromkeys(native.operators(), ("_declared",))

register_modules(
    "cpu",
    {
        operator: [f"{__name__}.{module}" for module in (*_DECLARED.get(operator, ()), *MODULES.get(operator, ()))]
        for operator in _DECLARED.keys() | MODULES.keys()
    },
    {operator: [f"{__name__}.{module}" for module in found] for operator, found in STRING_MODULES.items()},
)

__all__ = ["describe", "native"]
