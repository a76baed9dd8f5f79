"""The native kernels of the CPU, one file for each family of operators. Importing this package registers them."""

from __future__ import annotations

import importlib
import pkgutil

from graphkit.executor.devices.cpu._base import describe, native

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

__all__ = ["describe", "native"]
