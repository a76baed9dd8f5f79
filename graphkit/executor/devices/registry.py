"""Which function makes the kernels of which operator, on each device.

A device's modules register one factory per operator. A factory sees a node whose types are static and returns a kernel
prepared for exactly these shapes, or None when it does not cover the case; the executor then interprets the node and
says so in the plan.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from typing import Any, TypeAlias

from graphkit.errors import UsageError
from graphkit.executor.devices.kernel import DataDependentKernel, Kernel, KernelContext, LaunchedKernel
from graphkit.ir.graph import Node, Value

Factory: TypeAlias = Callable[[Node, KernelContext], Kernel | None]

# Shapes of operands or results, None for one that is absent.
Shapes: TypeAlias = Sequence[tuple[int, ...] | None]

# Makes a kernel for certain shapes of the operands and of the results.
SizedFactory: TypeAlias = Callable[[Shapes, Shapes], Kernel | None]

# What a kernel has whatever the sizes, of a node whose sizes need not be known; None where no size has a kernel.
Preparation: TypeAlias = Callable[[Node, KernelContext], SizedFactory | None]

DataDependentFactory: TypeAlias = Callable[[Node, KernelContext], DataDependentKernel | None]

# Makes a function from a node's operands to its only result: a new array, of the inferred dtype. The function calls
# `limits.require_memory` if the result may be much larger than the operands.
StringFunctionFactory: TypeAlias = Callable[[Node], Callable[..., Any] | None]

LaunchedFactory: TypeAlias = Callable[[Node, KernelContext], LaunchedKernel | None]

_data_dependent: dict[tuple[str, str, str], DataDependentFactory] = {}
_factories: dict[tuple[str, str, str], Factory] = {}
_launched: dict[tuple[str, str, str], LaunchedFactory] = {}
_preparations: dict[tuple[str, str, str], Preparation] = {}
_fusable: dict[str, Container[str]] = {}
_string_functions: dict[tuple[str, str, str], StringFunctionFactory] = {}
_whole: dict[tuple[str, str, str], Callable[[Node], bool]] = {}


def register(
    device: str, domain: str, name: str, whole: Callable[[Node], bool] | None = None
) -> Callable[[Factory], Factory]:
    """Decorator: `factory` makes the kernels of operator `domain`.`name` on `device`.

    `whole` says of a node of a composite operator, whose shapes need not be known, that there is a kernel for it.
    """

    def install(factory: Factory) -> Factory:
        _refuse_second(_factories, device, domain, name)
        _factories[device, domain, name] = factory
        if whole is not None:
            _whole[device, domain, name] = whole
        return factory

    return install


def register_preparation(device: str, domain: str, name: str) -> Callable[[Preparation], Preparation]:
    """Decorator: `prepare` makes the factories of an operator's kernels, each for all sizes that a node may have.

    Of the node it looks at what does not depend on sizes: element types, attributes, which operands are there.
    """

    def install(prepare: Preparation) -> Preparation:
        def factory(node: Node, context: KernelContext) -> Kernel | None:
            make = prepare(node, context)
            return None if make is None else make(_static_shapes(node.inputs), _static_shapes(node.outputs))

        register(device, domain, name)(factory)
        _preparations[device, domain, name] = prepare
        return prepare

    return install


def _static_shapes(values: Sequence[Value | None]) -> Shapes:
    return [None if v is None else v.tensor.static_shape for v in values]


def register_launched(
    device: str, domain: str, name: str, whole: Callable[[Node], bool] | None = None
) -> Callable[[LaunchedFactory], LaunchedFactory]:
    """Decorator: `factory` makes what a device with arrays of its own launches for an operator; `whole` as above."""

    def install(factory: LaunchedFactory) -> LaunchedFactory:
        _refuse_second(_launched, device, domain, name)
        _launched[device, domain, name] = factory
        if whole is not None:
            _whole[device, domain, name] = whole
        return factory

    return install


def register_data_dependent(
    device: str, domain: str, name: str
) -> Callable[[DataDependentFactory], DataDependentFactory]:
    """Decorator: `factory` makes the kernels of an operator whose results have sizes that depend on values.

    It sees a node whose shapes need not be known. An operator may have kernels for known shapes besides.
    """

    def install(factory: DataDependentFactory) -> DataDependentFactory:
        _refuse_second(_data_dependent, device, domain, name)
        _data_dependent[device, domain, name] = factory
        return factory

    return install


def register_string_function(
    device: str, domain: str, name: str
) -> Callable[[StringFunctionFactory], StringFunctionFactory]:
    """Decorator: `factory` makes the functions for nodes of an operator that take or return tensors of strings.

    It sees a node whose shapes need not be known. An operator may have kernels for tensors of numbers besides.
    """

    def install(factory: StringFunctionFactory) -> StringFunctionFactory:
        _refuse_second(_string_functions, device, domain, name)
        _string_functions[device, domain, name] = factory
        return factory

    return install


def _refuse_second(known: Container[tuple[str, str, str]], device: str, domain: str, name: str) -> None:
    if (device, domain, name) in known:
        raise UsageError(f"device {device!r} has two kernels for {domain or 'ai.onnx'}.{name}")


def make_data_dependent(device: str, node: Node, context: KernelContext) -> DataDependentKernel | None:
    """The device's kernel for a node whose results have sizes that depend on values; None when it has none."""
    factory = _data_dependent.get((device, node.op.domain, node.op.name))
    return None if factory is None else factory(node, context)


def make_string_function(device: str, node: Node) -> Callable[..., Any] | None:
    """The device's function for a node with tensors of strings; None when it has none."""
    factory = _string_functions.get((device, node.op.domain, node.op.name))
    return None if factory is None else factory(node)


def make_kernel(device: str, node: Node, context: KernelContext) -> Kernel | None:
    """The device's own kernel for a node of static types; None when it has none for this case."""
    factory = _factories.get((device, node.op.domain, node.op.name))
    return None if factory is None else factory(node, context)


def make_launched(device: str, node: Node, context: KernelContext) -> LaunchedKernel | None:
    """What a device with arrays of its own launches for a node of static types; None where it has nothing."""
    factory = _launched.get((device, node.op.domain, node.op.name))
    return None if factory is None else factory(node, context)


def prepare_kernel(device: str, node: Node, context: KernelContext) -> SizedFactory | None:
    """What makes the kernels of a node for all of its sizes; None where each size needs a node of its own."""
    prepare = _preparations.get((device, node.op.domain, node.op.name))
    return None if prepare is None else prepare(node, context)


def runs_whole(device: str, node: Node) -> bool:
    """Whether the device has a kernel for a node of a composite operator, which then is not expanded."""
    whole = _whole.get((device, node.op.domain, node.op.name))
    return whole is not None and whole(node)


def register_fusable(device: str, names: Container[str]) -> None:
    """Say which operators a kernel of a fused region may consist of, by name."""
    _fusable[device] = names


def is_fusable(device: str, node: Node) -> bool:
    """Whether a fused region with the node's operator in it has a kernel; one with another operator is interpreted."""
    return node.op.name in _fusable.get(device, ())


def has_factory(device: str, domain: str, name: str) -> bool:
    """Whether the device has kernels for an operator, at least for some types."""
    return any((device, domain, name) in known for known in (_factories, _launched, _data_dependent))


def has_string_function(device: str, domain: str, name: str) -> bool:
    """Whether the device has functions for an operator on tensors of strings."""
    return (device, domain, name) in _string_functions
