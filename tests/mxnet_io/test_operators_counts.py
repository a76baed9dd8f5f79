"""Operators of MXNet's numpy interface that count, order, insert and delete."""

import numpy as np
import pytest
from combinations import in_one_item

from graphkit.errors import GraphkitError, InvalidModel, UnsupportedError
from tests.mxnet_io.operator_cases import case, floats
from tests.mxnet_io.operator_checks import check, imported

X = np.arange(12, dtype=np.float32).reshape(3, 4)
Y = floats(3, 4, 5)
POINTS = np.float32([0, 1, 2, 2.5, 3, np.nan, 4, 5, -1])
EDGES = np.float32([0, 1, 2.5, 4])
TENTHS = np.array([0.1, 0.2, 0.3, 0.7, 0.6, 1.0, 0.9])
DIGITS = np.arange(10, dtype=np.int32)
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
    # From here, the results are those of MXNet 1.9.1.
    case("_histogram", DIGITS, gives=[np.int64([2, 2, 2, 4]), np.int32([0, 2, 4, 6, 9])], bin_cnt=4, range_=(0, 9)),
    case("_histogram", DIGITS, gives=[np.int64([0, 0, 1]), np.int32([1, 1, 2, 2])], bin_cnt=3, range_=(2, 2)),
    case("_histogram", DIGITS, gives=[np.int64([1, 4, 4]), np.int32([-1, 1, 5, 8])], bin_cnt=3, range_=(-1.5, 8.5)),
    case("_histogram", X, gives=[np.int64([0, 1]), np.float32([-0.5, 0, 0.5])], bin_cnt=2, range_=(0, 0)),
    # The edge 3 is 0.3, which is smaller than the number that linspace gives.
    case("_histogram", TENTHS, gives=[np.int64([0, 1, 1, 1, 0, 0, 1, 1, 0, 2]), np.arange(11) / 10], bin_cnt=10,
         range_=(0, 1), typed=True),
    case("_npi_bincount", np.uint8([0] * 300), gives=np.uint8([44])),
    case("_npi_bincount", np.int64([0, 3, 1]), gives=np.int64([1, 1, 0, 1]), minlength=-1),
    case("_npi_bincount", np.zeros(0, np.int32), gives=np.int32([0, 0]), minlength=2),
    case("_npi_delete", X, np.int64([1, 9, -9]), gives=X[:, [0, 2, 3]], axis=1),
    case("_image_adjust_lighting", np.full((1, 1, 3), [-3, 300, 0], np.int32), alpha=(2, 2, 3),
         gives=np.int32([[[-57, 232, -69]]])),
    case("_image_adjust_lighting", np.int8([[[-128, -116, 0]]]), alpha=(2, 2, 3), gives=np.int8([[[74, 73, -69]]])),
    case("_image_adjust_lighting", np.ones((2, 3, 3), np.float32), alpha=(0.1, 0.2, 0.3),
         gives=np.full((2, 3, 3), np.float32([-1.31972, -2.50577, -2.75807]))),
    case("_image_adjust_lighting", np.full((2, 3, 3), [250, 1, 100], np.uint8), alpha=(0.1, 0.2, 0.3),
         gives=np.full((2, 3, 3), [247, 0, 96], np.uint8)),
    case("_image_adjust_lighting", X[..., None], alpha=(1, 2, 3), gives=X[..., None]),
]  # fmt: skip
LARGE = np.float32([1e30, 1e30])
NORMS = [
    case("_npi_norm", Y, gives=np.linalg.norm(Y.astype(np.float64)), ord=2, axis="None", keepdims=False, flag=-2),
    case("_npi_norm", Y, gives=np.linalg.norm(Y.ravel()).reshape(1, 1, 1), ord=2, axis="None", keepdims=True, flag=-2),
    case("_npi_norm", LARGE, gives=np.float32(1.4142135e30)),
    case("_npi_norm", X, gives=np.linalg.norm(X), ord=2, flag=1),
    case("_npi_norm", Y, gives=np.linalg.norm(Y, axis=(2, 0), keepdims=True), axis=(-1, 0), flag=1, keepdims=True),
    *(
        case("_npi_norm", Y, gives=np.linalg.norm(Y, order, 1), ord=order, axis=(1,), flag=-1)
        for order in (0, 0.5, 1, 2, 3, -1)
    ),
    *(
        case("_npi_norm", Y, gives=np.linalg.norm(Y, order, (0, 1)), ord=order, axis=(0, 1), flag=flag)
        for order, flag in ((1, -1), (-1, -1), (np.inf, 3), (-np.inf, 4))
    ),
    case("_npi_norm", np.float32(-3), gives=np.float32(3), flag=-2),
]
MISSING = np.float32([[1, np.nan, 3], [-np.inf, 5, np.inf]])
PERCENTILES = [
    case("_npi_percentile", MISSING, np.float32([0, 25, 50, 75]), axis=(1,),
         gives=np.float32([[np.nan, -np.inf], [np.nan, -np.inf], [np.nan, 5], [np.nan, np.inf]])),
    case("_npi_percentile", MISSING, q_scalar=100, axis=(1,), gives=np.float32([np.nan, np.inf])),
    case("_npi_percentile", X, np.float32([-1, 50, 101]), axis=(0,),
         gives=np.stack([X[0] * np.nan, X[1], X[0] * np.nan])),
    case("_npi_percentile", X.astype(np.float16), typed=True, q_scalar=50, axis=(0,), gives=X[1]),
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


@in_one_item()
@pytest.mark.parametrize("cases", [COUNTS, NORMS, PERCENTILES, EDITS, SOLVED])
def test_values(cases, tmp_path):
    check(cases, tmp_path)


WRONG = [
    (case("_npi_delete", X, gives=X, int_ind=4, axis=1), "out of bounds"),
    (case("_npi_tensorinv", X, gives=X, ind=1), r"give 3 rows and 4 columns"),
    (case("_image_adjust_lighting", X, gives=X, alpha=(1, 2)), "three numbers"),
    (case("_histogram", X, gives=X, bin_cnt=0, range_=(0, 1)), "bin_cnt 0"),
    (case("_histogram", X, gives=X, bin_cnt=2, range_=(2, -2)), r"range \(2.0, -2.0\)"),
    (case("_histogram", DIGITS, EDGES, gives=X), "expected are equal types"),
    (case("_npi_bincount", X[0], gives=X), "an integer type is expected"),
    (case("_npi_percentile", X, gives=X, q_scalar=110), "q is 110.0; a percentile must be from 0 to 100"),
    (case("_npi_insert_scalar", X, gives=X, val=3, int_ind=13), "not all from -12 to 12"),
    (case("_npi_insert_scalar", X, gives=X, val=3, int_ind=-4, axis=0), "not all from -3 to 3"),
    (case("_image_adjust_lighting", Y[None], gives=X, alpha=(1, 2, 3)), "has rank 4"),
    (case("_image_adjust_lighting", Y, gives=X, alpha=(1, 2, 3)), "has 5 channels"),
    (case("_npi_tensorinv", X, gives=X, ind=-1), "ind is -1"),
    (case("_npi_norm", X, gives=X), "singular values"),
    (case("_npi_norm", X, gives=X, axis=(0, 1), flag=2), "singular values"),
    (case("_npi_norm", X, gives=X, axis=(0,), flag=-2), "flag -2 with axis"),
    (case("_npi_norm", X, gives=X, axis=(0,), flag=3, ord="inf"), "ord inf"),
    (case("_npi_choice", gives=X, a=0, size=(2,)), "2 draws from 0 numbers"),
    (case("_npi_choice", gives=X, a=2, size=(3,), replace=False), "3 draws from 2 numbers"),
    (case("_npi_multinomial", gives=X, n=2, pvals=(0.9, 0.9)), "sum of at most 1"),
    (case("_contrib_quantized_rnn", gives=X, mode="lstm", state_size=2, num_layers=1), "it has 0 inputs; data"),
    (case("_npi_choice", gives=X, weighted=True), "it has 0 inputs; input 0"),
]


def test_wrong_attributes(tmp_path):
    for item, message in WRONG:
        with pytest.raises((InvalidModel, UnsupportedError), match=message):
            imported([item], tmp_path)


def test_bincount_of_a_negative_number_is_an_error(tmp_path):
    model, feeds = imported([case("_npi_bincount", np.int32([0, -1]), gives=X)], tmp_path)
    with pytest.raises(GraphkitError, match="_npi_bincount"):
        model.run(feeds)


def test_memory_is_linear(tmp_path):
    numbers = np.arange(300_000, dtype=np.int32)
    cases = [
        case("_histogram", numbers, gives=[X, X], bin_cnt=100_000, range_=(0, 300_000)),
        case("_histogram", numbers, numbers[::3], gives=[X, X]),
        case("_npi_delete", numbers, numbers[::2], gives=X, axis=0),
    ]
    model, feeds = imported(cases, tmp_path)
    counts, _, others, _, odd = model.run(feeds).values()
    assert set(counts) == {3}
    assert list(others[-2:]) == [3, 4]
    np.testing.assert_array_equal(odd, numbers[1::2])
