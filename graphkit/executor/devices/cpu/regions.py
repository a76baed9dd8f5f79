"""Regions and blocks of images: RoiAlign, NonMaxSuppression, Im2Col and Col2Im."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from graphkit.executor.devices.cpu._base import constants, kernel, native, shape, sized
from graphkit.executor.devices.kernel import KernelContext, SizedKernel
from graphkit.ir.graph import Node
from graphkit.ir.types import DType
from graphkit.ops._base import DOMAIN


@kernel("RoiAlign")
def _roi_align(node: Node, context: KernelContext) -> Any:
    op: Any = node.op
    if node.output.dtype is not DType.FLOAT32:
        return None
    return native.RoiAlign(
        shape(node.inputs[0]),
        shape(node.inputs[1])[0],
        height=op.output_height,
        width=op.output_width,
        samples=op.sampling_ratio,
        scale=op.spatial_scale,
        half_pixel=op.coordinate_transformation_mode == "half_pixel",
        maximum=op.mode == "max",
        threads=context.threads,
    )


@kernel("Col2Im")
def _col2im(node: Node, context: KernelContext) -> Any:
    return _columns(node, context, shape(node.output), constants(node.inputs[2]), add=True)


@kernel("Im2Col", DOMAIN)
def _im2col(node: Node, context: KernelContext) -> Any:
    return _columns(node, context, shape(node.inputs[0]), constants(node.inputs[1]), add=False)


def _columns(
    node: Node, context: KernelContext, images: tuple[int, ...], block: tuple[int, ...] | None, *, add: bool
) -> Any:
    op: Any = node.op
    if block is None:
        return None
    window, positions = op.window(images[2:], block)
    return native.Columns(
        add=add,
        batch=images[0],
        channels=images[1],
        image=images[2:],
        block=block,
        positions=positions,
        strides=window.strides,
        dilations=window.dilations,
        begin=window.begin,
        dtype=node.output.dtype.value,
        threads=context.threads,
    )


@sized("NonMaxSuppression")
def _non_max_suppression(node: Node, context: KernelContext) -> SizedKernel:
    op: Any = node.op

    def run(arrays: Sequence[Any]) -> tuple[np.ndarray, ...]:
        boxes, scores, most, overlap, least = (*arrays, None, None, None)[:5]
        suppress = native.NonMaxSuppression(
            *scores.shape,
            most=0 if most is None else int(most.reshape(-1)[0]),
            overlap=0.0 if overlap is None else float(overlap.reshape(-1)[0]),
            least=None if least is None else float(least.reshape(-1)[0]),
            centred=bool(op.center_point_box),
            threads=context.threads,
        )
        rows, count = np.empty((suppress.capacity, 3), np.int64), np.empty((), np.int64)
        suppress([boxes, scores], [rows, count])
        return (rows[: int(count)].copy(),)

    return run
