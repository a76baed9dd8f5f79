"""Reductions, norms, positions of extremes, sorting, selecting and placing elements by position."""

import numpy as np
import pytest
from combinations import in_one_item

from tests.mxnet_io.operator_cases import case, floats
from tests.mxnet_io.operator_checks import check

X = floats(2, 3, 4)
HOLES = np.where(X > 0.8, np.nan, X).astype(np.float32)
FUNCTIONS = {"sum": np.sum, "mean": np.mean, "max": np.max, "min": np.min, "prod": np.prod}
REDUCTIONS = [
    *(case(op, X, gives=function(X).reshape(1)) for op, function in FUNCTIONS.items()),
    *(case(op, X, gives=function(X, 1), axis=1) for op, function in FUNCTIONS.items()),
    *(case(op, X, gives=function(X, (0, 2)), axis=(0, -1)) for op, function in FUNCTIONS.items()),
    case("sum", X, gives=X.sum((0, 2), keepdims=True), axis=(0, 2), keepdims=True),
    case("sum", X, gives=X.sum((0, 2)), axis=1, exclude=True),
    case("sum", X, gives=X.sum((0, 1, 2)).reshape(1), axis=()),
    case("sum", X, gives=X.sum().reshape(1), axis=(), exclude=True),
    case("sum", X, gives=X, axis=(0, 1, 2), exclude=True),
    case("mean", X, gives=X.mean(keepdims=True), keepdims=True),
    case("sum_axis", X, gives=X.sum(2), axis=2),
    case("max_axis", X, gives=X.max(0), axis=0),
    case("min_axis", X, gives=X.min(0), axis=0),
    case("sum", np.int32([[1, 2], [3, 4]]), gives=np.int32([4, 6]), axis=0),
    case("nansum", HOLES, gives=np.nansum(HOLES, 1), axis=1),
    case("nansum", HOLES, gives=np.nansum(HOLES).reshape(1)),
    case("nanprod", HOLES, gives=np.nanprod(HOLES, (0, 2)), axis=(0, 2)),
    case("_np_sum", X, gives=X.sum()),
    case("_np_sum", X, gives=X.sum(1), axis=(1,)),
    case("_npi_mean", X, gives=X.mean((0, 1), keepdims=True), axis=(0, 1), keepdims=True),
    case("_np_max", X, gives=X.max()),
    case("_np_amin", X, gives=X.min(2), axis=2),
    case("_np_prod", X, gives=X.prod(0), axis=0),
    case("_np_sum", np.float32([[1, 2], [3, 4]]), gives=np.float64([4, 6]), axis=0, dtype="float64"),
    case("norm", X, gives=np.sqrt((X**2).sum()).reshape(1)),
    case("norm", X, gives=np.abs(X).sum(1), ord=1, axis=1),
    case("norm", X, gives=np.sqrt((X**2).sum(2, keepdims=True)), ord=2, axis=-1, keepdims=True),
    # Over two axes, too, the norm of the elements.
    case("norm", X, gives=np.sqrt((X**2).sum((1, 2))), ord=2, axis=(1, 2)),
    case("norm", X, gives=np.abs(X).sum((1, 2)), ord=1, axis=(1, 2)),
    case("argmax", X, gives=1.0 * X.argmax(1), axis=1),
    case("argmin", X, gives=1.0 * X.argmin(2), axis=-1),
    case("argmax", X, gives=1.0 * X.argmax(1)[:, None], axis=1, keepdims=True),
    case("argmax", X, gives=np.float32([X.argmax()])),
    case("argmax", X[0, 0], gives=np.float32([X[0, 0].argmax()]), axis=0),
    case("_npi_argmax", X, gives=X.argmax(1), axis=1),
    case("_npi_argmin", X, gives=np.array(X.argmin())),
    case("argmax_channel", X[0], gives=1.0 * X[0].argmax(1)),
    case("moments", X, gives=[X.mean((0, 2)), X.var((0, 2))], axes=(0, 2)),
    case("moments", X, gives=[X.mean(1, keepdims=True), X.var(1, keepdims=True)], axes=(1,), keepdims=True),
    case("cumsum", X, gives=X.cumsum(1), axis=1),
    case("_np_cumsum", X, gives=X.cumsum()),
    case("_np_cumsum", X, gives=X.cumsum(2), axis=2),
]

ROWS = floats(5, 3)
PLACES = np.float32([[1, 9], [-2, 4]])
PICKED = np.float32([[3, 1, 0], [-1, 7, 2]])
RAVEL, UNRAVELED = np.float32([22, 41, 37]), np.float32([[3, 6, 6], [4, 5, 1]])
SELECTION = [
    case("take", ROWS, PLACES, gives=ROWS[PLACES.astype(int).clip(0, 4)]),
    case("take", ROWS, PLACES, gives=ROWS[PLACES.astype(int) % 5], mode="wrap"),
    case("take", X, np.int32([2, 0]), gives=X[:, [2, 0]], axis=1, mode="clip"),
    case("take", X, np.int32([3, -7]), gives=X[..., [3, 1]], axis=-1, mode="wrap"),
    case("take", ROWS, np.int32([1, 4]), gives=ROWS[[1, 4]], mode="raise"),
    case("batch_take", ROWS, np.int32([0, 2, 1, 7, -1]), gives=ROWS[range(5), [0, 2, 1, 2, 0]]),
    case("pick", X, PICKED, gives=np.take_along_axis(X, PICKED.astype(int).clip(0, 3)[..., None], 2)[..., 0]),
    case("pick", X, PICKED, gives=np.take_along_axis(X, (PICKED.astype(int) % 4)[..., None], 2)[..., 0], mode="wrap"),
    case("pick", ROWS, np.float32([0, 1, 2, 1, 0]), gives=ROWS[range(5), [0, 1, 2, 1, 0]], axis=1),
    case("pick", ROWS, np.float32([0, 4, 2]), gives=ROWS[[0, 4, 2], range(3)], axis=0),
    case(
        "pick", ROWS, np.float32([0, 1, 2, 1, 0]), gives=ROWS[range(5), [0, 1, 2, 1, 0]][:, None], axis=1, keepdims=True
    ),
    case(
        "pick",
        ROWS,
        np.float32([[0], [1], [2], [1], [0]]),
        gives=ROWS[range(5), [0, 1, 2, 1, 0]][:, None],
        axis=1,
        keepdims=True,
    ),
    case("choose_element_0index", ROWS, np.float32([0, 1, 2, 1, 0]), gives=ROWS[range(5), [0, 1, 2, 1, 0]]),
    case("gather_nd", X, np.int32([[0, 1], [2, 1]]), gives=X[[0, 1], [2, 1]]),
    case("gather_nd", X, np.float32([[0, 1], [2, -1]]), gives=X[[0, 1], [2, -1]]),
    case(
        "scatter_nd",
        np.float32([2, 3]),
        np.int32([[1, 0], [0, 2]]),
        gives=np.float32([[0, 0, 3], [2, 0, 0]]),
        shape=(2, 3),
    ),
    case("one_hot", np.float32([1, 0, 5, -1]), gives=np.float32([[0, 1, 0], [1, 0, 0], [0, 0, 0], [0, 0, 0]]), depth=3),
    case(
        "one_hot",
        np.int32([[1], [2]]),
        gives=np.int32([[[7, 9, 7]], [[7, 7, 9]]]),
        depth=3,
        on_value=9.0,
        off_value=7.0,
        dtype="int32",
    ),
    case("_contrib_boolean_mask", ROWS, np.float32([1, 0, 0, 1, 2]), gives=ROWS[[0, 3, 4]]),
    case(
        "_contrib_index_copy",
        ROWS,
        np.int32([3, 0]),
        floats(2, 3, seed=1),
        gives=np.stack([floats(2, 3, seed=1)[1], *ROWS[1:3], floats(2, 3, seed=1)[0], ROWS[4]]),
    ),
    case("_contrib_index_array", X, gives=np.stack(np.indices(X.shape), -1)),
    case("_contrib_index_array", X, gives=np.stack(np.indices(X.shape), -1)[..., [1, 0]], axes=(1, 0)),
    case("_ravel_multi_index", UNRAVELED, gives=RAVEL, shape=(7, 6)),
    case("_unravel_index", RAVEL, gives=UNRAVELED, shape=(7, 6)),
    case("unravel_index", RAVEL.astype(np.int32), gives=UNRAVELED.astype(np.int32), shape=(-1, 6)),
    case("ravel_multi_index", UNRAVELED, gives=RAVEL, shape=(7, 6)),
]

VALUES = np.float32([[0.3, 0.2, 0.4], [0.1, 0.3, 0.2]])
DESCENDING = np.argsort(-VALUES, 1)
SORTING = [
    case("topk", VALUES, gives=1.0 * DESCENDING[:, :1]),
    case("topk", VALUES, gives=1.0 * DESCENDING[:, :2], k=2),
    case("topk", VALUES, gives=np.take_along_axis(VALUES, DESCENDING, 1)[:, :2], k=2, ret_typ="value"),
    case(
        "topk",
        VALUES,
        gives=[np.take_along_axis(VALUES, DESCENDING, 1)[:, :2], 1.0 * DESCENDING[:, :2]],
        k=2,
        ret_typ="both",
    ),
    case("topk", VALUES, gives=np.float32([[1, 0, 1], [0, 1, 1]]), k=2, ret_typ="mask"),
    case("topk", VALUES, gives=np.float32([[0, 1, 0], [1, 0, 0]]), k=1, ret_typ="mask", is_ascend=True),
    case("topk", VALUES, gives=np.sort(VALUES, 1)[:, :2], k=2, ret_typ="value", is_ascend=True),
    case("topk", VALUES, gives=DESCENDING[:, :2].astype(np.int32), k=2, dtype="int32"),
    case("topk", VALUES, gives=1.0 * np.argsort(-VALUES, 0)[:1], axis=0),
    case("topk", VALUES, gives=np.take_along_axis(VALUES, DESCENDING, 1), k=0, ret_typ="value"),
    case("topk", VALUES.ravel()[:4], gives=np.float32([2, 0]), k=2, axis=None),
    case("topk", VALUES[:1], gives=np.float32([2, 0]), k=2, axis=None),
    case("sort", VALUES, gives=np.sort(VALUES, 1)),
    case("sort", VALUES, gives=-np.sort(-VALUES, 0), axis=0, is_ascend=False),
    case("sort", VALUES, gives=np.sort(VALUES, None), axis=None),
    case("argsort", VALUES, gives=1.0 * np.argsort(VALUES, 1)),
    case("argsort", VALUES, gives=DESCENDING.astype(np.int32), is_ascend=False, dtype="int32"),
    case("argsort", VALUES[:, :2].T, gives=1.0 * np.argsort(VALUES[:, :2].T, None, "stable"), axis=None),
    case("_npi_argsort", VALUES, gives=np.argsort(VALUES, 1), dtype="int64"),
]

CREATION = [
    case("_zeros", gives=np.zeros((2, 3), np.float32), shape=(2, 3), ctx="cpu(0)"),
    case("_ones", gives=np.ones((2, 3), np.int32), shape=(2, 3), dtype="int32"),
    case("_full", gives=np.full((2,), 2.5, np.float32), shape=(2,), value=2.5),
    case("_arange", gives=np.arange(1, 5, 1.5, dtype=np.float32), start=1.0, stop=5.0, step=1.5, repeat=1),
    case("_arange", gives=np.repeat(np.arange(3, dtype=np.float32), 2), start=0.0, stop=3.0, step=1.0, repeat=2),
    case("_arange", gives=np.arange(3, dtype=np.int32), start=0.0, stop=3.0, dtype="int32"),
    case("_eye", gives=np.eye(3, 4, 1, np.float32), N=3, M=4, k=1),
    case("_eye", gives=np.eye(3, dtype=np.float32), N=3),
    case("_contrib_arange_like", X, gives=np.arange(3, dtype=np.float32), axis=1),
    case("_contrib_arange_like", X, gives=np.arange(4, dtype=np.float32) * 0.5 + 2, axis=-1, start=2.0, step=0.5),
    case("_contrib_arange_like", X, gives=np.arange(24, dtype=np.float32).reshape(2, 3, 4)),
    case("_contrib_arange_like", X, gives=np.float32([0, 0, 1, 1]), axis=2, repeat=2),
]  # fmt: skip


@in_one_item()
@pytest.mark.parametrize("cases", [REDUCTIONS, SELECTION, SORTING, CREATION])
def test_values(cases, tmp_path):
    check(cases, tmp_path)
