"""Loss and gradients exported as one ONNX file: ONNX Runtime gives the results of graphkit."""

import numpy as np
import pytest
from combinations import in_one_item

import graphkit as gk
from graphkit.onnx_io.compare import OnnxRuntimeModel


def training_graph(name, **options):
    net = gk.losses.with_loss(gk.models.build(name, **options), "softmax_cross_entropy")
    return gk.grad(net, of="loss", with_outputs=True)


@in_one_item("values")
@pytest.mark.parametrize("opset", [17, 21])
@pytest.mark.parametrize(
    ("name", "options", "shape"),
    [
        pytest.param("lenet", {"image": (1, 8, 8)}, (1, 8, 8), id="lenet8"),
        pytest.param("lenet", {"image": (1, 28, 28)}, (1, 28, 28), id="lenet28"),
        pytest.param("mlp", {"inputs": 20, "hidden": (16, 8), "classes": 10}, (20,), id="mlp"),
        pytest.param(
            "resnet", {"layers": 18, "image": (3, 32, 32), "classes": 10}, (3, 32, 32), id="resnet18",
            marks=pytest.mark.full,
        ),
    ],
)  # fmt: skip
def test_loss_and_all_gradients_agree(name, options, shape, opset):
    model = training_graph(name, **options)
    rng = np.random.default_rng(0)
    feeds = {"x": rng.standard_normal((4, *shape), np.float32), "target": rng.integers(0, 10, 4)}
    proto = model.to_onnx(opset=opset)
    assert {node.domain for node in proto.graph.node} <= {"", "ai.onnx"}
    ours, theirs = model.run(feeds), OnnxRuntimeModel(proto).run(feeds)
    assert len(ours) == 2 + len([n for n in model.graph.inputs if n.role == "parameter"])
    for name, array in ours.items():
        scale = np.abs(theirs[name]).max()
        np.testing.assert_allclose(array, theirs[name], rtol=1e-5, atol=1e-5 * scale, err_msg=name)
