"""Data are read as the model's metadata describe them, and the part that is asked for."""

from __future__ import annotations

import numpy as np
import pytest

import graphkit as gk
from graphkit.errors import UsageError
from graphkit.inference.labelled_data import read_labelled


@pytest.fixture
def table(tmp_path):
    rng = np.random.default_rng(0)
    lines = [
        f"{a:.3f},{c},{a + len(c):.3f}" for a, c in zip(rng.normal(3, 2, 40), rng.choice(["x", "yy"], 40), strict=True)
    ]
    (tmp_path / "all.csv").write_text("\n".join(["a,kind,y", *lines]))
    (tmp_path / "new.csv").write_text("a,kind,y\n5,yy,7\n4,x,5")
    return tmp_path


def test_tables_are_encoded_as_in_training(table):
    train, test = gk.data.load(table / "all.csv", scale="standard")
    x = gk.input("x", ["N", *train.shape])
    net = gk.data.described(gk.Model({"y": gk.nn.linear(x, 1, name="fc")}), train)
    found, part = read_labelled(net, table / "new.csv")
    np.testing.assert_array_equal(found.inputs, train.encoding.read(table / "new.csv")["x"])
    assert (part, len(found)) == ("all", 2)
    held_out = read_labelled(net, table / "all.csv", part="test").data
    np.testing.assert_array_equal(held_out.inputs, test.inputs)
    np.testing.assert_array_equal(held_out.targets, test.targets)
    expected = gk.Trainer(net, "mse", gk.optim.SGD(0.1)).evaluate(test)["mse"]
    assert gk.evaluate(net, held_out).metrics["mse"] == pytest.approx(expected)


def test_parts_of_data_with_a_test_part(tmp_path):
    for name, count in (("train", 6), ("test", 4)):
        np.savez(tmp_path / f"{name}.npz", x=np.ones((count, 2), np.float32), y=np.arange(count) % 2)
    net = gk.Model({"y": gk.nn.linear(gk.input("x", ["N", 2]), 2, name="fc")})
    found = {part: read_labelled(net, tmp_path, part=part) for part in (None, "all", "train", "test")}
    assert {part: len(each.data) for part, each in found.items()} == {None: 4, "all": 10, "train": 6, "test": 4}
    assert {part: each.part for part, each in found.items()} == {
        None: "test",
        "all": "all",
        "train": "train",
        "test": "test",
    }
    assert gk.evaluate(net, tmp_path).samples == 4
    with pytest.raises(UsageError, match="part must be"):
        read_labelled(net, tmp_path, part="valid")


def test_parts_of_undivided_data_are_those_of_training():
    net = gk.Model({"y": gk.nn.linear(gk.input("x", ["N", 1, 8, 8]), 10, name="fc")})
    train, test = gk.data.load("digits", split="name")
    for part, expected in (("train", train), ("test", test)):
        np.testing.assert_array_equal(read_labelled(net, "digits", part=part).data.inputs, expected.inputs)
    assert len(read_labelled(net, "digits").data) == 1797
    few = read_labelled(net, "digits", part="test", test_fraction=0.1).data
    assert len(few) == 180
