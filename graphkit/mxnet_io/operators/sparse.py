"""Further names of operators: MXNet registers many under a second name for sparse tensors, which are read as dense."""

from __future__ import annotations

from graphkit.mxnet_io.call import CONVERTERS, converter
from graphkit.mxnet_io.operators import convolution, elementwise, heads, joining, product, reduction, slices

# The modules whose converters get further names here.
SOURCES = (convolution, elementwise, heads, joining, product, reduction, slices)
# Operators that exist with the beginning _sparse_ in MXNet 1.9.
_SPARSE = (
    "ElementWiseSum", "Embedding", "FullyConnected", "LinearRegressionOutput", "LogisticRegressionOutput",
    "MAERegressionOutput", "abs", "add_n", "arccos", "arccosh", "arcsin", "arcsinh", "arctan", "arctanh",
    "broadcast_add", "broadcast_div", "broadcast_minus", "broadcast_mul", "broadcast_plus", "broadcast_sub",
    "cast_storage", "cbrt", "ceil", "clip", "concat", "cos", "cosh", "degrees", "dot", "elemwise_add",
    "elemwise_div", "elemwise_mul", "elemwise_sub", "exp", "expm1", "fix", "floor", "log", "log10", "log1p", "log2",
    "make_loss", "mean", "negative", "norm", "radians", "relu", "rint", "round", "rsqrt", "sigmoid", "sign", "sin",
    "sinh", "slice", "sqrt", "square", "stop_gradient", "sum", "tan", "tanh", "trunc", "where", "zeros_like",
)  # fmt: skip
_OTHERS = {
    "_scatter_elemwise_div": "elemwise_div", "_scatter_minus_scalar": "_minus_scalar",
    "_scatter_plus_scalar": "_plus_scalar", "_sparse__contrib_round_ste": "_contrib_round_ste",
    "_sparse__contrib_sign_ste": "_contrib_sign_ste",
}  # fmt: skip

for _name in _SPARSE:
    converter(f"_sparse_{_name}")(CONVERTERS[_name])
for _name, _source in _OTHERS.items():
    converter(_name)(CONVERTERS[_source])
