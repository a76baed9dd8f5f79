"""What a device with memory of its own has to offer."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np

from graphkit.ir.graph import Node
from graphkit.ir.types import DType
from graphkit.ops.xp import Namespace


class ArrayKernel(Protocol):
    """Computes one node from and to arrays of a device; `scratch` is working memory, None for who asked for none.

    may_fail: whether a run may find what only `check` raises.
    """

    may_fail: bool

    def __call__(self, inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> None: ...

    def check(self) -> None:
        """Raise for what a run has found, whose work is done."""
        ...


class Device(Protocol):
    """What a device with arrays of its own has to offer. `xp` makes and computes arrays, on the current stream."""

    name: str
    xp: Namespace

    def supports(self, dtype: DType) -> bool:
        """Whether an array can have such elements."""
        ...

    def stream(self) -> Any:
        """A new queue, whose work is done in order."""
        ...

    def on(self, stream: Any) -> AbstractContextManager[Any]:
        """Inside the block, work of this thread goes to that queue."""
        ...

    def synchronize(self, stream: Any) -> None:
        """Wait for all work of a queue."""
        ...

    def prepare(self, node: Node, made: Any) -> ArrayKernel:
        """What computes a node of static types; `made` is what the device's factory made for it, None where it has none
        and the node is interpreted."""
        ...

    def alloc(self, nbytes: int) -> Any:
        """Memory, aligned for every type."""
        ...

    def view(self, memory: Any, offset: int, shape: tuple[int, ...], dtype: np.dtype) -> Any:
        """The C-contiguous array at an offset in allocated memory."""
        ...

    def copy_in(self, array: np.ndarray) -> Any:
        """An array of the device with these elements."""
        ...

    def copy_out(self, array: Any, out: np.ndarray | None) -> np.ndarray:
        """The elements in `out`, which is C-contiguous, or in a new array. Waits for the work that makes them."""
        ...
