"""Tensors of strings: conversion from any array of texts, and storage in files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from combinations import in_one_item
from onnx import TensorProto, helper

import graphkit as gk
from graphkit.errors import InputError, InvalidModel, UsageError
from graphkit.ir.strings import as_strings
from graphkit.ir.tensor import Tensor

WORDS = np.array([["a", "zwölf"], ["", "日本\0"]], object)


@in_one_item()
@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (np.array(["a", "zwölf"]), ["a", "zwölf"]),
        (np.array(["a", b"zw"], object), ["a", "zw"]),
        (np.array(["ü".encode(), b""]), ["ü", ""]),
        (np.array([np.str_("x"), "y"], object), ["x", "y"]),
        (np.array(["a", "b\0"], np.dtypes.StringDType()), ["a", "b\0"]),
        (np.empty((0,), object), []),
        (np.empty((0,), "U3"), []),
    ],
    ids=["U", "bytes", "S", "str_", "T", "empty", "emptyU"],
)
def test_what_is_text(given: np.ndarray, expected: list[str]) -> None:
    found = as_strings(given)
    assert found.dtype == object
    assert found.tolist() == expected
    assert {type(word) for word in found.tolist()} <= {str}
    net = gk.Model({"y": gk.identity(gk.input("x", ["N"], dtype="string"))})
    assert net.run({"x": given})["y"].tolist() == expected
    assert Tensor(given).array.tolist() == expected


BAD = [
    (np.array([["a", 3]], object), r"element \[0, 1\] is of type int"),
    (np.array([["a", None]], object), r"element \[0, 1\] is of type NoneType"),
    (np.array([[np.nan, "a"]], object), r"element \[0, 0\] is of type float"),
    (np.array([[b"\xff", "a"]], object), r"element \[0, 0\] is not UTF-8 text: invalid start byte"),
    (np.array([["a", "\ud800"]], object), r"element \[0, 1\] is not Unicode text: surrogates not allowed"),
]


@in_one_item()
@pytest.mark.parametrize(("given", "message"), BAD)
def test_what_is_no_text(given: np.ndarray, message: str) -> None:
    """Also in the second run of a program, whose feeds have the dtype and shape of the first."""
    if "surrogates" not in message:
        with pytest.raises(UsageError, match=message):
            Tensor(given)
    executor = gk.Model({"y": gk.identity(gk.input("x", [1, 2], dtype="string"))}).compile()
    for _ in range(2):
        executor.run({"x": np.array([["a", "b"]], object)})
    with pytest.raises(InputError, match=rf"input 'x' is string\[1, 2\]; {message}"):
        executor.run({"x": given})


@in_one_item()
@pytest.mark.parametrize("given", [["a", 1], [["a"], ["b", "c"]], [None, "a"]])
def test_lists_that_are_no_text(given: Any) -> None:
    net = gk.Model({"y": gk.identity(gk.input("x", [2], dtype="string"))})
    with pytest.raises(InputError, match=r"input 'x' is string\[2\]; element"):
        net.run({"x": given})


def test_lists_keep_zero_bytes() -> None:
    net = gk.Model({"y": gk.identity(gk.input("x", ["N"], dtype="string"))})
    assert net.run({"x": ["a", "b\0"]})["y"].tolist() == ["a", "b\0"]


@in_one_item()
@pytest.mark.parametrize("words", [WORDS, np.array("", object), np.empty((0, 2), object), np.full(3000, "é", object)])
def test_constants_in_files(words: np.ndarray, tmp_path: Path) -> None:
    """JSON, its weights file, and ONNX hold the same strings."""
    net = gk.Model({"y": gk.identity(gk.constant(words)), "x": gk.identity(gk.input("x", [1]))}, name="words")
    for path in (tmp_path / "net.json", tmp_path / "net.onnx"):
        net.save(path)
        found = gk.load(path).run({"x": np.zeros(1, np.float32)})["y"]
        assert found.shape == words.shape
        assert found.tolist() == words.tolist()


def file(tensor: TensorProto) -> bytes:
    outputs = [helper.make_tensor_value_info("y", TensorProto.STRING, None)]
    graph = helper.make_graph([helper.make_node("Identity", ["w"], ["y"])], "net", [], outputs, [tensor])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)]).SerializeToString()


@in_one_item()
@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        (TensorProto(name="w", data_type=8, dims=[2], string_data=[b"a", b"\xff"]), "element 1 is not UTF-8 text"),
        (TensorProto(name="w", data_type=8, dims=[2], string_data=[b"a"]), "needs 2 entries in string_data"),
        (TensorProto(name="w", data_type=8, dims=[1], raw_data=b"a"), "strings cannot be stored as raw data"),
    ],
)
def test_files_that_lie(tensor: TensorProto, message: str) -> None:
    with pytest.raises(InvalidModel, match=f"'w'.*{message}"):
        gk.load(file(tensor))


def test_attributes_that_are_no_text() -> None:
    node = helper.make_node("StringSplit", ["x"], ["y", "z"], delimiter=b"\xff")
    graph = helper.make_graph(
        [node], "net", [helper.make_tensor_value_info("x", TensorProto.STRING, [2])], [onnx.ValueInfoProto(name="y")]
    )
    with pytest.raises(InvalidModel, match="attribute 'delimiter': not UTF-8 text"):
        gk.load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)]).SerializeToString())
