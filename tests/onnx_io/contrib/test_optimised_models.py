"""Networks as ONNX Runtime's own optimisers write them: the same results, every step native."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import graphkit as gk
from graphkit.checks.verify import compare_outputs
from graphkit.onnx_io.compare import OnnxRuntimeModel


def mobile():
    x = gk.input("x", ["N", 3, 16, 16])
    h = gk.relu(gk.nn.conv2d(x, 8, kernel=3, pad=1, name="stem"))
    h = gk.relu(h + gk.nn.conv2d(h, 8, kernel=3, pad=1, name="residual"))
    h = gk.clip(gk.nn.conv2d(h, 8, kernel=1, name="narrow"), 0.0, 6.0)
    pooled = gk.flatten(gk.global_average_pool(h))
    return gk.Model({"y": gk.relu(gk.nn.linear(pooled, 5, name="fc"))}, name="mobile")


def recurrent():
    return gk.models.build("lstm_lm", vocab=20, embedding=8, hidden=8)


def language_model():
    return gk.models.build("transformer_lm", vocab=20, length=8, width=16, heads=2, layers=2)


def bert():
    return gk.models.build("bert", vocab=20, length=8, width=16, heads=2, layers=2)


def saved(net, folder):
    path = str(folder / "net.onnx")
    net.save(path)
    return path


def runtime_optimised(path, folder):
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(folder / "optimised.onnx")
    options.log_severity_level = 4
    ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return options.optimized_model_filepath


def transformers_optimised(path, folder):
    pytest.importorskip("torch", reason="PyTorch, which onnxruntime.transformers imports, is not installed")
    from onnxruntime.transformers import optimizer

    found = optimizer.optimize_model(path, model_type="bert", num_heads=0, hidden_size=0)
    found.save_model_to_file(str(folder / "optimised.onnx"))
    return str(folder / "optimised.onnx")


def feeds(net):
    generator = np.random.default_rng(0)
    found = {}
    for value in net.graph.inputs:
        if value.role == "data":
            shape = [d if isinstance(d, int) else 2 for d in value.tensor.shape]
            draw = generator.standard_normal(shape) if value.dtype.is_float else generator.integers(0, 2, shape)
            found[value.name] = draw.astype(value.dtype.numpy)
    return found


@pytest.mark.parametrize(
    ("build", "optimise", "fused"),
    [
        (mobile, runtime_optimised, {"FusedConv", "FusedGemm"}),
        (recurrent, runtime_optimised, set()),
        (language_model, runtime_optimised, {"FusedMatMul", "FastGelu"}),
        pytest.param(language_model, transformers_optimised, {"SkipLayerNormalization"}, marks=pytest.mark.pytorch),
        (bert, runtime_optimised, {"FusedMatMul", "BiasGelu"}),
        pytest.param(bert, transformers_optimised, {"SkipLayerNormalization", "BiasGelu"}, marks=pytest.mark.pytorch),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_an_optimised_model(build, optimise, fused, tmp_path, monkeypatch):
    net = build()
    path = optimise(saved(net, tmp_path), tmp_path)
    used = Counter(node.op_type for node in onnx.load(path).graph.node if node.domain == "com.microsoft")
    assert fused <= used.keys()
    arrays = feeds(net)
    expected = OnnxRuntimeModel(path).run(arrays)
    monkeypatch.setenv("GRAPHKIT_STRICT", "1")
    found = gk.load(path).compile(threads=1).run(arrays)
    for difference in compare_outputs(found, expected, 1e-3, 1e-4):
        assert difference.passed, str(difference)


def test_an_optimised_model_is_differentiated_and_written_as_standard_onnx(tmp_path):
    rng = np.random.default_rng(0)
    fixed = {"w": (8, 24), "b": (24,), "gamma": (8,), "beta": (8,)}
    nodes = [
        onnx.helper.make_node(
            "Attention", ["x", "w", "b"], ["a"], domain="com.microsoft", num_heads=2, unidirectional=1
        ),
        onnx.helper.make_node("SkipLayerNormalization", ["a", "x", "gamma", "beta"], ["s"], domain="com.microsoft"),
        onnx.helper.make_node("QuickGelu", ["s"], ["y"], domain="com.microsoft"),
    ]
    infos = [onnx.helper.make_tensor_value_info(name, 1, ["B", 3, 8]) for name in "xy"]
    arrays = [onnx.numpy_helper.from_array(rng.standard_normal(s).astype(np.float32), n) for n, s in fixed.items()]
    graph = onnx.helper.make_graph(nodes, "g", infos[:1], infos[1:], arrays)
    imports = [onnx.helper.make_opsetid("", 21), onnx.helper.make_opsetid("com.microsoft", 1)]
    net = gk.load(onnx.helper.make_model(graph, opset_imports=imports, ir_version=8))
    gk.check_gradient(net).raise_if_failed()
    written = net.to_onnx()
    assert not any(node.domain for node in written.graph.node)
    feed = {"x": rng.standard_normal((2, 3, 8)).astype(np.float32)}
    for difference in compare_outputs(net.compile(threads=1).run(feed), OnnxRuntimeModel(written).run(feed)):
        assert difference.passed, str(difference)
