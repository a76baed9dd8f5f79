"""Declared shapes in a file do not change results: operators with data-dependent shapes, against ONNX Runtime."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import onnx
import pytest
from combinations import in_one_item
from onnx import TensorProto, helper

import graphkit as gk
from graphkit.errors import DeclarationWarning, GraphkitWarning, InputError, InvalidModel
from graphkit.executor.run.program_choice import ProgramChoice
from graphkit.ir.declared import Declarations

ort = pytest.importorskip("onnxruntime")

DATA = np.arange(24, dtype=np.float32).reshape(2, 3, 4) % 7 - 2
IMAGE = np.arange(36, dtype=np.float32).reshape(1, 1, 6, 6)


def i64(*elements: int) -> np.ndarray:
    return np.array(elements, np.int64)


def size(number: int) -> np.ndarray:
    return np.array(number, np.int64)


class Case(NamedTuple):
    """An operator, its operands in several runs ("" leaves one out), and which of them decide its shape by value."""

    operator: str
    runs: Sequence[Mapping[str, np.ndarray]]
    by_value: Sequence[str]
    operands: Sequence[str] = ()
    attributes: Mapping[str, Any] = {}
    outputs: int = 1
    opset: int = 18

    @property
    def inputs(self) -> Sequence[str]:
        return self.operands or tuple(self.runs[0])


BOXES = np.array([[[0, 0, 1, 1], [0, 0, 1, 0.9], [0, 2, 1, 3], [0, 4, 1, 5]]], np.float32)
SCORES = np.array([[[0.9, 0.8, 0.7, 0.2]]], np.float32)

CASES = {
    "ConstantOfShape": Case("ConstantOfShape", [{"s": i64(2, 3)}, {"s": i64(4, 1)}, {"s": i64(0, 3)}], "s"),
    "Expand": Case("Expand", [{"x": DATA[:1], "s": i64(2, 3, 4)}, {"x": DATA[:1], "s": i64(5, 1, 1)}], "s"),
    "Reshape": Case("Reshape", [{"x": DATA, "s": i64(4, 6)}, {"x": DATA, "s": i64(3, -1)}], "s"),
    "Range": Case("Range", [{"a": size(a), "b": size(b), "c": size(c)} for a, b, c in ((0, 5, 1), (2, 9, 3))], "abc"),
    "OneHot": Case("OneHot", [{"k": i64(0, 1), "d": size(d), "v": np.float32([0, 1])} for d in (5, 3)], "d"),
    "TopK": Case("TopK", [{"x": DATA, "k": i64(k)} for k in (2, 4, 1)], "k", outputs=2),
    "Split": Case("Split", [{"x": DATA, "s": i64(*s)} for s in ((1, 3), (2, 2))], "s",
                  attributes={"axis": 2}, outputs=2),
    "Tile": Case("Tile", [{"x": DATA, "s": i64(*s)} for s in ((2, 1, 1), (1, 1, 3))], "s"),
    "NonZero": Case("NonZero", [{"x": DATA}, {"x": DATA + 2}], "x"),
    "Slice": Case("Slice", [{"x": DATA, "b": i64(b), "e": i64(e), "a": i64(2)} for b, e in ((1, 3), (0, 9))], "be"),
    "Pad": Case("Pad", [{"x": DATA, "s": i64(*s)} for s in ((1, 0, 0, 1, 0, 0), (0, 2, 0, 0, 0, 0))], "s"),
    "Compress": Case("Compress", [{"x": DATA, "c": np.array(c)} for c in ([True, False], [True, True])], "c",
                     attributes={"axis": 0}),
    "Resize by sizes": Case("Resize", [{"x": IMAGE, "s": i64(1, 1, *s)} for s in ((12, 9), (3, 6))], "s",
                            ("x", "", "", "s")),
    "Resize by scales": Case("Resize", [{"x": IMAGE, "s": np.float32([1, 1, *s])} for s in ((2, 2), (1, 0.5))], "s",
                             ("x", "", "s")),
    "Unique": Case("Unique", [{"x": DATA}, {"x": DATA // 2}], "x"),
    "NonMaxSuppression": Case(
        "NonMaxSuppression",
        [{"b": BOXES, "s": SCORES, "k": size(k), "o": np.float32([0.5]), "t": np.float32([0.1])} for k in (4, 1)], "k",
    ),
    "ReduceSum": Case("ReduceSum", [{"x": DATA, "a": i64(a)} for a in (0, 2)], "a"),
    "Unsqueeze": Case("Unsqueeze", [{"x": DATA, "a": i64(*a)} for a in ((0,), (0, 1))], "a"),
    "Squeeze": Case("Squeeze", [{"x": DATA[None, :, None], "a": i64(*a)} for a in ((0,), (0, 2))], "a"),
    "CenterCropPad": Case("CenterCropPad", [{"x": DATA, "s": i64(*s)} for s in ((4, 3, 2), (2, 2, 6))], "s"),
    "HannWindow": Case("HannWindow", [{"s": size(6)}, {"s": size(9)}], "s", opset=17),
    "Col2Im": Case(
        "Col2Im",
        [{"x": np.ones((1, 4, 4), np.float32), "i": i64(*i), "b": i64(2, 2)} for i in ((3, 3), (2, 5))], "i",
    ),
    "MaxUnpool": Case(
        "MaxUnpool",
        [{"x": np.ones((1, 1, 1, 1), np.float32), "i": i64(0).reshape(1, 1, 1, 1), "s": i64(1, 1, *s)}
         for s in ((2, 2), (3, 4))], "s", attributes={"kernel_shape": [2, 2], "strides": [2, 2]},
    ),
    "DFT": Case("DFT", [{"x": DATA[..., None], "n": size(n)} for n in (4, 6)], "n", attributes={"axis": 2}, opset=17),
}  # fmt: skip


def twice(name: str, array: np.ndarray) -> list[onnx.NodeProto]:
    """Return a node that computes the operand `name` from an input."""
    operator = "Not" if array.dtype == bool else "Neg"
    steps = [(f"{name}_fed", f"{name}_less"), (f"{name}_less", name)]
    return [helper.make_node(operator, [a], [b]) for a, b in steps]


def info(name: str, dtype: Any, shape: Sequence[Any] | None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), shape)


def network(case: Case, kind: str, declared: Sequence[Sequence[Any] | None], dtypes: Sequence[Any]) -> onnx.ModelProto:
    """The operator with its operands constant, computed or fed; its results, read once more, and their shapes."""
    first = case.runs[0]
    nodes, inputs, constants = [], [], []
    for name, array in first.items():
        if name in case.by_value and kind == "constant":
            constants.append(onnx.numpy_helper.from_array(np.asarray(array), name))
            continue
        shape = [None] * array.ndim if name not in case.by_value or "x" in name else list(array.shape)
        if case.operator in ("Unsqueeze", "Squeeze") and name == "a":
            shape = [None]
        computed = name in case.by_value and kind == "computed"
        inputs.append(info(f"{name}_fed" if computed else name, array.dtype, shape))
        nodes += twice(name, array) if computed else []
    results = [f"m{i}" for i in range(case.outputs)]
    nodes.append(helper.make_node(case.operator, list(case.inputs), results, **case.attributes))
    outputs, told = [], []
    for i, (name, shape, dtype) in enumerate(zip(results, declared, dtypes, strict=True)):
        nodes += [helper.make_node("Identity", [name], [f"y{i}"]), helper.make_node("Shape", [name], [f"shape{i}"])]
        outputs += [info(f"y{i}", dtype, shape), info(f"shape{i}", np.int64, None)]
        told += [info(name, dtype, shape)] if shape is not None else []
    graph = helper.make_graph(nodes, "net", inputs, outputs, constants, value_info=told)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", case.opset)], ir_version=8)


def feeds(case: Case, kind: str, run: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    if kind == "constant":
        return {k: v for k, v in run.items() if k not in case.by_value}
    return {f"{k}_fed" if k in case.by_value and kind == "computed" else k: v for k, v in run.items()}


@pytest.mark.parametrize("kind", ["constant", "computed", "fed"])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_declared_shapes_are_no_results(case: Case, kind: str) -> None:
    if kind == "computed" and case.operator in ("NonZero", "Unique"):
        runs = [{"x": r["x"].astype(np.float32)} for r in case.runs]
        case = case._replace(runs=runs)
    runs = case.runs[:1] if kind == "constant" else case.runs
    fed = [feeds(case, kind, run) for run in runs]
    unknown = network(case, kind, [None] * case.outputs, [np.float32] * case.outputs)
    dtypes = [v.dtype for v in gk.load(_without_types(unknown)).graph.outputs[::2]]
    numpy_types = [d.numpy for d in dtypes]
    plain = network(case, kind, [None] * case.outputs, numpy_types)
    session = ort.InferenceSession(plain.SerializeToString(), providers=["CPUExecutionProvider"])
    wanted = [session.run(None, f) for f in fed]
    right = [list(a.shape) for a in wanted[0][::2]]
    for declared in (
        [None] * case.outputs,
        right,
        [[d + 1 for d in s] for s in right],
        [[*s, 2] for s in right],
        [[f"d{i}" for i in range(len(s))] for s in right],
    ):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model = gk.load(network(case, kind, declared, numpy_types))
            executor = model.compile()
            for run, expected in [*zip(fed, wanted, strict=True)] * 2:
                for name, array, truth in zip(model.outputs, executor.run(run).values(), expected, strict=True):
                    assert array.shape == truth.shape, (declared, name)
                    np.testing.assert_allclose(array, truth, 1e-5, 1e-5, err_msg=f"{declared}, {name}")
        told = [str(w.message) for w in caught if issubclass(w.category, GraphkitWarning)]
        assert len(told) == len(caught), [str(w.message) for w in caught]
        for i, shape in enumerate(declared):
            false = shape is not None and any(_contradicts(shape, e[2 * i].shape) for e in wanted)
            about = [t for t in told if f"tensor 'y{i}'" in t]
            assert len(about) == int(false), (declared, told)
            assert len([t for t in told if f"tensor 'm{i}'" in t]) <= int(false)


def _contradicts(declared: Sequence[Any], shape: tuple[int, ...]) -> bool:
    same = len(declared) == len(shape)
    return not same or any(isinstance(d, int) and d != n for d, n in zip(declared, shape, strict=True))


def _without_types(proto: onnx.ModelProto) -> onnx.ModelProto:
    for value in proto.graph.output:
        value.ClearField("type")
    return proto


def simple(nodes: Sequence[onnx.NodeProto], x: Sequence[Any], y: Any, **told: Any) -> onnx.ModelProto:
    """Return a network from float x to float y; `told` declares tensors between them."""
    values = [helper.make_tensor_value_info(k, t, s) for k, (t, s) in told.items()]
    graph = helper.make_graph(nodes, "net", [info("x", np.float32, x)], [y], value_info=values)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


CHAIN = [helper.make_node("Relu", ["x"], ["m"]), helper.make_node("Neg", ["m"], ["y"])]


@pytest.mark.parametrize(("declared", "shown"), [([5], r"\[5\], but is \[3\]"), ([3, 1], r"\[3, 1\], but is \[3\]")])
def test_what_inference_excludes_is_told_at_once(declared: list[int], shown: str) -> None:
    with pytest.warns(DeclarationWarning, match=f"tensor 'm' is declared as {shown}") as caught:
        model = gk.load(simple(CHAIN, [3], info("y", np.float32, [3]), m=(TensorProto.FLOAT, declared)))
    assert len(caught) == 1
    assert model.run({"x": DATA[0, :, 0]})["y"].shape == (3,)


def test_what_feeds_exclude_is_told_once_for_all_runs() -> None:
    model = gk.load(simple(CHAIN, ["N"], info("y", np.float32, [3]), m=(TensorProto.FLOAT, ["N"])))
    executor = model.compile()
    executor.run({"x": np.ones(3, np.float32)})
    with pytest.warns(DeclarationWarning, match=r"tensor 'y' is declared as \[3\], but is \[4\]"):
        executor.run({"x": np.ones(4, np.float32)})
    for count in (5, 3, 4):
        assert executor.run({"x": np.ones(count, np.float32)})["y"].shape == (count,)


@pytest.mark.parametrize(("declared", "compares"), [(["a", "b"], False), ([2, "a"], False), ([2, 5], True)])
def test_runs_compare_only_declared_numbers(
    declared: list[Any], compares: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A declared symbol fits any size, so the shapes of runs are not compared with it."""
    nodes = [helper.make_node("NonZero", ["x"], ["y"])]
    executor = gk.load(simple(nodes, [3, 4], info("y", np.int64, declared))).compile()
    compared: list[str] = []
    monkeypatch.setattr(Declarations, "check", lambda self, name, *rest, **options: compared.append(name))
    assert executor.run({"x": np.eye(3, 4, dtype=np.float32)})["y"].shape == (2, 3)
    assert bool(compared) == compares


def test_native_runs_compare_declared_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    proto = simple([helper.make_node("Mul", ["x", "w"], ["y"])], ["N", 1], info("y", np.float32, ["N", "N"]))
    proto.graph.input.append(info("w", np.float32, [1, "M"]))
    executor = gk.load(proto).compile(threads=1)

    def run(n: int, m: int) -> None:
        executor.run({"x": np.ones((n, 1), np.float32), "w": np.ones((1, m), np.float32)})

    run(3, 3)
    run(4, 4)
    monkeypatch.setattr(ProgramChoice, "find_program", lambda *_: pytest.fail("the run is not native"))
    run(5, 5)
    with pytest.warns(DeclarationWarning, match=r"tensor 'y' is declared as \[N, N\], but is \[6, 7\]"):
        run(6, 7)


def test_a_name_that_stands_for_two_sizes() -> None:
    nodes = [helper.make_node("Concat", ["x", "x"], ["m"], axis=0), helper.make_node("Neg", ["m"], ["y"])]
    model = gk.load(simple(nodes, ["N"], info("y", np.float32, ["N"])))
    with pytest.warns(DeclarationWarning, match=r"tensor 'y' is declared as \[N\], but is \[6\]"):
        assert model.run({"x": np.ones(3, np.float32)})["y"].shape == (6,)


def test_sizes_that_follow_from_inputs_need_no_inference(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [helper.make_node("Concat", ["x", "x"], ["m"], axis=0), helper.make_node("Neg", ["m"], ["y"])]
    model = gk.load(simple(nodes, ["N"], info("y", np.float32, [8]), m=(TensorProto.FLOAT, ["M"])))
    inferred = []
    monkeypatch.setattr("graphkit.executor.run.declared.bind", lambda graph, shapes: inferred.append(graph))
    executor = model.compile()
    executor.run({"x": np.ones(4, np.float32)})
    with pytest.warns(DeclarationWarning, match=r"tensor 'y' is declared as \[8\], but is \[6\]"):
        executor.run({"x": np.ones(3, np.float32)})
    assert not inferred


def test_sizes_of_unknown_names_are_inferred() -> None:
    """A run of one output needs only some of the inputs: the names in the others have no sizes."""
    nodes = [
        helper.make_node("Concat", ["x", "x"], ["y"], axis=0),
        helper.make_node("Concat", ["w", "w"], ["v"], axis=0),
    ]
    proto = simple(nodes, ["N"], info("y", np.float32, [8]))
    proto.graph.input.append(info("w", np.float32, ["K"]))
    proto.graph.output.append(info("v", np.float32, [2]))
    executor = gk.load(proto).compile()
    with pytest.warns(DeclarationWarning, match=r"tensor 'y' is declared as \[8\], but is \[6\]"):
        executor.run({"x": np.ones(3, np.float32)}, outputs=["y"])


@in_one_item()
@pytest.mark.parametrize(("declared", "fits"), [([-1], True), (["?"], True), ([""], True), ([0], False), ([1], False)])
def test_declared_inputs_are_what_may_be_fed(declared: list[Any], fits: bool) -> None:
    model = gk.load(simple(CHAIN, declared, info("y", np.float32, None)))
    if fits:
        assert model.run({"x": np.ones(4, np.float32)})["y"].shape == (4,)
        return
    with pytest.raises(InputError, match=rf"input 'x' is float32\[{declared[0]}\]; the array given has shape \[4\]"):
        model.run({"x": np.ones(4, np.float32)})


def branch(name: str, dtype: int, shape: Sequence[Any]) -> onnx.GraphProto:
    output = helper.make_tensor_value_info(name, dtype, shape)
    return helper.make_graph([helper.make_node("Relu", ["x"], [name])], name, [], [output])


def conditional(dtype: int, shape: Sequence[Any]) -> onnx.ModelProto:
    branches = {"then_branch": branch("t", dtype, shape), "else_branch": branch("e", TensorProto.FLOAT, ["N"])}
    node = helper.make_node("If", ["c"], ["y"], **branches)
    proto = simple([node], ["N"], info("y", np.float32, ["N"]))
    proto.graph.input.append(info("c", bool, []))
    return proto


def loop(dtype: int, shape: Sequence[Any]) -> onnx.ModelProto:
    """x, doubled k times."""
    state = [helper.make_tensor_value_info(n, dtype, shape) for n in ("s", "next")]
    body = helper.make_graph(
        [helper.make_node("Identity", ["on"], ["go"]), helper.make_node("Concat", ["s", "s"], ["next"], axis=0)],
        "body",
        [info("i", np.int64, []), info("on", bool, []), state[0]],
        [info("go", bool, []), state[1]],
    )
    proto = simple([helper.make_node("Loop", ["k", "", "x"], ["y"], body=body)], ["N"], info("y", np.float32, None))
    proto.graph.input.append(info("k", np.int64, []))
    return proto


def test_shapes_that_subgraphs_declare() -> None:
    x = np.array([-1, 2, 3], np.float32)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for shape in ([9], [9, 9], ["N"], ["M"]):
            for taken in (True, False):
                y = gk.load(conditional(TensorProto.FLOAT, shape)).run({"x": x, "c": np.array(taken)})["y"]
                np.testing.assert_array_equal(y, np.maximum(x, 0))
            y = gk.load(loop(TensorProto.FLOAT, shape)).run({"x": x, "k": size(2)})["y"]
            np.testing.assert_array_equal(y, np.tile(x, 4))
    assert all(issubclass(w.category, DeclarationWarning) for w in caught)


@in_one_item()
@pytest.mark.parametrize(
    ("proto", "tensor", "types"),
    [
        (simple(CHAIN, ["N"], info("y", np.int64, ["N"])), "y", r"int64\[N\], but is float32\[N\]"),
        (simple(CHAIN, ["N"], info("y", np.float32, ["N"]), m=(TensorProto.DOUBLE, ["N"])), "m", "float64.*float32"),
        (conditional(TensorProto.DOUBLE, ["N"]), "t", "float64.*float32"),
        (loop(TensorProto.DOUBLE, ["N"]), "s", "float64.*float32"),
    ],
    ids=["output", "between", "branch", "loop"],
)
def test_another_element_type_is_an_error(proto: onnx.ModelProto, tensor: str, types: str) -> None:
    with pytest.raises(InvalidModel, match=f"tensor '{tensor}' is declared as {types}"):
        gk.load(proto)
    with pytest.raises(Exception, match=r"(?i)type"):
        ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])


def test_a_sequence_is_no_tensor() -> None:
    proto = simple(CHAIN, ["N"], info("y", np.float32, ["N"]))
    sequence = helper.make_sequence_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, None))
    proto.graph.value_info.append(helper.make_value_info("m", sequence))
    with pytest.raises(InvalidModel, match=r"tensor 'm' is declared as sequence\(float32"):
        gk.load(proto)
