"""The kernel that every operator has on every device: its reference, copied to where the plan wants the results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from graphkit.errors import RuntimeFailure
from graphkit.executor.devices.kernel import Kernel
from graphkit.ir.graph import Node
from graphkit.ops.evaluate import run_node
from graphkit.ops.xp import Namespace, numpy_xp


def check_result(node: Node, position: int, result: np.ndarray, shape: Sequence[int], dtype: np.dtype) -> None:
    """Raise RuntimeFailure, naming the node, when a result is not of the shape and dtype that were inferred."""
    if result.shape != tuple(shape) or result.dtype != dtype:
        raise RuntimeFailure(
            f"{node.describe()}: result {position} is {result.dtype}{list(result.shape)};"
            f" {dtype}{list(shape)} was inferred"
        )


def owned_results(operands: Sequence[Any], results: Sequence[Any]) -> list[Any]:
    """Return `results` with copies instead of those that share memory with an operand.

    References may return views, as Reshape's does. The memory of an operand may be written again while a result lives.
    An operand that is a sequence or an optional owns its arrays already: results may share them.
    """
    borrowed = {id(_owner(x)) for x in operands if x is not None and not isinstance(x, (list, tuple))}

    def own(item: Any) -> Any:
        if item is None or isinstance(item, (list, tuple)):
            return item and [own(x) for x in item]
        return item.copy() if id(_owner(item)) in borrowed else item

    return [own(result) for result in results]


def _owner(array: Any) -> Any:
    """The object that the memory belongs to."""
    while (base := getattr(array, "base", None)) is not None:
        array = base
    return array


class Interpreted:
    """What `interpreted_kernel` makes, as the kernel of a device with arrays of its own."""

    can_be_recorded = False  # it makes arrays

    def __init__(self, node: Node, xp: Namespace):
        self._run = interpreted_kernel(node, xp)

    def __call__(self, inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> None:
        self._run(inputs, outputs)


def interpreted_kernel(node: Node, xp: Namespace = numpy_xp) -> Kernel:
    """A kernel that interprets `node`: its operator's reference on arrays of `xp`.

    It raises RuntimeFailure, naming the node, when a result has another shape than was inferred.
    """
    return copied(node, lambda inputs: run_node(node, inputs, xp), xp)


def copied(node: Node, compute: Callable[[Sequence[Any]], tuple[Any, ...]], xp: Namespace = numpy_xp) -> Kernel:
    """A kernel that copies what `compute` returns for the node's operands to where the plan wants the results.

    It raises RuntimeFailure, naming the node, when a result has another shape than was inferred.
    """

    def run(inputs: Sequence[np.ndarray | None], outputs: Sequence[np.ndarray | None]) -> None:
        results = compute(inputs)
        if len(results) > 1:
            # Writing the first output may overwrite an operand that the second is a view of.
            results = tuple(
                r if y is None or (r.base is None and all(r is not x for x in inputs)) else r.copy()
                for r, y in zip(results, outputs, strict=True)
            )
        for position, (result, output) in enumerate(zip(results, outputs, strict=True)):
            if output is None:
                continue
            check_result(node, position, result, output.shape, output.dtype)
            xp.copyto(output, result)

    return run
