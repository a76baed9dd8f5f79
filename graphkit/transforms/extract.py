"""A part of a model, between values that become its inputs and values that become its outputs."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence

from graphkit.errors import UsageError
from graphkit.ir import context
from graphkit.ir.graph import Graph, Node, Value, give_name, topological
from graphkit.ir.origin import titled
from graphkit.ir.types import SequenceType, TensorType, Type
from graphkit.model import Model
from graphkit.named_tuples import NamedTuple
from graphkit.signatures import typed
from graphkit.text import listed, quantity
from graphkit.transforms.metadata import kept_metadata

# How many names an error lists.
_MOST_NAMES = 16


@typed("gk.extract")
def extract(
    model: Model, outputs: str | Sequence[str] | None = None, inputs: str | Sequence[str] | None = None
) -> Model:
    """Return the part of a model that computes `outputs` from `inputs`.

    Parameters, states and nodes keep their names, and parameters and states their roles and arrays. An internal value
    in `inputs` becomes a data input of its type. If the graph knew its elements, as it does for shapes, they are
    unknown in the part.

    A state of the part is still updated if its new value can be computed from `inputs`; otherwise it keeps its value
    (see `lost_updates`). Metadata that describe an input or output that is gone are dropped (class names,
    preprocessing of images, vocabulary, table columns).

    Args:
        model: Any model. The returned model shares its parameter arrays.
        outputs: Names of outputs, internal values or inputs (default: all outputs of the model that depend on
            `inputs`). If an output and another value share a name, this is the output.
        inputs: Names of inputs, parameters, internal values or outputs: all data inputs of the part, in this order
            (default: the data inputs of the model that `outputs` depend on). If an output and another value share a
            name, this is the other value.

    Returns:
        A model with these inputs and outputs.

    Raises:
        UsageError: A name is unknown, given twice, or inside the subgraph of an If, Loop or Scan; the outputs do not
            depend on one of `inputs`; or they need further inputs, which the message names.
        TypeMismatch: A node needs elements of an input that only the whole graph knew. The message names the node.
    """
    if outputs is None and inputs is None:
        raise UsageError("gk.extract: give outputs= (--output), inputs= (--input), or both")
    graph = model.graph
    cuts = None if inputs is None else _found(graph, _names("inputs= (--input)", inputs), inputs_first=True)
    if outputs is None:
        results = _reached_outputs(graph, cuts or {})
    else:
        results = _found(graph, _names("outputs= (--output)", outputs), inputs_first=False)
    region = _region(graph, results, cuts)
    made = _rebuilt(graph, region)
    kept = kept_metadata(model, region.inputs.values(), region.outputs.values())
    stored = {graph.name_of(v) for v in region.stored}
    params = {name: model.params.entry(name) for name in model.params if name in stored}
    return Model.from_graph(made.replace(meta=kept), params)


def lost_updates(model: Model, part: Model) -> tuple[str, ...]:
    """Return the states of an extracted part that runs of `model` update, and runs of `part` do not."""
    kept = {part.graph.name_of(state) for state, _ in part.graph.updates}
    states = (model.graph.name_of(state) for state, _ in model.graph.updates)
    return tuple(name for name in states if name in part.params and name not in kept)


class _Region(NamedTuple):
    """The part of a graph to extract, as values of the graph.

    inputs, outputs: by their new names. stored: parameters, states and the state of the random generator. updates: of
    states.
    """

    inputs: Mapping[str, Value]
    outputs: Mapping[str, Value]
    stored: Sequence[Value]
    updates: Sequence[tuple[Value, Value]]


# --- names ----------------------------------------------------------------------------------------------


def _names(option: str, given: str | Sequence[str]) -> list[str]:
    names = [given] if isinstance(given, str) else list(given)
    if not names:
        raise UsageError(f"gk.extract: {option} names no value")
    twice = next((name for i, name in enumerate(names) if name in names[:i]), None)
    if twice is not None:
        raise UsageError(f"gk.extract: {option} names {twice!r} twice; name it once")
    return names


def _found(graph: Graph, names: Iterable[str], *, inputs_first: bool) -> dict[str, Value]:
    """Return values by name. Raises UsageError, which names the subgraph if the value is inside one."""
    found: dict[str, Value] = {}
    for name in names:
        try:
            value = graph.find(name, inputs_first=inputs_first)
        except UsageError as error:
            raise _unknown(graph, name) or error from None
        same = next((other for other, held in found.items() if held is value), None)
        if inputs_first and same is not None:
            raise UsageError(f"{titled(graph, 'model')}: {same!r} and {name!r} are the same value; name it once")
        found[name] = value
    return found


def _unknown(graph: Graph, name: str) -> UsageError | None:
    """Return the error for a name of a node, or of a value inside a subgraph; None for any other unknown name."""
    results = next((n.outputs for n in graph.nodes if graph.node_name(n) == name), None)
    if results is not None:
        names = _quoted([graph.name_of(v) for v in results])
        return UsageError(f"{titled(graph, 'model')}: {name!r} is a node; name one of its results: {names}")
    if (place := _subgraph_with(graph, name)) is None:
        return None
    return UsageError(
        f"{titled(graph, 'model')}: value {name!r} is inside {place}. Values inside subgraphs cannot be extracted; "
        "name a value of the outermost graph, such as an operand or a result of that node"
    )


def _subgraph_with(graph: Graph, name: str) -> str | None:
    """Return where a value is if it is inside a subgraph: `attribute 'body' of node 'loop' (Loop)`; else None."""
    pending = [(graph, node, "") for node in graph.nodes]
    while pending:
        owner, node, outside = pending.pop()
        for key, inner in node.op.subgraphs().items():
            place = f"attribute {key!r} of node {owner.node_name(node)!r} ({node.op.name}){outside}"
            if name in map(inner.name_of, inner.values):
                return place
            pending += [(inner, nested, f" in {place}") for nested in inner.nodes]
    return None


def _quoted(names: Collection[str]) -> str:
    return listed(map(repr, names), len(names), _MOST_NAMES)


# --- what belongs to the part ---------------------------------------------------------------------------


def _reached_outputs(graph: Graph, cuts: Mapping[str, Value]) -> dict[str, Value]:
    """Return the outputs that depend on a value in `cuts`, by name. Raises UsageError if there is none."""
    reached = _downstream(graph, cuts.values(), ())
    found = {name: v for name, v in zip(graph.output_names, graph.outputs, strict=True) if v in reached}
    if not found:
        raise UsageError(f"{titled(graph, 'model')}: no output depends on {_quoted(cuts)}; name outputs (--output)")
    return found


def _downstream(graph: Graph, sources: Iterable[Value], stop: Collection[Value]) -> set[Value]:
    """Return `sources` and all values that depend on them, without `stop` and paths through it."""
    found = set(sources).difference(stop)
    for node in graph.nodes:
        if not found.isdisjoint(node.inputs):
            found.update(v for v in node.outputs if v not in stop)
    return found


def _region(graph: Graph, outputs: Mapping[str, Value], cuts: Mapping[str, Value] | None) -> _Region:
    stop = frozenset((cuts or {}).values())
    data = [v for v in graph.inputs if v.role == "data"]
    closed = [] if cuts is None else [v for v in data if v not in stop]
    blocked = _downstream(graph, closed, stop) if closed else set()
    if bad := {name: v for name, v in outputs.items() if v in blocked}:
        raise _more_inputs(graph, bad, outputs, closed, stop)
    updates: list[tuple[Value, Value]] = []
    leaves = _leaves([*outputs.values()], stop)
    if cuts is not None:
        _check_read(graph, cuts, outputs, leaves)
    while True:
        # A new value may read states that no output reads.
        more = [(s, new) for s, new in graph.updates if s in leaves and s not in stop and new not in blocked]
        if len(more) == len(updates):
            break
        updates = more
        leaves = _leaves([*outputs.values(), *(new for _, new in updates)], stop)
    inputs = {graph.name_of(v): v for v in data if v in leaves} if cuts is None else cuts
    stored = [v for v in graph.inputs if v.role != "data" and v in leaves and v not in stop]
    return _Region(inputs, outputs, stored, updates)


def _leaves(values: Sequence[Value], stop: Collection[Value]) -> set[Value]:
    """Return the graph inputs that `values` depend on, and the values of `stop` that are read."""
    found = {v for v in values if v.node is None or v in stop}
    for node in topological(values, stop):
        found.update(v for v in node.inputs if v is not None and (v.node is None or v in stop))
    return found


def _check_read(graph: Graph, cuts: Mapping[str, Value], outputs: Mapping[str, Value], leaves: set[Value]) -> None:
    """Raise UsageError if the outputs do not depend on one of `cuts`."""
    unread = [name for name, v in cuts.items() if v not in leaves]
    if unread:
        raise UsageError(
            f"{titled(graph, 'model')}: {_quoted(outputs)} computed from {_quoted(cuts)} would not read "
            f"{_quoted(unread)}: leave {'it' if len(unread) == 1 else 'them'} out (--input)"
        )


def _more_inputs(
    graph: Graph,
    bad: Mapping[str, Value],
    outputs: Mapping[str, Value],
    closed: Collection[Value],
    stop: Collection[Value],
) -> UsageError:
    """The error for outputs that need data inputs of the model that are not among the inputs of the part."""
    leaves = _leaves([*bad.values()], stop)
    needed = [graph.name_of(v) for v in closed if v in leaves]
    fitting = [name for name in outputs if name not in bad]
    also = f" ({_quoted(fitting)} can be computed without)" if fitting else ""
    return UsageError(
        f"{titled(graph, 'model')}: {_quoted(bad)} also {'needs' if len(bad) == 1 else 'need'} "
        f"{quantity(len(needed), 'further input')}: {_quoted(needed)}{also}. Add "
        f"{' '.join(f'--input {shlex.quote(name)}' for name in needed)} (inputs=), or choose other values"
    )


# --- the graph of the part ------------------------------------------------------------------------------


def _without_elements(kind: Type) -> Type:
    """Return the type without what the graph knew about its elements."""
    if isinstance(kind, TensorType):
        return TensorType(kind.dtype, kind.shape)
    if isinstance(kind, SequenceType):
        return SequenceType(_without_elements(kind.element))
    return kind.with_element(_without_elements(kind.element))


def _rebuilt(graph: Graph, region: _Region) -> Graph:
    """Return the graph of a region. Every value and node has the name that it has in `graph`."""
    table: dict[Value, Value] = {}
    for name, value in region.inputs.items():
        whole = value.node is None and value.role == "data"
        attrs = value.attrs if whole else None
        table[value] = Value(value.type if whole else _without_elements(value.type), name, attrs=attrs)
    for value in region.stored:
        table[value] = value.like(name=graph.name_of(value))
    inputs = [table[v] for v in (*region.inputs.values(), *region.stored)]
    roots = [*region.outputs.values(), *(new for _, new in region.updates)]
    with context.detached():
        for node in topological(roots, frozenset(region.inputs.values())):
            for old, new in zip(node.outputs, _node(graph, node, table).outputs, strict=True):
                table.setdefault(old, new)  # an output of a node may be an input of the part
    return Graph(
        inputs,
        [table[v] for v in region.outputs.values()],
        [(table[state], table[new]) for state, new in region.updates],
        graph.name,
        output_names=region.outputs,
    )


def _node(graph: Graph, node: Node, table: Mapping[Value, Value]) -> Node:
    """Return the node on the values of the part."""
    operands = [None if v is None else table[v] for v in node.inputs]
    made = node.rebuilt(operands)
    if made is node:  # it has no operands, such as a constant
        made = node.with_types(node.inputs, [v.type for v in node.outputs])
    made.name = graph.node_name(node)
    for old, new in zip(node.outputs, made.outputs, strict=True):
        give_name(new, graph.name_of(old))
    return made
