"""The native kernels of the CPU, one file for each family of operators. A file is imported when a node needs it."""

from __future__ import annotations

from graphkit.executor.devices.cpu import _declared as _declared
from graphkit.executor.devices.cpu._base import describe, native
from graphkit.executor.devices.cpu._index import MODULES, STRING_MODULES
from graphkit.executor.devices.registry import register_modules

register_modules(
    "cpu",
    {operator: [f"{__name__}.{module}" for module in found] for operator, found in MODULES.items()},
    {operator: [f"{__name__}.{module}" for module in found] for operator, found in STRING_MODULES.items()},
)

__all__ = ["describe", "native"]
