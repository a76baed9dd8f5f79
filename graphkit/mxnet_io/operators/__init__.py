"""Converters of MXNet's operators, one file per family. The docstring of each states MXNet's rule where it differs."""

from graphkit.mxnet_io.operators import (
    attention,
    boxes,
    control,
    convolution,
    creation,
    detection,
    elementwise,
    heads,
    image,
    indexing,
    normalization,
    pooling,
    product,
    recurrent,
    reduction,
    regions,
    sequence,
    shape,
)

__all__ = [
    "attention", "boxes", "control", "convolution", "creation", "detection", "elementwise", "heads", "image",
    "indexing", "normalization", "pooling", "product", "recurrent", "reduction", "regions", "sequence", "shape",
]  # fmt: skip
