"""Loops that count get a trip count, and elements that they append to a sequence become a scan output."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from combinations import in_one_item

import graphkit as gk
from graphkit.ops.control.views import LoopView
from graphkit.passes.control.count_loops import count_loops

DATA = np.arange(20, dtype=np.int64) ** 2


def model(body: str, first: int = 0, limit: str = "", end: str = "n", start: bool = True) -> onnx.ModelProto:
    """A loop over one counter `i` that appends to a sequence: `body` has the nodes that make its row."""
    text = f"""
    <ir_version: 8, opset_import: ["": 18]>
    net (int64[20] data, float[6, 3] x) => (int64 last, y)
      <int64 first = {{{first}}}, bool go = {{{int(start)}}}, int64 n = {{6}}, int64 one = {{1}}, int64 most = {{4}},
       int64[1] line = {{-1}}> {{
      empty = SequenceEmpty <dtype: int = 1> ()
      last, rows = Loop ({limit}, go, first, empty)
      <body = step (int64 k, bool c, int64 i, before) => (again, after, more) {{
        at = Reshape (i, line)
        {body}
        more = SequenceInsert (before, row)
        after = Add (i, one)
        again = Less (after, {end})
      }}>
      y = ConcatFromSequence <axis = 0> (rows)
    }}
    """
    return onnx.parser.parse_model(text)


ROW = "behind = Add (at, one)  p = Slice (data, at, behind)  f = Cast <to = 1> (p)  row = Add (f, x)"


def feeds() -> dict[str, np.ndarray]:
    return {"data": DATA, "x": np.random.default_rng(0).standard_normal((6, 3), dtype=np.float32)}


def compare(proto: onnx.ModelProto) -> Any:
    """Run the model here and in ONNX Runtime; return the executor."""
    executor = gk.load(proto).compile()
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    for got, want in zip(executor.run(feeds()).values(), session.run(None, feeds()), strict=True):
        np.testing.assert_array_equal(got, want)
    return executor


def trips(proto: onnx.ModelProto) -> tuple[float, ...] | None:
    (loop,) = (n for n in count_loops(gk.load(proto).graph).nodes if n.op.name == "Loop")
    limit = LoopView.of(loop).operands[0]
    return None if limit is None else limit.tensor.constants


@in_one_item()
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (dict(), 6),
        (dict(first=2), 4),
        (dict(first=5), 1),
        (dict(first=9), 1),  # the condition is tested only after the first iteration
        (dict(limit="most"), 4),
        (dict(limit="most", first=3), 3),
    ],
    ids=str,
)
def test_loops_that_count(options: dict[str, Any], expected: int) -> None:
    proto = model(ROW, **options)
    assert trips(proto) == (expected,)
    executor = compare(proto)
    assert not executor.plan.fallbacks


@in_one_item()
@pytest.mark.parametrize(("step", "compared", "expected"), [(2, "Less", 3), (4, "Less", 2), (3, "LessOrEqual", 3)])
def test_steps(step: int, compared: str, expected: int) -> None:
    proto = model(ROW)
    (loop,) = (n for n in proto.graph.node if n.op_type == "Loop")
    for node in loop.attribute[0].g.node:
        if node.output[0] == "after":
            node.input[1] = "by"
        if node.output[0] == "again":
            node.op_type = compared
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.int64(step), "by"))
    assert trips(proto) == (expected,)
    compare(proto)


def test_a_narrowing_cast_of_the_end() -> None:
    """259 is 3 as int8, so the constant before the casts does not determine the number of iterations."""
    body = ROW + "  narrow = Cast <to = 3> (big)  bound = Cast <to = 7> (narrow)"
    proto = model(body, end="bound")
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.int64(259), "big"))
    assert trips(proto) in (None, (3,))
    compare(proto)


@pytest.mark.parametrize(("first", "end"), [(-5, 2**63 - 1), (-(2**63), 2**63 - 1)])
def test_counters_that_wrap_around_stay(first: int, end: int) -> None:
    proto = model(ROW, first=first, end="far")
    (loop,) = (n for n in proto.graph.node if n.op_type == "Loop")
    for node in loop.attribute[0].g.node:
        if node.output[0] == "again":
            node.op_type = "LessOrEqual"
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.int64(end), "far"))
    assert trips(proto) is None


@in_one_item()
@pytest.mark.parametrize(
    "options", [dict(end="most", start=False, limit="most"), dict(limit="m"), dict(end="bound"), dict(end="i")], ids=str
)
def test_other_loops_stay(options: dict[str, Any]) -> None:
    """A condition that is false at first, data-dependent limits and ends, and a counter compared with itself."""
    body = ROW
    options = dict(options)
    if options.get("end") == "bound":
        body += "  size = Size (f)  bound = Add (size, n)"
    proto = model(body, **options)
    if options.get("limit") == "m":
        proto.graph.input.append(onnx.helper.make_tensor_value_info("m", onnx.TensorProto.INT64, []))
    before = gk.load(proto).graph
    assert count_loops(before) is before


@in_one_item()
@pytest.mark.parametrize(("first", "moved"), [(0, 14), (0, 15), (13, 1), (15, 0)])
def test_slices_of_one_element(first: int, moved: int) -> None:
    """Slices at positions after the end of the data are empty: they are kept, and the loop is interpreted."""
    body = f"""
        far = Constant <value = int64[1] {{{moved}}}> ()  from = Add (at, far)  behind = Add (from, one)
        p = Slice (data, from, behind)  f = Cast <to = 1> (p)  row = Unsqueeze (f, line)
    """
    proto = model(body, first=first, end="n" if first == 0 else "many")
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.int64(20 - moved), "many"))
    inside = first + moved + (6 if first == 0 else 20 - moved - first) <= 20
    graph = count_loops(gk.load(proto).graph)
    (loop,) = (n for n in graph.nodes if n.op.name == "Loop")
    names = {n.op.name for n in LoopView.of(loop).body.nodes}
    assert ("Gather" in names) == inside
    assert ("Slice" in names) != inside
    compare(proto)


def test_gradient() -> None:
    """Check the gradient of a sum of rows that a sequence collects, by differences in float64."""
    report = gk.check_gradient(gk.load(model(ROW)), feeds(), of="y", wrt=["x"])
    assert report.passed, str(report)
