"""The protocols of kernels, and the context that a factory gets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol, TypeGuard

import numpy as np

from graphkit.errors import RuntimeFailure
from graphkit.ir.graph import Node
from graphkit.named_tuples import NamedTuple

if TYPE_CHECKING:
    from graphkit.ir.stored import Scratch


class VersionedArray(Protocol):
    """A parameter or a constant. If the array changes, so does its version."""

    @property
    def array(self) -> np.ndarray: ...
    @property
    def version(self) -> int: ...
    def borrowed(self, scratch: Scratch) -> np.ndarray:
        """Return `array`, or a copy that is valid until `scratch` is cleared."""


class Kernel(Protocol):
    """Computes one node: reads `inputs` (None: absent), and writes `outputs` (None: not used).

    All arrays are C-contiguous and have the node's dtypes and shapes. A kernel is an object of the native extension,
    which programs run without Python, or a Python function with this signature. An output may share memory with an
    input if `inplace` contains the pair; for a function without that attribute, the operator's `inplace` applies.
    Several threads may call one kernel at the same time.
    """

    def __call__(self, inputs: Sequence[np.ndarray | None], outputs: Sequence[np.ndarray | None]) -> None: ...


class NativeKernel(Kernel, Protocol):
    """A kernel of the native extension, which a program runs without Python. Sizes are bytes."""

    @property
    def scratch_bytes(self) -> int:
        """Bytes of working memory that a call needs."""
        ...

    @property
    def input_count(self) -> int: ...
    @property
    def output_count(self) -> int: ...

    @property
    def optional_inputs(self) -> Sequence[int]:
        """Positions of the inputs that may be left out."""
        ...

    @property
    def inplace(self) -> Sequence[tuple[int, int]]:
        """Positions (input, output) that may be the same memory."""
        ...

    @property
    def implementation(self) -> str:
        """The name in a profile; empty if there is only one implementation."""
        ...

    @property
    def recipe(self) -> bytes | None:
        """How the kernel was made, if that was recorded."""
        ...

    @property
    def packed_inputs(self) -> Sequence[int]:
        """Positions of the inputs that it reads in its own layout."""
        ...

    def packed_layout(self, position: int) -> str:
        """The name of the layout. If names are equal, equal arrays are packed to equal bytes."""
        ...

    def packed_bytes(self, position: int) -> int: ...
    def pack(self, position: int, array: np.ndarray, packed: np.ndarray) -> None: ...


class LaunchedKernel(Protocol):
    """A kernel made by the factory of a device with its own memory, for `Device.prepare`. Sizes are bytes."""

    @property
    def scratch_bytes(self) -> int: ...

    @property
    def inplace(self) -> Sequence[tuple[int, int]]:
        """Positions (input, output) that may be the same memory."""
        ...

    @property
    def fault(self) -> str:
        """The text of the error if a run sets the kernel's fault; empty if the kernel cannot fail."""
        ...

    def failure(self, node: Node, word: int) -> RuntimeFailure:
        """Return the error of a node whose run has set the fault to `word`."""
        ...


def is_native(kernel: Kernel) -> TypeGuard[NativeKernel]:
    """Return whether a program runs the kernel without Python."""
    return hasattr(kernel, "scratch_bytes")


# The factory of a kernel may read the elements of a parameter, such as scales, only if it has at most this many bytes.
# So layers with equal types share a kernel. `SharedKernels` and `Template` rely on this.
MOST_READ_BYTES = 128


class KernelContext(NamedTuple):
    """Facts that a factory gets in addition to the node.

    Args:
        threads: Number of threads of the kernel.
        deterministic: Whether results must not depend on the number of threads.
        constant_inputs: Operands that are parameters or constants, by position: a native kernel may request them
            packed. A parameter that the caller feeds is not among them. See MOST_READ_BYTES.
        used_outputs: Which outputs are used.
        sizes_vary: Whether kernels for other sizes will follow, so that the time to make a kernel matters.
        tf32: Whether a GPU may round float32 operands of matrix products to TF32.
    """

    threads: int = 1
    deterministic: bool = False
    constant_inputs: Mapping[int, VersionedArray] = MappingProxyType({})
    used_outputs: tuple[bool, ...] = (True,)
    sizes_vary: bool = False
    tf32: bool = False


class DataDependentKernel(Protocol):
    """A kernel of the native extension whose results have data-dependent shapes. Its operands may have any shape."""

    def __call__(self, inputs: list[np.ndarray | None], used: Sequence[bool] = ()) -> list[np.ndarray | None]:
        """Return the results; None for those that are not `used`. By default, all are."""
        ...
