"""Edit the captures of If, Loop and Scan: add some, remove unused ones, and turn updates of captures into results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from graphkit.ir.graph import Graph, Node, Value
from graphkit.ops import Op, operator
from graphkit.ops.control.views import IfView, LoopView, capture_count, is_if


def captured(node: Node, body: Graph) -> list[tuple[Value, Value]]:
    """Return (operand, input of the body) for each capture of an If, Loop or Scan."""
    count = capture_count(node)
    pairs = zip(node.inputs[len(node.inputs) - count :], body.inputs[len(body.inputs) - count :], strict=True)
    return [(outer, inner) for outer, inner in pairs if outer is not None]


def add_captures(
    node: Node, operands: Sequence[Value | None], bodies: Mapping[str, Graph], added: Sequence[Value]
) -> Node:
    """Return the node with the values `added` as additional captures.

    `bodies` replace the subgraphs of the node. The last inputs of each body are those of the new captures.
    """
    changes: dict[str, Any] = dict(bodies)
    if not is_if(node):
        changes["captures"] = capture_count(node) + len(added)
    # `LoopView.operands` includes the trip count and the condition of a Loop, even if both are absent.
    operands = operands if is_if(node) else LoopView.of(node, operands).operands
    return _rebuilt(node, changes, [*operands, *added])


def drop_unused_captures(
    node: Node, operands: Sequence[Value | None], bodies: Mapping[str, Graph] | None = None
) -> Node:
    """Return the node without the captures that no body reads. `bodies` replace its subgraphs."""
    bodies = node.op.subgraphs() if bodies is None else bodies
    count = capture_count(node)
    read = [{*(v for n in g.nodes for v in n.inputs), *g.outputs} for g in bodies.values()]
    kept = [
        i for i in range(count)
        if any(g.inputs[len(g.inputs) - count + i] in used for g, used in zip(bodies.values(), read, strict=True))
    ]  # fmt: skip
    changes: dict[str, Any] = {
        k: g.replace(inputs=_kept_captures(g.inputs, count, kept)) if len(kept) < count else g
        for k, g in bodies.items()
    }
    if not is_if(node):
        changes["captures"] = len(kept)
    return _rebuilt(node, changes, _kept_captures(operands, count, kept))


def lift_updates(
    node: Node, operands: Sequence[Value | None], bodies: Mapping[str, Graph]
) -> tuple[Sequence[Value], list[tuple[Value, Value]]]:
    """Replace the subgraphs of a node by `bodies`. Their updates of captures become results of the node.

    A branch that does not update such a capture returns the old value. A loop carries it as a state.

    Returns:
        The values that replace the node's outputs, and (operand, new value) for each capture that a body updates.
    """
    if is_if(node):
        return _lift_if(node, operands, bodies)
    return _lift_loop(node, operands, bodies["body"])


def _lift_if(
    node: Node, operands: Sequence[Value | None], bodies: Mapping[str, Graph]
) -> tuple[Sequence[Value], list[tuple[Value, Value]]]:
    new = {key: dict(body.updates) for key, body in bodies.items()}
    outer = IfView.of(node, operands).captures
    places = [
        i for i in range(len(outer))
        if any(body.inputs[i] in new[key] for key, body in bodies.items())
    ]  # fmt: skip
    changes = {
        key: Graph(
            body.inputs,
            [*body.outputs, *(new[key].get(body.inputs[i], body.inputs[i]) for i in places)],
            name=body.name,
        )
        for key, body in bodies.items()
    }
    lifted = _rebuilt(node, changes, operands)
    count = len(node.outputs)
    return lifted.outputs[:count], _pairs([outer[i] for i in places], lifted.outputs[count:])


def _lift_loop(
    node: Node, operands: Sequence[Value | None], body: Graph
) -> tuple[Sequence[Value], list[tuple[Value, Value]]]:
    view = LoopView.of(node, operands)
    positions = range(len(body.inputs))
    states, end = view.state_count, view.at_states.stop
    new = dict(body.updates)
    moved = [i for i in positions[view.at_captures] if body.inputs[i] in new]
    order = [*positions[:end], *moved, *(i for i in positions[end:] if i not in moved)]
    carrying = Graph(
        [body.inputs[i] for i in order],
        [*body.outputs[: view.at_after.stop], *(new[body.inputs[i]] for i in moved), *body.outputs[view.at_slices]],
        name=body.name,
    )
    names = [v.name for v in node.outputs]
    lifted = _rebuilt(
        node,
        {"body": carrying, "captures": capture_count(node) - len(moved)},
        [view.operands[i] for i in order],
        [*names[:states], *("" for _ in moved), *names[states:]],
    )
    final = lifted.outputs[states : states + len(moved)]
    replaced = _pairs([view.operands[i] for i in moved], final)
    return [*lifted.outputs[:states], *lifted.outputs[states + len(moved) :]], replaced


def _pairs(operands: Sequence[Value | None], results: Sequence[Value]) -> list[tuple[Value, Value]]:
    return [(v, new) for v, new in zip(operands, results, strict=True) if v is not None]


def _kept_captures(values: Sequence[Any], count: int, kept: Sequence[int]) -> list[Any]:
    """Return `values`, but of the last `count` values only those at the positions in `kept`."""
    first = len(values) - count
    return [*values[:first], *(values[first + i] for i in kept)]


def _rebuilt(
    node: Node, changes: Mapping[str, Any], operands: Sequence[Value | None], names: Sequence[str] = ()
) -> Node:
    op = operator(node, Op)
    # By default, the old results keep their names, and additional results have none.
    return Node(
        op.replace(**changes), operands, node.name, node.meta, output_names=names or [v.name for v in node.outputs]
    )
