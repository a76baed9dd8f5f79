"""Operators of MXNet's numpy interface that count, order, insert and delete."""

import numpy as np
import pytest

from graphkit.errors import InvalidModel
from tests.mxnet_io.operator_cases import case, floats
from tests.mxnet_io.operator_checks import check, imported

X = np.arange(12, dtype=np.float32).reshape(3, 4)
Y = floats(3, 4, 5)
POINTS = np.float32([0, 1, 2, 2.5, 3, np.nan, 4, 5, -1])
EDGES = np.float32([0, 1, 2.5, 4])
INTEGERS, OTHERS = np.int32([4, 0, -6, 2**31 - 1]), np.int32([6, 3, 4, 1])

COUNTS = [
    case("_histogram", POINTS, gives=[np.int64([1, 1, 2, 2]), np.float32([0, 1, 2, 3, 4])], bin_cnt=4, range_=(0, 4)),
    case("_npi_histogram", POINTS, EDGES, gives=[np.int64([1, 2, 3]), EDGES]),
    case("_npi_bincount", np.int32([0, 2, 2, 5]), gives=np.int32([1, 0, 2, 0, 0, 1]), minlength=3),
    case("_npi_bincount", np.int64([0, 2, 2]), np.float32([1, 0.5, 0.25]), gives=np.float32([1, 0, 0.75, 0]),
         minlength=4, has_weights=True),
    case("_npi_lcm", INTEGERS, OTHERS, gives=np.lcm(INTEGERS, OTHERS)),
    case("_npi_lcm", np.int64([[4], [9]]), np.int64([6, 0]), gives=np.int64([[12, 0], [18, 0]])),
    case("_npi_lcm_scalar", INTEGERS[:3], gives=np.int32([20, 0, 30]), scalar=10),
    case("_npi_norm", Y, gives=np.linalg.norm(Y.astype(np.float64))),
    case("_image_adjust_lighting", np.ones((2, 3, 3), np.float32), alpha=(0.1, 0.2, 0.3),
         gives=np.full((2, 3, 3), np.float32([-1.31972, -2.50577, -2.75807]))),
    case("_image_adjust_lighting", np.full((2, 3, 3), [250, 1, 100], np.uint8), alpha=(0.1, 0.2, 0.3),
         gives=np.full((2, 3, 3), [247, 0, 96], np.uint8)),
]  # fmt: skip
PERCENTILES = [
    *(
        case("_npi_percentile", Y, np.float32([0, 10, 87.5, 100]), axis=(1,), interpolation=how,
             gives=np.percentile(Y, [0, 10, 87.5, 100], 1, method=how).astype(np.float32))
        for how in ("linear", "lower", "higher", "midpoint", "nearest")
    ),
    # MXNet rounds a position between two elements up, numpy to the even one.
    case("_npi_percentile", np.int32([[1, 5, 2]]), np.float32([12.5, 25, 75]), axis=(1,), interpolation="nearest",
         gives=np.float32([[1], [2], [5]])),
    case("_npi_percentile", X, q_scalar=30, keepdims=True, gives=np.float32([[3.3]])),
    case("_npi_percentile", Y, q_scalar=30, axis=(0, -1), gives=np.percentile(Y, 30, (0, 2)).astype(np.float32)),
    case("_npi_percentile", Y, np.float32([40]), axis=(0, 2), keepdims=True,
         gives=np.percentile(Y, [40], (0, 2), keepdims=True).astype(np.float32)),
]  # fmt: skip


def inserted(axis, positions, values, name, **attributes):
    attributes |= {} if axis is None else {"axis": axis}
    operands = [np.float32(values)] + ([np.int64(positions)] if name == "tensor" else [])
    return case(f"_npi_insert_{name}", X, *operands, gives=np.insert(X, positions, np.float32(values), axis=axis),
                **attributes)  # fmt: skip


EDITS = [
    inserted(0, 1, [[9, 9, 9, 8]], "scalar", int_ind=1), inserted(1, -1, [[1, 2, 3], [4, 5, 6]], "scalar", int_ind=-1),
    inserted(1, 1, [1, 2, 3], "scalar", int_ind=1), inserted(None, 3, [1, 2], "scalar", int_ind=3),
    case("_npi_insert_scalar", X, val=7, int_ind=2, gives=np.insert(X, 2, 7)),
    inserted(1, slice(0, 3, 2), [[-1, -2], [-3, -4], [-5, -6]], "slice", start=0, stop=3, step=2),
    inserted(1, slice(None, None, -2), [5], "slice", step=-2),
    inserted(1, [2, 0, 2], [[-1, -2, -3]], "tensor"), inserted(1, [2], [[-1, -2, -3]], "tensor"),
    inserted(None, [-1, 0, 4], [-1, -2, -3], "tensor"), inserted(0, [3, 3], [[5], [6]], "tensor"),
    case("_npi_delete", X, gives=X[:, :3], int_ind=-1, axis=1),
    case("_npi_delete", X, gives=X[:, 1::2], start=0, stop=4, step=2, axis=1),
    case("_npi_delete", X, np.int64([0, -1, 0]), gives=X[:, 1:3], axis=1),
    case("_npi_delete", X, gives=np.delete(X, 5), int_ind=5),
]  # fmt: skip
A, SQUARE = floats(4, 2, 2), floats(2, 3, 6) + np.eye(6, dtype=np.float32).reshape(2, 3, 6)
SOLVED = [
    case("_npi_tensorinv", A, gives=np.linalg.tensorinv(A, 1), ind=1, tolerance=1e-3),
    case("_npi_tensorsolve", SQUARE, floats(2, 3, seed=5), gives=np.linalg.tensorsolve(SQUARE, floats(2, 3, seed=5)),
         tolerance=1e-3),
    case("_npi_tensorsolve", SQUARE.transpose(2, 0, 1), floats(6, seed=5), tolerance=1e-3, a_axes=(1,),
         gives=np.linalg.tensorsolve(SQUARE.transpose(2, 0, 1), floats(6, seed=5), axes=(1,))),
]  # fmt: skip


@pytest.mark.parametrize("cases", [COUNTS, PERCENTILES, EDITS, SOLVED])
def test_values(cases, tmp_path):
    check(cases, tmp_path)


WRONG = [
    (case("_npi_delete", X, gives=X, int_ind=4, axis=1), "out of bounds"),
    (case("_npi_tensorinv", X, gives=X, ind=1), r"give 3 rows and 4 columns"),
    (case("_image_adjust_lighting", X, gives=X, alpha=(1, 2)), "three numbers"),
    (case("_histogram", X, gives=X, bin_cnt=0, range_=(0, 1)), "bin_cnt 0"),
]


@pytest.mark.parametrize(("item", "message"), WRONG, ids=lambda v: getattr(v, "op", ""))
def test_wrong_attributes(item, message, tmp_path):
    with pytest.raises(InvalidModel, match=message):
        imported([item], tmp_path)
