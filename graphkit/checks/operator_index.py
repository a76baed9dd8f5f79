"""Write the index of operators: `python -P -m graphkit.checks.operator_index`.

`graphkit/ops/_index.py` says in which module each operator is, so that the registry imports only those that are used.
"""

from __future__ import annotations

import importlib
import pkgutil
from pathlib import Path

from graphkit import ops
from graphkit.ops import Op, registry
from graphkit.ops._calls import function_name

_WIDTH = 120
PATH = Path(ops.__file__).parent / "_index.py"

_HEAD = '''\
"""In which module each operator is. Made from the classes by `python -P -m graphkit.checks.operator_index`."""

from __future__ import annotations

# Operator -> its function, and its module in graphkit.ops.
OPERATORS: dict[tuple[str, str], tuple[str, str]] = {
'''
_FORMER = """\
}

# Former name -> operator.
FORMER: dict[tuple[str, str], tuple[str, str]] = {
"""


def index() -> str:
    """Return the text of the index. Imports all modules of graphkit.ops."""
    prefix = f"{ops.__name__}."
    places = {name: place for place, (_, name, _) in enumerate(pkgutil.walk_packages(ops.__path__, prefix))}
    for name in places:
        importlib.import_module(name)
    own = sorted((cls for cls in registry.registered() if cls.__module__ in places), key=lambda c: places[c.__module__])
    lines = [_line(_key(cls), function_name(cls), cls.__module__.removeprefix(prefix)) for cls in own]
    former = [
        f"    {_pair(cls.domain, name)}: {_key(cls)},\n" for cls in own for name in cls.__dict__.get("former_names", ())
    ]
    return "".join([_HEAD, *lines, _FORMER, *former, "}\n"])


def _line(key: str, function: str, module: str) -> str:
    """An entry of the first table, as ruff formats it."""
    line = f"    {key}: {_pair(function, module)},\n"
    if len(line) <= _WIDTH + 1:
        return line
    return f'    {key}: (\n        "{function}",\n        "{module}",\n    ),\n'


def _key(cls: type[Op]) -> str:
    return _pair(cls.domain, cls.name)


def _pair(first: str, second: str) -> str:
    return f'("{first}", "{second}")'


if __name__ == "__main__":
    PATH.write_text(index(), encoding="utf-8")
