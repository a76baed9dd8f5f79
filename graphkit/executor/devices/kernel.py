"""What the executor knows of a kernel: its protocol, what it is made from, and the arrays that it may keep packed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeGuard

import numpy as np

from graphkit.errors import RuntimeFailure
from graphkit.ir.graph import Node


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


class NativeKernel(Kernel, Protocol):
    """A kernel of the native extension, which a program runs without Python. Sizes are bytes."""

    @property
    def scratch_bytes(self) -> int:
        """The working memory that a call needs."""
        ...

    @property
    def input_count(self) -> int: ...
    @property
    def output_count(self) -> int: ...

    @property
    def inplace(self) -> Sequence[tuple[int, int]]:
        """Positions (input, output) that may be the same memory."""
        ...

    @property
    def implementation(self) -> str:
        """The name that a profile shows; empty when there is only one."""
        ...

    @property
    def packed_inputs(self) -> Sequence[int]:
        """Positions of the inputs that it wants in a layout of its own."""
        ...

    def packed_layout(self, position: int) -> str:
        """The layout's name: equal names are equal bytes for an equal array."""
        ...

    def packed_bytes(self, position: int) -> int: ...
    def pack(self, position: int, array: np.ndarray, packed: np.ndarray) -> None: ...


class LaunchedKernel(Protocol):
    """What the factory of a device with arrays of its own makes; `Device.prepare` takes it. Sizes are bytes."""

    @property
    def scratch_bytes(self) -> int: ...

    @property
    def inplace(self) -> Sequence[tuple[int, int]]:
        """Positions (input, output) that may be the same memory."""
        ...

    @property
    def fault(self) -> str:
        """What is wrong where a run sets the fault that it was prepared with; empty where it has none."""
        ...

    def failure(self, node: Node, word: int) -> RuntimeFailure:
        """What to raise for a node whose run has set the fault to `word`."""
        ...


def is_native(kernel: Kernel) -> TypeGuard[NativeKernel]:
    """Whether a program runs the kernel without Python."""
    return hasattr(kernel, "scratch_bytes")


@dataclass(frozen=True)
class KernelContext:
    """What a factory knows beside the node.

    `constant_inputs` maps the position of an operand to the parameter or constant that it always is: a native kernel
    may ask for it in packed form. A parameter that the caller feeds is an ordinary operand. `sizes_vary` says that
    kernels for other sizes will follow, so that what it takes to make one counts; `tf32` that a card may multiply
    float32 matrices by their leading bits.
    """

    threads: int = 1
    deterministic: bool = False
    constant_inputs: Mapping[int, VersionedArray] = field(default_factory=dict)
    used_outputs: tuple[bool, ...] = (True,)
    sizes_vary: bool = False
    tf32: bool = False


class DataDependentKernel(Protocol):
    """A kernel of the native extension for results whose sizes depend on values, made for operands of any shapes."""

    def __call__(self, inputs: list[np.ndarray | None], used: Sequence[bool] = ()) -> list[np.ndarray | None]:
        """The results, None for those that are not `used` (all of them, by default)."""
        ...
