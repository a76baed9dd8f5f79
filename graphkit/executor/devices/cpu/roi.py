"""Regions of images: RoiAlign and NonMaxSuppression."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from graphkit.executor.devices.cpu._base import data_dependent, kernel, native, shape
from graphkit.executor.devices.kernel import DataDependentKernel, Kernel, KernelContext
from graphkit.ir.graph import Node
from graphkit.ir.types import DType
from graphkit.ops._base import operator
from graphkit.ops.image.roi import NonMaxSuppression, RoiAlign


@kernel("RoiAlign")
def _roi_align(node: Node, context: KernelContext) -> Kernel | None:
    op = operator(node, RoiAlign)
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


@data_dependent("NonMaxSuppression")
def _non_max_suppression(node: Node, context: KernelContext) -> DataDependentKernel:
    op = operator(node, NonMaxSuppression)

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
