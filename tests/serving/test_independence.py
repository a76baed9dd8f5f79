"""Which operators prove that rows are independent, so that a model needs no runs when it is loaded."""

from __future__ import annotations

import numpy as np
import pytest
from combinations import in_one_item

import graphkit as gk
from graphkit.serving.joining import why_not_joined


class NotProved(Exception):
    """The model would run."""


def is_proved(net):
    def run(feeds):
        raise NotProved

    try:
        return why_not_joined(net, run, lambda model: run) is None
    except NotProved:
        return False


def of(*outputs):
    return is_proved(gk.Model({f"y{place}": output for place, output in enumerate(outputs)}))


def rows_of(x):
    """The number of rows, int64 [1]."""
    return gk.slice(gk.shape(x), gk.constant(np.array([0])), gk.constant(np.array([1])))


@in_one_item()
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("googlenet", {"image": (3, 32, 32)}),
        ("vit", {"size": "tiny", "layers": 1, "image": (3, 32, 32)}),
        ("bert", {"vocab": 99, "width": 16, "heads": 2, "layers": 1}),
        ("text_cnn", {}),
    ],
)
def test_networks_are_proved(name, options):
    """Pools without positions, tokens and positions of the same values for each row, lengths of texts."""
    assert is_proved(gk.models.build(name, **options))


def test_the_same_row_for_each_request():
    x = gk.input("x", ["N", 2, 3])
    shape = gk.concat(rows_of(x), gk.constant(np.array([1, 3])), axis=0)
    token = gk.constant(np.ones((1, 1, 3), np.float32))
    assert of(gk.concat(gk.expand(token, shape), x, axis=1))
    assert of(x + gk.expand(gk.constant(np.float32(1)), shape))
    assert of(x + gk.constant_of_shape(shape))


def test_values_of_the_length_of_texts():
    x = gk.input("x", ["N", "T", 3])
    length = gk.slice(gk.shape(x), gk.constant(np.array([1])), gk.constant(np.array([2])))
    table = gk.constant(np.ones((50, 3), np.float32))
    assert of(x + gk.slice(table, gk.constant(np.array([0])), length, gk.constant(np.array([0]))))


def test_values_of_the_number_of_rows_are_not_independent():
    x = gk.input("x", ["N", 3])
    rows = rows_of(x)
    table = gk.constant(np.ones((3, 50, 3), np.float32))
    for each in (x * gk.cast(rows, to="float32"), x + gk.reduce_sum(gk.expand(gk.constant(np.float32(1)), rows), [0])):
        assert not of(each)
    assert not of(x + gk.gather(table, gk.squeeze(rows), axis=1)[0])
    shape = gk.concat(rows, gk.constant(np.array([3])), axis=0)
    assert not of(x + gk.expand(gk.cast(rows, to="float32"), shape))


def test_values_of_the_place_in_a_batch_are_not_independent():
    x = gk.input("x", ["N", "T", 3])
    length = gk.slice(gk.shape(x), gk.constant(np.array([1])), gk.constant(np.array([2])))
    part = gk.slice(gk.constant(np.ones((50, 3), np.float32)), gk.constant(np.array([0])), length)
    each = gk.expand(part, gk.concat(rows_of(x), gk.constant(np.array([3])), axis=0))
    assert not of(gk.reduce_sum(x, [1], keepdims=0) + each)


def test_positions_of_a_pool():
    x = gk.input("x", ["N", 1, 4, 4])
    y, places = gk.max_pool(x, kernel_shape=[2, 2])
    assert of(y)
    assert not of(y, places)


def test_random_values_are_not_independent():
    x = gk.input("x", ["N", 3])
    assert not of(x + gk.random_uniform(shape=[3]))


def swapped(x):
    return gk.transpose(x, perm=(1, 0, 2))


def test_rows_along_another_axis():
    """Recurrent layers and others have the steps of a sequence first."""
    x, ids = gk.input("x", ["N", "T", 3]), gk.input("ids", ["N", "T"], np.int64)
    w = gk.constant(np.ones((3, 3), np.float32))
    table = gk.constant(np.ones((9, 3), np.float32))
    embedded = gk.gather(table, gk.transpose(ids, perm=(1, 0)), axis=0)
    assert of(swapped(embedded))
    y = gk.tanh(swapped(x) @ w + gk.constant(np.ones(3, np.float32)))
    assert of(swapped(y))
    assert of(gk.gather(y, gk.constant(np.array(-1)), axis=0))
    assert of(swapped(y * gk.constant(np.ones((1, 1, 3), np.float32))))
    assert of(swapped(gk.softmax(y, axis=-1)), gk.arg_max(y, axis=0, keepdims=False))
    assert of(*gk.top_k(x, gk.constant(np.array([1])), axis=1))
    repeated = gk.concat(gk.constant(np.array([1])), rows_of(x), gk.constant(np.array([3])), axis=0)
    assert of(swapped(y + gk.expand(gk.constant(np.ones((1, 1, 3), np.float32)), repeated)))
    for kind, gates in (gk.rnn, 1), (gk.gru, 3), (gk.lstm, 4):
        weights = [gk.constant(np.ones((1, gates * 2, n), np.float32)) for n in (3, 2)]
        outputs = kind(swapped(x), *weights, hidden_size=2)
        assert of(gk.squeeze(outputs[1], gk.constant(np.array([0]))))


def test_rows_along_another_axis_may_be_mixed():
    x = gk.input("x", ["N", 3, 2])
    y = swapped(x)
    for mixed in (
        gk.gather(y, gk.constant(np.array(0)), axis=1),
        gk.arg_max(y, axis=1, keepdims=False),
        gk.softmax(y, axis=1),
        gk.reduce_sum(y, [1]),
        swapped(y) + gk.expand(gk.gather(y, gk.constant(np.array(0)), axis=1), gk.constant(np.array([1, 3, 2]))),
        gk.gather(gk.reshape(y, [-1, 2]), gk.constant(np.array([0]))),
    ):
        assert not of(mixed)
    # The size of the rows is 1 in one request: a Squeeze of all such axes would remove it.
    assert not of(gk.unsqueeze(gk.squeeze(gk.transpose(gk.input("z", ["N", 3]), perm=(1, 0))), [0]))
    weights = [gk.constant(np.ones((1, 2, n), np.float32)) for n in (2, 2)]
    layer = gk.rnn(x, *weights, hidden_size=2)[0]  # the steps are the rows
    assert not of(gk.squeeze(layer, gk.constant(np.array([1]))))
    own = gk.input("own", ["N"], np.int64)
    assert not of(gk.gather(own, own))
    # Row i of one value meets row j of the other.
    a, b = gk.input("a", ["N", 3]), gk.input("b", ["N", 3])
    assert not of(gk.unsqueeze(a, [1]) * gk.unsqueeze(gk.transpose(b, perm=(1, 0)), [0]))
