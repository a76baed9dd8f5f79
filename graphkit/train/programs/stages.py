"""One stage of a pipeline as programs: forward, backward, and what is saved of each micro-batch between them."""

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
from graphkit.train.programs.all_reduce import cast_like
from graphkit.train.programs.partition import Partition
from graphkit.train.programs.weights import BATCH_WEIGHT
from graphkit.train.selection import TrainedParameter
from graphkit.train.states import widened

_STORED = ("parameter", "state")


@dataclass(frozen=True)
class Port:
    """Arrays between this stage and another one: their names in its programs, and the values of the whole graph."""

    stage: int
    names: tuple[str, ...]
    values: tuple[Value, ...]


@dataclass(frozen=True)
class Stage:
    """The programs of one stage.

    forward: its inputs are all data of the model, what is stored here, and what it receives (`received`); its outputs
    what it sends (`sent`), those of `results` that are made here, and those that `saved` has the names of, by the name
    that they have as inputs of backward. That reads the data, what is stored, `saved`, `kept` of what was received, the
    gradients of what was sent (`gradients_in`), the batch's weight, and the loss's own gradient; it adds
    weight * gradient to `<parameter>/gradient_sum`, and its outputs are `gradients_out`. None where no gradient comes.
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
    makes_loss: bool


LOSS_GRADIENT = "loss_gradient"


class _Draft:
    """The forward part of a stage, on inputs in the place of what other stages make."""

    def __init__(self, part: Partition, stage: int, results: Mapping[str, Value]):
        self.part, self.stage, self.graph = part, stage, part.graph
        name = self.graph.name_of
        self.received = {v: Value(v.type, f"received/{name(v)}") for v in part.received(stage)}
        self.table: dict[Value, Value] = dict(self.received)
        with context.detached():
            for node in self.graph.nodes:
                if part.stage_of.get(node) == stage:
                    new = node.rebuilt([None if v is None else self.table.get(v, v) for v in node.inputs])
                    self.table.update(zip(node.outputs, new.outputs, strict=True))
        self.data = [v for v in self.graph.inputs if v.role not in _STORED]
        self.stored = [v for v in self.graph.inputs if part.owner_of.get(v) == stage or stage in part.copies.get(v, ())]
        self.results = {n: self.here(v) for n, v in results.items() if part.home(v) in (stage, None)}
        self.sent = {v: self.here(v) for v in part.sent(stage)}
        self.updates = [(state, self.here(new)) for state, new in self.graph.updates if part.owner_of[state] == stage]

    def here(self, value: Value) -> Value:
        return self.table.get(value, value)

    def inputs(self) -> list[Value]:
        return [*self.data, *self.stored, *self.received.values()]

    def forward_outputs(self) -> dict[str, Value]:
        return {**{f"sent/{self.graph.name_of(v)}": new for v, new in self.sent.items()}, **self.results}

    def ports_in(self) -> tuple[Port, ...]:
        sources: dict[int, list[Value]] = {}
        for value in self.received:
            home = self.part.home(value)
            assert home is not None, "what is computed everywhere does not cross"
            sources.setdefault(home, []).append(value)
        return tuple(_port(s, "received", values, self.graph) for s, values in sorted(sources.items()))

    def ports_out(self) -> tuple[Port, ...]:
        targets = sorted({t for v in self.sent for t in self.part.crossings[v]})
        return tuple(
            _port(t, "sent", [v for v in self.sent if t in self.part.crossings[v]], self.graph) for t in targets
        )


def _port(stage: int, prefix: str, values: Sequence[Value], graph: Graph) -> Port:
    return Port(stage, tuple(f"{prefix}/{graph.name_of(v)}" for v in values), tuple(values))


def inference_stage(part: Partition, stage: int, results: Mapping[str, Value]) -> Stage:
    """The forward program alone. results: what is wanted of the graph, by name."""
    draft = _Draft(part, stage, results)
    outputs = draft.forward_outputs()
    program = Graph(draft.inputs(), outputs.values(), (), f"{draft.graph.name}_{stage}", output_names=outputs)
    return Stage(program, None, draft.ports_in(), draft.ports_out(), (), (), tuple(draft.results), {}, (), False)


def training_stage(
    part: Partition, stage: int, results: Mapping[str, Value], trained: Sequence[TrainedParameter]
) -> Stage:
    """The programs of one stage of a training graph, whose first output is the loss."""
    draft = _Draft(part, stage, results)
    flowing = differentiated(part, trained)
    loss = part.graph.outputs[0]
    makes_loss = part.home(loss) == stage
    gradients_in = _gradient_ports(draft.ports_out(), flowing, part.graph)
    gradients_out = _gradient_ports(draft.ports_in(), flowing, part.graph)
    own = [t for t in trained if part.owner_of[t.value] == stage or stage in learners(part, t, flowing)]
    joint = _Joint(draft, makes_loss, gradients_in, gradients_out, own)
    forward, backward, saved, kept = joint.cut()
    return Stage(
        forward, backward, draft.ports_in(), draft.ports_out(), gradients_in, gradients_out,
        tuple(draft.results), saved, kept, makes_loss,
    )  # fmt: skip


def differentiated(part: Partition, trained: Sequence[TrainedParameter]) -> frozenset[Value]:
    """The values between stages whose gradients are wanted: the loss depends on them, and they on what is trained."""
    active = {t.value for t in trained}
    for node in part.graph.nodes:
        if any(v in active for v in node.operands):
            active.update(node.outputs)
    found = reached([part.graph.outputs[0]])
    return frozenset(v for v in part.crossings if v in active and v in found)


def learners(part: Partition, parameter: TrainedParameter, flowing: frozenset[Value]) -> tuple[int, ...]:
    """The stages that have gradients of a parameter which another one owns. flowing: as `differentiated` says."""
    ending = {part.home(part.graph.outputs[0]), *(part.home(v) for v in flowing)}
    return tuple(stage for stage in part.copies.get(parameter.value, ()) if stage in ending)


def _gradient_ports(ports: Sequence[Port], flowing: frozenset[Value], graph: Graph) -> tuple[Port, ...]:
    made = []
    for port in ports:
        if values := [v for v in port.values if v in flowing]:
            names = tuple(f"gradient/{graph.name_of(v)}/{port.stage}" for v in values)
            made.append(Port(port.stage, names, tuple(values)))
    return tuple(made)


class _Joint:
    """Forward and backward of a stage in one graph, to be cut in two."""

    def __init__(
        self, draft: _Draft, makes_loss: bool, gradients_in: Sequence[Port], gradients_out: Sequence[Port],
        own: Sequence[TrainedParameter],
    ):  # fmt: skip
        self.draft = draft
        graph = draft.graph
        self.seeds = {
            n: Value(v.type, n) for port in gradients_in for n, v in zip(port.names, port.values, strict=True)
        }
        outputs = [draft.here(v) for port in gradients_in for v in port.values]
        if makes_loss:
            loss = draft.here(graph.outputs[0])
            self.seeds[LOSS_GRADIENT] = Value(loss.type, LOSS_GRADIENT)
            outputs.append(loss)
        received = [draft.received[v] for port in gradients_out for v in port.values]
        wrt = [*(t.value for t in own), *received]
        self.updates: list[tuple[Value, Value]] = []
        self.weight = Value(TensorType(DType.FLOAT32, ()), BATCH_WEIGHT)
        self.sums = [steps.gradient_sum(t) for t in own]
        self.names = [n for port in gradients_out for n in port.names]
        if wrt and not outputs:
            names = ", ".join(str(v) for v in wrt[:3])
            raise UsageError(f"groups: no gradient flows back to {names}")
        found = gradient(outputs, wrt, list(self.seeds.values()), allow_unused=True) if wrt else []
        self.gradients = found[len(own) :]
        with context.detached():
            for total, grad in zip(self.sums, map(widened, found), strict=False):
                self.updates.append((total, F.add(total, F.mul(grad, cast_like(self.weight, grad)))))

    def cut(self) -> tuple[Graph, Graph | None, Mapping[str, str], tuple[str, ...]]:
        """The forward and the backward program; of what the second reads of the first, the outputs that the first has
        for it, and the names of what it received that is kept.
        """
        draft = self.draft
        outputs = draft.forward_outputs()
        # States stand for the gradients, so that the outputs are those of the forward part.
        places = [Value(g.type, f"{n}/place", role="state") for n, g in zip(self.names, self.gradients, strict=True)]
        joint = Graph(
            [*draft.inputs(), *self.seeds.values(), self.weight, *self.sums, *places],
            outputs.values(),
            [*draft.updates, *self.updates, *zip(places, self.gradients, strict=True)],
            f"{draft.graph.name}_{draft.stage}",
            output_names=outputs,
        )
        count = len(joint.inputs)
        program = recomputation.prepared(joint)
        new = dict(zip(joint.inputs, program.inputs[:count], strict=True))
        updates = dict(program.updates)
        own = [(new[state], updates[new[state]]) for state, _ in draft.updates]
        forward_inputs = [new[v] for v in draft.inputs()] + list(program.inputs[count:])
        if not self.updates and not self.gradients:
            return Graph(forward_inputs, program.outputs, own, joint.name, output_names=outputs), None, {}, ()
        sums = [(new[s], updates[new[s]]) for s in self.sums]
        gradients = [updates[new[p]] for p in places]
        # What is marked is computed again, from what is kept, and so is what only looks at it in another shape.
        before = topological([*program.outputs, *(v for _, v in own)])
        ahead = {n for n in before if n.operands and not is_marked(n) and not getattr(n.op, "views", ())}
        saved = _read_by(ahead, [*(v for _, v in sums), *gradients], {state for state, _ in own})
        stand_ins = {v: Value(v.type, f"saved/{i}") for i, v in enumerate(saved)}
        # What is an output in any case is kept as that.
        there = dict(zip(reversed(program.outputs), reversed(list(outputs)), strict=True))
        further = [v for v in saved if v not in there]
        names = {v.name: there.get(value, v.name) for value, v in stand_ins.items()}
        forward = Graph(
            forward_inputs, [*program.outputs, *further], own, joint.name,
            output_names=[*outputs, *(stand_ins[v].name for v in further)],
        )  # fmt: skip
        seeds = [new[v] for v in (*self.seeds.values(), self.weight)]
        backward = _backward(forward_inputs, ahead, stand_ins, seeds, sums, gradients, self.names, joint.name)
        kept = tuple(v.name for v in backward.inputs if v in {new[r] for r in draft.received.values()})
        return forward, backward, names, kept


def _read_by(ahead: set[Node], roots: Sequence[Value], written: set[Value]) -> list[Value]:
    """What the forward nodes make that the others read, and states that the forward program writes over."""
    stop = [v for n in ahead for v in n.outputs]
    behind = topological(roots, stop=stop)
    read = dict.fromkeys(v for n in behind for v in n.operands)
    read.update(dict.fromkeys(roots))
    return [v for v in read if v in written or (v.node is not None and v.node in ahead)]


def _backward(
    inputs: Sequence[Value], ahead: set[Node], stand_ins: Mapping[Value, Value], seeds: Sequence[Value],
    sums: Sequence[tuple[Value, Value]], gradients: Sequence[Value], names: Sequence[str], name: str,
) -> Graph:  # fmt: skip
    table: dict[Value, Value] = dict(stand_ins)
    roots = [*(v for _, v in sums), *gradients]
    with context.detached():
        for node in topological(roots, stop=[v for n in ahead for v in n.outputs]):
            new = node.rebuilt([None if v is None else table.get(v, v) for v in node.inputs])
            table.update(zip(node.outputs, new.outputs, strict=True))
    updates = [(state, table.get(v, v)) for state, v in sums]
    outputs = [table.get(v, v) for v in gradients]
    read = {v for n in topological([*outputs, *(v for _, v in updates)]) for v in n.operands} | {*outputs}
    # Data are fed in any case: they say what the names of dimensions stand for.
    given = [v for v in inputs if v in read or (v.role == "data" and not v.name.startswith("received/"))]
    return Graph(
        [*given, *stand_ins.values(), *seeds, *(state for state, _ in sums)], outputs, updates, f"{name}_backward",
        output_names=names,
    )  # fmt: skip
