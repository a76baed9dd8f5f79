"""Operators that move elements: reshaping, joining, slices, padding, broadcasting."""

import numpy as np
import pytest
from combinations import in_one_item

from tests.mxnet_io.operator_cases import case, floats
from tests.mxnet_io.operator_checks import check, imported

X = floats(2, 3, 4)
LINE = np.arange(24, dtype=np.float32)
MATRIX = floats(4, 6)


def reshaped(wanted, **attributes):
    return case("Reshape", X, gives=X.reshape(wanted), **attributes)


RESHAPE = [
    reshaped((4, 6), shape=(4, 6)),
    reshaped((6, 4), shape=(-1, 4)),
    reshaped((2, 12), shape=(0, -1)),
    reshaped((2, 4, 3), shape=(0, 4, 3)),
    reshaped((2, 3, 4), shape=(-2,)),
    reshaped((2, 3, 4, 1, 1), shape=(-2, 1, 1)),
    reshaped((2, 3, 1, 4), shape=(0, -4, 3, 1, -2)),
    reshaped((6, 4), shape=(-3, 4)),
    reshaped((6, 4), shape=(-3, 0)),
    reshaped((2, 12), shape=(0, -3)),
    reshaped((6, 4), shape=(-3, -2)),
    reshaped((1, 2, 3, 4), shape=(-4, 1, 2, -2)),
    reshaped((2, 1, 3, 4), shape=(2, -4, -1, 3, -2)),
    reshaped((2, 3, 2, 2), shape=(0, 0, -4, 2, -1)),
    reshaped((2, 3, 2, 2), shape=(0, 0, -4, -1, 2)),
    case(
        "Reshape",
        floats(8, 3, 3, 3, 4, 4),
        gives=floats(8, 3, 3, 3, 4, 4).reshape(4, 2, 3, 3, 12, 4),
        shape=(-4, -1, 2, 0, 0, -3, 0),
    ),
    # From the right: 0 belongs to the axis at the same place from the end.
    case("Reshape", floats(10, 5, 4), gives=floats(10, 5, 4).reshape(50, 4), shape=(-1, 0), reverse=True),
    case("Reshape", floats(10, 5, 4), gives=floats(10, 5, 4).reshape(40, 5), shape=(-1, 0), reverse=False),
    case("Reshape", X, gives=X.reshape(6, 4), shape=(-3, 0), reverse=True),
    case("Reshape", X, gives=X.reshape(2, 3, 2, 2), shape=(0, 0, 2, -1, -4), reverse=True),
    case("Reshape", X, gives=X.reshape(1, 2, 3, 4), shape=(1, 2, -4, 0, 0), reverse=True),
    case("Reshape", X, gives=X.reshape(2, 3, 1, 4), shape=(-2, 1, 4, -4), reverse=True),
    # MXNet before 0.9.
    case("Reshape", X, gives=X.reshape(2, 12), target_shape=(0, 12), keep_highest=True),
    case("Reshape", X, gives=X.reshape(4, 6), target_shape=(4, 6)),
    case("Flatten", X, gives=X.reshape(2, 12)),
    case("flatten", LINE, gives=LINE.reshape(24, 1)),
    case("reshape_like", X, floats(4, 6), gives=X.reshape(4, 6)),
    case(
        "reshape_like",
        floats(30, 7),
        floats(15, 2, 4),
        gives=floats(30, 7).reshape(15, 2, 7),
        lhs_begin=0,
        lhs_end=1,
        rhs_begin=0,
        rhs_end=2,
    ),
    case(
        "reshape_like",
        floats(7, 30),
        floats(15, 2, 4),
        gives=floats(7, 30).reshape(7, 15, 2),
        lhs_begin=-1,
        rhs_begin=0,
        rhs_end=-1,
    ),
    # Numpy's operators.
    case("_np_reshape", X, gives=X.reshape(4, 6), newshape=(4, 6)),
    case("_np_reshape", X, gives=X.reshape(3, 8), newshape=(-1, 8)),
    case("_npx_reshape", X, gives=X.reshape(2, 12), newshape=(-2, -1)),
    case("_npx_reshape", floats(2, 1, 4), gives=floats(2, 1, 4).reshape(2, 4), newshape=(-2, -3, -2)),
    case("_npx_reshape", X, gives=X.reshape(2, 3, 2, 2), newshape=(-2, -2, -6, 2, 2)),
    case("_npx_reshape", X, gives=X.reshape(2, 3, 2, 2), newshape=(-2, -2, -6, -1, 2)),
    case("_npx_reshape", X, gives=X.reshape(6, 4), newshape=(-5, -4)),
    case("_npx_reshape", X, gives=X.reshape(6, 4), newshape=(-5, -2), reverse=True),
    case("_npx_reshape", X, gives=X.reshape(8, 3), newshape=(8, -1)),
]

AXES = [
    case("expand_dims", X, gives=X[:, None], axis=1),
    case("expand_dims", X, gives=X[..., None], axis=-1),
    case("squeeze", X[:1, :, None], gives=X[0]),
    case("squeeze", X[:1, :, None], gives=X[0, :, None], axis=0),
    case("squeeze", X[:1, :, None], gives=X[0], axis=(0, -2)),
    case("squeeze", floats(1, 1), gives=floats(1, 1).reshape(1)),
    case("_np_squeeze", floats(1, 1), gives=floats(1, 1).reshape(())),
    case("transpose", X, gives=X.T),
    case("transpose", X, gives=X.transpose(1, 0, 2), axes=(1, 0, 2)),
    case("transpose", X, gives=X.transpose(2, 0, 1), axes=(2, 0, 1)),
    case("_np_transpose", X, gives=X.transpose(1, 2, 0), axes=(1, 2, 0)),
    case("SwapAxis", X, gives=X.swapaxes(0, 2), dim1=0, dim2=2),
    case("swapaxes", X, gives=X.swapaxes(1, 2), dim1=1, dim2=-1),
    case("reverse", X, gives=X[:, ::-1], axis=1),
    case("flip", X, gives=X[::-1, :, ::-1], axis=(0, 2)),
    case("_npi_flip", X, gives=X[::-1, ::-1, ::-1], axis=(0, 1, 2)),
    case(
        "depth_to_space",
        floats(1, 8, 2, 3),
        block_size=2,
        gives=floats(1, 8, 2, 3).reshape(1, 2, 2, 2, 2, 3).transpose(0, 3, 4, 1, 5, 2).reshape(1, 2, 4, 6),
    ),
    case(
        "space_to_depth",
        floats(1, 2, 4, 6),
        block_size=2,
        gives=floats(1, 2, 4, 6).reshape(1, 2, 2, 2, 3, 2).transpose(0, 3, 5, 1, 2, 4).reshape(1, 8, 2, 3),
    ),
    case("shape_array", X, gives=np.int64([2, 3, 4])),
    case("size_array", X, gives=np.int64([24])),
    case("diag", MATRIX, gives=np.diag(MATRIX)),
    case("diag", MATRIX, gives=np.diag(MATRIX, 1), k=1),
    case("diag", MATRIX, gives=np.diag(MATRIX, -2), k=-2),
    case("diag", LINE[:3], gives=np.diag(LINE[:3])),
    case("diag", LINE[:3], gives=np.diag(LINE[:3], -1), k=-1),
    case("diag", X, gives=np.diagonal(X, 0, 0, 1)),
    case("diag", X, gives=np.diagonal(X, 1, 1, 2), k=1, axis1=-2, axis2=-1),
    case("_np_diag", MATRIX, gives=np.diag(MATRIX, 1), k=1),
    case("_np_diagonal", X, gives=np.diagonal(X, 1, 2, 0), offset=1, axis1=2, axis2=0),
    case("_np_trace", MATRIX, gives=np.trace(MATRIX)),
    case("_np_trace", X, gives=np.trace(X, 1, 0, 2), offset=1, axis1=0, axis2=2),
    case("_np_moveaxis", X, gives=np.moveaxis(X, 0, 2), source=0, destination=2),
    case("_np_moveaxis", X, gives=np.moveaxis(X, (0, 1), (-1, 0)), source=(0, 1), destination=(-1, 0)),
    case("_np_roll", X, gives=np.roll(X, 5), shift=5),
    case("_np_roll", X, gives=np.roll(X, -1, 1), shift=-1, axis=1),
    case("_np_roll", X, gives=np.roll(X, (1, 2), (0, 2)), shift=(1, 2), axis=(0, 2)),
    case("_npi_rot90", MATRIX, gives=np.rot90(MATRIX), k=1, axes=(0, 1)),
    case("_npi_rot90", X, gives=np.rot90(X, 3, (1, 2)), k=3, axes=(1, 2)),
    case("_npi_tril", MATRIX, gives=np.tril(MATRIX, 1), k=1),
]

JOIN = [
    case("Concat", X, X, gives=np.concatenate([X, X], 1), num_args=2),
    case("concat", X, X + 1, gives=np.concatenate([X, X + 1], 2), dim=-1, num_args=2),
    case("_npi_concatenate", X, X, gives=np.concatenate([X, X], 0), axis=0, num_args=2),
    case("_npi_concatenate", X, X, gives=np.concatenate([X, X], None), axis=None, num_args=2),
    case("_rnn_param_concat", LINE, LINE[:3], gives=np.concatenate([LINE, LINE[:3]]), dim=0, num_args=2),
    case("stack", X, X + 1, gives=np.stack([X, X + 1]), num_args=2),
    case("stack", X, X + 1, gives=np.stack([X, X + 1], -1), axis=-1, num_args=2),
    case("_npi_stack", X, X + 1, gives=np.stack([X, X + 1], 1), axis=1, num_args=2),
    case("_npi_vstack", MATRIX, MATRIX, gives=np.vstack([MATRIX, MATRIX]), num_args=2),
    case("_npi_hstack", MATRIX, MATRIX, gives=np.hstack([MATRIX, MATRIX]), num_args=2),
    case("_npi_hstack", LINE, LINE, gives=np.hstack([LINE, LINE]), num_args=2),
    case("_npi_dstack", MATRIX, MATRIX, gives=np.dstack([MATRIX, MATRIX]), num_args=2),
    case("_npi_column_stack", LINE, LINE, gives=np.column_stack([LINE, LINE]), num_args=2),
    case("SliceChannel", X, gives=np.split(X, 3, 1), num_outputs=3),
    case("SliceChannel", X, gives=[X[:, 0], X[:, 1], X[:, 2]], num_outputs=3, squeeze_axis=True),
    case("split", X, gives=np.split(X, 2, 2), num_outputs=2, axis=-1),
    case("split", X, gives=[X], num_outputs=1, axis=1),
    case("split", X[:, :1], gives=[X[:, 0]], num_outputs=1, axis=1, squeeze_axis=True),
    case("_split_v2", X, gives=[X[:, :1], X[:, 1:]], indices=(0, 1), axis=1),
    case("_split_v2", X, gives=[X[..., :1], X[..., 1:3], X[..., 3:]], indices=(0, 1, 3), axis=2, sections=0),
    case("_split_v2", X, gives=np.split(X, 2, 2), indices=(), axis=2, sections=2),
    case("_split_v2", X, gives=[X[:, 0], X[:, 1], X[:, 2]], indices=(), axis=1, sections=3, squeeze_axis=True),
    case("_npi_split", X, gives=[X[..., :1], X[..., 1:]], indices=(0, 1), axis=2),
    case("_npi_hsplit", MATRIX, gives=np.hsplit(MATRIX, 2), indices=(), axis=1, sections=2),
    case("_npi_dsplit", X, gives=np.dsplit(X, 2), indices=(), axis=2, sections=2),
]

SLICES = [
    case("slice_axis", X, gives=X[:, 1:], axis=1, begin=1, end=None),
    case("slice_axis", X, gives=X[..., -3:-1], axis=-1, begin=-3, end=-1),
    case("slice_axis", X, gives=X[:1], axis=0, begin=0, end=1),
    case("slice", X, gives=X[:1, 1:3], begin=(0, 1), end=(1, 3)),
    case("slice", X, gives=X[:, 1:], begin=(None, 1), end=(None, None)),
    case("slice", X, gives=X[:, ::-1], begin=(None, None), end=(None, None), step=(None, -1)),
    case("slice", X, gives=X[:, :, 3:0:-2], begin=(None, None, 3), end=(None, None, 0), step=(None, None, -2)),
    case("slice", X, gives=X[:, -2:, :-1], begin=(0, -2, 0), end=(2, 3, -1)),
    case("crop", X, gives=X[:, 1:2], begin=(0, 1), end=(2, 2)),
    case("slice_like", MATRIX, floats(2, 3), gives=MATRIX[:2, :3]),
    case("slice_like", X, floats(1, 2, 3, 4), gives=X[:1, :2, :3], axes=(0, 1, 2)),
    case("slice_like", X, floats(1, 2, 3), gives=X[..., :3], axes=(-1,)),
    case("slice_like", X, floats(1, 2, 3), gives=X[:1, :, :3], axes=(0, 2)),
    case("Crop", floats(1, 2, 5, 6), gives=floats(1, 2, 5, 6)[..., 1:4, 2:4], offset=(1, 2), h_w=(3, 2), num_args=1),
    case("Crop", floats(1, 2, 5, 6), gives=floats(1, 2, 5, 6)[..., 1:4, 1:5], center_crop=True, h_w=(3, 4), num_args=1),
    case("Crop", floats(1, 2, 5, 6), floats(1, 7, 2, 3), gives=floats(1, 2, 5, 6)[..., :2, :3], num_args=2),
    case(
        "Crop",
        floats(1, 2, 5, 6),
        floats(1, 7, 2, 3),
        gives=floats(1, 2, 5, 6)[..., 1:3, 1:4],
        num_args=2,
        center_crop=True,
    ),
    case(
        "_slice_assign",
        X,
        floats(2, 2, 4),
        gives=np.concatenate([X[:, :1], floats(2, 2, 4)], 1),
        begin=(None, 1),
        end=(None, 3),
    ),
    case(
        "_slice_assign_scalar",
        MATRIX,
        gives=np.where(np.arange(6) % 2, MATRIX, 7),
        begin=(None, 0),
        end=(None, 6),
        step=(1, 2),
        scalar=7.0,
    ),
]

PADDING = [
    case("Pad", floats(1, 2, 3, 3), mode="constant", pad_width=(0, 0, 0, 0, 1, 2, 0, 3), constant_value=1.5,
         gives=np.pad(floats(1, 2, 3, 3), [(0, 0), (0, 0), (1, 2), (0, 3)], constant_values=1.5)),
    case("pad", floats(1, 2, 3, 3), gives=np.pad(floats(1, 2, 3, 3), [(0, 0), (0, 0), (1, 2), (2, 1)], "edge"),
         mode="edge", pad_width=(0, 0, 0, 0, 1, 2, 2, 1)),
    case("Pad", floats(1, 2, 3, 3), gives=np.pad(floats(1, 2, 3, 3), [(0, 0), (0, 0), (1, 2), (2, 1)], "reflect"),
         mode="reflect", pad_width=(0, 0, 0, 0, 1, 2, 2, 1)),
    case("Pad", floats(1, 1, 2, 3, 3), mode="reflect", pad_width=(0, 0, 0, 0, 1, 1, 1, 2, 2, 1),
         gives=np.pad(floats(1, 1, 2, 3, 3), [(0, 0), (0, 0), (1, 1), (1, 2), (2, 1)], "reflect")),
    case("_npi_pad", MATRIX, gives=np.pad(MATRIX, [(1, 0), (2, 3)], constant_values=2), pad_width=((1, 0), (2, 3)),
         mode="constant", constant_value=2),
    case("_npi_pad", MATRIX, gives=np.pad(MATRIX, [(1, 0), (2, 3)], "edge"), pad_width=((1, 0), (2, 3)), mode="edge"),
    case("_npi_pad", MATRIX, gives=np.pad(MATRIX, [(1, 0), (2, 3)], "reflect"), pad_width=((1, 0), (2, 3)),
         mode="reflect"),
    case("tile", MATRIX, gives=np.tile(MATRIX, (2, 1)), reps=(2, 1)),
    case("tile", MATRIX, gives=np.tile(MATRIX, (2, 1, 2)), reps=(2, 1, 2)),
    case("tile", X, gives=np.tile(X, 2), reps=(2,)),
    case("repeat", MATRIX, gives=np.repeat(MATRIX, 2), repeats=2),
    case("repeat", X, gives=np.repeat(X, 3, 1), repeats=3, axis=1),
    case("repeat", X, gives=np.repeat(X, 2, -1), repeats=2, axis=-1),
    case("_np_repeat", X, gives=np.repeat(X, 2, -1), repeats=2, axis=-1),
    case("broadcast_axis", X[:, :1], gives=np.broadcast_to(X[:, :1], (2, 5, 4)), axis=1, size=5),
    case("broadcast_axes", X[:1, :1], gives=np.broadcast_to(X[:1, :1], (2, 5, 4)), axis=(0, 1), size=(2, 5)),
    case("broadcast_to", X[:, :1], gives=np.broadcast_to(X[:, :1], (2, 5, 4)), shape=(0, 5, 0)),
    case("_npi_broadcast_to", X, gives=np.broadcast_to(X, (2, 2, 3, 4)), shape=(2, 2, 3, 4)),
    case("broadcast_like", X[:, :1], X, gives=np.broadcast_to(X[:, :1], (2, 3, 4))),
    case("broadcast_like", X[:, :1], LINE, gives=np.broadcast_to(X[:, :1], (2, 24, 4)), lhs_axes=(1,), rhs_axes=(0,)),
]  # fmt: skip


@in_one_item()
@pytest.mark.parametrize("cases", [RESHAPE, AXES, JOIN, SLICES, PADDING])
def test_values(cases, tmp_path):
    check(cases, tmp_path)


def test_reshape_of_unknown_sizes(tmp_path):
    """Sizes that are known only at run time are copied, joined and split as known ones are."""
    cases = [item for item in RESHAPE if item.operands[0].shape == X.shape and len(item.operands) == 1]
    shapes = {f"x{i}_0": (None, None, 4) for i in range(len(cases))}
    model, feeds = imported(cases, tmp_path, shapes)
    for item, found in zip(cases, model.run(feeds).values(), strict=True):
        np.testing.assert_array_equal(found, item.gives[0], str(item))
