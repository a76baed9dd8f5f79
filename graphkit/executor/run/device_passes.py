"""The passes that transform a graph to operators that a device has kernels for."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from graphkit.executor.devices.loading import native_module
from graphkit.executor.devices.registry import has_factory, is_fusable, runs_whole
from graphkit.executor.lower.lowering import Settings
from graphkit.ir.graph import Node
from graphkit.ir.types import HALVES, DType
from graphkit.ops._base import DOMAIN
from graphkit.passes.core.declare import Step
from graphkit.passes.core.match import is_op
from graphkit.passes.pipeline import array_passes, inference_passes


def device_passes(settings: Settings, precision: str) -> Sequence[Step]:
    """What follows CLEANUP for a device with these settings; nothing where a graph is run as it is."""
    kind = settings.device
    fusable = partial(is_fusable, kind)
    if settings.optimize and settings.native:  # fused operators are made for native kernels
        return inference_passes(precision, partial(runs_whole, kind), _computed_in_float32(), fusable)
    if not settings.optimize or kind == "cpu":
        return ()
    return array_passes(fusable, precision, partial(_stays_whole, kind))


def _stays_whole(kind: str, node: Node) -> bool:
    """Whether a node of a composite operator has a kernel, or may consist of values that no array holds."""
    return has_factory(kind, node.op.domain, node.op.name) or is_op(node, "FakeQuantize", domain=DOMAIN)


def _computed_in_float32() -> frozenset[DType]:
    """The half floats that the processor does not multiply itself."""
    native = native_module()
    return HALVES - {DType.BFLOAT16} if native is not None and native.has_bfloat16() else HALVES
