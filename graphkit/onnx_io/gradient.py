"""Import of the operator Gradient of ai.onnx.preview.training: the importer differentiates and inserts the result.

The attributes `xs` and `zs` name the independent variables, and `y` names the result of the function. The node's inputs
are the values of `xs` and `zs` at which the derivatives are computed. The names are values of the enclosing graph; they
may be results of another Gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from graphkit.errors import InvalidModel, UnsupportedError
from graphkit.ir import context
from graphkit.ir.graph import Value, next_serial, topological
from graphkit.onnx_io.building import GraphBuilder, Names
from graphkit.ops import F

if TYPE_CHECKING:
    from graphkit.onnx_io.upgrade import NodeView

# Maximum number of values. Each gradient of a gradient multiplies the size, so a small file could expand without limit.
MAX_VALUES = 2_000_000


def build(builder: GraphBuilder, view: NodeView, names: Names) -> Sequence[Value]:
    """The derivatives of the sum of y with respect to each of `xs`, at the node's inputs."""
    if builder.differentiate is None:
        raise UnsupportedError("Gradient is supported only when a whole model is loaded")
    xs, zs, y = _listed(view, "xs"), _listed(view, "zs"), view.require("y")
    if not xs or not isinstance(y, str):
        raise InvalidModel("attribute y must be one name, and xs one name or more")
    if len(view.inputs) != len(xs) + len(zs):
        raise InvalidModel(f"xs and zs name {len(xs)} and {len(zs)} inputs, but {len(view.inputs)} are given")
    sources = [_value(names, name) for name in (*xs, *zs)]
    if len(set(sources)) != len(sources):
        raise InvalidModel(f"a variable is named twice in xs and zs: {', '.join((*xs, *zs))}")
    given = [view.operand(i) for i in range(len(sources))]
    mark = next_serial()
    result, variables = _at(_value(names, y), sources, given)
    size = len(topological([result], stop=variables))
    if size > MAX_VALUES:
        raise InvalidModel(f"y depends on {size} nodes, but at most {MAX_VALUES} can be differentiated")
    found = builder.differentiate([result], variables[: len(xs)])
    builder.differentiated += next_serial() - mark
    if builder.differentiated > MAX_VALUES:
        raise InvalidModel(f"the gradients of the file expand to more than {MAX_VALUES} values")
    return found


def _listed(view: NodeView, name: str) -> tuple[str, ...]:
    names: Any = view.take(name, ())
    if not isinstance(names, tuple) or not all(isinstance(n, str) for n in names):
        raise InvalidModel(f"attribute {name!r} must be a list of names")
    return names


def _value(names: Names, name: str) -> Value:
    found = names.find(name)
    if found is None:
        raise InvalidModel(f"{name!r} has no value")
    return found


def _at(result: Value, sources: Sequence[Value], given: Sequence[Value]) -> tuple[Value, Sequence[Value]]:
    """Return `result` as a function of `sources` alone, evaluated at `given`, and the variables to differentiate by.

    If `given` are `sources`, and none of them depends on another, the graph itself is this function.
    """
    same = all(a is b for a, b in zip(sources, given, strict=True))
    if same and not _depend_on_each_other(sources):
        return result, sources
    with context.detached():
        variables = [F.identity(v) for v in given]
        table = dict(zip(sources, variables, strict=True))
        for node in topological([result], stop=sources):
            if any(v in table for v in node.inputs if v is not None):
                operands = [None if v is None else table.get(v, v) for v in node.inputs]
                made = node.rebuilt(operands).outputs
                table.update((old, new) for old, new in zip(node.outputs, made, strict=True) if old not in table)
    return table.get(result, result), variables


def _depend_on_each_other(sources: Sequence[Value]) -> bool:
    wanted = set(sources)
    return any(v in wanted for node in topological(sources) for v in node.inputs)
