"""Outputs that are maps: made of results behind the run, which stays native."""

import numpy as np
import pytest

import graphkit as gk
from graphkit.errors import UsageError
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
    with pytest.raises(UsageError, match="'maps' is made of maps"):
        model.compile().run({"x": ONES}, out={"maps": np.zeros((2, 2), np.float32)})


def test_every_run_has_its_own(model):
    executor = model.compile()
    first = executor.run({"x": ONES})["maps"]
    first[0]["a"] = 7.0
    assert executor.run({"x": ONES})["maps"] == HALVES
