"""Lower an If to two subgraphs of a native program, or to kernels on device arrays.

On a device, the host reads the condition, or a recording contains both branches.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from graphkit.errors import RuntimeFailure
from graphkit.executor.devices.bound_steps import BoundStep, Choice, Conditional, Recorded
from graphkit.executor.devices.device import Device
from graphkit.executor.lower.arrays.body import ArrayBody, InstanceContext, SubgraphKernel, SubgraphStep
from graphkit.executor.lower.lowering import Emission, LoweredGraph, NotNative, Site
from graphkit.executor.memory.placement import has_fixed_size
from graphkit.ir.graph import Graph, Node
from graphkit.passes.core.sweep import is_control

PARTS = ("then", "else")


class Branch(SubgraphStep):
    """The branches of an If.

    Args:
        refused: Why branches could not be specialised, by key. A run that takes such a branch fails.
    """

    def __init__(
        self,
        node: Node,
        lowered: Mapping[str, LoweredGraph],
        refused: Mapping[str, str],
        returned: Sequence[int],
        *,
        native: bool,
    ):
        self.node, self.refused, self.returned = node, refused, returned
        self.subgraphs = lowered
        # Only one branch runs: the arenas share the working memory.
        self.scratch_bytes = max((graph.memory.layout.arena_bytes for graph in lowered.values()), default=0)
        self.executed_steps = 1 + sum(graph.executed_steps for graph in lowered.values())
        if native:
            read = {i + 1 for graph in lowered.values() for i in graph.inputs_read}
            self.unread = set(range(1, len(node.inputs))) - read

    def emit(self, step: Emission) -> None:
        _, base = step.scratch
        targets = [step.outputs[i] for i in self.returned]
        for part, builder in zip(PARTS, step.builder.branch(step.name, step.inputs[0]), strict=True):
            graph = self.subgraphs.get(part)
            if graph is None:
                builder.fail(f"{step.name}/{part}: {self.refused[part]}")
            else:
                step.writer.graph(builder, graph, base, step.inputs[1:], targets, prefix=f"{step.name}/{part}/")

    def prepared(self, device: Device, context: InstanceContext) -> PreparedBranch:
        bodies = {part: ArrayBody(device, graph, context) for part, graph in self.subgraphs.items()}
        # `context.conditions` comes last: its first call may be slow.
        can_be_recorded = not self.refused and all(body.can_be_recorded for body in bodies.values())
        if can_be_recorded and context.conditions:
            return RecordedBranch(device, self, bodies)
        return PreparedBranch(device, self, bodies)

    @property
    def host_reason(self) -> str:
        refused = (f"its {part} branch fails: {why}" for part, why in self.refused.items())
        return next(refused, super().host_reason)


class PreparedBranch(SubgraphKernel):
    can_be_recorded = repeats = False
    host_reads = True
    launches = 1

    def __init__(self, device: Device, branch: Branch, bodies: Mapping[str, ArrayBody]):
        self._device, self._branch, self._bodies = device, branch, bodies

    def steps(self, inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Iterator[BoundStep]:
        part = PARTS[0 if self._device.copy_out(inputs[0], None).any() else 1]
        if (why := self._branch.refused.get(part)) is not None:
            raise RuntimeFailure(f"{self._branch.node.describe()}: its {part} branch cannot be computed: {why}")
        return self._steps_of(part, inputs, outputs, scratch)

    def _steps_of(self, part: str, inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Iterator[BoundStep]:
        results = [outputs[i] for i in self._branch.returned]
        return self._bodies[part].steps(scratch, inputs[1:], results)


class RecordedBranch(PreparedBranch, Conditional):
    """The kernel of a Branch: recordings contain both branches, and the device reads the condition."""

    can_be_recorded = True

    def __init__(self, device: Device, branch: Branch, bodies: Mapping[str, ArrayBody]):
        super().__init__(device, branch, bodies)
        self.launches = 3 + sum(body.launches for body in bodies.values())
        self.repeats = any(body.repeats for body in bodies.values())

    def recorded(self, inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Iterator[Recorded]:
        then, otherwise = ([*self._steps_of(part, inputs, outputs, scratch)] for part in PARTS)
        yield Choice(inputs[0], then, otherwise)


def branch(site: Site) -> Branch | None:
    """Return the lowering of an If, or None for another node.

    Raises NotNative if a branch cannot be lowered, or returns another type than inferred. On devices, also raises it
    for unknown sizes.
    """
    node, native = site.node, site.settings.native
    if not is_control(node) or node.op.name != "If":
        return None
    if not native and not all(has_fixed_size(v) for v in (*node.operands, *node.outputs)):
        raise NotNative("data-dependent shapes")
    returned = tuple(i for i, needed in enumerate(site.context.used_outputs) if needed)
    arrays = {i - 1: array for i, array in site.context.constant_inputs.items() if i > 0}
    lowered: dict[str, LoweredGraph] = {}
    refused: dict[str, str] = {}
    for part in PARTS:
        attribute = f"{part}_branch"
        if (why := site.unspecialised.get((node, attribute))) is not None:
            refused[part] = why
            continue
        subgraph: Graph = getattr(node.op, attribute)
        made = site.lower(subgraph.replace(outputs=[subgraph.outputs[i] for i in returned]), arrays)
        for result, declared in zip(made.graph.outputs, (node.outputs[i] for i in returned), strict=True):
            if declared.tensor.is_static and result.type != declared.type:
                raise NotNative(f"a branch returns {result.type}, but {declared.type} was inferred")
        lowered[part] = made
    return Branch(node, lowered, refused, returned, native=native)
