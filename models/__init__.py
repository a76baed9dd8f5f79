"""The model zoo: networks by name and options, one file each. `build("lenet", image=(1, 8, 8), classes=10)`."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from graphkit.errors import did_you_mean
from graphkit.models._registry import Option, build, describe, find, modules, names, network, options
from graphkit.models._torchvision import pretrained, torch_names

__all__ = ["Option", "build", "describe", "find", "names", "network", "options", "pretrained", "torch_names"]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Return a module of a network, which is imported when it is first used."""
        known = () if name.startswith("_") else modules()
        if name in known:
            return importlib.import_module(f"{__name__}.{name}")
        raise AttributeError(f"gk.models has no attribute {name!r}{did_you_mean(name, [*__all__, *known], alike=0.7)}")
