"""Make the pointwise programs of nodes: of a single operator, a fused region, or an update of parameters."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from graphkit.executor.devices.kernel import KernelContext
from graphkit.executor.devices.pointwise.instructions import Instructions, PointwiseCode, PointwiseProgram, Term
from graphkit.executor.devices.pointwise.rules import RULES
from graphkit.ir.graph import Graph, Node, Value
from graphkit.ir.types import HALVES, DType, TensorType
from graphkit.ops._base import DOMAIN, Op, operator, registry
from graphkit.ops.optim import ELEMENTWISE_UPDATES
from graphkit.ops.tensor.constants import Constant

# Composite operators, which expand to a graph of pointwise ones.
EXPANDED = ELEMENTWISE_UPDATES

# Domain and name of all operators whose nodes may have a program.
NAMES = (
    *((domain, name) for name in RULES for domain in ("", DOMAIN) if registry.knows(domain, name)),
    *((DOMAIN, name) for name in (*EXPANDED, "Fused")),
)


def program(node: Node, context: KernelContext) -> PointwiseProgram | None:
    """Return the program of a node of static types whose operator is one of NAMES.

    Returns None if an operator has no rule, if its rule does not support this case, or if outputs differ in shape.
    """
    return _with_shapes(code(node, context), node)


def code(node: Node, context: KernelContext) -> PointwiseCode | None:
    """Return the code of a node whose operator is one of NAMES, for all sizes.

    Returns None if an operator has no rule, or if its rule does not support this case.
    """
    op = operator(node, Op)
    if op.name == "Fused":
        body = op.subgraphs()["body"]
        return _code_of("Fused", node, body.inputs, body.outputs, context)
    if op.name not in EXPANDED:
        return _single(node)
    types = [None if v is None else (v.dtype, v.rank == 0) for v in node.inputs]
    return _expanded(op, tuple(types), tuple(context.used_outputs))


def program_of(
    name: str, node: Node, sources: Sequence[Value | None], results: Sequence[Value], context: KernelContext
) -> PointwiseProgram | None:
    """Return one program for the graph from `sources` to `results`. They correspond to the node's operands and outputs.

    Returns None as `program` does.
    """
    return _with_shapes(_code_of(name, node, sources, results, context), node)


def _with_shapes(found: PointwiseCode | None, node: Node) -> PointwiseProgram | None:
    shape = node.outputs[0].tensor.static_shape
    if found is None or any(v.tensor.static_shape != shape for v in node.outputs):
        return None
    return found.at([None if v is None else v.tensor.static_shape for v in node.inputs], shape)


def _code_of(
    name: str, node: Node, sources: Sequence[Value | None], results: Sequence[Value], context: KernelContext
) -> PointwiseCode | None:
    instructions = Instructions([None if v is None else v.tensor for v in node.inputs])
    terms = terms_of(instructions, sources, results)
    if terms is None:
        return None
    used = [*context.used_outputs, *[True] * len(results)]
    outputs = [
        Term(term.number, output.dtype) if read else None
        for term, output, read in zip(terms, node.outputs, used, strict=False)
    ]
    return instructions.code(name, outputs)


def terms_of(code: Instructions, sources: Sequence[Value | None], results: Sequence[Value]) -> Sequence[Term] | None:
    """Return the terms of the results of a graph; None if an operator has no rule. sources: the inputs of `code`."""
    terms = {v: code.input(i) for i, v in enumerate(sources) if v is not None}
    for inner in Graph(list(terms), results).nodes:
        term = _constant(code, inner.output)
        if term is None and inner.op.name in RULES:
            term = RULES[inner.op.name](code, inner.op, *(None if v is None else terms[v] for v in inner.inputs))
            code.divides(inner)
        if term is None:
            return None
        terms[inner.output] = term
    return [terms[v] for v in results]


def _single(node: Node) -> PointwiseCode | None:
    """Return the code of one operator that has a rule."""
    if not all(v is None or isinstance(v.type, TensorType) for v in node.inputs):
        return None
    instructions = Instructions([None if v is None else v.tensor for v in node.inputs])
    operands = [
        None if v is None else _constant(instructions, v) or instructions.input(i) for i, v in enumerate(node.inputs)
    ]
    term = RULES[node.op.name](instructions, node.op, *operands)
    instructions.divides(node)
    return term and instructions.code(node.op.name, [term])


@lru_cache(maxsize=256)
def _expanded(
    op: Op, types: tuple[tuple[DType, bool] | None, ...], used_outputs: tuple[bool, ...]
) -> PointwiseCode | None:
    """Return the code of a composite operator. Its float16 and bfloat16 operands are expanded as float32.

    A network has one such node per parameter, and most of them are alike.

    types: The dtype of each operand, and whether it is a scalar. Other operands have the shape of the result.
    """
    given = [None if t is None else Value(TensorType(t[0], () if t[1] else (2,))) for t in types]
    node = Node(op, given)
    operands = [None if v is None else Value(_widened(v.tensor)) for v in given]
    results = op.expand(*operands)
    context = KernelContext(used_outputs=used_outputs)
    return _code_of(op.name, node, operands, results if isinstance(results, tuple) else (results,), context)


def _widened(tensor: TensorType) -> TensorType:
    return tensor.with_dtype(DType.FLOAT32) if tensor.dtype in HALVES else tensor


def _constant(code: Instructions, value: Value) -> Term | None:
    """Return the term of a Constant with one element; None for another value."""
    if value.node is None or not isinstance(value.node.op, Constant):
        return None
    array = value.node.op.value.array
    return code.constant(array.reshape(()), value.dtype) if array.size == 1 else None
