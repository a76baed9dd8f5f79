"""The device protocol: an allocator, copies, and kernels.

`capabilities` has the protocols that only some devices implement.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from graphkit.executor.devices.bound_steps import ArrayKernel, BoundStep
from graphkit.ir.graph import Node
from graphkit.ir.types import DType


class Device(Protocol):
    """A device with its own memory. Its arrays have `shape`, `dtype`, `nbytes`, `reshape`, `view` and slices.

    If the device has `Streams`, work is queued on the current stream; otherwise each call returns when it is done.
    """

    # Its name in messages and plans, such as "cuda:0".
    name: str

    def stored(self, dtype: DType) -> np.dtype | None:
        """Return the element type of the device's arrays for an element type; None if it has no arrays for it.

        It differs from `dtype.numpy` if only kernels can compute with the elements: arrays then hold their bits.
        """
        ...

    def alloc(self, nbytes: int) -> Any:
        """Return memory, aligned for every type."""
        ...

    def view(self, memory: Any, offset: int, shape: tuple[int, ...], dtype: np.dtype) -> Any:
        """Return the C-contiguous array at an offset in allocated memory, or in the memory of an array.

        Args:
            memory: None for an array without elements.
            offset: In bytes.
            shape: Shape of the array.
            dtype: Element type of the array.
        """
        ...

    def copy_in(self, array: np.ndarray, target: Any = None) -> Any:
        """Copy an array from the host to `target`, which has the same shape and dtype, or to a new array.

        Returns:
            The device's array. The host's array may be changed afterwards, unless it lies in `PinnedMemory`.
        """
        ...

    def copy_out(self, array: Any, out: np.ndarray | None) -> np.ndarray:
        """Copy an array to the host, to the C-contiguous `out` or to a new array. Waits for the current stream."""
        ...

    def copy_across(self, source: Any, target: Any) -> None:
        """Copy the elements of an array, of this device or another of its kind, to the beginning of a contiguous array
        or allocated memory of this device.
        """
        ...

    def prepare(self, node: Node, made: Any, fault: Any) -> ArrayKernel:
        """Return the kernel of a node of static types.

        Args:
            node: The node.
            made: The kernel that the factory of the device has made. None: interpret the node.
            fault: Array of one uint32, which the kernel sets to a non-zero number if it fails. None if it cannot fail.
        """
        ...

    def compute(self, node: Node, operands: Sequence[Any]) -> Sequence[Any]:
        """Interpret a node whose results have data-dependent shapes. Returns new arrays, or lists of them."""
        ...


def interprets(device: Device, dtype: DType) -> bool:
    """Return whether interpreted nodes can compute with arrays of this element type."""
    return device.stored(dtype) == dtype.numpy


def address_of(array: Any) -> int:
    """Return the address of the first element, in the memory of the host or of a GPU."""
    interface = getattr(array, "__cuda_array_interface__", None) or array.__array_interface__
    address: int = interface["data"][0]
    return address


class Copied:
    """The kernel that copies an array to another one with as many bytes."""

    can_be_recorded = True

    def __init__(self, device: Device):
        self._device = device

    def __call__(self, inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> None:
        self._device.copy_across(inputs[0], outputs[0])

    def step(self, source: Any, target: Any) -> BoundStep:
        return BoundStep(self, [source], [target], None)
