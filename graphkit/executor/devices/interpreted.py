"""Interpreted nodes: the operator's reference runs, and its results are copied to their planned memory."""

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
    """Raise RuntimeFailure, which names the node, if a result has another shape or dtype than inferred."""
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
    """An interpreted node as a kernel of a device with its own memory."""

    can_be_recorded = False  # it makes arrays

    def __init__(self, node: Node, xp: Namespace):
        self._run = interpreted_kernel(node, xp)

    def __call__(self, inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> None:
        self._run(inputs, outputs)


def interpreted_kernel(node: Node, xp: Namespace = numpy_xp) -> Kernel:
    """Return a kernel that runs the reference of a node's operator on arrays of `xp`.

    The kernel raises RuntimeFailure, which names the node, if a result has another shape or dtype than inferred.
    """
    return copied(node, lambda inputs: run_node(node, inputs, xp), xp)


def copied(node: Node, compute: Callable[[Sequence[Any]], tuple[Any, ...]], xp: Namespace = numpy_xp) -> Kernel:
    """Return a kernel that copies the results of `compute(operands)` to their planned memory.

    The kernel raises RuntimeFailure, which names the node, if a result has another shape or dtype than inferred.
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
