"""Specialise subgraphs to the types of their actual operands, so that kernels can be prepared for known shapes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from graphkit.errors import TypeMismatch
from graphkit.ir.graph import Graph, Node, Value
from graphkit.ir.types import DType, TensorType, Type, same_type
from graphkit.ops import Op
from graphkit.ops.control.loop_state import output_types, stable_types, without_value
from graphkit.ops.control.views import LoopView
from graphkit.passes.core.bind import rebind
from graphkit.passes.core.declare import CONTROL, Step
from graphkit.passes.core.sweep import is_control, rewrite, run_passes

# Why a subgraph (node, attribute) could not be specialised.
Unspecialised: TypeAlias = Mapping[tuple[Node, str], str]


def specialise_subgraphs(graph: Graph, passes: Sequence[Step] = ()) -> tuple[Graph, Unspecialised]:
    """Give every subgraph the types of its actual operands, and rewrite it by `passes`. Outer subgraphs come first.

    The body of a Loop or Scan gets types that hold in every iteration. The types of results do not change. Takes linear
    time.

    Returns:
        The graph, and the subgraphs that are kept because inference rejects the types, with the reason. A run may never
            execute them.
    """
    unspecialised: dict[tuple[Node, str], str] = {}
    return _specialised(graph, passes, unspecialised), unspecialised


def _specialised(graph: Graph, passes: Sequence[Step], unspecialised: dict[tuple[Node, str], str]) -> Graph:
    if graph.operators.isdisjoint(CONTROL):
        return graph

    def rule(node: Node, operands: Sequence[Value | None]) -> Sequence[Value] | None:
        if not is_control(node) or not isinstance(node.op, Op):
            return None
        changed: dict[str, Graph] = {}
        refused: dict[str, str] = {}
        for attribute, subgraph in node.op.subgraphs().items():
            try:
                typed = _typed(node, subgraph)
            except TypeMismatch as error:
                refused[attribute] = str(error)
            else:
                changed[attribute] = _specialised(run_passes(typed, passes), passes, unspecialised)
        made = Node(
            node.op.replace(**changed),
            operands,
            node.name,
            node.meta,
            output_names=[v.name for v in node.outputs],
            types=[v.type for v in node.outputs],
        )
        unspecialised.update(((made, attribute), why) for attribute, why in refused.items())
        return made.outputs

    return rewrite(graph, rule, at=CONTROL)


def _typed(node: Node, subgraph: Graph) -> Graph:
    """Return the subgraph with the types of the node's operands. Raises TypeMismatch."""
    if node.op.name == "If":
        given = [v.type for v in node.inputs[1:] if v is not None]
        return rebind(subgraph, dict(zip(subgraph.inputs, given, strict=True)))
    return _typed_body(LoopView.of(node))


def _typed_body(view: LoopView) -> Graph:
    """Return the body with types that hold in every iteration. Raises TypeMismatch."""
    dtypes = (DType.INT64, DType.BOOL)
    entry: list[Type] = [TensorType(dtype, v.shape) for dtype, v in zip(dtypes, view.entry, strict=False)]
    initial = [without_value(s.initial.type) for s in view.states]
    rest: list[Type] = [_slice_type(s.outer.type, s.axis) for s in view.scan_inputs]
    rest += [without_value(c.outer.type) for c in view.captures]

    def typed(states: Sequence[Type]) -> Graph:
        return rebind(view.body, dict(zip(view.body.inputs, [*entry, *states, *rest], strict=True)))

    body = typed(initial)
    if not all(same_type(without_value(v.type), t) for v, t in zip(body.outputs[view.at_after], initial, strict=True)):
        body = typed(stable_types(initial, lambda s: output_types(view.body, [*entry, *s, *rest])[view.at_after]))
    return body


def _slice_type(whole: Type, axis: int) -> TensorType:
    assert isinstance(whole, TensorType)
    if whole.shape is None:
        return TensorType(whole.dtype)
    place = axis % len(whole.shape)
    return TensorType(whole.dtype, (*whole.shape[:place], *whole.shape[place + 1 :]))
