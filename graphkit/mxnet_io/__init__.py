"""MXNet's files: symbol.json (graphs) and .params (arrays) become graphkit models, and .params files are written."""

from graphkit.mxnet_io.arrays import read_arrays, write_arrays

__all__ = ["read_arrays", "write_arrays"]
