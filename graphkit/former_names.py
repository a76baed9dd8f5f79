"""Former names of public attributes and methods. They still work, and documentation does not show them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def former_attribute(name: str) -> Any:
    """Return a property that reads and sets the attribute `name`."""

    def get(owner: Any) -> Any:
        return getattr(owner, name)

    def assign(owner: Any, value: Any) -> None:
        setattr(owner, name, value)

    return property(get, assign, doc=f"Former name of `{name}`.")


def share_former_names(cls: type, names: Mapping[str, str]) -> None:
    """Give each attribute of a class both names, the former and the present one. Call it in `__init_subclass__`.

    So a subclass may override either name, and callers may use either.

    Args:
        cls: The class.
        names: Former name to present name.
    """
    for former, present in names.items():
        for given, other in ((former, present), (present, former)):
            if given in cls.__dict__ and other not in cls.__dict__:
                setattr(cls, other, cls.__dict__[given])
