"""An If on devices with arrays of their own: the host looks at the condition, and runs the steps of one branch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from graphkit.errors import RuntimeFailure
from graphkit.executor.devices.device import BoundStep, Device
from graphkit.executor.lower.arrays.body import ArrayBody, SubgraphKernel, SubgraphStep
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

    def prepared(self, device: Device, faults: Iterator[Any]) -> PreparedBranch:
        return PreparedBranch(device, self, faults)


class PreparedBranch(SubgraphKernel):
    """An ArrayBranch on a device."""

    can_be_recorded = False  # the condition is looked at
    launches = 1

    def __init__(self, device: Device, branch: ArrayBranch, faults: Iterator[Any]):
        self._device, self._branch = device, branch
        self._bodies = {part: ArrayBody(device, graph, faults) for part, graph in branch.subgraphs.items()}

    def steps(self, inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Iterator[BoundStep]:
        """See SubgraphKernel."""
        part = PARTS[0 if self._device.copy_out(inputs[0], None).any() else 1]
        if (why := self._branch.branches.refused.get(part)) is not None:
            raise RuntimeFailure(f"{self._branch.node.describe()}: {why}")
        results = [outputs[i] for i in self._branch.branches.returned]
        yield from self._bodies[part].steps(scratch, inputs[1:], results)


def array_branch(site: Site) -> ArrayBranch | None:
    """An If all of whose sizes are known."""
    node = site.node
    if not is_control(node) or node.op.name != "If":
        return None
    if not all(has_fixed_size(v) for v in (*node.operands, *node.outputs)):
        raise NotNative("sizes that a run tells")
    return ArrayBranch(node, branches_of(site))
