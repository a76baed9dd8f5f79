"""A program: one graph of known sizes with its kernels, its order of steps, its memory, ready to run many times.

All of a step's operands are prepared arrays on the arena; a run fills in only what changes from run to run
(inputs, results, arrays of data-dependent size) and then calls one kernel after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from graphkit.errors import GraphkitError, RuntimeFailure
from graphkit.executor.kernels import Kernel, KernelContext, VersionedArray, make_kernel
from graphkit.executor.memory import ALIGNMENT, Request, aligned, plan_memory
from graphkit.executor.placement import Placement, has_fixed_size, place_values, read_positions
from graphkit.executor.plan import KernelKind, Operand, Plan, PlanStep
from graphkit.executor.reference import reference_kernel
from graphkit.executor.schedule import Task, schedule
from graphkit.ir.graph import Graph, Node, Value
from graphkit.ir.types import MAX_KNOWN_ELEMENTS, DType, TensorType
from graphkit.ops.constants import Constant
from graphkit.ops.evaluate import run_node

# Instances that wait for the next run; a burst of more concurrent runs makes more and lets them go.
IDLE_INSTANCES = 4


class Settings(NamedTuple):
    """How programs are made: the device and the switches of the executor."""

    device: str
    threads: int
    deterministic: bool
    inplace: bool
    share: bool


class Program:
    """Runs `graph`, whose inputs have static types. `fixed` gives the operands that only change with a version."""

    def __init__(self, graph: Graph, fixed: Mapping[Value, VersionedArray], settings: Settings):
        self.graph = graph
        self.placement: Placement = place_values(graph)
        self._settings = settings
        self._idle: list[_Instance] = []
        nodes = self.placement.steps
        self.kernels: list[tuple[KernelKind, Kernel | None]] = [self._kernel(node, fixed) for node in nodes]
        self._arrange()

    def _kernel(self, node: Node, fixed: Mapping[Value, VersionedArray]) -> tuple[KernelKind, Kernel | None]:
        """The node's kernel; None for one that makes arrays of unknown size."""
        placement = self.placement
        used = tuple(v in placement.used for v in node.outputs)
        if all(has_fixed_size(v) for v in (*node.inputs, *node.outputs) if v is not None):
            constants = {i: fixed[v] for i, v in enumerate(node.inputs) if v is not None and v in fixed}
            context = KernelContext(self._settings.threads, self._settings.deterministic, constants, used)
            kernel = make_kernel(self._settings.device, node, context)
            if kernel is not None:
                return "native", kernel
        dynamic = any(placement.place[v] == "dynamic" for v in node.outputs)
        return "reference", None if dynamic else reference_kernel(node)

    def _arrange(self) -> None:
        """Order the steps and lay out the arena."""
        nodes, root, place, used = self.placement.steps, self.placement.root, self.placement.place, self.placement.used
        written = [v for node in nodes for v in node.outputs if v in used]
        buffer_of = {v: i for i, v in enumerate(written)}
        sizes = [v.tensor.nbytes if place[v] == "arena" else 0 for v in written]
        reads = [[root[v] for i in read_positions(n) if (v := n.inputs[i]) is not None] for n in nodes]
        tasks = [
            Task(
                tuple(dict.fromkeys(buffer_of[r] for r in operands if r in buffer_of)),
                tuple(buffer_of[v] for v in node.outputs if v in used),
                tuple(buffer_of[root[v]] for v in node.inputs if v is not None and root[v] in buffer_of),
            )
            for node, operands in zip(nodes, reads, strict=True)
        ]
        chosen = schedule(tasks, [aligned(size) for size in sizes])
        self.order = chosen.order
        self.plain_lower_bound = chosen.plain_peak_bytes

        first = [0] * len(written)
        last = [0] * len(written)
        touched = [0] * len(written)  # the last step that needs the array at all, if only for its shape
        for step, index in enumerate(self.order):
            for buffer in tasks[index].writes:
                first[buffer] = last[buffer] = touched[buffer] = step
            for buffer in tasks[index].reads:
                last[buffer] = step
            for buffer in tasks[index].after:
                touched[buffer] = step
        in_arena = [i for i, v in enumerate(written) if place[v] == "arena"]
        request_of = {buffer: i for i, buffer in enumerate(in_arena)}
        candidates: dict[int, list[int]] = {}
        for step, index in enumerate(self.order):
            for source, target in self._inplace_pairs(nodes[index], self.kernels[index][1]):
                buffer = buffer_of[source]
                if buffer in request_of and last[buffer] == step and buffer_of[target] in request_of:
                    candidates.setdefault(buffer_of[target], []).append(request_of[buffer])
        self.requests = [Request(sizes[b], first[b], last[b], tuple(candidates.get(b, ()))) for b in in_arena]
        self.layout = plan_memory(self.requests, inplace=self._settings.inplace, share=self._settings.share)
        self.request_of = {written[buffer]: i for buffer, i in request_of.items()}
        kept = {root[r.value] for r in self.placement.results}
        self._releases: dict[int, list[Value]] = {}
        for buffer, value in enumerate(written):
            if place[value] == "dynamic" and value not in kept:
                self._releases.setdefault(touched[buffer], []).append(value)

    def _inplace_pairs(self, node: Node, kernel: Kernel | None) -> list[tuple[Value, Value]]:
        """(storage read, output) pairs that operator and kernel permit to be the same memory.

        Another operand in the same storage forbids it, unless that one may be overwritten as well and has the
        output's shape: then every element is read where, and before, it is written.
        """
        permitted = getattr(kernel, "inplace", getattr(node.op, "inplace", ())) if kernel is not None else ()
        root = self.placement.root
        found: list[tuple[Value, Value]] = []
        for position, index in permitted:
            if position >= len(node.inputs) or index >= len(node.outputs):
                continue
            operand, output = node.inputs[position], node.outputs[index]
            if operand is None or output not in self.placement.used or not has_fixed_size(operand):
                continue
            storage = root[operand]
            beside = [i for i, v in enumerate(node.inputs) if v is not None and root[v] is storage]
            fits = all(
                (i, index) in permitted and node.inputs[i].tensor.shape == output.tensor.shape  # type: ignore[union-attr]
                for i in beside
            )
            same_width = operand.dtype.itemsize == output.dtype.itemsize
            if fits and same_width and self.placement.place[storage] == "arena":
                found.append((storage, output))
        return found

    # --- running ------------------------------------------------------------------------------------

    def run(self, inputs: Sequence[Any], buffers: Mapping[int, np.ndarray]) -> list[Any]:
        """Run once; return the new values of states, then the outputs, all in memory of their own.

        `inputs` has one array per graph input (None: not needed); `buffers` gives C-contiguous memory for results
        by position, where the result is `owned`. Safe to call from several threads.
        """
        try:
            instance = self._idle.pop()
        except IndexError:
            instance = _Instance(self)
        results = instance.run(inputs, buffers)
        # An instance whose run failed is left to the garbage collector: it may hold somebody's arrays.
        if len(self._idle) < IDLE_INSTANCES:
            self._idle.append(instance)
        return results

    # --- description --------------------------------------------------------------------------------

    @cached_property
    def fallbacks(self) -> tuple[str, ...]:
        """Nodes that run by reference, shape arithmetic left out, as "name (Op)"."""
        slow = [
            node
            for node, (kind, _) in zip(self.placement.steps, self.kernels, strict=True)
            if kind == "reference" and not _is_shape_arithmetic(node)
        ]
        return tuple(f"{self.graph.node_name(n)} ({n.op.name})" for n in slow)

    @cached_property
    def plan(self) -> Plan:
        """The readable plan: the steps in their order, with views and constants where they are used first."""
        nodes = self.placement.steps
        kinds: dict[Node, KernelKind] = {n: kind for n, (kind, _) in zip(nodes, self.kernels, strict=True)}
        live = self._live_bytes()
        peak_step = self.layout.peak_step
        steps: list[PlanStep] = []
        shown: set[Node] = set()

        def show(node: Node, live_bytes: int) -> None:
            for operand in node.inputs:
                source = None if operand is None else operand.node
                if source is not None and source not in shown and source not in kinds:
                    show_idle(source)
            shown.add(node)
            kind: KernelKind = kinds.get(node, "constant" if isinstance(node.op, Constant) else "view")
            steps.append(self._plan_step(node, kind, live_bytes))

        def show_idle(node: Node) -> None:
            chain = [node]
            while chain:
                ahead = [v.node for v in chain[-1].inputs if v is not None and v.node is not None]
                ahead = [n for n in ahead if n not in shown and n not in kinds]
                if ahead:
                    chain.append(ahead[0])
                    continue
                done = chain.pop()
                if done not in shown:
                    shown.add(done)
                    steps.append(self._plan_step(done, "constant" if isinstance(done.op, Constant) else "view", 0))

        for step, index in enumerate(self.order):
            show(nodes[index], live[step])
        for node in self.graph.nodes:
            if node not in shown:
                show_idle(node)
        place = self.placement.place
        return Plan(
            steps=tuple(steps),
            arena_bytes=self.layout.arena_bytes,
            lower_bound=self.layout.lower_bound,
            plain_lower_bound=self.plain_lower_bound,
            naive_bytes=self.layout.naive_bytes,
            inplace_count=self.layout.inplace_count,
            parameter_bytes=sum(_bytes(v) for v in self.graph.inputs if place[v] == "parameter"),
            constant_bytes=sum(_bytes(v) for v, p in place.items() if p == "constant"),
            result_bytes=sum(_bytes(r.value) for r in self.placement.results),
            peak_node=self.graph.node_name(nodes[self.order[peak_step]]) if self.requests else "",
        )

    def _live_bytes(self) -> list[int]:
        changes = [0] * (len(self.order) + 1)
        for i, request in enumerate(self.requests):
            changes[request.first] += aligned(request.size)
            handed_on = any(
                request.last == other.first and i in other.inplace and self.layout.offsets[i] == self.layout.offsets[j]
                for j, other in self._writers_at(request.last)
            )
            changes[request.last if handed_on else request.last + 1] -= aligned(request.size)
        live = 0
        return [live := live + change for change in changes]

    def _writers_at(self, step: int) -> list[tuple[int, Request]]:
        node = self.placement.steps[self.order[step]]
        return [(j, self.requests[j]) for v in node.outputs if (j := self.request_of.get(v)) is not None]

    def _plan_step(self, node: Node, kind: KernelKind, live_bytes: int) -> PlanStep:
        domain = f"{node.op.domain}." if node.op.domain else ""
        outputs = [v for v in node.outputs if v in self.placement.used]
        inplace = kind not in ("view", "constant") and any(
            self._offset(v) is not None
            and any(self.layout.offsets[s] == self._offset(v) for s in self.requests[self.request_of[v]].inplace)
            for v in outputs
            if _bytes(v)
        )
        return PlanStep(
            self.graph.node_name(node),
            domain + node.op.name,
            kind,
            tuple(self._operand(v) for v in node.inputs),
            tuple(self._operand(v) if v in self.placement.used else None for v in node.outputs),
            live_bytes,
            inplace,
        )

    def _offset(self, value: Value) -> int | None:
        request = self.request_of.get(self.placement.root[value])
        return None if request is None else self.layout.offsets[request]

    def _operand(self, value: Value | None) -> Operand | None:
        if value is None:
            return None
        place = self.placement.place[self.placement.root[value]]
        return Operand(self.graph.name_of(value), str(value.type), place, self._offset(value), _bytes(value))


class _Slot(NamedTuple):
    """A place in a step's operand list that is filled at run time; `view` reshapes what the storage holds."""

    operands: list[Any]
    position: int
    view: TensorType | None


class _Instance:
    """One arena and the operand lists on it: what one run at a time uses."""

    def __init__(self, program: Program):
        placement = program.placement
        self.arena = _aligned_bytes(program.layout.arena_bytes)
        self.slots: dict[Value, list[_Slot]] = {}
        self._program = program
        self._inputs: list[Any] = [None] * len(program.graph.inputs)
        self.steps: list[tuple[Callable[[Any, Any], None], list[Any], list[Any], Node]] = []
        self.finals: list[Any] = [None] * len(placement.results)
        for step, index in enumerate(program.order):
            node = placement.steps[index]
            kernel = program.kernels[index][1]
            ins = self._bound(node.inputs)
            outs = self._bound([v if v in placement.used else None for v in node.outputs]) if kernel is not None else []
            self.steps.append((kernel if kernel is not None else self._dynamic(node), ins, outs, node))
            for value in program._releases.get(step, ()):
                self.steps.append((_release, self.slots.setdefault(value, []), [], node))
        for position, result in enumerate(placement.results):
            self._bind(self.finals, position, result.value)
        self._owners = [(i, placement.root[r.value]) for i, r in enumerate(placement.results) if r.owned]
        # States change after the run: no reference to their old arrays may stay behind.
        pure = not program.graph.updates
        keep = {v for v in program.graph.inputs if pure and placement.place[v] == "parameter"}
        self._forget = [slots for value, slots in self.slots.items() if value not in keep]
        self._kept = [v in keep for v in program.graph.inputs]

    def _bound(self, values: Sequence[Value | None]) -> list[Any]:
        operands: list[Any] = [None] * len(values)
        for position, value in enumerate(values):
            if value is not None:
                self._bind(operands, position, value)
        return operands

    def _bind(self, operands: list[Any], position: int, value: Value) -> None:
        """Put the array of `value` into `operands`, now or (as a slot) in every run."""
        program = self._program
        storage = program.placement.root[value]
        place = program.placement.place[storage]
        if place == "arena":
            offset = program.layout.offsets[program.request_of[storage]]
            kind = value.tensor
            operands[position] = np.ndarray(kind.static_shape, kind.dtype.numpy, self.arena, offset)
        elif place == "constant":
            operator: Any = storage.node.op  # type: ignore[union-attr]
            operands[position] = _shaped(operator.value.array, None if value is storage else value.tensor)
        else:
            slot = _Slot(operands, position, None if value is storage else value.tensor)
            self.slots.setdefault(storage, []).append(slot)

    def _dynamic(self, node: Node) -> Callable[[Any, Any], None]:
        """A step whose results are arrays that it makes: they go to whoever reads them."""
        targets = [self.slots.setdefault(v, []) for v in node.outputs]

        def run(inputs: Sequence[Any], _: Any) -> None:
            for slots, result in zip(targets, run_node(node, inputs), strict=True):
                if isinstance(result, np.ndarray):
                    result = np.asarray(result, order="C")
                for slot in slots:
                    slot.operands[slot.position] = result

        return run

    def run(self, inputs: Sequence[Any], buffers: Mapping[int, np.ndarray]) -> list[Any]:
        for position, value in enumerate(self._program.graph.inputs):
            given = inputs[position]
            if given is self._inputs[position]:
                continue
            if self._kept[position]:
                self._inputs[position] = given
            _fill(self.slots.get(value, ()), given)
        for position, storage in self._owners:
            kind = storage.tensor
            buffer = buffers.get(position)
            memory = np.empty(kind.static_shape, kind.dtype.numpy) if buffer is None else _shaped(buffer, kind)
            _fill(self.slots[storage], memory)
        node = None
        try:
            for kernel, ins, outs, node in self.steps:  # noqa: B007 (read by the handler)
                kernel(ins, outs)
        except GraphkitError:
            raise
        except Exception as error:
            named = node.describe() if node is not None else "run"
            raise RuntimeFailure(f"{named}: {type(error).__name__}: {error}") from error
        results = [
            array if result.owned else _copied(array)
            for array, result in zip(self.finals, self._program.placement.results, strict=True)
        ]
        for slots in self._forget:
            _release(slots, ())
        return results


def _fill(slots: Sequence[_Slot], array: Any) -> None:
    for operands, position, view in slots:
        operands[position] = array if view is None else _shaped(array, view)


def _release(slots: Sequence[_Slot], _: Any) -> None:
    for operands, position, _view in slots:
        operands[position] = None


def _shaped(array: np.ndarray, kind: TensorType | None) -> np.ndarray:
    """The bytes of a C-contiguous array as another type; no copy."""
    if kind is None:
        return array
    wanted = kind.dtype.numpy
    if array.dtype != wanted:
        array = array.reshape(-1).view(wanted)
    return array if array.shape == kind.shape else array.reshape(kind.static_shape)


def _copied(result: Any) -> Any:
    """An array, or a sequence of arrays, that shares no memory with anything."""
    if isinstance(result, np.ndarray):
        return result.copy()
    return [_copied(item) for item in result] if isinstance(result, (list, tuple)) else result


def _aligned_bytes(size: int) -> np.ndarray:
    """Uninitialised memory that starts at a multiple of ALIGNMENT."""
    raw = np.empty(size + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + max(size, 1)]


def _bytes(value: Value) -> int:
    return aligned(value.tensor.nbytes) if has_fixed_size(value) else 0


def _is_shape_arithmetic(node: Node) -> bool:
    """Whether all results are small integer tensors: work that follows shapes, not data."""
    return all(
        isinstance(v.type, TensorType)
        and (v.type.dtype.is_integer or v.type.dtype is DType.BOOL)
        and v.type.is_static
        and v.type.nbytes <= MAX_KNOWN_ELEMENTS * v.type.dtype.itemsize
        for v in node.outputs
    )
