"""Former names of public attributes and arguments. They still work, and documentation does not show them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
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


def share_former_names(cls: type, names: Mapping[str, str]) -> None:
    """Let what a class defines under a name also have its other name; for `__init_subclass__`.

    So a subclass may override either name, and callers may use either.

    Args:
        cls: The class.
        names: Former name to present name.
    """
    for former, present in names.items():
        for given, other in ((former, present), (present, former)):
            if given in cls.__dict__ and other not in cls.__dict__:
                setattr(cls, other, cls.__dict__[given])
