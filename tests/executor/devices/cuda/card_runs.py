"""A node's kernel on the processor, with threads in both orders."""

from __future__ import annotations

from typing import Any

import numpy as np
from emulator import Emulator

from graphkit.executor.devices.cuda.launches import CardKernel
from graphkit.executor.devices.kernel import KernelContext
from graphkit.executor.devices.registry import make_launched
from graphkit.ir.graph import Node


def kernel_of(node: Node, used: tuple[bool, ...] = (True,) * 5, tf32: bool = False) -> CardKernel:
    kernel = make_launched("cuda", node, KernelContext(used_outputs=used, tf32=tf32))
    assert isinstance(kernel, CardKernel)
    return kernel


def own_kernel_of(node: Node, tf32: bool = False) -> CardKernel:
    """The card's own, for what its library has no way to compute."""
    *_, own = kernel_of(node, tf32=tf32).alternatives
    return own


def run_own(emulator: Emulator, node: Node, arrays: list[Any], tf32: bool = False) -> np.ndarray:
    """The result of the card's own kernel."""
    result: np.ndarray
    (result,) = run(emulator, node, arrays, kernel=own_kernel_of(node, tf32))
    return result


def run(
    emulator: Emulator,
    node: Node,
    arrays: list[Any],
    used: tuple[bool, ...] = (True,) * 5,
    kernel: CardKernel | None = None,
) -> list[Any]:
    """The results, None for those that are not used. kernel: another one than the node's first."""
    kernel = kernel or kernel_of(node, used)
    found = []
    for order in (0, 1):
        results = [
            np.full(v.tensor.static_shape, 77, v.dtype.numpy) if read else None
            for v, read in zip(node.outputs, used, strict=False)
        ]
        assert not emulator.run(kernel, arrays, results, order=order)
        found.append(results)
    for a, b in zip(*found, strict=True):
        assert a is None or a.tobytes() == b.tobytes(), "what comes out depends on which thread comes first"
    return found[0]
