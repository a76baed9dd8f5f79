"""Give every random node the graph's one random state and a stream number of its own."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from graphkit.errors import UnsupportedError
from graphkit.ir.graph import Graph, Node, Value
from graphkit.ir.types import DType, TensorType
from graphkit.ops import F, Op, operator
from graphkit.ops.control.views import LoopView, repeating
from graphkit.passes.core.declare import Property, graph_pass
from graphkit.passes.core.draws import draws_without_state, is_unbound, rng_position
from graphkit.passes.core.sweep import all_nodes, rewrite

RNG_TYPE = TensorType(DType.UINT64, (2,))


def _first_unbound(graph: Graph) -> Node | None:
    return next(filter(is_unbound, all_nodes(graph)), None)


@graph_pass(ensures=[Property.STREAMS_BOUND], check=_first_unbound)
def bind_rng(graph: Graph) -> Graph:
    """Add a graph input `rng` (role "rng", uint64[2] = (seed, step)), and connect all random nodes to it.

    Each node gets its own stream number, in topological order; subgraphs are included. In the body of a Loop or Scan,
    the state is derived from `rng` and the iteration, so each iteration generates different numbers.

    Nodes that are connected to a state keep it and their stream. If there are no other random nodes, the graph is
    returned unchanged. Raises UnsupportedError if a random node is in a subgraph of an operator that cannot capture the
    state.
    """
    if not _has_unbound(graph):
        return graph
    existing = next((v for v in graph.inputs if v.role == "rng"), None)
    rng = Value(RNG_TYPE, "rng", role="rng") if existing is None else existing
    streams = itertools.count(1 + max(_bound_streams(graph), default=-1))
    return _bind(graph, rng, streams, extra=(rng,) if existing is None else ())


def bind_nested(graph: Graph) -> Graph:
    """Apply `bind_rng` if a node in a subgraph generates random numbers, so that subgraphs can be recomputed."""
    nested = (inner for node in graph.nodes for g in node.op.subgraphs().values() for inner in all_nodes(g))
    return bind_rng(graph) if any(map(draws_without_state, nested)) else graph


def _has_unbound(graph: Graph) -> bool:
    return any(is_unbound(node) for node in all_nodes(graph))


def _bound_streams(graph: Graph) -> Iterator[int]:
    for node in all_nodes(graph):
        if rng_position(node) is not None and not is_unbound(node):
            yield node.op.stream  # type: ignore[attr-defined]


def _bind(graph: Graph, state: Value, streams: Iterator[int], extra: Sequence[Value]) -> Graph:
    """Connect the random nodes to `state`. `extra` inputs are appended to the graph."""

    def rule(node: Node, operands: Sequence[Value | None]) -> Sequence[Value] | None:
        if is_unbound(node):
            position = rng_position(node)
            assert position is not None
            filled = [*operands, *[None] * (position + 1 - len(operands))]
            filled[position] = state
            return _rebuilt(node, operator(node, Op).replace(stream=next(streams)), filled)
        if any(_has_unbound(inner) for inner in node.op.subgraphs().values()):
            binder = _BINDERS.get((node.op.domain, node.op.name))
            if binder is None:
                raise UnsupportedError(f"{node.describe()}: a random node inside this operator has no random state")
            return binder(node, operands, state, streams)
        return None

    return rewrite(graph, rule, extra_inputs=extra)


def _rebuilt(node: Node, op: Op, operands: Sequence[Value | None], names: Sequence[str] = ()) -> Sequence[Value]:
    names = names or [v.name for v in node.outputs]
    return Node(op, operands, node.name, node.meta, output_names=names).outputs


def _capture() -> Value:
    return Value(RNG_TYPE, "rng")


def _bind_if(node: Node, operands: Sequence[Value | None], state: Value, streams: Iterator[int]) -> Sequence[Value]:
    op = operator(node, Op)
    branches = {}
    for key, branch in op.subgraphs().items():
        inner = _capture()
        branches[key] = _bind(branch, inner, streams, extra=(inner,))
    return _rebuilt(node, op.replace(**branches), [*operands, state])


def _bind_loop(node: Node, operands: Sequence[Value | None], state: Value, streams: Iterator[int]) -> Sequence[Value]:
    op = repeating(node)
    inner = _capture()
    derived = F.rng_fold_in(inner, op.body.inputs[0])
    body = _bind(op.body, derived, streams, extra=(inner,))
    given = LoopView.of(node, operands).operands
    return _rebuilt(node, op.replace(body=body, captures=op.captures + 1), [*given, state])


def _bind_scan(node: Node, operands: Sequence[Value | None], state: Value, streams: Iterator[int]) -> Sequence[Value]:
    # The body of a Scan has no iteration number. Add a counter as its last state.
    op = repeating(node)
    body = op.body
    states = LoopView.of(node).state_count
    inner, counter = _capture(), Value(TensorType(DType.INT64, ()), "iteration")
    following = F.add(counter, F.constant(value=np.array(1, np.int64)))
    bound = _bind(body, F.rng_fold_in(inner, counter), streams, extra=(counter, inner))
    own = bound.inputs[: len(body.inputs)]
    bound = bound.replace(
        inputs=[*own[:states], counter, *own[states:], inner],
        outputs=[*bound.outputs[:states], following, *bound.outputs[states:]],
    )
    start = F.constant(value=np.array(0, np.int64))
    names = [v.name for v in node.outputs]
    outputs = _rebuilt(
        node,
        op.replace(body=bound, captures=op.captures + 1),
        [*operands[:states], start, *operands[states:], state],
        [*names[:states], "", *names[states:]],
    )
    return [*outputs[:states], *outputs[states + 1 :]]


_BINDERS = {("", "If"): _bind_if, ("", "Loop"): _bind_loop, ("", "Scan"): _bind_scan}
