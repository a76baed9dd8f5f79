"""Former names of public attributes and arguments. They still work, and documentation does not show them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from graphkit.errors import UsageError

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def former_attribute(name: str) -> Any:
    """Return a property that reads and sets the attribute `name`."""

    def get(owner: Any) -> Any:
        return getattr(owner, name)

    def assign(owner: Any, value: Any) -> None:
        setattr(owner, name, value)

    return property(get, assign, doc=f"Former name of `{name}`.")


def former_arguments(**names: str) -> Callable[[Callable[Arguments, Result]], Callable[Arguments, Result]]:
    """Decorate a function: keywords that have a former name are passed on under their present name.

    Args:
        names: Former name to present name.
    """

    def decorate(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
        @functools.wraps(function)
        def call(*args: Arguments.args, **options: Arguments.kwargs) -> Result:
            for former in names.keys() & options.keys():
                present = names[former]
                if present in options:
                    raise UsageError(f"{function.__name__}: {former} is the former name of {present}; give only one")
                options[present] = options.pop(former)
            return function(*args, **options)

        return call

    return decorate


def adopt_former_names(cls: type, names: dict[str, str]) -> None:
    """Give attributes that a subclass defines under former names their present names; for `__init_subclass__`.

    Args:
        cls: The subclass.
        names: Former name to present name.
    """
    for former, present in names.items():
        if former in cls.__dict__ and present not in cls.__dict__:
            setattr(cls, present, cls.__dict__[former])
