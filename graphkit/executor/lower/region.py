"""A region: one graph of known sizes with its kernels, the order of its steps, and its memory.

The body of a program is a region; so is each branch of an If and each body of a loop that runs natively, whose arena
is working memory of the step that runs it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from graphkit.executor.devices.kernels import (
    KernelContext,
    SizedKernel,
    VersionedArray,
    make_kernel,
    make_sized,
    native_module,
)
from graphkit.executor.lower.interpreted import reference_kernel
from graphkit.executor.memory.donation import awaited, overwritten
from graphkit.executor.memory.placement import Placement, has_fixed_size, place_values
from graphkit.executor.memory.plan_cache import cached_layout, cached_schedule
from graphkit.executor.memory.planner import Request, aligned
from graphkit.executor.memory.schedule import Task
from graphkit.executor.report.plan import KernelKind
from graphkit.ir.declared import Declarations
from graphkit.ir.graph import Graph, Node, Value
from graphkit.ops.tensor.constants import Constant
from graphkit.passes.core.sweep import elements_read

if TYPE_CHECKING:
    from graphkit.executor.lower.emit import Step


class Settings(NamedTuple):
    """How programs are made: the device and the switches of the executor.

    `declared` are shapes that what a run makes is held against.
    """

    device: str
    threads: int
    deterministic: bool
    inplace: bool
    share: bool
    optimize: bool = True
    declared: Declarations | None = None


@dataclass(frozen=True, slots=True)
class Chosen:
    """How one node runs: by a prepared kernel, by a step of the native program, or (both None) as arrays that it makes,
    by the function `make` or by reference.

    `compiled` kernels run inside the native program; others are Python functions of input and output arrays.
    """

    kind: KernelKind
    kernel: Any = None
    compiled: bool = False
    step: Step | None = None
    make: SizedKernel | None = None
    reason: str = ""  # why a node with subgraphs runs by reference

    @property
    def in_python(self) -> bool:
        return not self.compiled and self.step is None

    @property
    def regions(self) -> Mapping[str, Region]:
        return {} if self.step is None else self.step.regions

    @property
    def scratch_bytes(self) -> int:
        if self.step is not None:
            return self.step.scratch_bytes
        return int(self.kernel.scratch_bytes) if self.compiled else 0


class Region:
    """Plans `graph`. `fixed` gives the operands that only change with a version.

    The inputs have static types; those of an `inner` region may have sizes that a run tells.
    """

    def __init__(self, graph: Graph, fixed: Mapping[Value, VersionedArray], settings: Settings, *, inner: bool = False):
        self.graph = graph
        self.inner = inner
        self.fixed = dict(fixed)
        self.fixed.update((node.output, node.op.value) for node in graph.nodes if isinstance(node.op, Constant))
        self.settings = settings
        self.placement: Placement = place_values(graph)
        self.chosen: list[Chosen] = [self._choose(node) for node in self.placement.steps]
        self._arrange()

    def by_reference(self, prefix: str = "") -> Iterator[tuple[str, Node, str]]:
        """Name, node and reason of every step that runs by its reference, also inside subgraphs."""
        for node, chosen in zip(self.placement.steps, self.chosen, strict=True):
            name = prefix + self.graph.node_name(node)
            if chosen.kind == "reference":
                yield name, node, chosen.reason
            for part, inner in chosen.regions.items():
                yield from inner.by_reference(f"{name}/{part}/")

    def _choose(self, node: Node) -> Chosen:
        from graphkit.executor.lower.branches import control_step
        from graphkit.executor.lower.dynamic_shape import ReferenceNode, is_numeric, late_node
        from graphkit.executor.lower.dynamic_values import slot_step

        root = self.placement.root
        constants = {i: self.fixed[root[v]] for i, v in enumerate(node.inputs) if v in root and root[v] in self.fixed}
        context = self._context(constants, node)
        used = context.used_outputs
        static = all(has_fixed_size(v) for v in (*node.inputs, *node.outputs) if v is not None)
        if static:
            kernel = make_kernel(self.settings.device, node, context)
            if kernel is not None:
                return Chosen("native", kernel, compiled=hasattr(kernel, "scratch_bytes"))
        reason = ""
        if self.settings.device == "cpu" and native_module() is not None:
            control = control_step(node, constants, self.settings, used)
            if not isinstance(control, str):
                return Chosen("native", step=control)
            reason = control
            make = None if static or self.inner else make_sized(self.settings.device, node, self._context({}, node))
            if make is not None:
                return Chosen("native", make=make)
            if not static:
                late = slot_step(node) or late_node(node, replace(context, constant_inputs={}), self.settings.declared)
                if late is not None:
                    return Chosen("native", step=late)
            if self.inner and all(is_numeric(v) for v in (*node.operands, *node.outputs)):
                step = ReferenceNode(node, used, self.settings.declared)
                return Chosen("reference", step=step, reason=reason)
        dynamic = any(self.placement.place[v] == "dynamic" for v in node.outputs if v in self.placement.used)
        return Chosen("reference", None if dynamic else reference_kernel(node), reason=reason)

    def _context(self, constants: Mapping[int, VersionedArray], node: Node) -> KernelContext:
        used = tuple(v in self.placement.used for v in node.outputs)
        return KernelContext(self.settings.threads, self.settings.deterministic, constants, used)

    def _arrange(self) -> None:
        """Order the steps and lay out the arena."""
        nodes, root, place, used = self.placement.steps, self.placement.root, self.placement.place, self.placement.used
        written = [v for node in nodes for v in node.outputs if v in used]
        buffer_of = {v: i for i, v in enumerate(written)}
        sizes = [v.tensor.nbytes if place[v] == "arena" else 0 for v in written]
        reads = [[root[v] for v in elements_read(n)] for n in nodes]
        waits = self.placement.waits
        after = [[a for v in n.operands for a in (root[v], *waits.get(v, ()))] for n in nodes]
        permitted = [self._inplace_pairs(node, chosen) for node, chosen in zip(nodes, self.chosen, strict=True)]
        in_place = self.settings.inplace
        self.overwritten = overwritten(self.graph, self.placement, permitted, after) if in_place else {}
        behind = awaited(self.placement, self.overwritten)
        after = [[*before, *behind.get(n, ())] for n, before in zip(nodes, after, strict=True)]
        pairs = [
            tuple((buffer_of[s], buffer_of[t]) for s, t in found if place[s] == "arena" and s in buffer_of)
            for found in permitted
        ]
        tasks = [
            Task(
                tuple(dict.fromkeys(buffer_of[r] for r in operands if r in buffer_of)),
                tuple(buffer_of[v] for v in node.outputs if v in used),
                tuple(buffer_of[a] for a in before if a in buffer_of),
                found if in_place else (),
                aligned(chosen.scratch_bytes),
            )
            for node, operands, before, found, chosen in zip(nodes, reads, after, pairs, self.chosen, strict=True)
        ]
        order = cached_schedule(tasks, [aligned(size) for size in sizes])
        self.order = order.order
        self.plain_lower_bound = order.plain_peak_bytes

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
            for source, target in tasks[index].inplace:
                if source in request_of and last[source] == step and target in request_of:
                    candidates.setdefault(target, []).append(request_of[source])
        self.requests = [Request(sizes[b], first[b], last[b], tuple(candidates.get(b, ()))) for b in in_arena]
        self.request_of = {written[buffer]: i for buffer, i in request_of.items()}
        self.scratch_of: dict[int, int] = {}  # step in `placement.steps` -> its request for working memory
        for step, index in enumerate(self.order):
            if size := self.chosen[index].scratch_bytes:
                self.scratch_of[index] = len(self.requests)
                self.requests.append(Request(size, step, step))
        self.layout = cached_layout(self.requests, inplace=self.settings.inplace, share=self.settings.share)
        kept = {root[r.value] for r in self.placement.results}
        self.releases: dict[int, list[Value]] = {}
        for buffer, value in enumerate(written):
            if place[value] == "dynamic" and value not in kept:
                self.releases.setdefault(touched[buffer], []).append(value)

    def _inplace_pairs(self, node: Node, chosen: Chosen) -> list[tuple[Value, Value]]:
        """(storage read, output) pairs that operator and kernel permit to be the same memory.

        Another operand in the same storage forbids it, unless that one may be overwritten as well and has the
        output's shape: then every element is read where, and before, it is written.
        """
        if chosen.kernel is None:
            return []
        permitted: Sequence[tuple[int, int]] = getattr(chosen.kernel, "inplace", getattr(node.op, "inplace", ()))
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
            if fits and same_width and self.placement.place[storage] in ("arena", "parameter"):
                found.append((storage, output))
        return found
