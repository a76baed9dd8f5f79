"""Functions that write nodes for MXNet, one file per family of operators."""

from graphkit.mxnet_io.writers import layers, pointwise, recurrent, shapes

__all__ = ["layers", "pointwise", "recurrent", "shapes"]
