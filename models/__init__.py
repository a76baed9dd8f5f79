"""The model zoo: networks by name and options, one file each. `build("lenet", image=(1, 8, 8), classes=10)`."""

from __future__ import annotations

from graphkit.models._registry import Option, build, describe, find, names, network, options

__all__ = ["Option", "build", "describe", "find", "names", "network", "options"]
