"""Outputs that are maps: they are made from results after the run, which stays native."""

import sys

import numpy as np
import pytest
from combinations import in_one_item

import graphkit as gk
from graphkit.errors import RuntimeFailure, UsageError
from graphkit.ops import F

ONES = np.ones((2, 2), np.float32)
HALVES = [{"a": 0.5, "b": 0.5}] * 2


@pytest.fixture(scope="module")
def model():
    scores = F.softmax(gk.input("x", ["N", 2]))
    maps = F.zip_map(scores, classlabels_strings=["a", "b"])
    return gk.Model({"scores": scores, "maps": maps, "count": F.sequence_length(maps)})


def test_maps_beside_what_they_are_made_of(model):
    results = model.compile().run({"x": ONES})
    assert results["maps"] == HALVES
    assert results["count"] == 2
    np.testing.assert_array_equal(results["scores"], np.full((2, 2), 0.5))


def test_without_rows_and_alone_and_again(model):
    executor = model.compile()
    assert executor.run({"x": ONES[:0]})["maps"] == []
    for _ in range(3):
        assert executor.run({"x": ONES}, ["maps"]) == {"maps": HALVES}
    assert model.select("maps").compile()(ONES) == (HALVES,)


def test_the_run_is_native(model, monkeypatch):
    monkeypatch.setenv("GRAPHKIT_STRICT", "1")
    alone = model.select("maps").compile()
    assert alone.run({"x": ONES})["maps"] == HALVES
    assert [step.kernel for step in alone.plan.steps] == ["native"]


def test_no_array_holds_maps(model):
    with pytest.raises(UsageError, match="'maps' consists of maps"):
        model.compile().run({"x": ONES}, out={"maps": np.zeros((2, 2), np.float32)})


def test_every_run_has_its_own(model):
    executor = model.compile()
    first = executor.run({"x": ONES})["maps"]
    first[0]["a"] = 7.0
    assert executor.run({"x": ONES})["maps"] == HALVES


@in_one_item()
@pytest.mark.parametrize(
    "labels", [{"classlabels_int64s": [7, -1, 3]}, {"classlabels_strings": ["a", "", "ä"]}], ids=str
)
def test_the_same_as_pythons_own_maps(labels):
    (keys,) = labels.values()
    executor = gk.Model({"maps": F.zip_map(gk.input("x", ["N", 3]), **labels)}).compile()
    x = np.array([[1e-45, np.inf, -0.0], [np.float32(1 / 3), -np.inf, 3e38]], np.float32)
    assert executor.run({"x": x})["maps"] == [dict(zip(keys, row, strict=True)) for row in x.tolist()]
    (last,) = executor.run({"x": np.full((1, 3), np.nan, np.float32)})["maps"]
    assert list(last) == keys
    assert all(type(value) is float and np.isnan(value) for value in last.values())


def test_one_key_for_two_columns_is_the_last():
    maps = F.zip_map(gk.input("x", ["N", 2]), classlabels_int64s=[4, 4])
    assert gk.Model({"maps": maps}).run({"x": ONES * 2})["maps"] == [{4: 2.0}, {4: 2.0}]


def test_a_vector_is_one_row():
    maps = F.zip_map(gk.input("x", [2]), classlabels_int64s=[0, 1])
    assert gk.Model({"maps": maps}).run({"x": ONES[0]})["maps"] == [{0: 1.0, 1: 1.0}]


def test_rows_and_labels_that_do_not_fit():
    maps = gk.Model({"maps": F.zip_map(gk.input("x", ["N", "K"]), classlabels_int64s=[0, 1])})
    with pytest.raises(RuntimeFailure, match=r"ZipMap.*2 labels for an array \[3, 5\]"):
        maps.run({"x": np.zeros((3, 5), np.float32)})


def test_maps_keep_no_memory(model):
    executor = model.select("maps").compile()
    x = np.ones((1000, 2), np.float32)
    executor.run({"x": x})
    before = sys.getallocatedblocks()
    for _ in range(20):
        executor.run({"x": x})
    assert sys.getallocatedblocks() - before < 1000
