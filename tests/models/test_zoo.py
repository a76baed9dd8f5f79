from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from combinations import in_one_item

import graphkit as gk
from graphkit.errors import UsageError
from graphkit.ops.evaluate import evaluate

RESNETS = {18: 11_689_512, 34: 21_797_672, 50: 25_557_032, 101: 44_549_160, 152: 60_192_808}


def run(net, x):
    return evaluate(net.graph, [x, *(net.params[n] for n in net.graph.input_names[1:])])


def output_type(net):
    return str(net.output_types["logits"])


@pytest.mark.parametrize("layers", RESNETS)
def test_resnet_parameter_counts_are_the_published_ones(layers, unset_parameters):
    net = gk.models.build("resnet", layers=layers)
    assert net.num_parameters == RESNETS[layers]
    assert output_type(net) == "float32[N, 1000]"
    weights = [v for v in net.graph.inputs if v.role == "parameter" and v.rank in (2, 4)]
    shortcuts = sum("downsample_weight" in n for n in net.params)
    assert len(weights) - shortcuts == layers


@in_one_item()
@pytest.mark.parametrize(("layers", "millions"), [(20, "0.27"), (32, "0.46"), (44, "0.66"), (56, "0.85"), (110, "1.7")])
@pytest.mark.parametrize("preactivation", [False, True])
def test_resnets_for_small_images_have_the_papers_sizes(layers, millions, preactivation, unset_parameters):
    net = gk.models.build("resnet", layers=layers, image=(3, 32, 32), classes=10, preactivation=preactivation)
    assert f"{net.num_parameters / 1e6:.{len(millions) - 2}f}" == millions
    assert preactivation or f"{net.num_parameters:,}" in gk.models.describe("resnet")
    weights = [v for v in net.graph.inputs if v.role == "parameter" and v.rank in (2, 4)]
    assert len(weights) == layers
    sums = [net.graph.find(n.name).shape[1:] for n in net.graph.nodes if n.name.endswith("/sum")]
    blocks = (layers - 2) // 6
    assert sums == [(16, 32, 32)] * blocks + [(32, 16, 16)] * blocks + [(64, 8, 8)] * blocks


def test_resnet_halves_five_times_and_runs():
    net = gk.models.build("resnet", layers=18, image=(3, 64, 64), classes=7)
    sizes = {n.name: net.graph.find(n.name).shape for n in net.graph.nodes if n.op.name == "Relu"}
    assert sizes["relu1"][1:] == (64, 32, 32)
    assert sizes["layer1/1/relu"][1:] == (64, 16, 16)
    assert sizes["layer4/1/relu"][1:] == (512, 2, 2)
    (logits,) = run(net, np.random.default_rng(0).standard_normal((2, 3, 64, 64)).astype(np.float32))
    assert logits.shape == (2, 7)
    assert np.isfinite(logits).all()


def test_resnet_bottleneck_strides_on_the_3x3_convolution(unset_parameters):
    net = gk.models.build("resnet", layers=50)
    strides = {n.name: n.op.strides for n in net.graph.nodes if n.op.name == "Conv"}
    assert strides["layer2/0/conv1"] == (1, 1)
    assert strides["layer2/0/conv2"] == (2, 2)


@in_one_item()
@pytest.mark.parametrize(
    ("image", "count"), [((1, 28, 28), 431_080), ((1, 8, 8), 131_080), ((3, 32, 32), 657_080), ((1, 16, 16), 56_080)]
)
def test_lenet(image, count):
    net = gk.models.build("lenet", image=image)
    assert net.num_parameters == count
    assert output_type(net) == "float32[N, 10]"
    (logits,) = run(net, np.random.default_rng(0).random((3, *image), np.float32))
    assert logits.shape == (3, 10)
    assert np.isfinite(logits).all()
    assert [n.op.name for n in net.graph.nodes] == [
        "Conv", "Tanh", "MaxPool", "Conv", "Tanh", "MaxPool", "Flatten", "Gemm", "Tanh", "Gemm",
    ]  # fmt: skip


def test_mlp():
    net = gk.models.build("mlp", inputs=20, hidden=(7, 5), classes=3)
    assert net.num_parameters == 20 * 7 + 7 + 7 * 5 + 5 + 5 * 3 + 3
    x = np.random.default_rng(0).standard_normal((4, 20)).astype(np.float32)
    h = x
    for i in (1, 2):
        h = np.maximum(h @ net.params[f"fc{i}_weight"].T + net.params[f"fc{i}_bias"], 0)
    np.testing.assert_allclose(
        run(net, x)[0], h @ net.params["fc3_weight"].T + net.params["fc3_bias"], rtol=1e-4, atol=1e-5
    )
    image = gk.models.build("mlp", inputs=(1, 8, 8), hidden=16)
    assert run(image, np.ones((2, 1, 8, 8), np.float32))[0].shape == (2, 10)
    assert any(n.op.name == "Dropout" for n in gk.models.build("mlp", dropout=0.5).graph.nodes)
    assert gk.models.build("mlp", hidden=()).num_parameters == 650


def test_the_seed_decides_the_parameters(monkeypatch):
    first, second = gk.models.build("lenet"), gk.models.build("lenet")
    assert all((first.params[n] == second.params[n]).all() for n in first.params)
    monkeypatch.setenv("GRAPHKIT_SEED", "1")
    other = gk.models.build("lenet")
    assert (first.params["conv1_weight"] != other.params["conv1_weight"]).any()


def test_options_are_introspected():
    found = {o.name: (o.default, o.type) for o in gk.models.options("resnet")}
    assert found == {
        "layers": (50, "int"), "image": ((3, 224, 224), "tuple[int, ...]"), "classes": (1000, "int"),
        "preactivation": (False, "bool"),
    }  # fmt: skip


def test_options_may_be_text():
    net = gk.models.build("lenet", image="1x8x8", classes="5")
    assert str(net.input_types["x"]) == "float32[N, 1, 8, 8]"
    assert output_type(net) == "float32[N, 5]"
    (inputs, hidden, _, dropout) = gk.models.options("mlp")
    assert inputs.parse("64") == 64
    assert inputs.parse("(1, 8, 8)") == (1, 8, 8)
    assert hidden.parse("32,") == (32,)
    assert dropout.parse("0.5") == 0.5


@in_one_item()
@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("lenett", {}, "no network 'lenett'; did you mean 'lenet'"),
        ("lenet", {"clases": 3}, "no option 'clases'; did you mean 'classes'"),
        ("lenet", {"classes": "ten"}, "option classes: expected an integer, not 'ten'"),
        ("lenet", {"image": (28, 28)}, r"image must be \(channels, height, width\)"),
        ("lenet", {"classes": 0}, "classes must be a positive integer"),
        ("resnet", {"layers": 42}, "layers must be one of 18, 34, 50, 101, 152, 20, 32, 44, 56, 110, not 42"),
        ("mlp", {"hidden": (3, 0)}, "positive integers"),
        ("text_cnn", {"windows": "x"}, "option windows: expected one or more integers such as 64,32, not 'x'"),
        ("vit", {"layers": "x"}, "option layers: expected an integer or none, not 'x'"),
        ("text_cnn", {"windows": "3,x"}, "option windows: expected one or more integers .*, not '3,x'"),
        ("text_cnn", {"windows": "3,,4"}, "option windows: expected one or more integers .*, not '3,,4'"),
    ],
)
def test_wrong_options(name, options, message):
    with pytest.raises(UsageError, match=message):
        gk.models.build(name, **options)


@in_one_item()
@pytest.mark.parametrize("name", gk.models.names())
def test_calling_a_module_names_build(name):
    with pytest.raises(UsageError, match=rf'gk.models.{name} is a module, .* gk.models.build\("{name}", ...\)'):
        getattr(gk.models, name)(classes=10)


def test_a_module_is_imported_when_it_is_used():
    code = "import graphkit as gk; gk.models.resnet(layers=18)"
    failed = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=300)
    assert 'write gk.models.build("resnet", ...)' in failed.stderr


def test_a_wrong_module_names_the_right_one():
    with pytest.raises(AttributeError, match=r"gk.models has no attribute 'resnett'; did you mean 'resnet'"):
        gk.models.resnett  # noqa: B018
