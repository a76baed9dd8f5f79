"""The kernels of every device: which function computes which node.

A device module (`cpu.py`) registers one factory per operator. A factory sees a node whose types are static and
returns a kernel prepared for exactly these shapes, or None when it does not cover the case; the executor then
runs the node by its reference and says so in the plan.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

import numpy as np

from graphkit.errors import MissingDependency, UnsupportedError, did_you_mean
from graphkit.ir.graph import Node

DEVICES = ("cpu", "cuda")


class VersionedArray(Protocol):
    """A parameter or a constant: an array that changes only together with its version."""

    @property
    def array(self) -> np.ndarray: ...
    @property
    def version(self) -> int: ...


class Kernel(Protocol):
    """Computes one node: reads `inputs` (None: absent), writes `outputs` (None: nobody reads it).

    All arrays are C-contiguous, of the node's dtypes and shapes. A kernel is an object of the native extension, which
    programs run without Python, or any function like this one. An output may be the memory of an input when `inplace`
    lists the pair; a function without that attribute has the operator's. Several threads may call one kernel at the
    same time.
    """

    def __call__(self, inputs: Sequence[np.ndarray | None], outputs: Sequence[np.ndarray | None]) -> None: ...


@dataclass(frozen=True)
class KernelContext:
    """What a factory knows beside the node.

    `constant_inputs` maps the position of an operand to the parameter or constant that it always is: a native kernel
    may ask for it in packed form. A parameter that the caller feeds is an ordinary operand.
    """

    threads: int = 1
    deterministic: bool = False
    constant_inputs: Mapping[int, VersionedArray] = field(default_factory=dict)
    used_outputs: tuple[bool, ...] = (True,)


Factory: TypeAlias = Callable[[Node, KernelContext], Kernel | None]
# For operators whose results have sizes that depend on values: from arrays (None: absent operand) to new arrays.
SizedKernel: TypeAlias = Callable[[Sequence[Any]], Sequence[Any]]
SizedFactory: TypeAlias = Callable[[Node, KernelContext], SizedKernel]

_sized: dict[tuple[str, str, str], SizedFactory] = {}
_factories: dict[tuple[str, str, str], Factory] = {}
_whole: dict[tuple[str, str, str], Callable[[Node], bool]] = {}


def register(
    device: str, domain: str, name: str, whole: Callable[[Node], bool] | None = None
) -> Callable[[Factory], Factory]:
    """Decorator: `factory` makes the kernels of operator `domain`.`name` on `device`.

    `whole` says of a node of a composite operator, whose shapes need not be known, that there is a kernel for it.
    """

    def install(factory: Factory) -> Factory:
        _factories[device, domain, name] = factory
        if whole is not None:
            _whole[device, domain, name] = whole
        return factory

    return install


def register_sized(device: str, domain: str, name: str) -> Callable[[SizedFactory], SizedFactory]:
    """Decorator: `factory` makes the functions of an operator whose results have sizes that depend on values."""

    def install(factory: SizedFactory) -> SizedFactory:
        _sized[device, domain, name] = factory
        return factory

    return install


def make_sized(device: str, node: Node, context: KernelContext) -> SizedKernel | None:
    """The device's function for a node whose results have sizes that depend on values; None when it has none."""
    factory = _sized.get((device, node.op.domain, node.op.name))
    return None if factory is None else factory(node, context)


def make_kernel(device: str, node: Node, context: KernelContext) -> Kernel | None:
    """The device's own kernel for a node of static types; None when it has none for this case."""
    factory = _factories.get((device, node.op.domain, node.op.name))
    return None if factory is None else factory(node, context)


def runs_whole(device: str, node: Node) -> bool:
    """Whether the device has a kernel for a node of a composite operator, which then is not expanded."""
    whole = _whole.get((device, node.op.domain, node.op.name))
    return whole is not None and whole(node)


def has_factory(device: str, domain: str, name: str) -> bool:
    """Whether the device has kernels for an operator, at least for some types."""
    return (device, domain, name) in _factories or (device, domain, name) in _sized


def load_device(device: str) -> bool:
    """Load a device's kernels; return whether its native part is there.

    A source tree that was never installed has no native part and runs by reference. Raises MissingDependency when
    an installed graphkit lacks it, or CuPy is missing; UnsupportedError for a device that graphkit does not know, or
    that this machine does not have.
    """
    if device not in DEVICES:
        raise UnsupportedError(f"no device {device!r}{did_you_mean(device, DEVICES)}")
    if device == "cuda":
        importlib.import_module("graphkit.executor.devices.cuda").load()
        return True
    try:
        importlib.import_module("graphkit.executor.devices.cpu")
    except ImportError as error:
        if "_native" not in str(error):
            raise
        if _is_installed():
            raise MissingDependency(
                f"graphkit is installed without its native extension, or another copy is found first ({__file__});"
                f" start Python elsewhere, or install it again: pip install --force-reinstall graphkit ({error})"
            ) from error
        return False
    return True


def native_module() -> Any:
    """The native extension, once `load_device` has loaded it; None where there is none."""
    device = sys.modules.get("graphkit.executor.devices.cpu")
    return None if device is None else device.native


def _is_installed() -> bool:
    try:
        importlib.metadata.distribution("graphkit")
    except importlib.metadata.PackageNotFoundError:
        return False
    return True
