"""The distribution that installs this package: its name, its version, and the command that installs it."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from graphkit.errors import MissingDependency

if TYPE_CHECKING:
    import importlib.metadata

# The name in pyproject.toml. On the package index, `graphkit` is another project.
NAME = "graphkit-engine"
_COMMAND = "graphkit.cli:main"


def how_to_install(*extras: str) -> str:
    """Return the command that installs graphkit with one of these extras, for the message of an error.

    Args:
        extras: Names of pyproject.toml. If there are several, one of them is enough.

    Returns:
        `pip install '.[images]' in a clone of graphkit`.
    """
    first, *others = [f"'.[{extra}]'" for extra in extras] or ["."]
    alternatives = f" (or {' or '.join(others)})" if others else ""
    return f"pip install {first}{alternatives} in a clone of graphkit"


def is_installed() -> bool:
    """Return whether graphkit is installed; False in a source tree that never was."""
    return _installed() is not None


def installed() -> importlib.metadata.Distribution:
    """Return the metadata of the installed package.

    Raises:
        MissingDependency: This is a source tree that was never installed.
    """
    found = _installed()
    if found is None:
        raise MissingDependency(f"this graphkit is not installed: {how_to_install()}")
    return found


def version() -> str:
    """Return the version that is installed.

    Raises:
        MissingDependency: This is a source tree that was never installed.
    """
    found = _installed_version()
    if found is None:
        raise MissingDependency(f"this graphkit has no version, because it is not installed: {how_to_install()}")
    return found


@functools.cache  # `Distribution.version` parses all metadata each time
def _installed_version() -> str | None:
    found = _installed()
    return None if found is None else found.version


@functools.cache
def _installed() -> importlib.metadata.Distribution | None:
    import importlib.metadata

    try:
        return importlib.metadata.distribution(NAME)
    except importlib.metadata.PackageNotFoundError:
        pass
    # The package was built under another name: find it by the command that it installs.
    for entry in importlib.metadata.entry_points(group="console_scripts", name="graphkit"):
        if entry.value == _COMMAND:
            return entry.dist
    return None
