"""The graphs of a template: the outermost one and its subgraphs, and their memory plan.

The plan is one list of memory requests. The steps of a subgraph are between the begin and the end of their node, so
all values that the node reads or writes are live for the whole node. Requests of a body hold values of one iteration.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from graphkit.errors import GraphkitError
from graphkit.executor.devices.kernel import VersionedArray
from graphkit.executor.lower.loop_layout import check_axes
from graphkit.executor.lower.lowering import NotNative
from graphkit.executor.memory.placement import Placement
from graphkit.executor.memory.plan_graph import MemoryPlan
from graphkit.ir.dims import Dim, assumptions
from graphkit.ir.graph import Graph, Node, Value
from graphkit.named_tuples import NamedTuple
from graphkit.ops.control.views import LoopView
from graphkit.passes.core.sweep import is_control


class Part(NamedTuple):
    """A graph of a template.

    `steps`: for each step of the placement, the number of its kernel, or its subgraphs.
    """

    graph: Graph
    placement: Placement
    known: Mapping[Value, VersionedArray]
    steps: Sequence[int | Branching | Repeating]


class Branching(NamedTuple):
    """An If: its branches, then and else, and the positions of the outputs that are used."""

    parts: Sequence[Part]
    returned: Sequence[int]


class RepeatedState(NamedTuple):
    """A state that changes. `kept`: the number of the stacked slice that holds it; None: two blocks that take turns."""

    operand: int
    before: Value
    output: int
    after: Value
    kept: int | None


class Repeating(NamedTuple):
    """A Loop or a Scan.

    Attributes:
        parts: Its body. The outputs are the condition (if tested), the states that change, and the stacked slices.
        trips: The largest number of iterations; None if it is not known.
        flags: Number of outputs that are a condition.
        unchanged: (operand, output) of the states that do not change.
        stacked: (output, slice, whether it is written from the end).
    """

    parts: Sequence[Part]
    trips: Dim | None
    flags: int
    states: Sequence[RepeatedState]
    unchanged: Sequence[tuple[int, int]]
    stacked: Sequence[tuple[int, Value, bool]]


class Planned(NamedTuple):
    """The memory plan of a part. `blocks`: for each step that is a loop, the number of its first request."""

    plan: MemoryPlan
    first: int
    inner: Mapping[int, Sequence[Planned]]
    blocks: Mapping[int, int]


def all_graphs(graph: Graph) -> Iterator[Graph]:
    """Yield the graph and the subgraphs of its control flow."""
    yield graph
    for node in graph.nodes:
        if is_control(node):
            for subgraph in node.op.subgraphs().values():
                yield from all_graphs(subgraph)


def assumed_sizes(node: Node, symbols: frozenset[str]) -> list[tuple[Dim, Dim]]:
    """Return the pairs of sizes that must be equal so that the node has its types. Raises NotNative."""
    with assumptions() as assumed:
        try:
            inferred = node.op.infer_types([None if v is None else v.type for v in node.inputs])
        except GraphkitError as error:
            raise NotNative(str(error)) from error
    if any(kind != v.type for kind, v in zip(inferred, node.outputs, strict=True)):
        raise NotNative(f"the types of {node.describe()} depend on sizes")
    if any(not getattr(d, "symbols", frozenset()) <= symbols for pair in assumed for d in pair):
        raise NotNative(f"sizes inside {node.describe()} are not known before the run")
    return assumed


def branches_of(node: Node, used: frozenset[Value]) -> tuple[list[Graph], list[int]]:
    """Return the branches of an If with the outputs that are used, and their positions."""
    returned = [i for i, v in enumerate(node.outputs) if v in used]
    found = []
    for branch in node.op.subgraphs().values():
        results = [branch.outputs[i] for i in returned]
        if any(r.type != node.outputs[i].type for r, i in zip(results, returned, strict=True)):
            raise NotNative(f"the branches of {node.describe()} have results of different sizes")
        found.append(branch.replace(outputs=results))
    return found, returned


def loop_of(node: Node, used: frozenset[Value]) -> tuple[Graph, Repeating]:
    """Return the body of a loop with the outputs that are used, and its description without parts."""
    view = LoopView.of(node)
    check_axes(view)
    lead, count = view.flag, view.state_count
    numbers = [i for i in range(count, len(node.outputs)) if node.outputs[i] in used]
    rows = [view.body.outputs[lead + i] for i in numbers]
    states: list[RepeatedState] = []
    unchanged: list[tuple[int, int]] = []
    free = [*rows]
    for i, state in enumerate(view.states):
        if state.before is state.after:
            unchanged.append((view.lead + i, i))
            continue
        kept = None
        if state.after in free:
            kept = rows.index(state.after)
            free.remove(state.after)
        states.append(RepeatedState(view.lead + i, state.before, i, state.after, kept))
    flags = [v for v in view.body.outputs[:lead] if v is not view.body.inputs[1] and v.tensor.constants != (1,)]
    body = view.body.replace(outputs=[*flags, *(s.after for s in states), *rows])
    places = view.scan_output_places
    stacked = [(i, row, bool(places[i - count][1])) for i, row in zip(numbers, rows, strict=True)]
    return body, Repeating((), _largest_trips(view), len(flags), states, unchanged, stacked)


def _largest_trips(view: LoopView) -> Dim | None:
    along = [*view.scan_inputs, *(() if view.scan_inputs else view.scan_outputs)]
    if along:
        return along[0].outer.tensor.known_shape[0]
    limit = next(iter(view.operands), None) if view.is_loop else None
    constants = None if limit is None else limit.tensor.constants
    return None if constants is None else max(int(constants[0]), 0)


class Flattened:
    """The memory plan of a template: the plans of its parts as one.

    Args:
        plan: Returns the plan of a part.
        bytes_of: Returns the position of the bytes of a value, or of a number of bytes, in the table of sizes.

    Attributes:
        order: The kernels, in the order of the program.
        requests: (first, last, requests whose memory it may reuse).
        sizes: The size of each request; see `SizedPrograms.at`.
    """

    def __init__(self, plan: Callable[[Part], MemoryPlan], bytes_of: Callable[[Value | int], int]):
        self._plan, self._bytes_of = plan, bytes_of
        self.order: list[int] = []
        self.requests: list[tuple[int, int, list[int]]] = []
        self.sizes: list[int] = []
        self._now = 0

    def add(self, part: Part) -> Planned:
        """Append the steps and the requests of a part."""
        plan, first = self._plan(part), len(self.requests)
        values = {request: self._bytes_of(value) for value, request in plan.request_of.items()}
        values |= {request: -1 - _kernel(part, index) for index, request in plan.scratch_of.items()}
        self.sizes += [values.get(number, 0) for number in range(len(plan.requests))]
        self.requests += [(0, 0, [])] * len(plan.requests)
        begins, ends = [], []
        inner: dict[int, Sequence[Planned]] = {}
        blocks: dict[int, int] = {}
        for index in plan.order:
            step = part.steps[index]
            begins.append(self._now)
            self._now += 1
            if isinstance(step, int):
                self.order.append(step)
            else:
                blocks[index] = len(self.requests)
                taken = [] if isinstance(step, Branching) else self._blocks(part.placement.steps[index], step)
                self.sizes += taken
                self.requests += [(0, 0, [])] * len(taken)
                inner[index] = [self.add(each) for each in step.parts]
                for number in range(blocks[index], blocks[index] + len(taken)):
                    self.requests[number] = (begins[-1], self._now, [])
                self._now += 1
            ends.append(self._now - 1)
        for number, r in enumerate(plan.requests):
            self.requests[first + number] = (begins[r.first], ends[r.last], [first + i for i in r.inplace])
        return Planned(plan, first, inner, blocks)

    def _blocks(self, node: Node, step: Repeating) -> list[int]:
        """Return the sizes of a Loop's iteration number and conditions, then of both blocks of states that have two."""
        head = [8, 1, 1] if LoopView.of(node).is_loop else []
        turns = [self._bytes_of(s.before) for s in step.states if s.kept is None for _ in range(2)]
        return [*map(self._bytes_of, head), *turns]


def _kernel(part: Part, index: int) -> int:
    step = part.steps[index]
    assert isinstance(step, int), "only kernels have working memory"
    return step
