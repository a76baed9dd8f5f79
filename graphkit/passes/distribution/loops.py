"""Divide a Loop or Scan among ranks: each has a loop of the same number of iterations, with its part of the body."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from graphkit.ir.graph import Graph, Node, Value
from graphkit.ir.types import TensorType
from graphkit.ops.control.loop_state import without_value
from graphkit.ops.control.views import LoopView, repeating
from graphkit.passes.distribution.homes import Homes
from graphkit.passes.distribution.levels import Level, Side


@dataclass
class _LoopPart:
    """The part of a loop on one rank: iteration number and condition, and its states and slices by their index."""

    entry: list[Value]
    states: dict[int, Value] = field(default_factory=dict)
    slices: dict[int, Value] = field(default_factory=dict)


class LoopLevel(Level):
    """The body of a loop that is divided among ranks. Captured and scanned values are sent before the loop begins."""

    def __init__(self, parent: Level, node: Node, homes: Homes, path: str):
        self.view = LoopView.of(node)
        super().__init__(self.view.body, homes, parent.transfers, path)
        self.parent = parent
        self._own: dict[int, _LoopPart] = {}
        self._states = {s.before: i for i, s in enumerate(self.view.states)}
        self._slices = {s.inner: i for i, s in enumerate(self.view.scan_inputs)}
        self._captures = {c.inner: c.outer for c in self.view.captures}

    def own(self, rank: int) -> _LoopPart:
        if rank not in self._own:
            self._own[rank] = _LoopPart([Value(v.type, v.name) for v in self.view.entry])
        return self._own[rank]

    def is_local(self, rank: int, value: Value) -> bool:
        return value in self._captures or value in self._slices or super().is_local(rank, value)

    def make_input(self, side: Side, value: Value) -> Value:
        if value in self._captures:
            return side.capture(self.parent.at(side.rank, self._captures[value]))
        own = self.own(side.rank)
        if (number := self._slices.get(value)) is not None:
            self.parent.at(side.rank, self.view.scan_inputs[number].outer)
            return own.slices.setdefault(number, Value(value.type, value.name))
        if (number := self._states.get(value)) is not None:
            home = self.homes.of[value]
            if home in (None, side.rank):
                return self.add_state(side.rank, number)
            self.transfer(value, home, side.rank)
            return side.table[value]
        return own.entry[list(self.view.entry).index(value)]

    def add_state(self, rank: int, number: int) -> Value:
        """Let a rank carry a state from iteration to iteration. Return the state in the body."""
        state, own = self.view.states[number], self.own(rank)
        if number not in own.states:
            self.parent.at(rank, state.initial)
            own.states[number] = Value(without_value(state.before.type), state.before.name)
            self.side(rank).table[state.before] = own.states[number]
        return own.states[number]

    def outermost_input(self, side: Side, source: Value) -> Value:
        return side.capture(self.parent.outermost_input(self.parent.side(side.rank), source))


def divide_loop(level: Level, node: Node) -> None:
    """Make the loop of each rank."""
    (homes,) = level.homes.inner[node]
    body = LoopLevel(level, node, homes, f"{level.path}{level.graph.node_name(node)}/body/")
    view = body.view
    body.build_nodes()
    for number, state in enumerate(view.states):
        home = homes.of[state.before]
        rank = level.homes.of[state.final] if home is None else home
        if rank is not None:
            body.add_state(rank, number)
    # By rank: the stacked results whose home is this rank, by index, with their slices.
    stacked: dict[int, dict[int, Value]] = {}
    for number, along in enumerate(view.scan_outputs):
        if (rank := level.homes.of[along.outer]) is not None:
            stacked.setdefault(rank, {})[number] = body.at(rank, along.inner)
    ranks = _complete_states(body, stacked)
    lead = {rank: [None if v is None else level.at(rank, v) for v in view.operands[: view.lead]] for rank in ranks}
    lengths: dict[int, tuple[Value, int]] = {}
    for rank in ranks if view.scan_inputs else ():
        if not body.own(rank).slices:
            along = view.scan_inputs[0]
            lengths[rank] = level.value_of_length(rank, along.outer, along.axis % len(along.outer.tensor.known_shape))
    for rank in ranks:
        _build(body, rank, stacked.get(rank, {}), lead[rank], lengths.get(rank))


def _complete_states(body: LoopLevel, stacked: Mapping[int, Mapping[int, Value]]) -> list[int]:
    """Transfer the condition, and the next values of its states, to each rank that has a part of the loop.

    Each transfer may add states to a rank, so this repeats until nothing changes. Returns the ranks.
    """
    view, flags = body.view, body.view.body.outputs[: body.view.flag]
    done: set[tuple[int, Value]] = set()
    while True:
        ranks = sorted(r for r, s in body.sides.items() if s.exchanges or body.own(r).states or r in stacked)
        wanted = [(r, v) for r in ranks for v in (*(view.states[i].after for i in body.own(r).states), *flags)]
        if done.issuperset(wanted):
            return ranks
        for rank, value in wanted:
            body.at(rank, value)
        done.update(wanted)


def _build(
    body: LoopLevel, rank: int, stacked: Mapping[int, Value], lead: Sequence[Value | None],
    length: tuple[Value, int] | None,
) -> None:  # fmt: skip
    """Make the loop of one rank. length: a value and its axis to scan if the rank has no scan inputs, so that a Scan
    runs the right number of iterations.
    """
    view, here, side, own = body.view, body.parent.side(rank), body.side(rank), body.own(rank)
    states, slices, op = sorted(own.states), sorted(own.slices), repeating(view.node)
    chain = [side.start] if side.exchanges else []
    scanned = [here.table[view.scan_inputs[i].outer] for i in slices]
    inner_slices, axes = [own.slices[i] for i in slices], [view.scan_input_places[i] for i in slices]
    if length is not None:
        scanned, axes = [length[0]], [(length[1], view.scan_input_places[0][1])]
        inner_slices = [Value(_slice(length[0].tensor, length[1]), "slice")]
    inner = Graph(
        [*own.entry, *(own.states[i] for i in states), *chain, *inner_slices, *side.captured.values()],
        [
            *(side.table[v] for v in view.body.outputs[: view.flag]),
            *(side.table[view.states[i].after] for i in states), *([side.token] if chain else ()), *stacked.values(),
        ],
        name=view.body.name,
    )  # fmt: skip
    changes: dict[str, Any] = {"body": inner, "captures": len(side.captured)}
    if not view.is_loop:
        places = [view.scan_output_places[i] for i in stacked]
        changes |= {
            "num_scan_inputs": len(scanned),
            "scan_input_axes": [a for a, _ in axes], "scan_input_directions": [d for _, d in axes],
            "scan_output_axes": [a for a, _ in places], "scan_output_directions": [d for _, d in places],
        }  # fmt: skip
    operands = [
        *lead, *(here.table[view.states[i].initial] for i in states), *([here.token] if chain else ()), *scanned,
        *side.captured,
    ]  # fmt: skip
    finals = [view.states[i].final for i in states]
    results = [*finals, *([None] if chain else ()), *(view.scan_outputs[i].outer for i in stacked)]
    names = ["" if v is None else v.name for v in results]
    made = Node(op.replace(**changes), operands, view.node.name, view.node.meta, output_names=names)
    for old, new in zip(results, made.outputs, strict=True):
        if old is None:
            here.token = new
        else:
            here.table[old] = new


def _slice(whole: TensorType, axis: int) -> TensorType:
    shape = whole.known_shape
    return TensorType(whole.dtype, (*shape[:axis], *shape[axis + 1 :]))
