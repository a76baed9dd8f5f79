"""The output operators of a symbol, which determine its gradients. The model's metadata keep them.

In inference, these operators ignore their labels, so the labels are not inputs of the model. A `Head` describes which
label the operator reads in training, so that a trainer can compute MXNet's gradients.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from types import NoneType
from typing import Any

from graphkit.errors import InvalidModel
from graphkit.mxnet_io.attributes import Attributes
from graphkit.mxnet_io.symbol import Symbol, SymbolNode
from graphkit.named_tuples import NamedTuple

# Key of the metadata.
HEADS = "mxnet_heads"
# Output operators with a label as their second input, and without one.
WITH_LABEL = frozenset({
    "SoftmaxOutput", "Softmax", "LinearRegressionOutput", "_sparse_LinearRegressionOutput", "MAERegressionOutput",
    "_sparse_MAERegressionOutput", "LogisticRegressionOutput", "_sparse_LogisticRegressionOutput", "SVMOutput",
})  # fmt: skip
WITHOUT_LABEL = frozenset({"MakeLoss", "make_loss", "_sparse_make_loss"})
OUTPUT_OPERATORS = WITH_LABEL | WITHOUT_LABEL
# Operators that add to gradients in a way that no loss expresses.
_PENALTIES = frozenset({"IdentityAttachKLSparseReg"})


class Head(NamedTuple):
    """An output operator.

    Attributes:
        output: Name of the model's output.
        operator: MXNet's name of the operator.
        attributes: Its attributes, as texts.
        label: Name of the variable that contains the label; "" if there is none, or if `value` is set.
        shape: The shape of this variable, if it is known. A text or None is a size that varies.
        expression: If the label is computed from the variable: the computation, as a document of a symbol.
        value: If the label is a value of the model: the name of this value.
        problem: Why no loss has the gradients of this operator; "" if one has.
    """

    output: str
    operator: str
    attributes: dict[str, str]
    label: str = ""
    shape: list[int | str | None] | None = None
    expression: dict[str, Any] | None = None
    value: str = ""
    problem: str = ""


def blocks_gradient(node: SymbolNode) -> bool:
    """Return whether an operator passes no gradient of its readers on to its operand."""
    return node.op in OUTPUT_OPERATORS


def operands(node: SymbolNode) -> tuple[tuple[int, int], ...]:
    """Return the (node, output) of each operand that a node reads in inference: all but the label."""
    return node.inputs[:1] if node.op in WITH_LABEL else node.inputs


def find_heads(
    symbol: Symbol, names: Sequence[str], name_of: Callable[[int, int], str | None], parameters: Mapping[str, Any],
    shape_of: Callable[[int], Sequence[int | str | None] | None],
) -> list[Head]:  # fmt: skip
    """Return the output operators of a symbol.

    Args:
        symbol: The symbol.
        names: Names of the model's outputs.
        name_of: Returns the name of the graph value of (node, output); None if the graph does not contain it.
        parameters: Arrays by the name of their variable.
        shape_of: Returns the known shape of a variable, or None.
    """
    found = []
    for (index, _), name in zip(symbol.heads, names, strict=True):
        node = symbol.nodes[index]
        if node.op not in OUTPUT_OPERATORS or Attributes(node.attributes).number("grad_scale", 1.0) == 0.0:
            continue
        head = Head(name, node.op, dict(node.attributes))
        if Attributes(node.attributes).flag("out_grad", False):
            head = head._replace(problem="with out_grad, its gradient is multiplied by one that the user passes")
        elif node.op in WITH_LABEL and len(node.inputs) > 1:
            head = _with_label(head, symbol, node.inputs[1], name_of, parameters, shape_of)
        elif node.op in WITH_LABEL:
            head = head._replace(label=f"{node.name}_label")
        found.append(head)
    found += [
        Head("", node.op, {}, problem=f"the penalty of node {node} is not part of any loss")
        for node in symbol.nodes
        if node.op in _PENALTIES
    ]
    return found


def _with_label(
    head: Head, symbol: Symbol, entry: tuple[int, int], name_of: Callable[[int, int], str | None],
    parameters: Mapping[str, Any], shape_of: Callable[[int], Sequence[int | str | None] | None],
) -> Head:  # fmt: skip
    """Return the head with its label: a variable, a value of the model, or computed from one variable."""
    index, output = entry
    known = name_of(index, output)
    if known is not None:
        return head._replace(value=known)
    used = _behind(symbol, index)
    variables = [i for i in used if symbol.nodes[i].is_variable]
    names = [symbol.nodes[i].name for i in variables]
    if len(variables) != 1 or names[0] in parameters or name_of(variables[0], 0) is not None:
        return head._replace(problem=f"its label is computed from {', '.join(map(repr, names))}")
    shape = shape_of(variables[0])
    expression = None if index in variables else _document(symbol, used, entry)
    return head._replace(label=names[0], shape=None if shape is None else list(shape), expression=expression)


def _behind(symbol: Symbol, index: int) -> list[int]:
    """Return the nodes that a node depends on and the node itself, in topological order."""
    found: set[int] = set()
    pending = [index]
    while pending:
        if (node := pending.pop()) not in found:
            found.add(node)
            pending += [source for source, _ in symbol.nodes[node].inputs]
    return sorted(found)


def _document(symbol: Symbol, used: Sequence[int], entry: tuple[int, int]) -> dict[str, Any]:
    """Return the nodes `used` as a document of a symbol with one output."""
    place = {old: new for new, old in enumerate(used)}
    nodes = [
        {
            "op": node.op,
            "name": node.name,
            "attrs": dict(node.attributes),
            "inputs": [[place[source], output, 0] for source, output in node.inputs],
        }
        for node in (symbol.nodes[i] for i in used)
    ]
    return {"nodes": nodes, "heads": [[place[entry[0]], entry[1], 0]]}


def to_text(heads: Sequence[Head]) -> str:
    """Return the heads as JSON, for the metadata."""
    return json.dumps([head._asdict() for head in heads])


def from_meta(meta: Mapping[str, str], label: str) -> list[Head]:
    """Return the heads in the metadata of a model. Raises InvalidModel, which begins with `label`, for wrong ones."""
    try:
        found = [Head(**fields) for fields in json.loads(meta.get(HEADS, "[]"))]
        for head in found:
            texts = [head.output, head.operator, head.label, head.value, head.problem]
            texts += [*head.attributes, *head.attributes.values()]
            if not all(isinstance(text, str) for text in texts):
                raise TypeError("a text is expected")
            if head.operator not in OUTPUT_OPERATORS | _PENALTIES:
                raise ValueError(f"{head.operator!r} is not an output operator")
            if not isinstance(head.expression, (dict, NoneType)):
                raise TypeError("an expression must be an object")
            if not all(isinstance(size, (int, str, NoneType)) for size in head.shape or ()):
                raise TypeError("a size must be a number or a name")
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise InvalidModel(f"{label}: the metadata {HEADS!r} are damaged: {error}") from None
    return found
