"""If, Loop and Scan as regions of the native program.

A step here owns a block of working memory: the values that it carries from one iteration to the next, and the arenas
of its regions. A node with a step inside that has no native kernel runs by its reference.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from graphkit.errors import TypeMismatch
from graphkit.executor.devices.kernels import VersionedArray
from graphkit.executor.lower.emit import Emitter, Where
from graphkit.executor.lower.loops import LoopStep, NotNative, inner_region, loop_step
from graphkit.executor.lower.region import Region, Settings
from graphkit.ir.graph import Node
from graphkit.ops import Op
from graphkit.passes.core.bind import rebind
from graphkit.passes.core.sweep import run_passes
from graphkit.passes.simplify.cleanup import CLEANUP

ControlStep: TypeAlias = "IfStep | LoopStep"


def control_step(
    node: Node, constants: Mapping[int, VersionedArray], settings: Settings, used: Sequence[bool]
) -> ControlStep | str:
    """The regions that compute a control-flow node; a message when one of them needs Python, empty for other nodes."""
    if node.op.domain or not isinstance(node.op, Op) or node.op.name not in ("If", "Loop", "Scan"):
        return ""
    try:
        if node.op.name == "If":
            return _if_step(node, constants, settings, used)
        return loop_step(node, constants, settings, used)
    except NotNative as reason:
        return str(reason)


@dataclass
class IfStep:
    """The branches then and else. Only one of them runs, so that their arenas share the block.

    Types may rule one out, which fails when it is taken: that one is a message. The branches return what somebody
    reads, which are the node's outputs at the positions `returned`.
    """

    node: Node
    branches: tuple[Region | str, Region | str]
    returned: tuple[int, ...]

    @property
    def regions(self) -> Mapping[str, Region]:
        """By the part of a step's name that tells which region it is in."""
        named = zip(("then", "else"), self.branches, strict=True)
        return {name: branch for name, branch in named if isinstance(branch, Region)}

    @property
    def scratch_bytes(self) -> int:
        return max(region.layout.arena_bytes for region in self.regions.values())

    def emit(
        self, emitter: Emitter, builder: Any, name: str, inputs: Sequence[Where], outputs: Sequence[Where], base: int
    ) -> None:
        regions = self.regions
        targets = [outputs[i] for i in self.returned]
        for part, branch, inner in zip(("then", "else"), self.branches, builder.branch(name, inputs[0]), strict=True):
            if isinstance(branch, str):
                inner.fail(f"{name}: {branch}")
            else:
                emitter.region(inner, regions[part], base, inputs[1:], targets, prefix=f"{name}/{part}/")


def _if_step(node: Node, constants: Mapping[int, VersionedArray], settings: Settings, used: Sequence[bool]) -> IfStep:
    returned = tuple(i for i, needed in enumerate(used) if needed)
    given = [v.type for v in node.inputs[1:] if v is not None]
    fixed = {i - 1: array for i, array in constants.items() if i > 0}
    op: Any = node.op
    branches: list[Region | str] = []
    for branch in (op.then_branch, op.else_branch):
        try:
            static = rebind(branch, dict(zip(branch.inputs, given, strict=True)))
        except TypeMismatch as error:
            branches.append(str(error))
            continue
        static = static.replace(outputs=[static.outputs[i] for i in returned])
        region = inner_region(run_passes(static, CLEANUP) if settings.optimize else static, fixed, settings)
        for made, declared in zip(region.graph.outputs, (node.outputs[i] for i in returned), strict=True):
            if declared.tensor.is_static and made.type != declared.type:
                raise NotNative(f"a branch returns {made.type} where {declared.type} was inferred")
        branches.append(region)
    return IfStep(node, (branches[0], branches[1]), returned)
