"""Elementwise operators, alone and fused, through the native pointwise machine."""

from __future__ import annotations

from collections.abc import Sequence

from graphkit.executor.devices.cpu._base import kernel, native
from graphkit.executor.devices.cpu._instructions import Instructions, Term
from graphkit.executor.devices.cpu._pointwise_rules import RULES
from graphkit.executor.devices.kernel import Kernel, KernelContext
from graphkit.executor.devices.registry import register_fusable
from graphkit.ir.graph import Graph, Node, Value
from graphkit.ir.types import HALVES, DType, TensorType
from graphkit.ops._base import DOMAIN, Op, operator, registry
from graphkit.ops.internal.fused import Fused
from graphkit.ops.optim.updates import Update
from graphkit.ops.tensor.constants import Constant

_EXPANDED = tuple(cls.name for cls in registry if issubclass(cls, Update) and cls.elementwise)

# Names of the operators that have kernels here, at least for some types.
OPERATORS = frozenset({*RULES, *_EXPANDED, "Fused", "TableUpdate"})


def _constant(code: Instructions, value: Value) -> Term | None:
    """A Constant of one element as an immediate operand."""
    if value.node is None or not isinstance(value.node.op, Constant):
        return None
    array = value.node.op.value.array
    return code.constant(array.reshape(()), value.dtype) if array.size == 1 else None


def kernel_of(
    name: str, node: Node, sources: Sequence[Value | None], results: Sequence[Value], context: KernelContext
) -> native.Pointwise | None:
    """One kernel for the graph from `sources` to `results`, which stand for the node's operands and outputs.

    None when an operator between them has no rule, when a rule does not cover the case, or when outputs differ in
    shape.
    """
    shape = node.outputs[0].tensor.static_shape
    if any(v.tensor.static_shape != shape for v in node.outputs):
        return None
    code = Instructions([None if v is None else v.tensor for v in node.inputs])
    terms = {v: code.input(i) for i, v in enumerate(sources) if v is not None}
    for inner in Graph(list(terms), results).nodes:
        term = _constant(code, inner.output)
        if term is None and inner.op.name in RULES:
            term = RULES[inner.op.name](code, inner.op, *(None if v is None else terms[v] for v in inner.inputs))
            code.divides(inner)
        if term is None:
            return None
        terms[inner.output] = term
    used = [*context.used_outputs, *[True] * len(results)]
    outputs = [
        Term(terms[v].number, output.dtype) if read else None
        for v, output, read in zip(results, node.outputs, used, strict=False)
    ]
    return code.kernel(name, shape, outputs, context.threads)


def _single(node: Node, context: KernelContext) -> Kernel | None:
    """The kernel of one operator that has a rule."""
    if not all(v is None or isinstance(v.type, TensorType) for v in node.inputs):
        return None
    code = Instructions([None if v is None else v.tensor for v in node.inputs])
    operands = [None if v is None else _constant(code, v) or code.input(i) for i, v in enumerate(node.inputs)]
    term = RULES[node.op.name](code, node.op, *operands)
    code.divides(node)
    return term and code.kernel(node.op.name, node.output.tensor.static_shape, [term], context.threads)


register_fusable("cpu", RULES)
for _name in RULES:
    for _domain in ("", DOMAIN):
        if registry.find(_domain, _name) is not None:
            kernel(_name, _domain)(_single)


def _widened(tensor: TensorType) -> TensorType:
    return tensor.with_dtype(DType.FLOAT32) if tensor.dtype in HALVES else tensor


def _expanded(node: Node, context: KernelContext) -> Kernel | None:
    """The kernel of an operator that stands for a graph of pointwise ones, in float32 where it is one of halves."""
    op = operator(node, Op)
    operands = [None if v is None else Value(_widened(v.tensor)) for v in node.inputs]
    results = op.expand(*operands)
    return kernel_of(op.name, node, operands, results if isinstance(results, tuple) else (results,), context)


for _name in _EXPANDED:
    kernel(_name, DOMAIN)(_expanded)


@kernel("Fused", DOMAIN)
def _fused(node: Node, context: KernelContext) -> Kernel | None:
    op = operator(node, Fused)
    return kernel_of("Fused", node, op.body.inputs, op.body.outputs, context)
