"""Operators that are timed alone in graphkit and ONNX Runtime, as data. Each row has two sets of operands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from operator_operands import Operand, divisors, given, held, integers, normal, positive, truths, uniform
from operator_shapes import IMAGES, ODD, ODD_IMAGES, SQUARE


@dataclass(frozen=True)
class Row:
    """A node of a standard operator. attributes: those of the node; opset: the version of the operators."""

    name: str
    operator: str
    operands: Sequence[Operand]
    other: Sequence[Operand]
    outputs: int
    opset: int
    attributes: Mapping[str, Any]


def add_row(
    rows: dict[str, Row],
    name: str,
    operator: str,
    operands: Sequence[Operand],
    other: Sequence[Operand],
    outputs: int = 1,
    opset: int = 21,
    **attributes: Any,
) -> None:
    """Add a row to a table."""
    assert name not in rows, f"two rows are called {name}"
    rows[name] = Row(name, operator, operands, other, outputs, opset, attributes)


ROWS: dict[str, Row] = {}
row = partial(add_row, ROWS)


# --- elementwise ----------------------------------------------------------------------------------

_UNARY = (
    "Abs Neg Exp Log Sqrt Tanh Sigmoid Erf Sin Cos Floor Round Reciprocal Softplus Elu Selu HardSwish Mish Gelu Relu "
    "Atan Asin Cosh Sign Ceil Softsign Celu ThresholdedRelu HardSigmoid IsNaN"
)
for _name in _UNARY.split():
    _kind = positive if _name in ("Log", "Sqrt") else uniform if _name == "Asin" else normal
    row(_name, _name, [_kind(*SQUARE)], [_kind(*ODD)])
for _name in ["Add", "Sub", "Mul", "Div", "Max", "Min", "Pow", "Mod", "Greater", "Equal"]:
    _fmod = {"fmod": 1} if _name == "Mod" else {}
    row(_name, _name, [positive(*SQUARE), positive(*SQUARE)], [positive(*ODD), positive(*ODD)], **_fmod)
row("PRelu", "PRelu", [normal(*SQUARE), normal(1024)], [normal(*ODD), normal(1301)])
row("Add_row", "Add", [normal(*SQUARE), normal(1024)], [normal(*ODD), normal(1301)])
row("Add_column", "Add", [normal(*SQUARE), normal(1024, 1)], [normal(*ODD), normal(777, 1)])
row("Mul_outer", "Mul", [normal(1024, 1), normal(1, 1024)], [normal(777, 1), normal(1, 1301)])
row("Add_channel", "Add", [normal(8, 64, 48, 48), normal(64, 1, 1)], [normal(*ODD_IMAGES), normal(40, 1, 1)])
row(
    "Where",
    "Where",
    [truths(*SQUARE), normal(*SQUARE), normal(*SQUARE)],
    [truths(*ODD), normal(*ODD), normal(*ODD)],
)
_LIMITS = [given(-0.5, "float32"), given(0.5, "float32")]
row("Clip", "Clip", [normal(*SQUARE), *_LIMITS], [normal(*ODD), *_LIMITS])
for _name, _to in (("i64", 7), ("f16", 10), ("u8", 2), ("bool", 9)):
    row(f"Cast_{_name}", "Cast", [positive(*SQUARE)], [positive(*ODD)], to=_to)
row("And", "And", [truths(*SQUARE), truths(*SQUARE)], [truths(*ODD), truths(*ODD)])
row("Not", "Not", [truths(*SQUARE)], [truths(*ODD)])
row(
    "BitShift",
    "BitShift",
    [integers(99, *SQUARE, dtype="uint32"), integers(3, *SQUARE, dtype="uint32")],
    [integers(99, *ODD, dtype="uint32"), integers(3, *ODD, dtype="uint32")],
    direction="LEFT",
)
for _name, _kind in (("Mod", divisors), ("Div", divisors), ("Add", integers)):
    row(
        f"{_name}_i64",
        _name,
        [integers(1000, *SQUARE), _kind(7, *SQUARE)],
        [integers(1000, *ODD), _kind(7, *ODD)],
    )
row(
    "Add_f64",
    "Add",
    [normal(*SQUARE, dtype="float64"), normal(*SQUARE, dtype="float64")],
    [normal(*ODD, dtype="float64"), normal(*ODD, dtype="float64")],
)
row("Exp_f64", "Exp", [normal(*SQUARE, dtype="float64")], [normal(*ODD, dtype="float64")])
row(
    "Add_f16",
    "Add",
    [normal(*SQUARE, dtype="float16"), normal(*SQUARE, dtype="float16")],
    [normal(*ODD, dtype="float16"), normal(*ODD, dtype="float16")],
)

# --- rows and reductions --------------------------------------------------------------------------

for _name in ["Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "LogSumExp", "SumSquare"]:
    for _axis, _place in ((1, "last"), (0, "first")):
        row(
            f"Reduce{_name}_{_place}",
            f"Reduce{_name}",
            [normal(*SQUARE), given([_axis])],
            [normal(*ODD), given([_axis])],
            keepdims=0,
        )
row("ReduceSum_all", "ReduceSum", [normal(*SQUARE)], [normal(*ODD)], keepdims=0)
row("ReduceMean_middle", "ReduceMean", [normal(64, 256, 64), given([1])], [normal(33, 301, 70), given([1])])
row("ReduceMean_positions", "ReduceMean", [normal(*IMAGES), given([2, 3])], [normal(*ODD_IMAGES), given([2, 3])])
row("ReduceSum_i64", "ReduceSum", [integers(9, *SQUARE), given([1])], [integers(9, *ODD), given([1])])
for _axis in (0, 1):
    for _name in ("ArgMax", "Softmax", "LogSoftmax", "Hardmax"):
        row(f"{_name}_{_axis}", _name, [normal(*SQUARE)], [normal(*ODD)], axis=_axis)
    row(f"CumSum_{_axis}", "CumSum", [normal(*SQUARE), given(_axis)], [normal(*ODD), given(_axis)])
    row(f"TopK_{_axis}_10", "TopK", [normal(*SQUARE), given([10])], [normal(*ODD), given([10])], 2, axis=_axis)
row("TopK_100_of_1M", "TopK", [normal(1 << 20), given([100])], [normal(700001), given([100])], 2)
row("TopK_sorted_rows", "TopK", [normal(*SQUARE), given([1024])], [normal(*ODD), given([1301])], 2)
row("Softmax_f16", "Softmax", [normal(*SQUARE, dtype="float16")], [normal(*ODD, dtype="float16")])
_VECTORS, _ODD_VECTORS = held(normal(1024), normal(1024)), held(normal(1301), normal(1301))
row(
    "LayerNormalization",
    "LayerNormalization",
    [normal(*SQUARE), *_VECTORS],
    [normal(*ODD), *_ODD_VECTORS],
)
row(
    "RMSNormalization",
    "RMSNormalization",
    [normal(*SQUARE), _VECTORS[0]],
    [normal(*ODD), _ODD_VECTORS[0]],
    opset=23,
)
_CHANNELS, _ODD_CHANNELS = held(normal(64), normal(64)), held(normal(40), normal(40))
row(
    "InstanceNormalization",
    "InstanceNormalization",
    [normal(*IMAGES), *_CHANNELS],
    [normal(*ODD_IMAGES), *_ODD_CHANNELS],
)
row(
    "GroupNormalization",
    "GroupNormalization",
    [normal(*IMAGES), *_CHANNELS],
    [normal(*ODD_IMAGES), *_ODD_CHANNELS],
    num_groups=8,
)
row(
    "BatchNormalization",
    "BatchNormalization",
    [normal(*IMAGES), *_CHANNELS, *held(normal(64), positive(64))],
    [normal(*ODD_IMAGES), *_ODD_CHANNELS, *held(normal(40), positive(40))],
)
row("LRN", "LRN", [normal(*IMAGES)], [normal(*ODD_IMAGES)], size=5)
row("LpNormalization", "LpNormalization", [normal(*SQUARE)], [normal(*ODD)])
row("MeanVarianceNormalization", "MeanVarianceNormalization", [normal(*IMAGES)], [normal(*ODD_IMAGES)])
row(
    "NegativeLogLikelihoodLoss",
    "NegativeLogLikelihoodLoss",
    [normal(1024, 1000), integers(1000, 1024)],
    [normal(7, 50257), integers(50257, 7)],
)
row(
    "SoftmaxCrossEntropyLoss",
    "SoftmaxCrossEntropyLoss",
    [normal(1024, 1000), integers(1000, 1024)],
    [normal(7, 50257), integers(50257, 7)],
)

# --- data movement --------------------------------------------------------------------------------

row("Transpose_10", "Transpose", [normal(*SQUARE)], [normal(*ODD)], perm=[1, 0])
row("Transpose_0213", "Transpose", [normal(8, 128, 16, 64)], [normal(3, 101, 13, 77)], perm=[0, 2, 1, 3])
row("Transpose_0231", "Transpose", [normal(8, 64, 48, 48)], [normal(*ODD_IMAGES)], perm=[0, 2, 3, 1])
row("Transpose_3210", "Transpose", [normal(32, 32, 32, 32)], [normal(21, 35, 29, 17)], perm=[3, 2, 1, 0])
row("Concat_0", "Concat", [normal(512, 1024), normal(512, 1024)], [normal(200, 1301), normal(577, 1301)], axis=0)
row("Concat_1", "Concat", [normal(1024, 512), normal(1024, 512)], [normal(777, 301), normal(777, 900)], axis=1)
row("Split_1", "Split", [normal(*SQUARE)], [normal(777, 1300)], 4, axis=1, num_outputs=4)
row(
    "Slice_step",
    "Slice",
    [normal(*SQUARE), *(given(v) for v in ([0, 0], [1024, 1024], [0, 1], [1, 2]))],
    [normal(*ODD), *(given(v) for v in ([1, 3], [777, 1301], [0, 1], [1, 3]))],
)
row(
    "Slice_reversed",
    "Slice",
    [normal(*SQUARE), *(given([v]) for v in (1023, -2000, 1, -1))],
    [normal(*ODD), *(given([v]) for v in (1300, -2000, 1, -1))],
)
for _mode, _pads in (("constant", [0, 0, 1, 1] * 2), ("reflect", [0, 0, 3, 3] * 2), ("edge", [0, 0, 3, 3] * 2)):
    row(f"Pad_{_mode}", "Pad", [normal(*IMAGES), given(_pads)], [normal(*ODD_IMAGES), given(_pads)], mode=_mode)
row("Tile", "Tile", [normal(256, 256), given([4, 4])], [normal(201, 333), given([3, 5])])
row("Expand", "Expand", [normal(1024, 1), given([1024, 1024])], [normal(777, 1), given([777, 1301])])
row("Gather_rows", "Gather", [normal(50000, 128), integers(50000, 8192)], [normal(3001, 300), integers(3001, 9000)])
row("Gather_1", "Gather", [normal(*SQUARE), integers(1024, 1024)], [normal(*ODD), integers(1301, 999)], axis=1)
row(
    "GatherElements",
    "GatherElements",
    [normal(*SQUARE), integers(1024, *SQUARE)],
    [normal(*ODD), integers(1301, 777, 999)],
    axis=1,
)
row("GatherND", "GatherND", [normal(*SQUARE), integers(1024, 500000, 2)], [normal(*ODD), integers(777, 300001, 2)])
row(
    "ScatterElements",
    "ScatterElements",
    [normal(*SQUARE), integers(1024, 1024, 512), normal(1024, 512)],
    [normal(*ODD), integers(1301, 777, 333), normal(777, 333)],
    axis=1,
    reduction="add",
)
row(
    "ScatterND",
    "ScatterND",
    [normal(100000, 16), integers(100000, 50000, 1), normal(50000, 16)],
    [normal(3001, 301), integers(3001, 2000, 1), normal(2000, 301)],
    reduction="add",
)
row(
    "NonZero",
    "NonZero",
    [truths(*SQUARE)],
    [truths(*ODD)],
)
row("Unique", "Unique", [integers(1000, 1 << 20)], [integers(300, 700001)], 4)
row(
    "OneHot",
    "OneHot",
    [integers(1000, 1024), given([1000]), given([0, 1], "float32")],
    [integers(333, 3001), given([333]), given([0, 1], "float32")],
)
row("Compress", "Compress", [normal(*SQUARE), truths(1024)], [normal(*ODD), truths(777)], axis=0)
row("Trilu", "Trilu", [normal(*SQUARE)], [normal(*ODD)])
row("EyeLike", "EyeLike", [normal(*SQUARE)], [normal(*ODD)])
row("DepthToSpace", "DepthToSpace", [normal(4, 64, 64, 64)], [normal(3, 36, 51, 70)], blocksize=2)
row("SpaceToDepth", "SpaceToDepth", [normal(4, 16, 128, 128)], [normal(3, 9, 102, 140)], blocksize=2)
row("CenterCropPad", "CenterCropPad", [normal(*SQUARE), given([900, 1100])], [normal(*ODD), given([801, 1203])])
row(
    "ReverseSequence",
    "ReverseSequence",
    [normal(128, 64, 128), given([100] * 64)],
    [normal(101, 33, 250), given([77] * 33)],
)
row(
    "Range",
    "Range",
    [Operand("given", (), array=np.array(v)) for v in (0, 1 << 20, 1)],
    [Operand("given", (), array=np.array(v)) for v in (3, 700001, 0.5)],
)
