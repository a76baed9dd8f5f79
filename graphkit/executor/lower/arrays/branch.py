"""An If on devices with arrays of their own.

The host looks at the condition, and runs the steps of one branch; recordings have both, where the device takes it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from graphkit.errors import RuntimeFailure
from graphkit.executor.devices.bound_steps import BoundStep, Choice, Conditional, Recorded
from graphkit.executor.devices.device import Device
from graphkit.executor.lower.arrays.body import ArrayBody, Common, SubgraphKernel, SubgraphStep
from graphkit.executor.lower.branch import PARTS, Branches, branches_of
from graphkit.executor.lower.lowering import LoweredGraph, NotNative, Site
from graphkit.executor.memory.placement import has_fixed_size
from graphkit.ir.graph import Node
from graphkit.passes.core.sweep import is_control


class ArrayBranch(SubgraphStep):
    """The branches of an If; see Branches."""

    def __init__(self, node: Node, branches: Branches):
        super().__init__()
        self.node, self.branches = node, branches
        self.subgraphs: Mapping[str, LoweredGraph] = branches.lowered
        self.scratch_bytes = branches.arena_bytes

    def prepared(self, device: Device, common: Common) -> PreparedBranch:
        bodies = {part: ArrayBody(device, graph, common) for part, graph in self.subgraphs.items()}
        # The device is asked last, which the first one to ask takes some time for.
        can_be_recorded = not self.branches.refused and all(body.can_be_recorded for body in bodies.values())
        if can_be_recorded and common.conditions:
            return RecordedBranch(device, self, bodies)
        return PreparedBranch(device, self, bodies)

    @property
    def looks_because(self) -> str:
        """See SubgraphStep."""
        refused = (f"its {part} branch fails: {why}" for part, why in self.branches.refused.items())
        return next(refused, super().looks_because)


class PreparedBranch(SubgraphKernel):
    """An ArrayBranch on a device: the host looks at the condition."""

    can_be_recorded = repeats = False
    looks = True
    launches = 1

    def __init__(self, device: Device, branch: ArrayBranch, bodies: Mapping[str, ArrayBody]):
        self._device, self._branch, self._bodies = device, branch, bodies

    def steps(self, inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Iterator[BoundStep]:
        """See SubgraphKernel."""
        part = PARTS[0 if self._device.copy_out(inputs[0], None).any() else 1]
        if (why := self._branch.branches.refused.get(part)) is not None:
            raise RuntimeFailure(f"{self._branch.node.describe()}: its {part} branch cannot be computed: {why}")
        return self._steps_of(part, inputs, outputs, scratch)

    def _steps_of(self, part: str, inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Iterator[BoundStep]:
        results = [outputs[i] for i in self._branch.branches.returned]
        return self._bodies[part].steps(scratch, inputs[1:], results)


class RecordedBranch(PreparedBranch, Conditional):
    """The same, with the steps of both branches in recordings."""

    can_be_recorded = True

    def __init__(self, device: Device, branch: ArrayBranch, bodies: Mapping[str, ArrayBody]):
        super().__init__(device, branch, bodies)
        # A launch that sets the conditions, and a node for each branch.
        self.launches = 3 + sum(body.launches for body in bodies.values())
        self.repeats = any(body.repeats for body in bodies.values())

    def recorded(self, inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Iterator[Recorded]:
        """See Conditional."""
        then, otherwise = ([*self._steps_of(part, inputs, outputs, scratch)] for part in PARTS)
        yield Choice(inputs[0], then, otherwise)


def array_branch(site: Site) -> ArrayBranch | None:
    """An If all of whose sizes are known."""
    node = site.node
    if not is_control(node) or node.op.name != "If":
        return None
    if not all(has_fixed_size(v) for v in (*node.operands, *node.outputs)):
        raise NotNative("data-dependent shapes")
    return ArrayBranch(node, branches_of(site))
