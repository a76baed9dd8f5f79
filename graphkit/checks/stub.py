"""What an editor and a type checker are told of this package: a stub, written from the registry of operators."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import graphkit
from graphkit.ops import Op, OpFunction, registry
from graphkit.ops._base import with_default

_HEAD = '''\
"""graphkit's public names with their types. Written by `graphkit ops --stub`; a test keeps this file up to date."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from numpy.typing import ArrayLike, DTypeLike

from graphkit.ir.tensor import Tensor
'''
_TYPES = """
# What becomes a value of the graph: arrays and numbers are constants.
Operand: TypeAlias = Value | Tensor | ArrayLike
Operands: TypeAlias = Operand | Sequence[Operand]

__version__: str

# Operators that a program registers itself.
def __getattr__(name: str) -> Any: ...
"""
# What an attribute of a kind takes.
_TAKEN = {
    "DType": "DType | DTypeLike",
    "Tensor": "Tensor | ArrayLike",
    "tuple[int, ...]": "Sequence[int]",
    "tuple[float, ...]": "Sequence[float]",
    "tuple[str, ...]": "str | Sequence[str]",
}
# Operators whose attributes decide how many results there are.
_BY_ATTRIBUTES = frozenset({"BatchNormalization"})
_WIDTH = 120


def stub() -> str:
    """The text of graphkit/__init__.pyi."""
    known = {*graphkit._PUBLIC, *graphkit._MODULES}
    own = [cls for cls in registry if cls.__module__.startswith("graphkit.ops.")]
    functions = {f.__name__: f for cls in own if (f := registry.function_of(cls)).__name__ not in known}
    parts = [_HEAD, *_imports(), _TYPES, *(_function(functions[name]) for name in sorted(functions))]
    return "".join(parts)


def _imports() -> Iterator[str]:
    """The names that are no operators, handed on as stubs do: as themselves, modules of other names by assignment."""
    lines, aliases = [], []
    for name, place in graphkit._PUBLIC.items():
        lines.append(f"from {place} import {name} as {name}\n")
    for name, place in graphkit._MODULES.items():
        package, _, module = place.rpartition(".")
        # It lies outside of the package in a checkout.
        outside = "  # type: ignore[attr-defined]" if place == "graphkit.models" else ""
        lines.append(f"from {package} import {module} as {name if name == module else f'_{name}'}{outside}\n")
        if name != module:
            aliases.append(f"{name} = _{name}\n")
    yield from sorted(lines)
    yield "\n"
    yield from aliases


def _function(function: OpFunction) -> str:
    cls: type[Op] = function.op
    parameters = [*_operands(cls), *_attributes(cls)]
    head, result = f"def {function.__name__}(", f") -> {_result(cls)}:\n"
    line = f"{head}{', '.join(parameters)}{result}"
    if len(line) > _WIDTH:
        line = head + "".join(f"\n    {p}," for p in parameters) + f"\n{result}"
    summary = (inspect.getdoc(cls) or "").partition("\n\n")[0].replace("\n", "\n    ").replace("\\", "\\\\")
    return f'\n{line}    """{summary}"""\n'


def _operands(cls: type[Op]) -> Iterator[str]:
    for i, (formal, given) in enumerate(zip(cls.formals, with_default(cls.formals), strict=True)):
        if formal.variadic:
            # One list stands for all of them where there is nothing before them.
            yield f"*{formal.name}: {'Operand | None' if i else 'Operands'}"
        elif formal.optional:
            yield f"{formal.name}: Operand | None" + (" = None" if given else "")
        else:
            yield f"{formal.name}: Operand"


def _attributes(cls: type[Op]) -> Iterator[str]:
    if not any(f.variadic for f in cls.formals):
        yield "*"
    for name, field in cls.fields.items():
        kind = _TAKEN.get(field.kind, field.kind)
        if not isinstance(field.default, (bool, int, float, str, tuple, type(None))):
            yield f"{name}: {kind}" + ("" if field.required else " = ...")
        else:
            yield f"{name}: {kind}{' | None' if field.default is None else ''} = {_written(field.default)}"
    known = {*cls.fields, *(f.name for f in cls.formals)}
    if len(one := known & {"axis", "axes"}) == 1:
        yield f"{'axis' if one == {'axes'} else 'axes'}: Any = ..."  # either is taken for the other
    yield 'name: str = ""'
    yield "meta: Mapping[str, str] | None = None"


def _written(value: Any) -> str:
    """A default as Python; `...` for one without a literal, such as infinity."""
    text = repr(value).replace("'", '"')
    return "..." if "inf" in text or "nan" in text else text


def _result(cls: type[Op]) -> str:
    """One value, or a tuple; how many results there are of some operators is known of a node only."""
    if any(name.endswith(("?", "*")) for name in cls.outputs) or cls.name in _BY_ATTRIBUTES:
        return "Any"
    return "Value" if len(cls.outputs) == 1 else f"tuple[{', '.join(['Value'] * len(cls.outputs))}]"
