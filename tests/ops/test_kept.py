"""Objects that are made once from an operator's attributes."""

import gc
import weakref

import numpy as np

from graphkit.ops.kept import kept
from graphkit.ops.ml.labels import LabelEncoder


def encoder():
    return LabelEncoder(keys_strings=["a", "b"], values_int64s=[3, 4])


def test_it_is_made_once_for_each_object_and_goes_with_it():
    made = []

    @kept
    def table(op):
        made.append(weakref.ref(op))
        return {"a": np.zeros(3)}

    one, other = encoder(), encoder()
    assert one == other
    assert table(one) is table(one)
    assert table(other) is not table(one)
    assert len(made) == 2
    kept_by_one = weakref.ref(table(one)["a"])
    del one
    gc.collect()
    assert made[0]() is None
    assert kept_by_one() is None


def test_a_run_does_not_hash_the_keys(monkeypatch):
    op, x = encoder(), np.array(["b", "c"], object)
    expected = op.reference(np, x)
    monkeypatch.setattr(LabelEncoder, "__hash__", None)
    np.testing.assert_array_equal(op.reference(np, x), expected)
