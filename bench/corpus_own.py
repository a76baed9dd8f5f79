"""Small files by onnx's own text format and helpers, and graphkit's own, for `corpus.py`."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
from corpus import Made
from onnx import TensorProto, helper

import graphkit as gk

_SCAN = """<ir_version: 8, opset_import: ["": 17]>
scan (float[N, 3] x, float[3] start) => (float[3] last, float[N, 3] rows, float[N, 3] back) {
    last, rows, back = Scan <num_scan_inputs = 1, scan_output_directions = [0, 1],
        body = step (float[3] s, float[3] row) => (float[3] t, float[3] kept, float[3] turned) {
        t = Add (s, row)
        kept = Mul (t, row)
        turned = Sub (s, row)
    }> (start, x)
}"""

_SEQUENCES = """<ir_version: 9, opset_import: ["": 19]>
sequences (float[N, 4] x, int64 at) => (float[M, 4] y, seq(float[R, 4]) parts, int64 n)
    <int64[2] sizes = {1, 2}> {
    cut = SplitToSequence <axis = 0> (x, sizes)
    first = SequenceAt (cut, at)
    more = SequenceInsert (cut, first)
    parts = SequenceErase (more, at)
    y = ConcatFromSequence <axis = 0> (more)
    n = SequenceLength (parts)
}"""

_STRINGS = """<ir_version: 9, opset_import: ["": 20]>
strings (string[N] words) => (string[N, M] parts, int64[N] counts, bool[N] matches, string[N] joined) {
    parts, counts = StringSplit <delimiter = ","> (words)
    clean = StringNormalizer <case_change_action = "LOWER", is_case_sensitive = 0, locale = "C"> (words)
    matches = RegexFullMatch <pattern = "[a-z]+,.*"> (clean)
    joined = StringConcat (words, clean)
}"""

_CONTROL = """<ir_version: 8, opset_import: ["": 16]>
control (float[N] x, int64 n) => (float[N] y, float[T, N] all) <bool go = {1}, float top = {10}> {
    y, all = Loop <body = b (int64 i, bool c, float[N] s) => (bool d, float[N] t, float[N] kept) {
        sum = ReduceSum <keepdims = 0> (s)
        small = Less (sum, top)
        t = If <then_branch = grown () => (float[N] a) { a = Add (s, x) }, else_branch = halved () => (float[N] b) {
            two = Constant <value = float {2}> ()
            b = Div (s, two)
        }> (small)
        kept = Sin (t)
        d = Identity (c)
    }> (n, go, x)
}"""

_BOXES = """<ir_version: 8, opset_import: ["": 16]>
boxes (float[1, 2, 8, 8] x, float[N, 4] boxes, float[N] scores) => (int64[K, 3] kept, float[N, 2, 2, 2] regions)
    <int64[1] most = {3}, float[1] overlap = {0.5}, int64[1] front = {0}, int64[2] both = {0, 1}> {
    batched = Unsqueeze (boxes, front)
    weighed = Unsqueeze (scores, both)
    kept = NonMaxSuppression (batched, weighed, most, overlap)
    shape = Shape (scores)
    picture = ConstantOfShape <value = int64[1] {0}> (shape)
    regions = RoiAlign <output_height = 2, output_width = 2, sampling_ratio = 2> (x, boxes, picture)
}"""

_FUNCTIONS = """<ir_version: 9, opset_import: ["": 18, "own": 1]>
functions (float[N, 3] x) => (float[N, 3] y) {
    h = own.twice (x)
    y = own.leaky <slope = 0.25> (h)
}
<domain: "own", opset_import: ["": 18, "own": 1]>
twice (a) => (c) {
    b = own.leaky <slope = 0.5> (a)
    c = Add (a, b)
}
<domain: "own", opset_import: ["": 18]>
leaky <slope> (a) => (b) {
    b = LeakyRelu <alpha: float = @slope> (a)
}"""


def makers() -> dict[str, Callable[[], Made]]:
    return {
        "onnx_scan": lambda: _parsed(_SCAN),
        "onnx_sequences": lambda: _parsed(_SEQUENCES, x=np.arange(12, dtype=np.float32).reshape(3, 4), at=np.array(1)),
        "onnx_strings": lambda: _parsed(_STRINGS, words=np.array(["Ab,c", "x", "", "d,,E"])),
        "onnx_control": lambda: _parsed(_CONTROL, x=np.float32([1, 2, 0.5]), n=np.array(5)),
        "onnx_boxes": lambda: _parsed(
            _BOXES,
            x=np.random.default_rng(1).random((1, 2, 8, 8), np.float32),
            scores=np.float32([0.9, 0.8, 0.3, 0.6]),
            boxes=np.float32([[0, 0, 4, 4], [0, 0, 4, 5], [3, 3, 7, 7], [1, 0, 3, 2]]),
        ),
        "onnx_functions": lambda: _parsed(_FUNCTIONS),
        "onnx_sparse": _sparse,
        "graphkit_recurrent": lambda: _own(_recurrent()),
        "graphkit_control": lambda: _own(_loop()),
    }


def _parsed(text: str, **inputs: np.ndarray) -> Made:
    return Made(onnx.parser.parse_model(text).SerializeToString(), inputs=inputs)


def _sparse() -> Made:
    """Sparse initialisers, with flat and with full indices, and one in a typed field."""
    values = [helper.make_tensor(n, TensorProto.FLOAT, [3], [1.0, -2.0, 0.5]) for n in ("flat", "full")]
    flat = helper.make_tensor("flat_i", TensorProto.INT64, [3], [0, 5, 11])
    full = helper.make_tensor("full_i", TensorProto.INT64, [3, 2], [0, 1, 1, 1, 3, 2])
    bias = helper.make_tensor("bias", TensorProto.FLOAT16, [3], np.float16([1, 2, 3]))
    nodes = [
        helper.make_node("Add", ["flat", "full"], ["w"]),
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("Cast", ["bias"], ["b"], to=TensorProto.FLOAT),
        helper.make_node("Add", ["h", "b"], ["y"]),
    ]
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["N", s]) for n, s in (("x", 4), ("y", 3)))
    graph = helper.make_graph(nodes, "sparse", [x], [y], [bias], sparse_initializer=[
        helper.make_sparse_tensor(v, i, [4, 3]) for v, i in zip(values, (flat, full), strict=True)
    ])  # fmt: skip
    return Made(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString())


def _recurrent() -> gk.Model:
    x = gk.input("x", ["T", "N", 3])
    return gk.Model({"y": gk.nn.linear(gk.nn.lstm(x, 12)[0], 5, name="last")}, name="recurrent")


def _loop() -> gk.Model:
    x = gk.input("x", ["T", 3])
    last, rows = gk.scan(lambda s, row: (s + row, gk.tanh(s) * row), gk.constant(np.zeros(3, np.float32)), x)
    return gk.Model({"last": last, "rows": rows}, name="control")


def _own(model: gk.Model) -> Made:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"graphkit_{model.name}.json"
        model.save(path)
        beside = {p.name: p.read_bytes() for p in path.parent.iterdir() if p != path}
        return Made(path.read_bytes(), beside, suffix=".json")
