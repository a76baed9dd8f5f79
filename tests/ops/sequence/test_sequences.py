"""Sequences and optionals: inferred types, errors, and results of runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from combinations import in_one_item
from onnx import TensorProto, helper

import graphkit as gk
from graphkit.errors import InputError, InvalidModel, OutOfMemory, RuntimeFailure, TypeMismatch, UsageError
from graphkit.ir.limits import limited
from graphkit.ir.types import DType, OptionalType, SequenceType, TensorType, join
from graphkit.onnx_io.compare import OnnxRuntimeModel
from graphkit.ops import F
from graphkit.ops.held import PER_ARRAY, held_bytes, with_one_more

ROWS = SequenceType(TensorType("float32", ["N", 3]))


def ones(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


def at(index: int) -> np.ndarray:
    return np.array(index)


# --- types ----------------------------------------------------------------------------------------


def test_lengths_are_known_as_far_as_they_can_be() -> None:
    x, q = gk.input("x", ["N", 6]), gk.input("q", ROWS)
    made = F.sequence_construct(x, x, x)
    assert made.type == SequenceType(TensorType("float32", ["N", 6]))
    assert made.type.length == 3
    assert F.sequence_insert(made, x).type.length == 4
    assert F.sequence_erase(made).type.length == 2
    assert F.sequence_empty().type.length == 0
    assert F.split_to_sequence(x, at(4), axis=1).type.length == 2
    assert str(F.split_to_sequence(x).type.length) == "N"
    assert F.sequence_length(F.split_to_sequence(x)).type.value == (x.shape[0],)
    assert F.sequence_insert(q, ones(1, 3)).type.length is None
    assert F.sequence_length(q).type.value is None


def test_names_inside_a_fed_sequence_bind_nothing() -> None:
    """Each element has its own sizes: two elements are not provably alike."""
    q, x = gk.input("q", ROWS), gk.input("x", ["N", 3])
    first, second = F.sequence_at(q, at(0)), F.sequence_at(q, at(1))
    assert first.shape[1] == 3
    assert len({first.shape[0], second.shape[0], x.shape[0]}) == 3
    net = gk.Model({"y": F.concat_from_sequence(q, axis=0), "x": F.relu(x)}, name="net")
    found = net.compile().run({"q": [ones(1, 3), ones(4, 3)], "x": ones(2, 3)})
    assert found["y"].shape == (5, 3)


def test_what_an_empty_sequence_could_hold_says_nothing() -> None:
    x = TensorType("float32", (2, 3))
    assert F.sequence_insert(F.sequence_empty(), gk.input("x", [2, 3])).type.element == x
    empty = SequenceType(TensorType("float32"), 0)
    assert join(empty, SequenceType(x, 2)) == join(SequenceType(x, 2), empty) == SequenceType(x)
    with pytest.raises(TypeMismatch):
        join(empty, SequenceType(TensorType("int64"), 2))


def test_a_loop_that_fills_an_empty_sequence_knows_its_elements() -> None:
    x = gk.input("x", ["N", 3])
    _, filled = gk.while_loop(
        lambda s: s[0] < 3,
        lambda s: (s[0] + 1, F.sequence_insert(s[1], F.sin(x))),
        (gk.constant(at(0)), F.sequence_empty()),
    )
    assert filled.type == SequenceType(x.type)
    assert filled.type.length is None
    net = gk.Model({"y": filled}, name="net")
    found = net.compile().run({"x": ones(2, 3)})["y"]
    assert [a.shape for a in found] == [(2, 3)] * 3
    assert found[0].base is None


@in_one_item()
@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda q, x: F.sequence_insert(q, F.cast(x, to="int64")), "does not fit into"),
        (lambda q, x: F.sequence_construct(x, F.cast(x, to="int64")), "must have one element type"),
        (lambda q, x: F.sequence_at(x, at(0)), "must be a sequence, not float32"),
        (lambda q, x: F.sequence_at(q, np.array([0, 1])), "must be a scalar"),
        (lambda q, x: F.concat_from_sequence(q, axis=2), r"axis 2 is outside \[-2, 1\]"),
        (lambda q, x: F.sequence_construct(), "takes at least one operand"),
        (lambda q, x: F.optional(), "attribute 'type'"),
        (lambda q, x: F.optional(x, type=TensorType("int64")), "attribute 'type' is int64"),
        (lambda q, x: F.relu(q), "must be a tensor, not sequence"),
    ],
)
def test_what_does_not_fit_is_refused(build: Any, message: str) -> None:
    with pytest.raises(TypeMismatch, match=message):
        build(gk.input("q", ROWS), gk.input("x", ["N", 3]))


def test_a_type_is_no_number() -> None:
    with pytest.raises(UsageError, match="the type of a tensor, a sequence or an optional"):
        F.optional(type=3)


# --- runs -----------------------------------------------------------------------------------------


def run(outputs: Any, *, optimize: bool = True, **feeds: Any) -> Any:
    return gk.Model({"y": outputs}, name="net").compile(optimize=optimize).run(feeds)["y"]


@in_one_item()
@pytest.mark.parametrize("optimize", [True, False])
@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda q: F.sequence_at(q, at(2)), r"here.*position 2 is outside of \[-2, 1\]"),
        (lambda q: F.sequence_at(q, at(-3)), r"here.*position -3 is outside of \[-2, 1\]"),
        (lambda q: F.sequence_insert(q, ones(1, 3), at(3)), r"SequenceInsert.*position 3 is outside of \[-2, 2\]"),
        (lambda q: F.sequence_erase(q, at(2)), "SequenceErase.*position 2"),
        (lambda q: F.sequence_erase(F.sequence_empty()), "the sequence is empty"),
        (lambda q: F.concat_from_sequence(F.sequence_empty(), axis=0), "nothing to join"),
        (lambda q: F.concat_from_sequence(q, axis=1), r"shapes \[1, 3\], \[2, 3\] must be equal except on axis 1"),
        (lambda q: F.concat_from_sequence(q, axis=0, new_axis=True), r"shapes \[1, 3\], \[2, 3\] must be equal$"),
        (lambda q: F.optional_get_element(F.optional(type=TensorType("float32"))), "the optional is empty"),
        (lambda q: F.split_to_sequence(ones(3), np.array([1, 1])), r"parts \[1, 1\] do not add up to 3"),
        (lambda q: F.split_to_sequence(ones(3), at(0)), "must be at least 1, not 0"),
    ],
)
def test_failures_name_the_node(build: Any, message: str, optimize: bool) -> None:
    value = build(gk.input("q", ROWS))
    value.node.name = "here"
    with pytest.raises(RuntimeFailure, match=message):
        run(value, optimize=optimize, **({"q": [ones(1, 3), ones(2, 3)]} if "q" in gk.Model(value).inputs else {}))


def test_elements_that_are_shown_later_keep_their_values() -> None:
    """Elements of a sequence outlive the memory of the inserted tensors."""
    x = gk.input("x", [4, 5])
    i = gk.input("i", [], dtype="int64")
    q = F.sequence_construct(F.exp(x), F.sin(x))
    y = F.tanh(x)
    for _ in range(6):
        y = F.tanh(F.softmax(F.mat_mul(y, ones(5, 5)) + x))
        q = F.sequence_insert(q, y, i)
    held = F.optional(F.cos(x))
    z = F.mat_mul(F.relu(F.sequence_at(q, i)), ones(5, 5))
    net = gk.Model({"q": q, "z": z, "held": held, "y": y}, name="net")
    given = np.random.default_rng(0).standard_normal((4, 5)).astype(np.float32)
    wanted = net.compile(optimize=False, inplace=False, share=False).run({"x": given, "i": at(1)})
    executor = net.compile()
    for _ in range(3):
        found = executor.run({"x": given, "i": at(1)})
        for a, b in zip(found["q"], wanted["q"], strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5)
        np.testing.assert_allclose(found["z"], wanted["z"], rtol=1e-5)
        np.testing.assert_allclose(found["held"], np.cos(given), rtol=1e-5)
    kept = [a.copy() for a in found["q"]]
    executor.run({"x": 2 * given, "i": at(0)})
    assert all(np.array_equal(a, b) for a, b in zip(found["q"], kept, strict=True))


@in_one_item()
@pytest.mark.parametrize("dtype", [d for d in DType if d is not DType.STRING], ids=str)
def test_every_element_type(dtype: DType) -> None:
    array = np.zeros((3, 2), dtype.numpy)
    x = gk.input("x", [3, 2], dtype=dtype)
    q = F.sequence_insert(F.split_to_sequence(x), F.gather(x, np.array([0]), axis=0), at(0))
    net = gk.Model({"q": q, "y": F.concat_from_sequence(q, axis=0), "o": F.optional(q)}, name="net")
    for found in (net.compile(optimize=False).run({"x": array}), net.compile().run({"x": array})):
        assert found["y"].dtype == array.dtype
        assert found["y"].shape == (4, 2)
        assert [a.shape for a in found["q"]] == [a.shape for a in found["o"]] == [(1, 2)] * 4


def test_strings() -> None:
    x = gk.input("x", ["N"], dtype="string")
    q = F.sequence_insert(F.split_to_sequence(x), np.array(["ä", ""], object), at(0))
    words = np.array(["one", "two"], object)
    assert run(F.concat_from_sequence(q, axis=0), x=words).tolist() == ["ä", "", "one", "two"]


def test_feeds_that_do_not_fit_are_told() -> None:
    net = gk.Model({"y": F.sequence_length(gk.input("q", ROWS))}, name="net")
    assert net.compile().run({"q": []})["y"] == 0
    for given, message in (
        (ones(2, 3), "a ndarray given"),
        ([ones(2, 4)], r"'q\[0\]'.*\[2, 4\]"),
        ([ones(2, 3), np.ones((2, 3))], r"'q\[1\]'.*float64"),
        ([None], r"'q\[0\]'"),
    ):
        with pytest.raises(InputError, match=message):
            net.compile().run({"q": given})


@pytest.mark.parametrize("optimize", [True, False])
def test_an_optional_is_fed_with_none(optimize: bool) -> None:
    o = gk.input("o", OptionalType(ROWS))
    assert not run(F.optional_has_element(o), optimize=optimize, o=None)
    assert run(F.optional_has_element(o), optimize=optimize, o=[])
    assert run(F.identity(o), optimize=optimize, o=None) is None
    assert run(F.optional_get_element(o), optimize=optimize, o=[]) == []


def test_a_plan_needs_no_sizes_of_sequences() -> None:
    q = gk.input("q", ROWS)
    plan = gk.Model({"y": F.relu(F.concat_from_sequence(q, axis=0))}, name="net").compile().plan
    assert [name.partition(" ")[2] for name in plan.fallbacks] == ["(ConcatFromSequence)"]


def test_bytes_that_a_value_holds() -> None:
    x = ones(4, 4)
    assert held_bytes(x) == 64
    assert held_bytes([x, x]) == 64 + 2 * PER_ARRAY
    assert held_bytes([[x], None, [[]]]) == 64 + 5 * PER_ARRAY
    assert held_bytes([x, x.copy()]) == 128 + 2 * PER_ARRAY
    assert held_bytes(None) == 0
    assert held_bytes(np.array(["a" * 1000], object)) > 1000


def test_what_a_sequence_holds_is_added_up() -> None:
    kept, grown = ones(4, 4), []
    for _ in range(5):
        grown = with_one_more(grown, len(grown), ones(4, 4))
    assert grown.held == held_bytes(grown)

    # The same array many times takes no memory of its own.
    def longer(sequence: Any, count: int) -> Any:
        for _ in range(count):
            sequence = with_one_more(sequence, 0, kept)
        return sequence

    with limited(memory=20 * PER_ARRAY):
        grown = longer(grown, 10)
        assert len(grown) == 15
        with pytest.raises(OutOfMemory, match="the sequence"):
            longer(grown, 10)


# --- files ----------------------------------------------------------------------------------------


def split_model(split: Any, keepdims: int, fed: bool) -> onnx.ModelProto:
    names = ["x"] if split is None else ["x", "split"]
    node = helper.make_node("SplitToSequence", names, ["y"], axis=0, keepdims=keepdims)
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, None)]
    fixed = []
    if split is not None:
        array = onnx.numpy_helper.from_array(np.asarray(split), "split")
        if fed:
            inputs.append(helper.make_tensor_value_info("split", TensorProto.INT64, list(array.dims)))
        else:
            fixed.append(array)
    y = helper.make_tensor_sequence_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([node], "split", inputs, [y], fixed)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


@in_one_item()
@pytest.mark.parametrize("fed", [False, True])
@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("split", [None, 1, 2, [3], [1, 2], [1, 1, 1]], ids=str)
def test_split_to_sequence_as_onnx_runtime_has_it(split: Any, keepdims: int, fed: bool) -> None:
    proto = split_model(split, keepdims, fed)
    feeds = {"x": np.arange(6, dtype=np.float32).reshape(3, 2)}
    if fed and split is not None:
        feeds["split"] = np.asarray(split)
    found = gk.load(proto).compile().run(feeds)["y"]
    if split == 2 and not keepdims:
        # ONNX Runtime has no answer; by the standard keepdims counts only where split is absent.
        assert [a.shape for a in found] == [(2, 2), (1, 2)]
        return
    expected = OnnxRuntimeModel(proto).run(feeds)["y"]
    assert [a.tolist() for a in found] == [a.tolist() for a in expected]


def test_sequence_map_reads_names_around_it() -> None:
    tensor, sequence = helper.make_tensor_value_info, helper.make_tensor_sequence_value_info
    body = helper.make_graph(
        [helper.make_node("Mul", ["e", "w"], ["s"]), helper.make_node("Shape", ["e"], ["d"])],
        "each",
        [tensor("e", TensorProto.FLOAT, None)],
        [tensor("s", TensorProto.FLOAT, None), tensor("d", TensorProto.INT64, None)],
    )
    graph = helper.make_graph(
        [helper.make_node("SequenceMap", ["q"], ["ys", "ds"], body=body)],
        "g",
        [sequence("q", TensorProto.FLOAT, None), tensor("w", TensorProto.FLOAT, [])],
        [sequence("ys", TensorProto.FLOAT, None), sequence("ds", TensorProto.INT64, None)],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    net = gk.load(proto)
    assert [node.op_type for node in net.to_onnx().graph.node].count("Loop") == 1
    found = net.compile().run({"q": [ones(2), ones(3, 1)], "w": np.float32(2)})
    assert [a.tolist() for a in found["ys"]] == [[2.0, 2.0], [[2.0], [2.0], [2.0]]]
    assert [a.tolist() for a in found["ds"]] == [[2], [3, 1]]
    assert gk.verify(net, {"q": [ones(2), ones(3, 1)]}).passed


def test_an_output_is_taken_out_of_the_optional_that_a_file_says_it_is_not_in() -> None:
    x = helper.make_tensor_type_proto(TensorProto.FLOAT, [2])
    graph = helper.make_graph(
        [helper.make_node("Identity", ["o"], ["y"]), helper.make_node("Identity", ["x"], ["z"])],
        "g",
        [helper.make_value_info("o", helper.make_optional_type_proto(x)), helper.make_value_info("x", x)],
        [helper.make_value_info("y", x), helper.make_value_info("z", helper.make_optional_type_proto(x))],
    )
    net = gk.load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8))
    assert isinstance(net.output_types["y"], TensorType)
    assert isinstance(net.output_types["z"], OptionalType)
    with pytest.raises(RuntimeFailure, match="the optional is empty"):
        net.compile().run({"o": None, "x": ones(2)})


def test_a_loop_of_a_file_stacks_tensors_alone() -> None:
    info = helper.make_tensor_value_info
    body = helper.make_graph(
        [helper.make_node("SequenceConstruct", ["i"], ["q"]), helper.make_node("Identity", ["go"], ["on"])],
        "body",
        [info("i", TensorProto.INT64, []), info("go", TensorProto.BOOL, [])],
        [info("on", TensorProto.BOOL, []), helper.make_tensor_sequence_value_info("q", TensorProto.INT64, None)],
    )
    nested = helper.make_sequence_type_proto(helper.make_sequence_type_proto(helper.make_tensor_type_proto(7, None)))
    graph = helper.make_graph(
        [helper.make_node("Loop", ["m", ""], ["y"], name="stacks", body=body)],
        "g",
        [info("m", TensorProto.INT64, [])],
        [helper.make_value_info("y", nested)],
    )
    with pytest.raises(InvalidModel, match=r"stacks.*only tensors can be stacked, not sequence\(int64"):
        gk.load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8))


def test_a_declared_kind_that_is_another_is_refused() -> None:
    graph = helper.make_graph(
        [helper.make_node("SequenceConstruct", ["x"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])],
        [helper.make_tensor_sequence_value_info("y", TensorProto.INT64, None)],
    )
    with pytest.raises(InvalidModel, match=r"declared as sequence\(int64"):
        gk.load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8))


@in_one_item()
@pytest.mark.parametrize("opset", [13, 15, 17, 18, 21])
def test_older_opsets(opset: int) -> None:
    """Before opset 18, tensors are not optionals: the known results are written instead."""
    x, q = gk.input("x", [2]), gk.input("q", SequenceType(TensorType("float32", [2])))
    outputs = {"has": F.optional_has_element(x), "x": F.optional_get_element(x), "n": F.sequence_length(q)}
    net = gk.Model(outputs | {"none": F.optional_has_element(), "q": F.sequence_insert(q, x)}, name="net")
    assert gk.verify(net, opset=opset).passed
    held = gk.Model({"y": F.optional(x)}, name="held")
    if opset < 15:
        with pytest.raises(gk.errors.UnsupportedError, match=f"Optional is not in opset {opset}"):
            held.to_onnx(opset=opset)
    else:
        assert gk.verify(held, opset=opset).passed
