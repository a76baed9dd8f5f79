"""The first node that differs: planted faults, whose places are known, and models without a fault."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import planted
import pytest
from onnx import numpy_helper, parser

import graphkit as gk
from graphkit.checks import bisect as module
from graphkit.checks.findings import Bisection
from graphkit.cli import invoke
from graphkit.errors import CheckFailed, UsageError

full = pytest.mark.full

# Model, output of the node, attribute, its wrong value.
ATTRIBUTES = [
    ("convnet", "n1", "epsilon", 0.1),
    pytest.param("convnet", "c2", "pads", [2, 2, 0, 0], marks=full),
    pytest.param("convnet", "l2", "alpha", 0.12, marks=full),
    pytest.param("convnet", "p2", "count_include_pad", 0, marks=full),
    pytest.param("convnet", "g", "alpha", 1.01, marks=full),
    pytest.param("convnet", "y", "axis", 0, marks=full),
    pytest.param("transformer", "n1", "epsilon", 0.01, marks=full),
    pytest.param("transformer", "p", "axis", 1, marks=full),
    pytest.param("transformer", "e", "alpha", 0.71, marks=full),
    pytest.param("lstm", "out", "clip", 0.3, marks=full),
    pytest.param("lstm", "sg", "alpha", 0.3, marks=full),
    pytest.param("control", "y", "alpha", 0.6, marks=full),
]
# Model, initialiser, element, change, output of the node.
WEIGHTS = [
    ("transformer", "wk", 9, 0.01, "k"),
    ("control", "half", 0, 0.01, "looped"),
    pytest.param("convnet", "w1", 3, 0.01, "c1", marks=full),
    pytest.param("convnet", "m", 1, 0.01, "n1", marks=full),
    pytest.param("convnet", "w3", 17, 0.01, "g", marks=full),
    pytest.param("transformer", "s", 2, 0.01, "n1", marks=full),
    pytest.param("transformer", "scale", 0, 0.01, "scaled", marks=full),
    pytest.param("transformer", "wd", 11, 0.01, "down", marks=full),
    pytest.param("lstm", "r", 5, 0.3, "out", marks=full),
    pytest.param("lstm", "wg", 3, 0.01, "g", marks=full),
    pytest.param("lstm", "high", 0, -0.45, "cl", marks=full),
    pytest.param("control", "two", 0, 0.01, "chosen", marks=full),
    pytest.param("control", "count", 0, 1, "looped", marks=full),
]
# Model, operator, attributes that its kernel uses instead of those of the node, output of the node.
KERNELS: list[Any] = [
    ("convnet", "Softmax", {"axis": 0}, "y"),
    pytest.param("transformer", "LayerNormalization", {"epsilon": 0.05}, "n1", marks=full),
    pytest.param("transformer", "Softmax", {"axis": 1}, "p", marks=full),
    pytest.param("lstm", "HardSigmoid", {"alpha": 0.3}, "sg", marks=full),
    pytest.param("control", "ThresholdedRelu", {"alpha": 0.6}, "y", marks=full),
]


def found_at(result: Bisection, output: str, kind: str = "node") -> None:
    assert result.found is not None, str(result)
    assert (result.found.kind, result.found.node) == (kind, output), str(result)
    assert result.verdict == "FAILED"
    with pytest.raises(CheckFailed, match=f"node '{output}'"):
        result.raise_if_failed()


@pytest.mark.parametrize(
    "name", ["convnet", *(pytest.param(n, marks=full) for n in ("transformer", "lstm", "control"))]
)
def test_models_without_a_fault_agree(name: str) -> None:
    proto = planted.model_of(name)
    result = gk.bisect(gk.load(proto), planted.feeds_of(name), source=proto)
    assert result.passed, str(result)
    assert result.compared == sum(len(node.output) for node in proto.graph.node)


@pytest.mark.parametrize(("name", "output", "key", "value"), ATTRIBUTES)
def test_changed_attribute_is_found(name: str, output: str, key: str, value: Any) -> None:
    proto, other = planted.model_of(name), planted.model_of(name)
    planted.with_attribute(other, output, key, value)
    found_at(gk.bisect(gk.load(proto), planted.feeds_of(name), source=proto, against=other), output)


@pytest.mark.parametrize(("name", "weight", "index", "change", "output"), WEIGHTS)
def test_changed_weight_is_found(name: str, weight: str, index: int, change: float, output: str) -> None:
    proto, other = planted.model_of(name), planted.model_of(name)
    planted.with_weight(other, weight, index, change)
    result = gk.bisect(gk.load(proto), planted.feeds_of(name), source=proto, against=other)
    found_at(result, output)
    if name in ("convnet", "transformer"):
        assert result.found is not None
        assert any(f"{weight!r}: 1 of" in text for text in result.found.parameters), str(result)


@pytest.mark.parametrize(("name", "operator", "changed", "output"), KERNELS)
def test_wrong_kernel_is_found(
    name: str, operator: str, changed: dict[str, Any], output: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The files that are written show the fault, too: without it they agree."""
    proto, feeds = planted.model_of(name), planted.feeds_of(name)
    path = tmp_path / "suspect.onnx"
    with monkeypatch.context() as patch:
        planted.with_wrong_kernel(patch, operator, **changed)
        result = gk.bisect(gk.load(proto), feeds, source=proto, output=path)
        found_at(result, output)
        assert result.files == (str(path), str(path.with_suffix(".npz")))
        assert invoke(["verify", str(path), str(path.with_suffix(".npz"))]) == 1
    assert invoke(["verify", str(path), str(path.with_suffix(".npz"))]) == 0
    assert len(gk.load(path).outputs) == 1


@pytest.mark.parametrize(
    ("name", "weight", "factor", "output"),
    [("transformer", "wu", 1e5, "up"), pytest.param("convnet", "w3", 1e5, "g", marks=full)],
)
def test_overflow_of_float16_is_found(name: str, weight: str, factor: float, output: str) -> None:
    proto = planted.model_of(name)
    tensor = next(item for item in proto.graph.initializer if item.name == weight)
    # The weights themselves are within the range of float16, but products of them are not.
    array = np.sign(numpy_helper.to_array(tensor)) * np.float32(6e4)
    tensor.CopyFrom(numpy_helper.from_array(array.astype(np.float32), weight))
    half = planted.in_float16(proto)
    result = gk.bisect(gk.load(proto), planted.feeds_of(name), source=proto, against=half)
    found_at(result, output)
    assert result.found is not None
    assert result.found.one_sided == f"infinity in {output!r} only in ONNX Runtime"


def test_fault_that_needs_neighbours_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Between convolutions, pooling runs in a channels-last kernel, and alone in another one."""
    proto, feeds = planted.model_of("convnet"), planted.feeds_of("convnet")
    planted.with_wrong_kernel(monkeypatch, "ChannelsLastAveragePool", "ai.graphkit", count_include_pad=0)
    path = tmp_path / "suspect.onnx"
    result = gk.bisect(gk.load(proto), feeds, source=proto, output=path)
    found_at(result, "p2", "segment")
    assert result.found is not None
    assert result.found.nodes[-1] == "p2"
    assert 1 < len(result.found.nodes) <= 4, str(result)
    assert invoke(["verify", str(path), str(path.with_suffix(".npz"))]) == 1


@pytest.mark.parametrize(
    ("name", "operator", "when", "changed", "nodes"),
    [
        ("transformer", "FusedMatMul", "Elu", {"activation_alpha": 0.75}, ("up", "e")),
        pytest.param("lstm", "FusedMatMul", "HardSigmoid", {"activation_alpha": 0.3}, ("g", "sg"), marks=full),
    ],
)
def test_fault_that_disappears_when_observed_is_found(
    name: str, operator: str, when: str, changed: dict[str, Any], nodes: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
) -> None:  # fmt: skip
    """A fused kernel is wrong. If the value inside it is read, the nodes are not fused."""
    proto, feeds = planted.model_of(name), planted.feeds_of(name)
    planted.with_wrong_kernel(monkeypatch, operator, "ai.graphkit", when=when, **changed)
    path = tmp_path / "suspect.onnx"
    result = gk.bisect(gk.load(proto), feeds, source=proto, output=path)
    found_at(result, nodes[-1], "segment")
    assert result.found is not None
    assert result.found.nodes == nodes
    assert invoke(["verify", str(path), str(path.with_suffix(".npz"))]) == 1


@full
def test_fault_in_a_fused_region_of_many_nodes_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    proto, feeds = planted.model_of("transformer"), planted.feeds_of("transformer")
    planted.with_wrong_kernel(monkeypatch, "FusedAttention", "ai.graphkit", scale=0.5)
    result = gk.bisect(gk.load(proto), feeds, source=proto)
    found_at(result, "mixed", "segment")
    assert result.found is not None
    assert set(result.found.nodes) <= {"k", "u", "kt", "scores", "scaled", "p", "mixed"}


def test_node_in_a_branch_is_named() -> None:
    proto, other = planted.model_of("control"), planted.model_of("control")
    branch = next(item.g for item in planted.node_of(other, "chosen").attribute if item.name == "then_branch")
    assert [node.op_type for node in branch.node] == ["Mul", "Elu"]
    branch.node[1].attribute[0].f = 0.6
    feeds = {"x": np.array([-1.0, 2.0, 3.0, -0.5], np.float32)}
    result = gk.bisect(gk.load(proto), feeds, source=proto, against=other)
    found_at(result, "chosen")
    assert result.found is not None
    assert result.found.inside == "in its then_branch, node 'a' (Elu) differs first"


@full
def test_changed_body_of_a_loop_is_found_as_the_loop() -> None:
    proto, other = planted.model_of("control"), planted.model_of("control")
    body = planted.node_of(other, "looped").attribute[0].g
    next(node for node in body.node if node.op_type == "Tanh").op_type = "Softsign"
    found_at(gk.bisect(gk.load(proto), planted.feeds_of("control"), source=proto, against=other), "looped")


def ties() -> onnx.ModelProto:
    """ArgMax of two products that are equal in float16."""
    proto = parser.parse_model(
        planted.HEAD
        + """
        net (float[2] x) => (int64[1] best) { m = Mul (x, w)  best = ArgMax (m) }
    """
    )
    proto.graph.initializer.append(numpy_helper.from_array(np.float32([1.0001, 1.0002]), "w"))
    return proto


def test_decisions_that_amplify_rounding_are_told_apart() -> None:
    proto = ties()
    result = gk.bisect(gk.load(proto), {"x": np.ones(2, np.float32)}, source=proto, against=planted.in_float16(proto))
    found_at(result, "best", "amplified")
    assert result.found is not None
    assert result.found.nodes == ("m", "best")


def test_growth_of_rounding_is_not_a_divergence() -> None:
    """Differences of large sums lose most digits, in both engines."""
    proto = parser.parse_model(
        planted.HEAD
        + """
        net (float[4, 64] x) => (float[4] y)
        {
            e = Exp (x)
            a = ReduceSum <keepdims = 0> (e, axes)
            f = Mul (e, near)
            b = ReduceSum <keepdims = 0> (f, axes)
            d = Sub (a, b)
            z = Mul (d, large)
            y = Tanh (z)
        }
    """
    )
    for name, value in {"axes": np.array([1]), "near": np.float32(1.0000001), "large": np.float32(100)}.items():
        proto.graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))
    feeds = {"x": 4 * np.random.default_rng(0).standard_normal((4, 64)).astype(np.float32)}
    result = gk.bisect(gk.load(proto), feeds, source=proto)
    assert result.passed, str(result)


@pytest.mark.parametrize("name", ["convnet", pytest.param("transformer", marks=full), pytest.param("lstm", marks=full)])
def test_float16_export_agrees_and_its_faults_are_found(name: str) -> None:
    proto = planted.model_of(name)
    half = planted.in_float16(proto)
    feeds = planted.feeds_of(name)
    result = gk.bisect(gk.load(proto), feeds, source=proto, against=half)
    assert result.passed, str(result)
    assert "the precisions differ: the limits are those of float16" in result.notes
    weight = {"convnet": "w2", "transformer": "wk", "lstm": "wg"}[name]
    planted.with_weight(half, weight, 3, 0.5)
    result = gk.bisect(gk.load(proto), feeds, source=proto, against=half)
    found_at(result, {"convnet": "c2", "transformer": "k", "lstm": "g"}[name])


def with_weights(text: str, weights: dict[str, np.ndarray], size: int = 8, given: str = "") -> onnx.ModelProto:
    proto = parser.parse_model(planted.HEAD + f"net ({given or f'float[4, {size}] x'}) => (float[4, 8] y) {{ {text} }}")
    proto.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in weights.items())
    return proto


@pytest.mark.parametrize("half_is_first", [False, True])
def test_each_value_has_the_limits_of_what_it_depends_on(half_is_first: bool) -> None:
    """Only the second product is in float16. A fault of 0.1% in the first one is found; float16 would hide it."""
    draw = np.random.default_rng(0).standard_normal
    weights = {"v": draw((8, 8)).astype(np.float32), "w": draw((8, 8)).astype(np.float32)}
    single = with_weights("a = MatMul (x, v) b = Relu (a) c = MatMul (b, w) y = Tanh (c)", weights)
    text = "a = MatMul (x, v) b = Relu (a) h = Cast <to = 10> (b) c = MatMul (h, w) s = Cast <to = 1> (c) y = Tanh (s)"
    mixed = with_weights(text, weights | {"w": weights["w"].astype(np.float16)})
    feeds = {"x": draw((4, 8)).astype(np.float32)}

    def compared() -> Any:
        first, second = (mixed, single) if half_is_first else (single, mixed)
        return gk.bisect(gk.load(first), feeds, source=first, against=second)

    result = compared()
    assert result.passed, str(result)
    assert "the precisions differ for 2 of 4 values: the limits are those of float16" in result.notes
    weights["v"] *= np.float32(1.001)
    mixed.graph.initializer[0].CopyFrom(numpy_helper.from_array(weights["v"], "v"))
    found_at(compared(), "a")


@pytest.mark.parametrize("is_swapped", [False, True])
def test_rounding_at_other_places_is_not_a_divergence(is_swapped: bool) -> None:
    """Both models depend on float16, but only one of them computes the product in it."""
    draw = np.random.default_rng(0).standard_normal
    half = {"u": draw((64, 8)).astype(np.float16)}
    models = (
        with_weights("h = Cast <to = 10> (x) c = MatMul (h, u) s = Cast <to = 1> (c) y = Relu (s)", half, 64),
        with_weights(
            "h = Cast<to = 10> (x) f = Cast<to = 1> (h) v = Cast<to = 1> (u) c = MatMul (f, v) y = Relu (c)", half, 64
        ),
    )
    first, second = models[::-1] if is_swapped else models
    feeds = {"x": draw((4, 64)).astype(np.float32)}
    result = gk.bisect(gk.load(first), feeds, source=first, against=second)
    assert result.passed, str(result)


def test_a_branch_reads_a_weight_that_differs() -> None:
    text = """
        y = If (k) <
            then_branch = one () => (float[4, 8] t) { q = MatMul (x, v) t = Tanh (q) },
            else_branch = other () => (float[4, 8] e) { e = Identity (x) }
        >
    """
    weight = np.random.default_rng(0).standard_normal((8, 8)).astype(np.float32)
    first, second = (with_weights(text, {"v": scale * weight}, given="float[4, 8] x, bool k") for scale in (1, 1.5))
    feeds = {"x": np.ones((4, 8), np.float32), "k": np.array(True)}
    result = gk.bisect(gk.load(first), feeds, source=first, against=second)
    found_at(result, "y")
    assert "in its then_branch, node 'q' (MatMul) differs first" in str(result)


@full
@pytest.mark.parametrize("name", ["convnet", "transformer", "lstm"])
def test_first_model_may_have_the_lower_precision(name: str) -> None:
    """Deviations beyond the tolerances of float16 are judged by the model in float32."""
    proto = planted.model_of(name)
    half = gk.load(planted.in_float16(proto))
    for scale in (1.0, 20.0):
        feeds = {"x": (scale * planted.feeds_of(name)["x"]).astype(np.float16)}
        result = gk.bisect(half, feeds, against=proto)
        assert result.passed, str(result)


@full
def test_name_that_quantisation_gives_to_another_value_is_left_out(tmp_path: Path) -> None:
    """The quantiser merges Relu into the range before it, and gives its name to the value without Relu."""
    quantization = pytest.importorskip("onnxruntime.quantization")
    proto, feeds = planted.model_of("convnet"), planted.feeds_of("convnet")
    onnx.save(proto, tmp_path / "net.onnx")

    class Reader(quantization.CalibrationDataReader):
        rows = iter([feeds])

        def get_next(self) -> dict[str, np.ndarray] | None:
            return next(self.rows, None)

    quantization.quantize_static(tmp_path / "net.onnx", tmp_path / "quantised.onnx", Reader())
    result = gk.bisect(gk.load(proto), feeds, source=proto, against=tmp_path / "quantised.onnx")
    assert result.passed, str(result)
    assert "'r1' is made by Relu and by BatchNormalization: it is not compared" in result.notes


@pytest.mark.parametrize(
    ("name", "weight", "output"), [("convnet", "w2", "c2"), pytest.param("lstm", "wg", "g", marks=full)]
)
def test_models_with_other_names_are_matched_by_structure(name: str, weight: str, output: str) -> None:
    proto, other = planted.model_of(name), planted.renamed(planted.model_of(name))
    result = gk.bisect(gk.load(proto), planted.feeds_of(name), source=proto, against=other)
    assert result.passed, str(result)
    assert "few values have equal names: the others are matched by structure" in result.notes
    assert result.compared == sum(len(node.output) for node in proto.graph.node)
    planted.with_weight(other, f"r_{weight}", 3, 0.1)
    result = gk.bisect(gk.load(proto), planted.feeds_of(name), source=proto, against=other)
    found_at(result, output)
    assert result.found is not None
    assert result.found.other_node == f"r_{output}"


def test_two_models_in_one_engine_and_their_files(tmp_path: Path) -> None:
    proto, other = planted.model_of("lstm"), planted.model_of("lstm")
    planted.with_weight(other, "wg", 3, 0.1)
    feeds = planted.feeds_of("lstm")
    path = tmp_path / "suspect.onnx"
    result = gk.bisect(gk.load(proto), feeds, against=gk.load(other), output=path)
    found_at(result, "g")
    assert [Path(file).name for file in result.files] == ["suspect.onnx", "suspect-against.onnx", "suspect.npz"]
    assert result.command.endswith("--engine graphkit --against-engine graphkit")
    assert invoke(result.command.split()[1:]) == 1


def test_nothing_compared_does_not_pass() -> None:
    net = gk.Model({"y": gk.sqrt(gk.input("x", [3]))})
    result = gk.bisect(net, {"x": np.full(3, -1, np.float32)})
    assert (result.verdict, result.passed) == ("NOT TESTED", False)
    with pytest.raises(CheckFailed, match="no value was compared"):
        result.raise_if_failed()


def test_shape_that_differs_is_found_before_the_node_that_fails() -> None:
    """The Gemm after it cannot run on the second side."""
    proto, other = planted.model_of("convnet"), planted.model_of("convnet")
    planted.with_attribute(other, "f", "axis", 2)
    result = gk.bisect(gk.load(proto), planted.feeds_of("convnet"), source=proto, against=other)
    found_at(result, "f")
    assert "[2, 216]" in str(result)
    assert "[12, 36]" in str(result)


def test_node_that_one_side_cannot_run_is_found(tmp_path: Path) -> None:
    """ONNX Runtime has no bfloat16 product."""
    x = gk.input("x", [4, 8], dtype="bfloat16")
    weight = gk.constant(np.ones((8, 4), gk.DType.BFLOAT16.numpy))
    net = gk.Model({"y": gk.mat_mul(gk.identity(x), weight, name="product")})
    result = gk.bisect(net, output=tmp_path / "suspect.onnx")
    assert result.found is not None
    assert result.found.operator == "MatMul"
    assert "ONNX Runtime fails: ONNX Runtime" in result.found.reason
    assert "which an .npz file cannot store" in result.notes[-1]
    assert list(tmp_path.iterdir()) == []


def test_sequences_and_strings_are_compared() -> None:
    x = gk.input("x", [4, 2])
    parts = gk.split_to_sequence(x, axis=0, keepdims=0)
    net = gk.Model({"y": gk.concat_from_sequence(parts, axis=0) * 2.0})
    assert gk.bisect(net).compared == 3
    names = gk.Model({"y": gk.string_concat(gk.input("s", [3], dtype="string"), gk.constant(np.array("a", object)))})
    assert gk.bisect(names).passed


def test_wrong_arguments(tmp_path: Path) -> None:
    net = gk.Model({"y": gk.relu(gk.input("x", [3]))})
    with pytest.raises(UsageError, match=r"must end in \.onnx"):
        gk.bisect(net, output=tmp_path / "out.json")
    with pytest.raises(UsageError, match="there is no folder"):
        gk.bisect(net, output=tmp_path / "none" / "out.onnx")
    with pytest.raises(UsageError, match="unknown engine 'onnxruntim'; did you mean 'onnxruntime'"):
        gk.bisect(net, engine="onnxruntim")
    x = gk.input("x", [3])
    with pytest.raises(UsageError, match="draws random numbers"):
        gk.bisect(gk.Model(x + gk.random_normal(shape=(3,), name="noise")))
    two = gk.Model({"a": gk.relu(gk.input("p", [3])), "b": gk.tanh(gk.input("q", [3]))})
    with pytest.raises(UsageError, match="the inputs cannot be matched by name or position"):
        gk.bisect(net, against=two)


@full
def test_many_nodes_are_compared_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of values at once does not change what is found."""
    proto, other = planted.model_of("transformer"), planted.model_of("transformer")
    planted.with_weight(other, "wd", 11, 0.01)
    for count in (1, 2, 5):
        monkeypatch.setattr(module, "_VALUES", count)
        assert gk.bisect(gk.load(proto), planted.feeds_of("transformer"), source=proto).passed
        found_at(gk.bisect(gk.load(proto), planted.feeds_of("transformer"), source=proto, against=other), "down")
