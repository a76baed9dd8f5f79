"""Write stubs of names that are looked up at run time, for type checkers: `python -m graphkit.checks.stub`.

`graphkit/ops/_functions.pyi` has a signature and the summary of the docstring for every operator of the registry, so
for every attribute of `F`. `graphkit/__init__.pyi` has these, and the other public names of the package.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import graphkit
from graphkit.ir.types import DType
from graphkit.ops._base import Op, registry
from graphkit.ops._fields import REQUIRED
from graphkit.ops._op import function_name

_ROOT = Path(graphkit.__file__).parent
_WIDTH = 120
_FUNCTIONS = '''\
"""Every operator as a function. Made from the registry by `python -m graphkit.checks.stub`."""

from collections.abc import Mapping, Sequence
from typing import Any

from numpy.typing import ArrayLike, DTypeLike

from graphkit.ir.graph import Graph, Value
from graphkit.ir.tensor import Tensor
from graphkit.ir.types import DType, Type
from graphkit.ops._registry import Operand
'''
_PACKAGE = '''\
"""graphkit's public names. Made from its tables and the registry by `python -m graphkit.checks.stub`."""

from typing import Any
'''
_OTHERS = """
__version__: str

# Operators that a program registers.
def __getattr__(name: str) -> Any: ...
"""
# Types that an attribute of each kind accepts, if there are more than its own type.
_ACCEPTS = {
    "DType": "DType | DTypeLike",
    "Tensor": "Tensor | ArrayLike",
    "tuple[int, ...]": "Sequence[int]",
    "tuple[float, ...]": "Sequence[float]",
    "tuple[str, ...]": "str | Sequence[str]",
}
# Operators with more outputs in training mode.
_BY_MODE = frozenset({"BatchNormalization"})


def stubs() -> dict[Path, str]:
    """The text of each stub by its path. Operators that a program has registered are left out."""
    operators = {function_name(cls): cls for cls in registry if cls.__module__.startswith("graphkit.")}
    functions = [_function(operators[name]) for name in sorted(operators)]
    return {
        _ROOT / "ops" / "_functions.pyi": "\n".join([_FUNCTIONS, *functions]),
        _ROOT / "__init__.pyi": _package(operators),
    }


def _package(operators: Iterable[str]) -> str:
    public, modules = graphkit._PUBLIC, graphkit._MODULES
    names: dict[str, set[str]] = {}
    for name, module in public.items():
        names.setdefault(module, set()).add(f"{name} as {name}")
    names["graphkit.ops._functions"] = {f"{name} as {name}" for name in operators if name not in public}
    aliases = []
    for name, module in modules.items():
        package, _, last = module.rpartition(".")
        names.setdefault(package, set()).add(f"{last} as {last}" if last == name else f"{last} as _{name}")
        if last != name:
            aliases.append(f"{name} = _{name}")
    imports = [_import(module, sorted(names[module], key=_isort_key)) for module in sorted(names)]
    aliases += [f"{old} = {new}" for old, new in graphkit._RENAMED.items()]
    return "\n".join([_PACKAGE, *imports, "", *aliases, _OTHERS])


def _import(module: str, names: list[str]) -> str:
    # A name in a stub is public when it is imported as itself.
    return "\n".join(f"from {module} import {name}" for name in names)


def _isort_key(name: str) -> tuple[bool, str]:
    """Classes before functions, as ruff sorts them."""
    return not name[0].isupper(), name


def _function(cls: type[Op]) -> str:
    parameters = _parameters(cls)
    opening, closing = f"def {function_name(cls)}(", f") -> {returned(cls)}:"
    signature = f"{opening}{', '.join(parameters)}{closing}"
    if len(signature) > _WIDTH:
        body = ", ".join(parameters)
        lines = [f"    {body}"] if len(body) + 4 <= _WIDTH else [f"    {parameter}," for parameter in parameters]
        signature = "\n".join([opening, *lines, closing])
    summary = " ".join(cls.__doc__.strip().partition("\n\n")[0].split()) if cls.__doc__ else ""
    return f'{signature}\n    """{_shortened(summary)}"""\n'


def _shortened(summary: str) -> str:
    """As many whole sentences as fit into a line; if none does, the beginning of the first one."""
    room = _WIDTH - len('    """"""')
    if len(summary) <= room:
        return summary
    end = summary.rfind(". ", 0, room)
    return summary[: end + 1] if end > 0 else summary[: summary.rfind(" ", 0, room - 4)] + " ..."


def _parameters(cls: type[Op]) -> list[str]:
    parameters = []
    needed = max((i for i, f in enumerate(cls.formals) if not (f.optional or f.variadic)), default=-1)
    variadic = False
    for position, formal in enumerate(cls.formals):
        if formal.variadic:
            variadic = True
            # The first argument may be a list of all operands. None means that an operand is absent.
            parameters.append(f"*{formal.name}: Operand | Sequence[Operand | None] | None")
        elif formal.optional:
            default = " = None" if position > needed else ""
            parameters.append(f"{formal.name}: Operand | None{default}")
        else:
            parameters.append(f"{formal.name}: Operand")
    keywords = []
    for key, field in cls.fields.items():
        accepted = _ACCEPTS.get(field.kind, field.kind)
        if field.default is REQUIRED:
            keywords.append(f"{key}: {accepted}")
        elif field.default is None:
            keywords.append(f"{key}: {accepted} | None = None")
        else:
            keywords.append(f"{key}: {accepted} = {_default(field.default)}")
    keywords += ['name: str = ""', "meta: Mapping[str, str] | None = None"]
    return [*parameters, *([] if variadic else ["*"]), *keywords]


def _default(value: Any) -> str:
    match value:
        case DType():
            return f"DType.{value.name}"
        case str():
            return json.dumps(value)
        case tuple():
            return f"({', '.join(map(_default, value))}{',' if len(value) == 1 else ''})"
        case int() | float() if math.isfinite(value):
            return repr(value)
    return "..."


def returned(cls: type[Op]) -> str:
    """The return type: Value, a tuple of Values, or Any if operands or attributes decide the number of outputs."""
    if cls.name in _BY_MODE or any(output.endswith(("?", "*")) for output in cls.outputs):
        return "Any"
    return "Value" if len(cls.outputs) == 1 else f"tuple[{', '.join(['Value'] * len(cls.outputs))}]"


if __name__ == "__main__":
    for path, text in stubs().items():
        path.write_text(text, encoding="utf-8")
