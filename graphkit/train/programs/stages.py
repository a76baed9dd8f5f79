"""The programs of one stage of a pipeline, and the values saved between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from graphkit.autodiff.reverse_mode import gradient, reached
from graphkit.errors import UsageError
from graphkit.ir import context
from graphkit.ir.graph import Graph, Node, Value, topological
from graphkit.ir.types import DType, TensorType
from graphkit.ops import F
from graphkit.passes.training.recompute import is_marked
from graphkit.train.programs import recomputation
from graphkit.train.programs import step as steps
from graphkit.train.programs.expressions import cast_like
from graphkit.train.programs.partition import Partition
from graphkit.train.programs.weights import BATCH_WEIGHT
from graphkit.train.selection import TrainedParameter
from graphkit.train.states import widened

_STORED = ("parameter", "state")
_RECEIVED, _SENT = "received/", "sent/"


@dataclass(frozen=True)
class Port:
    """Arrays that this stage receives from, or sends to, one other stage."""

    stage: int
    names: tuple[str, ...]
    values: tuple[Value, ...]


@dataclass(frozen=True)
class Stage:
    """The backward program reads data, stored parameters, saved and received values, the gradients of sent values, the
    weight of the batch, and LOSS_GRADIENT if this stage computes the loss. It adds weight * gradient to
    `<parameter>/gradient_sum`.

    Attributes:
        forward: Inputs: all data of the model; parameters and states that this stage reads; received values. Outputs:
            sent values, results, and values to save.
        backward: None if no gradient flows through this stage.
        saved: The values to save for each micro-batch: a dict of the name of an input of the backward program to the
            name of the output of the forward program.
        kept: Names of received values that the backward program also reads.
    """

    forward: Graph
    backward: Graph | None
    received: tuple[Port, ...]
    sent: tuple[Port, ...]
    gradients_in: tuple[Port, ...]
    gradients_out: tuple[Port, ...]
    results: tuple[str, ...]
    saved: Mapping[str, str]
    kept: tuple[str, ...]
    computes_loss: bool


LOSS_GRADIENT = "loss_gradient"


class _ForwardPart:
    """The forward pass of a stage, with the values of other stages as graph inputs (`received`)."""

    def __init__(self, partition: Partition, stage: int, results: Mapping[str, Value]):
        self.partition, self.stage, self.graph = partition, stage, partition.graph
        name = self.graph.name_of
        self.received = {v: Value(v.type, f"{_RECEIVED}{name(v)}") for v in partition.received(stage)}
        self.table: dict[Value, Value] = dict(self.received)
        with context.detached():
            for node in self.graph.nodes:
                if partition.stage_of.get(node) == stage:
                    new = node.rebuilt([None if v is None else self.table.get(v, v) for v in node.inputs])
                    self.table.update(zip(node.outputs, new.outputs, strict=True))
        self.data = [v for v in self.graph.inputs if v.role not in _STORED]
        self.stored = [
            v for v in self.graph.inputs if partition.owner_of.get(v) == stage or stage in partition.copies.get(v, ())
        ]
        self.results = {n: self.local(v) for n, v in results.items() if partition.stage_of_value(v) in (stage, None)}
        self.sent = {v: self.local(v) for v in partition.sent(stage)}
        self.updates = [
            (state, self.local(new)) for state, new in self.graph.updates if partition.owner_of[state] == stage
        ]

    def local(self, value: Value) -> Value:
        return self.table.get(value, value)

    def inputs(self) -> list[Value]:
        return [*self.data, *self.stored, *self.received.values()]

    def forward_outputs(self) -> dict[str, Value]:
        return {**{f"{_SENT}{self.graph.name_of(v)}": new for v, new in self.sent.items()}, **self.results}

    def ports_in(self) -> tuple[Port, ...]:
        sources: dict[int, list[Value]] = {}
        for value in self.received:
            source = self.partition.stage_of_value(value)
            assert source is not None, "values that every stage computes are not sent"
            sources.setdefault(source, []).append(value)
        return tuple(_port(s, _RECEIVED, values, self.graph) for s, values in sorted(sources.items()))

    def ports_out(self) -> tuple[Port, ...]:
        targets = sorted({t for v in self.sent for t in self.partition.crossings[v]})
        return tuple(
            _port(t, _SENT, [v for v in self.sent if t in self.partition.crossings[v]], self.graph) for t in targets
        )


def _port(stage: int, prefix: str, values: Sequence[Value], graph: Graph) -> Port:
    return Port(stage, tuple(f"{prefix}{graph.name_of(v)}" for v in values), tuple(values))


def inference_stage(partition: Partition, stage: int, results: Mapping[str, Value]) -> Stage:
    forward = _ForwardPart(partition, stage, results)
    outputs = forward.forward_outputs()
    program = Graph(forward.inputs(), outputs.values(), (), f"{forward.graph.name}_{stage}", output_names=outputs)
    return Stage(program, None, forward.ports_in(), forward.ports_out(), (), (), tuple(forward.results), {}, (), False)


def training_stage(
    partition: Partition, stage: int, results: Mapping[str, Value], trained: Sequence[TrainedParameter]
) -> Stage:
    """Return one stage of a training graph, whose first output is the loss. results: requested values by name."""
    forward_part = _ForwardPart(partition, stage, results)
    differentiated = differentiated_crossings(partition, trained)
    loss = partition.graph.outputs[0]
    computes_loss = partition.stage_of_value(loss) == stage
    gradients_in = _gradient_ports(forward_part.ports_out(), differentiated, partition.graph)
    gradients_out = _gradient_ports(forward_part.ports_in(), differentiated, partition.graph)
    with_gradients = [
        t
        for t in trained
        if partition.owner_of[t.value] == stage or stage in gradient_stages(partition, t, differentiated)
    ]
    joint = _JointGraph(forward_part, computes_loss, gradients_in, gradients_out, with_gradients)
    forward, backward, saved, kept = joint.split()
    return Stage(
        forward, backward, forward_part.ports_in(), forward_part.ports_out(), gradients_in, gradients_out,
        tuple(forward_part.results), saved, kept, computes_loss,
    )  # fmt: skip


def differentiated_crossings(partition: Partition, trained: Sequence[TrainedParameter]) -> frozenset[Value]:
    active = {t.value for t in trained}
    for node in partition.graph.nodes:
        if any(v in active for v in node.operands):
            active.update(node.outputs)
    found = reached([partition.graph.outputs[0]])
    return frozenset(v for v in partition.crossings if v in active and v in found)


def gradient_stages(
    partition: Partition, parameter: TrainedParameter, differentiated: frozenset[Value]
) -> tuple[int, ...]:
    """Return the stages that compute gradients of a parameter of another stage. differentiated: from
    `differentiated_crossings`.
    """
    sources = {
        partition.stage_of_value(partition.graph.outputs[0]),
        *(partition.stage_of_value(v) for v in differentiated),
    }
    return tuple(stage for stage in partition.copies.get(parameter.value, ()) if stage in sources)


def _gradient_ports(ports: Sequence[Port], differentiated: frozenset[Value], graph: Graph) -> tuple[Port, ...]:
    """Return ports for the gradients of values. Values without a gradient are left out."""
    made = []
    for port in ports:
        if values := [v for v in port.values if v in differentiated]:
            names = tuple(f"gradient/{graph.name_of(v)}/{port.stage}" for v in values)
            made.append(Port(port.stage, names, tuple(values)))
    return tuple(made)


class _JointGraph:
    """The forward and backward pass of a stage as one graph, which `split` divides into two programs."""

    def __init__(
        self, forward: _ForwardPart, computes_loss: bool, gradients_in: Sequence[Port], gradients_out: Sequence[Port],
        with_gradients: Sequence[TrainedParameter],
    ):  # fmt: skip
        self.forward = forward
        graph = forward.graph
        # The inputs for the gradients with which the backward pass starts.
        self.seeds = {
            n: Value(v.type, n) for port in gradients_in for n, v in zip(port.names, port.values, strict=True)
        }
        outputs = [forward.local(v) for port in gradients_in for v in port.values]
        if computes_loss:
            loss = forward.local(graph.outputs[0])
            self.seeds[LOSS_GRADIENT] = Value(loss.type, LOSS_GRADIENT)
            outputs.append(loss)
        received = [forward.received[v] for port in gradients_out for v in port.values]
        wrt = [*(t.value for t in with_gradients), *received]
        self.updates: list[tuple[Value, Value]] = []
        self.weight = Value(TensorType(DType.FLOAT32, ()), BATCH_WEIGHT)
        self.sums = [steps.gradient_sum(t) for t in with_gradients]
        self.names = [n for port in gradients_out for n in port.names]
        if wrt and not outputs:
            names = ", ".join(str(v) for v in wrt[:3])
            raise UsageError(f"groups= (--place): no gradient flows back to {names}")
        found = gradient(outputs, wrt, list(self.seeds.values()), allow_unused=True) if wrt else []
        self.gradients = found[len(with_gradients) :]
        with context.detached():
            for total, grad in zip(self.sums, map(widened, found), strict=False):
                self.updates.append((total, F.add(total, F.mul(grad, cast_like(self.weight, grad)))))

    def split(self) -> tuple[Graph, Graph | None, Mapping[str, str], tuple[str, ...]]:
        forward_part = self.forward
        outputs = forward_part.forward_outputs()
        # Graph passes may replace the value of a gradient, but keep states. To find the new value, make each gradient
        # the update of a placeholder state.
        places = [Value(g.type, f"{n}/place", role="state") for n, g in zip(self.names, self.gradients, strict=True)]
        joint = Graph(
            [*forward_part.inputs(), *self.seeds.values(), self.weight, *self.sums, *places],
            outputs.values(),
            [*forward_part.updates, *self.updates, *zip(places, self.gradients, strict=True)],
            f"{forward_part.graph.name}_{forward_part.stage}",
            output_names=outputs,
        )
        count = len(joint.inputs)
        program = recomputation.prepared(joint)
        new = dict(zip(joint.inputs, program.inputs[:count], strict=True))
        updates = dict(program.updates)
        statistics = [(new[state], updates[new[state]]) for state, _ in forward_part.updates]
        forward_inputs = [new[v] for v in forward_part.inputs()] + list(program.inputs[count:])
        if not self.updates and not self.gradients:
            return Graph(forward_inputs, program.outputs, statistics, joint.name, output_names=outputs), None, {}, ()
        sums = [(new[s], updates[new[s]]) for s in self.sums]
        gradients = [updates[new[p]] for p in places]
        before = topological([*program.outputs, *(v for _, v in statistics)])
        # The nodes of the forward program, except those that the backward program repeats: views, and nodes that are
        # marked for recomputation.
        forward_nodes = {n for n in before if n.operands and not is_marked(n) and not getattr(n.op, "views", ())}
        saved = _saved_values(forward_nodes, [*(v for _, v in sums), *gradients], {state for state, _ in statistics})
        placeholders = {v: Value(v.type, f"saved/{i}") for i, v in enumerate(saved)}
        known = dict(zip(reversed(program.outputs), reversed(list(outputs)), strict=True))
        further = [v for v in saved if v not in known]
        names = {v.name: known.get(value, v.name) for value, v in placeholders.items()}
        forward = Graph(
            forward_inputs, [*program.outputs, *further], statistics, joint.name,
            output_names=[*outputs, *(placeholders[v].name for v in further)],
        )  # fmt: skip
        seeds = [new[v] for v in (*self.seeds.values(), self.weight)]
        backward = _backward(
            forward_inputs, forward_nodes, placeholders, seeds, sums, gradients, self.names, joint.name
        )
        kept = tuple(v.name for v in backward.inputs if v in {new[r] for r in forward_part.received.values()})
        return forward, backward, names, kept


def _saved_values(forward_nodes: set[Node], roots: Sequence[Value], written: set[Value]) -> list[Value]:
    """Return the values of the forward pass that the backward pass reads.

    roots: the results of the backward pass. written: states that the forward program overwrites. If the backward pass
    reads them, their old values are saved.
    """
    stop = [v for n in forward_nodes for v in n.outputs]
    backward_nodes = topological(roots, stop=stop)
    read = dict.fromkeys(v for n in backward_nodes for v in n.operands)
    read.update(dict.fromkeys(roots))
    return [v for v in read if v in written or (v.node is not None and v.node in forward_nodes)]


def _backward(
    inputs: Sequence[Value], forward_nodes: set[Node], placeholders: Mapping[Value, Value], seeds: Sequence[Value],
    sums: Sequence[tuple[Value, Value]], gradients: Sequence[Value], names: Sequence[str], name: str,
) -> Graph:  # fmt: skip
    """Return the backward program.

    Args:
        placeholders: The input of the backward program for each saved value.
        seeds: Further inputs: gradients from later stages, and the weight of the batch.
        gradients: The gradients that are sent to earlier stages.
    """
    table: dict[Value, Value] = dict(placeholders)
    roots = [*(v for _, v in sums), *gradients]
    with context.detached():
        for node in topological(roots, stop=[v for n in forward_nodes for v in n.outputs]):
            new = node.rebuilt([None if v is None else table.get(v, v) for v in node.inputs])
            table.update(zip(node.outputs, new.outputs, strict=True))
    updates = [(state, table.get(v, v)) for state, v in sums]
    outputs = [table.get(v, v) for v in gradients]
    read = {v for n in topological([*outputs, *(v for _, v in updates)]) for v in n.operands} | {*outputs}
    # All data are inputs: their shapes determine the sizes of symbolic dimensions.
    given = [v for v in inputs if v in read or (v.role == "data" and not v.name.startswith(_RECEIVED))]
    return Graph(
        [*given, *placeholders.values(), *seeds, *(state for state, _ in sums)], outputs, updates, f"{name}_backward",
        output_names=names,
    )  # fmt: skip
