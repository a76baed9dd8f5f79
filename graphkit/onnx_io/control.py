"""If, Loop and Scan on import: subgraphs are built in the enclosing scope, and outer values become captures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from graphkit.errors import InvalidModel, UnsupportedError
from graphkit.ir.graph import Graph, Node, Value
from graphkit.ir.subgraph import checkpoint, close_over
from graphkit.ir.types import DType, TensorType, Type
from graphkit.onnx_io import attributes
from graphkit.onnx_io.building import GraphBuilder, Names, Setting
from graphkit.onnx_io.scopes import RawNode, Region
from graphkit.onnx_io.tensors import type_from_proto
from graphkit.onnx_io.untaken import branch_outputs, restored
from graphkit.ops import F, Op, constant
from graphkit.ops.control.loop_state import StableStates
from graphkit.ops.sequence.map import element_types, sequence_map
from graphkit.text import quantity

if TYPE_CHECKING:
    from graphkit.onnx_io.upgrade import NodeView

# A loop body is rebuilt until its states keep their types. States that change in each of these trials get unknown rank.
_TRIALS = 3


def build(
    builder: GraphBuilder, cls: type[Op], raw: RawNode, view: NodeView, names: Names, setting: Setting
) -> Sequence[Value]:
    """Build a control-flow node; returns its outputs."""
    if view.op_type == "If":
        return _if(builder, cls, raw, view, names, setting)
    if view.op_type == "Loop":
        return _loop(builder, cls, raw, view, names, setting)
    if view.op_type == "Scan":
        scan = _batched_scan if view.version < 9 else _scan
        return scan(builder, cls, raw, view, names, setting)
    raise UnsupportedError(f"subgraphs of {view.op_type} are not supported")


def build_map(builder: GraphBuilder, raw: RawNode, view: NodeView, names: Names, setting: Setting) -> Sequence[Value]:
    """Build a SequenceMap as a Loop, like the standard's function body; returns its outputs."""
    region = _body(raw, "body")
    operands = [view.operand(i) for i in range(len(view.inputs))]
    if not operands:
        raise InvalidModel("SequenceMap takes a sequence")
    mark = checkpoint()
    own = [Value(t, name) for t, (name, _) in zip(element_types(operands), region.inputs, strict=False)]
    outputs = _inner(builder, region, own, names, setting)
    graph, captured = close_over(outputs, own, mark, (), region.name)
    return sequence_map(graph, operands, captured, raw.name)


def _body(raw: RawNode, name: str) -> Region:
    if name not in raw.regions:
        raise InvalidModel(f"attribute {name!r} is required")
    return raw.regions[name]


def _inner(builder: GraphBuilder, region: Region, own: Sequence[Value], names: Names, setting: Setting) -> list[Value]:
    """Build a subgraph in a scope inside `names`, with `own` as its inputs; return its outputs."""
    if len(region.inputs) != len(own):
        raise InvalidModel(f"{region.place} has {quantity(len(region.inputs), 'input')}, but gets {len(own)}")
    for (name, proto), value in zip(region.inputs, own, strict=True):
        builder.check_declared(name, value.type, proto)
    scope = type(names)(names)
    scope.values.update((name, value) for (name, _), value in zip(region.inputs, own, strict=True))
    return builder.region(region, scope, setting)


def _finish(raw: RawNode, operator: Op, operands: Sequence[Value | None]) -> Sequence[Value]:
    return Node(operator, operands, raw.name, raw.meta, output_names=raw.outputs).outputs


def _if(
    builder: GraphBuilder, cls: type[Op], raw: RawNode, view: NodeView, names: Names, setting: Setting
) -> Sequence[Value]:
    mark = checkpoint()
    regions = {key: _body(raw, key) for key in ("then_branch", "else_branch")}
    originals: dict[Value, Value] = {}
    outputs = {key: branch_outputs(builder, r, names, setting, originals) for key, r in regions.items()}
    captured: list[Value] = []
    for key, values in outputs.items():
        _, captured = close_over(values, (), mark, captured, regions[key].name)
    branches = {key: close_over(values, (), mark, captured, regions[key].name)[0] for key, values in outputs.items()}
    operands = [_scalar(view.operand(0)), *restored(captured, originals)]
    return _finish(raw, cls(**attributes.fields(cls, view), **branches), operands)


def _loop(
    builder: GraphBuilder, cls: type[Op], raw: RawNode, view: NodeView, names: Names, setting: Setting
) -> Sequence[Value]:
    region = _body(raw, "body")
    state = [view.operand(i) for i in range(2, len(view.inputs))]
    counters = [_counter(builder, region, 0, DType.INT64), _counter(builder, region, 1, DType.BOOL)]
    graph, captured = _with_stable_state(
        builder, region, names, setting, counters, [v.type for v in state], [], first_output=1
    )
    if other := [v for v in graph.outputs[1 + len(state) :] if not isinstance(v.type, TensorType)]:
        raise InvalidModel(f"only tensors can be stacked, not {other[0].type}")
    fields = {**attributes.fields(cls, view), "body": graph, "captures": len(captured)}
    return _finish(raw, cls(**fields), [_scalar(view.input(0)), _scalar(view.input(1)), *state, *captured])


def _scalar(value: Value | None) -> Value | None:
    """Convert a condition or trip count with several axes of size 1 to a scalar."""
    if value is None or value.rank is None or value.rank < 2:
        return value
    return F.reshape(value, constant(np.zeros(0, np.int64)))


def _counter(builder: GraphBuilder, region: Region, index: int, dtype: DType) -> Type:
    """The type of the iteration number or condition: a scalar, or of shape (1,) if the file declares it so."""
    shape: tuple[int, ...] = ()
    if index < len(region.inputs):
        name, proto = region.inputs[index]
        declared = None if proto is None else type_from_proto(proto, f"{builder.label}: subgraph input {name!r}")
        if isinstance(declared, TensorType) and declared.shape == (1,):
            shape = (1,)
    return TensorType(dtype, shape)


def _scan(
    builder: GraphBuilder, cls: type[Op], raw: RawNode, view: NodeView, names: Names, setting: Setting
) -> Sequence[Value]:
    region = _body(raw, "body")
    count = view.attrs.get("num_scan_inputs")
    operands = [view.operand(i) for i in range(len(view.inputs))]
    if not isinstance(count, int) or not 0 <= count <= len(operands):
        raise InvalidModel(f"num_scan_inputs={count!r} does not fit {len(operands)} operands")
    state, scanned = operands[: len(operands) - count], operands[len(operands) - count :]
    axes = view.attrs.get("scan_input_axes") or (0,) * count
    elements = [_element(v.tensor, axis) for v, axis in zip(scanned, axes, strict=True)]
    graph, captured = _with_stable_state(
        builder, region, names, setting, [], [v.type for v in state], elements, first_output=0
    )
    fields = {**attributes.fields(cls, view), "body": graph, "captures": len(captured)}
    return _finish(raw, cls(**fields), [*operands, *captured])


def _batched_scan(
    builder: GraphBuilder, cls: type[Op], raw: RawNode, view: NodeView, names: Names, setting: Setting
) -> Sequence[Value]:
    """Build a Scan of opset 8, with batch as the first axis, time as the second, and a length for each sequence.

    It becomes a Scan over the batch, whose body is the Scan over time. The standard leaves scan outputs after the end
    of a sequence undefined; here they are zeros.
    """
    region, lengths = _body(raw, "body"), view.input(0)
    operands = [view.operand(i) for i in range(1, len(view.inputs))]
    count = view.attrs.get("num_scan_inputs")
    if not isinstance(count, int) or not 1 <= count <= len(operands):
        raise InvalidModel(f"num_scan_inputs={count!r} does not fit {len(operands)} operands")
    states = len(operands) - count
    one = [_element(v.tensor, 0) for v in operands]
    directions = view.attrs.get("directions")
    graph, captured = _with_stable_state(
        builder, region, names, setting, [], one[:states], [_element(t, 0) for t in one[states:]], first_output=0
    )
    inner = cls(body=graph, num_scan_inputs=count, scan_input_directions=directions, captures=len(captured))
    own = [Value(t) for t in one]
    outer = [v.like() for v in captured]
    if lengths is None:
        inputs: Sequence[Value] = own
        results: Sequence[Value] = Node(inner, [*own, *outer]).outputs
    else:
        length = Value(TensorType(DType.INT64, ()), "length")
        inputs, results = [length, *own], _up_to(length, inner, own, outer, states)
        operands.insert(0, F.cast(lengths, to=DType.INT64))
    body = Graph([*inputs, *outer], results, name=region.name)
    operator = cls(body=body, num_scan_inputs=len(operands), captures=len(captured))
    return _finish(raw, operator, [*operands, *captured])


def _up_to(length: Value, scan: Op, own: Sequence[Value], captured: Sequence[Value], states: int) -> Sequence[Value]:
    """A Scan over the first `length` elements. Its scan outputs are padded with zeros to the full length."""
    first, axis = constant(np.zeros(1, np.int64)), constant(np.zeros(1, np.int64))
    end = F.reshape(length, constant(np.ones(1, np.int64)))
    whole = F.gather(F.shape(own[states]), first, axis=0)
    cut = [F.slice(v, first, end, axis) for v in own[states:]]
    results = list(Node(scan, [*own[:states], *cut, *captured]).outputs)
    pads = F.concat(first, F.sub(whole, end), axis=0)
    for index in range(states, len(results)):
        results[index] = F.pad(results[index], pads, None, axis)
    return results


def _element(scanned: TensorType, axis: int) -> TensorType:
    if scanned.shape is None:
        return TensorType(scanned.dtype)
    rank = len(scanned.shape)
    if not -rank <= axis < rank:
        raise InvalidModel(f"scan axis {axis} does not fit {scanned}")
    return TensorType(scanned.dtype, [d for i, d in enumerate(scanned.shape) if i != axis % rank])


def _with_stable_state(
    builder: GraphBuilder,
    region: Region,
    names: Names,
    setting: Setting,
    before: Sequence[Type],
    state: Sequence[Type],
    after: Sequence[Type],
    first_output: int,
) -> tuple[Graph, list[Value]]:
    """Build a loop body whose states keep their types: dimensions or ranks that change become unknown."""
    states = StableStates(state, trials=_TRIALS)
    while True:
        mark = checkpoint()
        own = [Value(t, name) for t, (name, _) in zip([*before, *states.types, *after], region.inputs, strict=False)]
        outputs = _inner(builder, region, own, names, setting)
        results = [v.type for v in outputs[first_output : first_output + len(state)]]
        if len(results) != len(state):
            raise InvalidModel(
                f"{region.place} has {quantity(len(outputs), 'output')}, fewer than its "
                f"{quantity(len(state), 'carried value')}"
            )
        if states.hold(results):
            return close_over(outputs, own, mark, (), region.name)
