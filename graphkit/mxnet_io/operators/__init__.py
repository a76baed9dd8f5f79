"""Converters of MXNet's operators, one file per family. The docstring of each states MXNet's rule where it differs."""

from graphkit.mxnet_io.operators import (
    attention,
    boxes,
    control,
    convolution,
    creation,
    detection,
    elementwise,
    fused,
    heads,
    image,
    indexing,
    joining,
    linear_algebra,
    normalization,
    numpy_forms,
    pooling,
    product,
    quantised,
    random,
    recurrent,
    reduction,
    regions,
    repeating,
    sequence,
    shape,
    slices,
    sparse,
    special,
)

__all__ = [
    "attention", "boxes", "control", "convolution", "creation", "detection", "elementwise", "fused", "heads", "image",
    "indexing", "joining", "linear_algebra", "normalization", "numpy_forms", "pooling", "product", "quantised",
    "random", "recurrent", "reduction", "regions", "repeating", "sequence", "shape", "slices", "sparse", "special",
]  # fmt: skip
