"""Networks by name: @network registers a function; its arguments are the options."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from graphkit.errors import UsageError, did_you_mean
from graphkit.model import Model
from graphkit.named_tuples import NamedTuple
from graphkit.signatures import typed

# Descriptions of the types of options, for errors.
_EXPECTED = {
    "int": "an integer", "float": "a number", "bool": "true or false", "str": "a text", "None": "none",
    "tuple[int, ...]": "one or more integers such as 64,32",
}  # fmt: skip
_FLAGS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


class Option(NamedTuple):
    """One option of a network: its name, default, and type as annotated (int, float, bool, str, tuple[int, ...])."""

    name: str
    default: Any
    type: str

    def parse(self, text: str) -> Any:
        """Convert text to the option's type: `3`, `1,28,28` or `1x28x28`, `true`. Raises UsageError."""
        kinds = [kind.strip() for kind in self.type.split("|")]
        if "None" in kinds and text.lower() in ("", "none"):
            return None
        for kind in kinds:
            try:
                match kind:
                    case "int":
                        return int(text)
                    case "float":
                        return float(text)
                    case "bool":
                        return _FLAGS[text.lower()]
                    case "tuple[int, ...]":
                        inner = text.strip("()[] ").removesuffix(",")
                        return tuple(int(part) for part in re.split("[,x]", inner)) if inner else ()
                    case "str":
                        return text
            except (ValueError, KeyError):
                continue
        named = [kind for kind in kinds if kind != "int" or "tuple[int, ...]" not in kinds]
        expected = " or ".join(_EXPECTED.get(kind, kind) for kind in named)
        raise UsageError(f"option {self.name}: expected {expected}, not {text!r}")


_networks: dict[str, Callable[..., Model]] = {}


def network(function: Callable[..., Model]) -> Callable[..., Model]:
    """Register a network under its function's name. Its arguments, annotated and with defaults, are its options."""
    if function.__name__ in _networks:
        raise UsageError(f"a network named {function.__name__!r} is registered already")
    _networks[function.__name__] = function
    if function.__module__ == f"{__package__}.{function.__name__}":
        sys.modules[function.__module__].__class__ = _NetworkModule
    return function


class _NetworkModule(ModuleType):
    """The module of a network, such as gk.models.resnet. A call explains how to build the network."""

    def __call__(self, *_: Any, **__: Any) -> Model:
        name = self.__name__.rpartition(".")[2]
        raise UsageError(f'gk.models.{name} is a module, not a function; write gk.models.build("{name}", ...)')


def modules() -> list[str]:
    """Return the names of the public modules of this package, without importing them."""
    package = importlib.import_module(__package__ or "graphkit.models")
    return [module.name for module in pkgutil.iter_modules(package.__path__) if not module.name.startswith("_")]


def _all() -> dict[str, Callable[..., Model]]:
    """Return every network. The first call imports the files of this package."""
    for name in modules():
        importlib.import_module(f"{__package__}.{name}")
    return _networks


def names() -> list[str]:
    """Return the names of all networks that `build` accepts."""
    return sorted(_all())


@typed("gk.models")
def find(name: str) -> Callable[..., Model]:
    """Return the function of a network; raises UsageError with the closest name."""
    known = _all()
    if name not in known:
        raise UsageError(f"no network {name!r}{did_you_mean(name, sorted(known), most=len(known))}")
    return known[name]


def options(name: str) -> list[Option]:
    """Return the options of a network, in the order of its arguments."""
    parameters = inspect.signature(find(name)).parameters.values()
    return [Option(p.name, p.default, str(p.annotation)) for p in parameters]


def describe(name: str) -> str:
    """Return the documentation of a network."""
    return inspect.getdoc(find(name)) or ""


@typed("gk.models.build")
def build(name: str, **chosen: Any) -> Model:
    """Build the network called `name` with its options; text is converted to the option's type.

    Raises UsageError, with the closest name, for an unknown network or option.
    """
    function = find(name)
    known = {option.name: option for option in options(name)}
    for key, value in chosen.items():
        if key not in known:
            raise UsageError(f"network {name!r} has no option {key!r}{did_you_mean(key, known, most=len(known))}")
        if isinstance(value, str):
            chosen[key] = known[key].parse(value)
    return function(**chosen)
