"""Fills and guesses for a model's inputs."""

from __future__ import annotations

import numpy as np
import pytest
from combinations import in_one_item

import graphkit as gk
from graphkit.checks.inputs import make_feeds
from graphkit.errors import InputError, OutOfMemory, RuntimeFailure, UsageError
from graphkit.ir import limits


def test_dimension_names_are_guessed_and_announced() -> None:
    x, y = gk.input("x", ["N", 3]), gk.input("y", ["N", "M"])
    feeds = make_feeds(gk.Model(gk.concat(x, y, axis=1)))
    assert feeds.arrays["x"].shape == (2, 3)
    assert feeds.arrays["y"].shape == (2, 2)
    assert feeds.announcement == "guessed dimensions: N=2, M=2"


def test_guesses_satisfy_shape_inference() -> None:
    x = gk.input("x", ["N", 1, "H", "W"])
    net = gk.Model(gk.reshape(gk.nn.conv2d(x, 2, kernel=5, name="c"), np.array([-1, 2 * 4 * 4])))
    feeds = make_feeds(net)
    n, _, h, w = feeds.arrays["x"].shape
    assert h >= 5
    assert w >= 5
    net.run(feeds.arrays)
    assert feeds.guesses == {"N": n, "H": h, "W": w}


def test_rank_of_an_unknown_shape_is_guessed() -> None:
    net = gk.Model(gk.softmax(gk.input("x", None), axis=2))
    assert make_feeds(net).arrays["x"].shape == (1, 1, 1)


def test_input_without_shape_is_named_if_no_guess_fits() -> None:
    x = gk.input("x", None)
    net = gk.Model(list(gk.split(x, axis=1, num_outputs=5)))
    with pytest.raises(InputError, match="does not say the shape of 'x'; give it, such as x:1,10"):
        make_feeds(net)


def test_given_arrays_and_shapes_bind_names() -> None:
    x, y = gk.input("x", ["N", 3]), gk.input("y", ["N", "M"])
    net = gk.Model(gk.concat(x, y, axis=1))
    feeds = make_feeds(net, given={"x": np.zeros((5, 3), np.float32)}, shapes={"y": (5, 7)})
    assert feeds.arrays["y"].shape == (5, 7)
    assert feeds.guesses == {}
    with pytest.raises(InputError, match="N is 4 in input 'y' and 5 in input 'x'"):
        make_feeds(net, given={"x": np.zeros((5, 3), np.float32)}, shapes={"y": (4, 7)})
    with pytest.raises(InputError, match="did you mean 'x'"):
        make_feeds(net, given={"xx": np.zeros(1)})


@in_one_item()
@pytest.mark.parametrize("fill", ["random", "ones", "zeros", "arange"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int8", "uint8", "int64", "bool", "string"])
def test_fills(fill: str, dtype: str) -> None:
    x = gk.input("x", [2, 3], dtype=dtype)
    array = make_feeds(gk.Model(gk.identity(x)), fill).arrays["x"]
    assert array.shape == (2, 3)
    assert array.dtype == x.dtype.numpy
    again = make_feeds(gk.Model(gk.identity(x)), fill).arrays["x"]
    assert array.tolist() == again.tolist()


def test_unknown_fill() -> None:
    with pytest.raises(UsageError, match="did you mean 'random'"):
        make_feeds(gk.Model(gk.relu(gk.input("x", [2]))), "rondom")


def test_indices_stay_inside_the_axis_they_index() -> None:
    ids = gk.input("ids", [50], dtype="int64")
    table = gk.constant(np.zeros((3, 4), np.float32))
    net = gk.Model(gk.gather(table, gk.unsqueeze(ids, np.array([0]))))
    array = make_feeds(net).arrays["ids"]
    assert set(array.tolist()) == {0, 1, 2}
    assert make_feeds(net, "arange").arrays["ids"].max() == 2


@pytest.mark.parametrize("way", ["gather", "split"])
def test_columns_of_indices_stay_inside_their_tables(way) -> None:
    codes = gk.input("codes", [50, 2], dtype="int64")
    if way == "gather":
        columns = [gk.gather(codes, np.int64(i), axis=1) for i in range(2)]
    else:
        columns = gk.split(codes, num_outputs=2, axis=1)
    tables = [gk.constant(np.zeros((rows, 4), np.float32)) for rows in (3, 5)]
    net = gk.Model([gk.gather(t, c) for t, c in zip(tables, columns, strict=True)])
    assert set(make_feeds(net).arrays["codes"].ravel().tolist()) == {0, 1, 2}


def test_impossible_sizes() -> None:
    x = gk.input("x", ["N"])
    net = gk.Model(gk.reshape(x, np.array([-1, 100_003])))
    with pytest.raises(InputError, match="give shapes"):
        make_feeds(net)


def test_a_batch_behind_layers_is_guessed() -> None:
    """The second dimension of the state is the batch of x, while the length of x has to be larger."""
    x, state = gk.input("x", [None, 1, None]), gk.input("state", [2, None, 2])
    waves = gk.conv(x, gk.parameter("w", [2, 1, 5], init="ones"))
    start = gk.unsqueeze(gk.reduce_sum(state, np.array([0]), keepdims=False), np.array([2]))
    net = gk.Model({"waves": waves, "y": gk.concat(start, waves, axis=2)})
    arrays = make_feeds(net).arrays
    assert arrays["x"].shape[0] == arrays["state"].shape[1]
    assert arrays["x"].shape[2] >= 5
    net.run(arrays)


def test_guesses_leave_room_for_windows() -> None:
    x = gk.input("x", ["N", 1, "H", "W"])
    waves = gk.conv(x, gk.parameter("w", [2, 1, 5, 5], init="ones"), strides=[2, 2])
    net = gk.Model({"y": gk.global_average_pool(waves)})
    assert np.isfinite(net.run(make_feeds(net).arrays)["y"]).all()


def test_memory_error_says_how_bytes_are_counted() -> None:
    net = gk.Model({"y": gk.input("x", ["N", 3])})
    expected = r"input 'x' of shape \[7, 3\], with up to 16 bytes for each element: 336 bytes are needed, .* 335 bytes"
    with limits.limited(335, None, None), pytest.raises(OutOfMemory, match=expected):
        make_feeds(net, shapes={"x": (7, 3)})
    with limits.limited(336, None, None):
        assert make_feeds(net, shapes={"x": (7, 3)}).arrays["x"].shape == (7, 3)


@pytest.mark.parametrize("steps", [("mul", "add"), ("add", "add"), ("shift",)])
def test_sums_and_products_of_inputs_stay_inside_the_axis(steps: tuple[str, ...]) -> None:
    ids, mask, kinds = (gk.input(name, [30], dtype="int64") for name in ("ids", "mask", "kinds"))
    at = ids
    for step, other in zip(steps, (mask, kinds), strict=False):
        at = gk.mul(at, other) if step == "mul" else at + (other if step == "add" else np.int64(5))
    net = gk.Model(gk.gather(gk.parameter("table", [20, 2]), at), seed=0)
    feeds = make_feeds(net).arrays
    net.run(feeds)
    assert feeds["ids"].max() > 1


def test_sums_beyond_the_axis_leave_indices_of_zero() -> None:
    """No input fits, but the error is that of the model, not one of the generator."""
    ids, mask = (gk.input(name, [3], dtype="int64") for name in ("ids", "mask"))
    for at in (ids + np.int64(12), gk.mul(ids, mask) + np.int64(12)):
        net = gk.Model(gk.gather(gk.parameter("table", [10, 2]), at), seed=0)
        feeds = make_feeds(net).arrays
        assert not feeds["ids"].any()
        with pytest.raises(RuntimeFailure, match="index 12"):
            net.run(feeds)


def test_sizes_that_can_be_reflected() -> None:
    net = gk.Model(gk.pad(gk.input("x", [1, "T"]), np.array([0, 4, 0, 4]), mode="reflect"))
    size = make_feeds(net).arrays["x"].shape[1]
    assert size > 4
    assert gk.verify(net).passed
