"""Make the plan that users read from a lowered graph. Views and constants are listed before their first reader."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from graphkit.executor.lower.arrays.body import SubgraphStep
from graphkit.executor.lower.lowering import KernelKind, LoweredGraph
from graphkit.executor.memory.placement import has_fixed_size
from graphkit.executor.memory.planner import aligned
from graphkit.executor.report.plan import Plan
from graphkit.executor.report.plan_data import Block, Operand, PlanStep
from graphkit.ir.graph import Node, Value
from graphkit.ops.tensor.constants import Constant


def describe(lowered: LoweredGraph) -> Plan:
    """Return the plan of a program, without the steps inside its subgraphs."""
    return _Description(lowered).plan()


class _Description:
    """Collects the steps and blocks of a plan."""

    def __init__(self, lowered: LoweredGraph):
        self._lowered = lowered
        self._memory = lowered.memory
        self._nodes = lowered.placement.steps
        self._kinds: dict[Node, KernelKind] = {node: lowering.kind for node, lowering in lowered.steps}
        self._steps: list[PlanStep] = []
        self._listed: set[Node] = set()
        # Requests that are overwritten in place, and the requests that overwrite them.
        self._overwritten: set[int] = set()
        self._inplace: set[int] = set()
        requests, offsets = self._memory.requests, self._memory.layout.offsets
        for j, request in enumerate(requests):
            for i in request.inplace:
                if request.size and requests[i].size and offsets[i] == offsets[j]:
                    self._overwritten.add(i)
                    self._inplace.add(j)

    def plan(self) -> Plan:
        lowered, memory = self._lowered, self._memory
        scratch = set(memory.scratch_of.values())
        values = self._live_bytes([i for i in range(len(memory.requests)) if i not in scratch])
        working = self._live_bytes(scratch)
        positions: list[int] = []  # for each step of the program, its position in the plan
        for step, index in enumerate(memory.order):
            self._list_step(self._nodes[index], values[step] + working[step])
            positions.append(len(self._steps) - 1)
        for node in lowered.graph.nodes:
            if node not in self._listed:
                self._list_idle(node)
        place = lowered.placement.place
        peak = memory.layout.peak_step
        return Plan(
            steps=tuple(self._steps),
            blocks=self._blocks(positions),
            activation_bytes=max(values),
            scratch_bytes=max(working),
            arena_bytes=memory.layout.arena_bytes,
            lower_bound=memory.layout.lower_bound,
            plain_lower_bound=memory.plain_lower_bound,
            naive_bytes=memory.layout.naive_bytes,
            inplace_count=memory.layout.inplace_count,
            parameter_bytes=sum(_bytes(v) for v in lowered.graph.inputs if place[v] == "parameter"),
            packed_bytes=sum(_packed(lowered).values()),
            constant_bytes=sum(_bytes(v) for v, p in place.items() if p == "constant"),
            host_bytes=sum(_bytes(v) for v, p in place.items() if p == "host"),
            result_bytes=sum(_bytes(r.value) for r in lowered.placement.results),
            peak_node=lowered.graph.node_name(self._nodes[memory.order[peak]]) if memory.requests else "",
            inner_fallbacks=tuple(
                f"{name} ({node.op.name})" for name, node, _ in lowered.interpreted() if node not in self._kinds
            ),
            host_conditions=() if lowered.settings.native else tuple(_host_conditions(lowered)),
            staging_reason=next((found.reason for found in lowered.lowerings if found.kind == "staged"), ""),
        )

    def _list_step(self, node: Node, live_bytes: int) -> None:
        """List a step, after the views and constants that it reads."""
        for operand in node.inputs:
            source = None if operand is None else operand.node
            if source is not None and source not in self._listed and source not in self._kinds:
                self._list_idle(source)
        self._listed.add(node)
        self._steps.append(self._step(node, self._kinds.get(node, _idle_kind(node)), live_bytes))

    def _list_idle(self, node: Node) -> None:
        """List a view or a constant, after the views and constants that it depends on."""
        stack = [node]
        while stack:
            sources = [v.node for v in stack[-1].inputs if v is not None and v.node is not None]
            unlisted = [n for n in sources if n not in self._listed and n not in self._kinds]
            if unlisted:
                stack.append(unlisted[0])
                continue
            top = stack.pop()
            if top not in self._listed:
                self._listed.add(top)
                self._steps.append(self._step(top, _idle_kind(top), 0))

    def _live_bytes(self, requests: Iterable[int]) -> list[int]:
        """Return, for each step, how many bytes of `requests` are live. Overwritten memory counts once."""
        memory = self._memory
        changes = [0] * (len(memory.order) + 1)
        for i in requests:
            request = memory.requests[i]
            changes[request.first] += aligned(request.size)
            changes[request.last if i in self._overwritten else request.last + 1] -= aligned(request.size)
        live = 0
        return [live := live + change for change in changes]

    def _blocks(self, positions: Sequence[int]) -> tuple[Block, ...]:
        """Return the blocks of the arena. positions: for each step of the program, its position in the plan."""
        lowered, memory = self._lowered, self._memory
        names = {request: (lowered.graph.name_of(v), str(v.type)) for v, request in memory.request_of.items()}
        for index, request in memory.scratch_of.items():
            names[request] = lowered.graph.node_name(self._nodes[index]), ""
        scratch = set(memory.scratch_of.values())
        return tuple(
            Block(
                *names[i],
                "scratch" if i in scratch else "value",
                memory.layout.offsets[i],
                aligned(request.size),
                positions[request.first],
                positions[request.last],
                i in self._inplace,
            )
            for i, request in enumerate(memory.requests)
            if request.size
        )

    def _step(self, node: Node, kind: KernelKind, live_bytes: int) -> PlanStep:
        """Return the entry of a node in the plan. live_bytes: in the arena, while the step runs."""
        lowered, memory = self._lowered, self._memory
        domain = f"{node.op.domain}." if node.op.domain else ""
        used = lowered.placement.used
        inplace = any(memory.request_of.get(v) in self._inplace for v in node.outputs)
        return PlanStep(
            lowered.graph.node_name(node),
            domain + node.op.name,
            kind,
            tuple(self._operand(v) for v in node.inputs),
            tuple(self._operand(v) if v in used else None for v in node.outputs),
            live_bytes,
            inplace,
        )

    def _offset(self, value: Value) -> int | None:
        """Return the offset of a value in the arena, or None if it is elsewhere."""
        lowered, memory = self._lowered, self._memory
        return memory.offset(lowered.placement.root[value])

    def _operand(self, value: Value | None) -> Operand | None:
        if value is None:
            return None
        lowered = self._lowered
        place = lowered.placement.place[lowered.placement.root[value]]
        return Operand(lowered.graph.name_of(value), str(value.type), place, self._offset(value), _bytes(value))


def _host_conditions(lowered: LoweredGraph, prefix: str = "") -> Iterator[str]:
    """Yield the branches and loops whose condition the host reads, as "name (Op): reason"."""
    for node, lowering in lowered.steps:
        name = prefix + lowered.graph.node_name(node)
        if isinstance(lowering, SubgraphStep) and (why := lowering.host_reason):
            yield f"{name} ({node.op.name}): {why}"
        for part, inner in lowering.subgraphs.items():
            yield from _host_conditions(inner, f"{name}/{part}/")


def _idle_kind(node: Node) -> KernelKind:
    """Return the kind of a node that is not a step."""
    return "constant" if isinstance(node.op, Constant) else "view"


def _packed(lowered: LoweredGraph) -> dict[tuple[int, str], int]:
    """Return the bytes of every packed array that a kernel reads, also inside subgraphs, by array and layout."""
    found: dict[tuple[int, str], int] = {}
    for node, lowering in lowered.steps:
        for inner in lowering.subgraphs.values():
            found |= _packed(inner)
        kernel = lowering.packing
        for position in kernel.packed_inputs if kernel is not None else ():
            operand = node.inputs[position]
            assert kernel is not None
            assert operand is not None
            array = lowered.fixed[lowered.placement.root[operand]]
            found[id(array), kernel.packed_layout(position)] = aligned(kernel.packed_bytes(position))
    return found


def _bytes(value: Value) -> int:
    """Return the aligned size of a value, or 0 if it is known only in a run."""
    return aligned(value.tensor.nbytes) if has_fixed_size(value) else 0
