"""Edit the subgraphs of If, Loop and Scan: inline one, cut nodes out of it, remove outputs and states.

The edits change a Document in place. If one returns False, it is not possible, and the document is unusable. A
subgraph is named by the node that contains it, and by its attribute.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto, TypeProto, ValueInfoProto

from graphkit.ir.types import MAX_KNOWN_ELEMENTS, TensorType, Type
from graphkit.onnx_io.editing.document import Document, Node, Scope
from graphkit.onnx_io.tensors import type_to_proto

# Opset in which Scan lost its batch axis, and the one in which the axes of Unsqueeze became an operand.
_SCAN, _AXES = 9, 13
# If the condition is cut out of a loop's body, the loop runs all its iterations. This is done up to this number.
_LONGEST = 10_000


@dataclass(frozen=True)
class Place:
    """A node with subgraphs, and the scope that contains it. parent: the place of that scope; None at the top."""

    scope: Scope
    node: Node
    parent: Place | None = None

    @property
    def states(self) -> int:
        """The number of states of a Loop or Scan."""
        return len(self.node.inputs) - (2 if self.node.kind == "Loop" else self.scanned)

    @property
    def scanned(self) -> int:
        """The number of scan inputs."""
        return int(self.node.attribute("num_scan_inputs", 0))

    @property
    def lead(self) -> int:
        """The number of operands before the states."""
        return 2 if self.node.kind == "Loop" else 0

    @property
    def flag(self) -> int:
        """The number of results of the body before the states."""
        return 1 if self.node.kind == "Loop" else 0


def places(document: Document) -> list[Place]:
    """Return all nodes If, Loop and Scan in a fixed order, each after the one that contains it."""
    found: list[Place] = []
    waiting: list[tuple[Scope, Place | None]] = [(document.top, None)]
    while waiting:
        scope, parent = waiting.pop()
        for node in scope.nodes:
            is_known = node.kind in ("If", "Loop") or (node.kind == "Scan" and document.opset >= _SCAN)
            if is_known and node.bodies:
                found.append(Place(scope, node, parent))
                waiting += [(body, found[-1]) for body in node.bodies.values()]
    return found


def kinds(nodes: Collection[Node]) -> list[str]:
    """Return the operators of nodes, each followed by those in its subgraphs without constants."""
    found = []
    for node in nodes:
        found.append(node.kind)
        for body in node.bodies.values():
            found += kinds([inner for inner in body.nodes if inner.kind != "Constant"])
    return found


def written(document: Document, copies: dict[str, str] | None = None) -> ModelProto:
    """Return the message of an edited document, without unread inputs and initialisers and without stale types.

    copies: Gets the results of added Identity nodes, and their operands.
    """
    copies = {} if copies is None else copies
    for scope in document.scopes:
        del scope.rest.value_info[:]
        copies |= _ground(document, scope)
    uses = document.uses
    document.initializers = {name: tensor for name, tensor in document.initializers.items() if uses[name]}
    document.top.inputs = [info for info in document.top.inputs if uses[info.name]]
    return document.written()


def _ground(document: Document, scope: Scope) -> dict[str, str]:
    """Add Identity nodes for outputs that a subgraph does not compute itself, or returns twice."""
    copies: dict[str, str] = {}
    made = {name for node in scope.nodes for name in node.outputs}
    made |= set() if scope.is_top else {info.name for info in scope.inputs}
    for i, name in enumerate(scope.outputs):
        if name in made and name not in scope.outputs[:i]:
            continue
        scope.outputs[i] = document.fresh(f"{name}_copy")
        scope.nodes.append(_made_node("Identity", [name], [scope.outputs[i]]))
        copies[scope.outputs[i]] = name
    return copies


def _made_node(kind: str, inputs: list[str], outputs: list[str], **attributes: int | list[int] | TensorProto) -> Node:
    proto = NodeProto(op_type=kind)
    proto.attribute.extend(onnx.helper.make_attribute(key, value) for key, value in attributes.items())
    return Node(proto, inputs, outputs, {})


# --- inlining -------------------------------------------------------------------------------------------


def inline(
    document: Document, place: Place, part: str, types: Mapping[str, Type], recorded: Collection[str] = ()
) -> dict[str, str]:
    """Replace a node by one of its subgraphs: by a branch, or by the first iteration of a loop. Always possible.

    Args:
        document: Is changed.
        place: The node.
        part: The attribute of the subgraph.
        types: Types of values by name.
        recorded: Slices of scan inputs with these names become inputs of the model. Others are computed.

    Returns:
        For each name that is replaced, the name that its readers read now.
    """
    node, body = place.node, place.node.bodies[part]
    before: list[Node] = []
    after: list[Node] = []
    table: dict[str, str] = {}
    if node.kind == "If":
        results = list(zip(node.outputs, body.outputs, strict=False))
    else:
        results = _enter(document, place, body, table, before, types, recorded)
        _stack(document, place, body, results, after)
    table |= {outer: inner for outer, inner in results if outer}
    index = place.scope.nodes.index(node)
    place.scope.nodes[index : index + 1] = [*before, *body.nodes, *after]
    _loosen(place.scope, table, types)
    document.rename(table)
    return {name: _final(name, table) for name in table}


def _enter(
    document: Document, place: Place, body: Scope, table: dict[str, str], before: list[Node], types: Mapping[str, Type],
    recorded: Collection[str],
) -> list[tuple[str, str]]:  # fmt: skip
    """Bind the inputs of a body for the first iteration. Return the pairs of final states and states of the body."""
    node, names = place.node, [info.name for info in body.inputs]
    if node.kind == "Loop":
        table[names[0]] = document.add(np.array(0, np.int64), "iteration")
        table[names[1]] = node.input(1) or document.add(np.array(True), "going_on")
    states = slice(place.lead, place.lead + place.states)
    table |= zip(names[states], node.inputs[states], strict=True)
    axes, backwards = node.attribute("scan_input_axes"), node.attribute("scan_input_directions")
    for j in range(place.scanned):
        inner, outer = names[place.states + j], node.inputs[place.states + j]
        if inner in recorded and inner in types:
            document.top.inputs.append(ValueInfoProto(name=inner, type=type_to_proto(types[inner])))
            continue
        first = document.add(np.array(-1 if backwards and backwards[j] else 0, np.int64), "first")
        before.append(_made_node("Gather", [outer, first], [inner], axis=int(axes[j]) if axes else 0))
    return [(node.outputs[k], body.outputs[place.flag + k]) for k in range(min(place.states, len(node.outputs)))]


def _stack(document: Document, place: Place, body: Scope, results: list[tuple[str, str]], after: list[Node]) -> None:
    """Give the stacked outputs of a loop the shape of one iteration; without it if no node reads them."""
    axes = place.node.attribute("scan_output_axes")
    read = {name for scope in document.scopes for node in scope.nodes for name in node.inputs}
    for j, outer in enumerate(place.node.outputs[place.states :]):
        inner = body.outputs[place.flag + place.states + j]
        if outer not in read:
            results.append((outer, inner))
            continue
        axis = int(axes[j]) if axes else 0
        if document.opset < _AXES:
            after.append(_made_node("Unsqueeze", [inner], [outer], axes=[axis]))
        else:
            where = document.add(np.array([axis], np.int64), "axes")
            after.append(_made_node("Unsqueeze", [inner, where], [outer]))


def _final(name: str, table: Mapping[str, str]) -> str:
    while name in table:
        name = table[name]
    return name


def _loosen(scope: Scope, changed: Collection[str], types: Mapping[str, Type]) -> None:
    """Forget the declared shapes of outputs of a scope whose values change."""
    for i, name in enumerate(scope.outputs):
        if name in changed:
            copy = ValueInfoProto()
            copy.CopyFrom(scope.output_infos[i])
            if copy.type.HasField("tensor_type"):
                copy.type.tensor_type.ClearField("shape")
            scope.output_infos[i] = copy


# --- cutting --------------------------------------------------------------------------------------------


def cut(
    document: Document, place: Place, part: str, keep: Collection[int], types: Mapping[str, Type],
    values: Mapping[str, np.ndarray],
) -> bool:  # fmt: skip
    """Keep some nodes of a subgraph. Values of the others become inputs of the model, or constants if they are shapes.

    An output that a removed node computes is replaced: by a value of this type that no kept node reads, by the state
    itself, or by its recorded value.
    """
    body = place.node.bodies[part]
    kept = [node for i, node in enumerate(body.nodes) if i in keep or node.kind == "Constant"]
    gone = {name for node in body.nodes if node not in kept for name in node.outputs if name}
    read = {name for node in kept for name in node.free}
    given = sorted(read & gone)
    body.nodes = kept
    sinks = _sinks(body, read, types)
    for i, name in enumerate(body.outputs):
        if name not in gone:
            continue
        chosen = _stand_in(document, place, body, i, sinks, types)
        if chosen is None:
            given.append(name)
            continue
        body.outputs[i] = chosen
        _retype(body, i, types.get(chosen, types.get(name)))
    for name in sinks:
        if not _connect(document, place, part, name, types[name]):
            return False
    return all(_given(document, name, types, values) for name in dict.fromkeys(given))


def _sinks(body: Scope, read: Collection[str], types: Mapping[str, Type]) -> list[str]:
    """Return a result of each node without a result that is read or returned."""
    wanted = {*read, *body.outputs}
    results = [[name for name in node.outputs if name] for node in body.nodes]
    return [names[0] for names in results if names and wanted.isdisjoint(names) and names[0] in types]


def _stand_in(
    document: Document, place: Place, body: Scope, index: int, sinks: list[str], types: Mapping[str, Type]
) -> str | None:
    """Return the value that a subgraph returns instead of a removed one; None if none fits. It leaves `sinks`."""
    wanted = types.get(body.outputs[index])
    is_flag = index < place.flag
    for name in () if is_flag else sinks:
        found = types[name]
        same = isinstance(found, TensorType) and isinstance(wanted, TensorType) and found.dtype == wanted.dtype
        if found == wanted or (same and place.node.kind == "If"):
            sinks.remove(name)
            return name
    if is_flag:
        _bound(document, place)
        return body.inputs[1].name
    if place.node.kind != "If" and index < place.flag + place.states:
        return body.inputs[place.lead + index - place.flag].name
    return None


def _bound(document: Document, place: Place) -> None:
    """Let a loop run once if it might run for long without its condition."""
    trips = document.array(place.node.input(0))
    if trips is None or int(trips.reshape(-1)[0]) > _LONGEST:
        place.node.inputs[:1] = [document.add(np.array(1, np.int64), "trips")]


def _retype(scope: Scope, index: int, kind: Type | None) -> None:
    """Declare the element type of an output, without a shape."""
    scope.output_infos[index] = ValueInfoProto(type=_loose(kind)) if kind is not None else scope.output_infos[index]


def _loose(kind: Type) -> TypeProto:
    return type_to_proto(TensorType(kind.dtype, None) if isinstance(kind, TensorType) else kind)


def _connect(document: Document, place: Place, part: str, name: str, kind: Type) -> bool:
    """Return a value of a subgraph as a further output, up to the outputs of the model. A loop stacks it.

    The other branch of an If returns a zero.
    """
    if not isinstance(kind, TensorType):
        return False
    node = place.node
    for key, body in node.bodies.items():
        given = name
        if key != part:
            code = type_to_proto(kind).tensor_type.elem_type
            zero = TensorProto(data_type=code)
            if code == TensorProto.STRING:
                zero.string_data.append(b"")
            else:
                zero.raw_data = bytes(kind.dtype.itemsize)
            given = document.fresh(f"{name}_other")
            body.nodes.append(_made_node("Constant", [], [given], value=zero))
        body.outputs.append(given)
        body.output_infos.append(ValueInfoProto(type=_loose(kind)))
    for key in ("scan_output_axes", "scan_output_directions"):
        if (listed := node.attribute(key)) is not None:
            node.set_attribute(key, [*listed, 0])
    # Optional outputs may be left out at the end: every further output has a place.
    count = len(next(iter(node.bodies.values())).outputs) - place.flag - 1
    node.outputs += [document.fresh(f"{name}_unused") for _ in range(count - len(node.outputs))]
    node.outputs.append(document.fresh(f"{name}_out"))
    if place.parent is None:
        document.top.outputs.append(node.outputs[-1])
        document.top.output_infos.append(ValueInfoProto(type=_loose(kind)))
        return True
    outer = next(key for key, body in place.parent.node.bodies.items() if body is place.scope)
    return _connect(document, place.parent, outer, node.outputs[-1], TensorType(kind.dtype, None))


def _given(document: Document, name: str, types: Mapping[str, Type], values: Mapping[str, np.ndarray]) -> bool:
    """Make a value that no node computes any longer an input of the model, or a constant if it is a small shape."""
    value = values.get(name)
    if isinstance(value, np.ndarray) and is_shape(value):
        document.put(value, name)
        return True
    if name not in types:
        return False
    document.top.inputs.append(ValueInfoProto(name=name, type=type_to_proto(types[name])))
    return True


def is_shape(value: np.ndarray) -> bool:
    """Whether an array may be a shape: a few integers in at most one dimension."""
    return value.dtype.kind == "i" and value.ndim <= 1 and value.size <= MAX_KNOWN_ELEMENTS


# --- smaller edits --------------------------------------------------------------------------------------


def bypasses(place: Place, part: str, index: int, types: Mapping[str, Type]) -> Iterator[str]:
    """Yield the operands of a node of a subgraph that have the type of its only result."""
    node = place.node.bodies[part].nodes[index]
    kind = types.get(node.outputs[0]) if sum(map(bool, node.outputs)) == 1 else None
    yield from (name for name in dict.fromkeys(node.inputs) if name and kind is not None and types.get(name) == kind)


def bypass(document: Document, place: Place, part: str, index: int, source: str) -> bool:
    """Remove a node of a subgraph. Its readers read `source`."""
    node = place.node.bodies[part].nodes.pop(index)
    document.rename({node.outputs[0]: source})
    return True


def drop_output(document: Document, place: Place, index: int) -> bool:
    """Remove an unused output. If it is the final value of a state, the body reads the initial value."""
    node = place.node
    if len(node.outputs) < 2 or document.uses[node.outputs[index]]:
        return False
    if node.kind != "If" and index < place.states:
        operand = place.lead + index
        (body,) = node.bodies.values()
        document.rename({body.inputs[operand].name: node.inputs[operand]})
        del body.inputs[operand], node.inputs[operand]
    elif node.kind == "Scan":
        for key in ("scan_output_axes", "scan_output_directions"):
            if (listed := node.attribute(key)) is not None:
                node.set_attribute(key, [v for j, v in enumerate(listed) if j != index - place.states] or None)
    for body in node.bodies.values():
        del body.outputs[place.flag + index], body.output_infos[place.flag + index]
    del node.outputs[index]
    return True


def run_once(document: Document, place: Place) -> bool:
    """Let a Loop run one iteration, without computing its condition."""
    node = place.node
    body = next(iter(node.bodies.values()))
    trips = document.array(node.input(0))
    is_one = trips is not None and int(trips.reshape(-1)[0]) == 1
    if node.kind != "Loop" or (is_one and body.outputs[0] == body.inputs[1].name and not node.input(1)):
        return False
    node.inputs[:2] = [document.add(np.array(1, np.int64), "trips"), ""]
    body.outputs[0] = body.inputs[1].name
    return True
