"""The passes that rewrite a graph to operators that a device has kernels for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from graphkit.errors import UnsupportedError
from graphkit.executor.devices.loading import native_module
from graphkit.executor.devices.registry import rule_of, runs_whole
from graphkit.executor.lower.lowering import Settings
from graphkit.ir.graph import Graph, Node
from graphkit.ir.types import HALVES, DType
from graphkit.ops._base import DOMAIN
from graphkit.passes.core.declare import Step, deferred
from graphkit.passes.core.match import is_op
from graphkit.passes.pipeline import array_passes, inference_passes

if TYPE_CHECKING:
    from graphkit.executor.devices.groups import AnyDevice, GroupDevices
    from graphkit.executor.run.backend_calls import BackendCalls
    from graphkit.passes.distribution.backends import Decision


def device_passes(settings: Settings, precision: str) -> Sequence[Step]:
    """Return the passes that run after CLEANUP, so that the device has kernels for the operators.

    Empty if the graph is not optimized, or runs without native kernels.
    """
    kind = settings.device
    if settings.optimize and settings.native:  # only native kernels support fused operators
        return _passes_with_native_kernels(kind, precision, _computed_in_float32())
    return () if not settings.optimize or kind == "cpu" else _passes_of_arrays(kind, precision)


@cache
def _passes_with_native_kernels(kind: str, precision: str, halves: frozenset[DType]) -> Sequence[Step]:
    return inference_passes(precision, partial(runs_whole, kind), halves, partial(is_fusable, kind))


@cache
def _passes_of_arrays(kind: str, precision: str) -> Sequence[Step]:
    return array_passes(partial(is_fusable, kind), precision, partial(_stays_whole, kind))


def device_of_groups(device: AnyDevice, graph: Graph) -> str | GroupDevices:
    """Return the name of the device, or the devices of the groups of the graph. Raises as `grouped` does."""
    if isinstance(device, str):
        return device
    from graphkit.executor.devices.groups import grouped
    from graphkit.passes.core.sweep import groups_of

    return grouped(device, groups_of(graph))


def check_on_cpu(backends: Sequence[Any], device: AnyDevice) -> None:
    """Raise UnsupportedError if there are backends, which take arrays in host memory, and another device."""
    if backends and device != "cpu":
        listed = ", ".join(repr(backend.name) for backend in backends)
        raise UnsupportedError(
            f"backends={listed} (--backend): backends compute on the CPU only: leave out device={device!r} (--device)"
        )


def backend_calls(
    backends: Sequence[Any], threads: int, deterministic: bool, make_executor: Callable[..., Any]
) -> BackendCalls | None:
    """Return what compiles and calls groups for backends; None without backends. See `BackendCalls`."""
    if not backends:
        return None
    from graphkit.executor.run.backend_calls import BackendCalls

    return BackendCalls(backends, threads, partial(make_executor, threads=threads, deterministic=deterministic))


def grouping(backends: Sequence[Any], decisions: list[Decision]) -> Step:
    """Return the pass that makes groups of nodes for backends. `decisions` receives the decision for each node."""
    return deferred("group_for_backends").with_options(backends=backends, decisions=decisions)


def is_fusable(kind: str, node: Node) -> bool:
    """Return whether a fused region may contain the node; a region with any other operator has no kernel."""
    return rule_of(kind, node.op).fusable


def _stays_whole(kind: str, node: Node) -> bool:
    """Whether a composite operator must not be expanded on a kind of device.

    Either the device has a kernel for it, or its expansion may use element types that arrays do not have.
    """
    return rule_of(kind, node.op).has_kernels or is_op(node, "FakeQuantize", domain=DOMAIN)


def _computed_in_float32() -> frozenset[DType]:
    """Return the 16-bit float types that this CPU cannot multiply itself."""
    native = native_module()
    return HALVES - {DType.BFLOAT16} if native is not None and native.has_bfloat16() else HALVES
