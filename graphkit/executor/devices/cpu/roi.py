"""Regions of images: RoiAlign and NonMaxSuppression."""

from __future__ import annotations

from graphkit.executor.devices.cpu._base import data_dependent, kernel, native
from graphkit.executor.devices.kernel import DataDependentKernel, Kernel, KernelContext
from graphkit.executor.devices.operands import shape
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
    return native.NonMaxSuppression(bool(operator(node, NonMaxSuppression).center_point_box), context.threads)
