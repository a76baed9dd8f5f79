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
    joining,
    linear_algebra,
    normalization,
    numpy_forms,
    pooling,
    product,
    random,
    recurrent,
    reduction,
    regions,
    repeating,
    sequence,
    shape,
    slices,
    special,
)
from graphkit.mxnet_io.operators import aliases  # isort: skip - the last one: it refers to the other converters

__all__ = [
    "aliases", "attention", "boxes", "control", "convolution", "creation", "detection", "elementwise", "heads",
    "image", "indexing", "joining", "linear_algebra", "normalization", "numpy_forms", "pooling", "product", "random",
    "recurrent", "reduction", "regions", "repeating", "sequence", "shape", "slices", "special",
]  # fmt: skip
