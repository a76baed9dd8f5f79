"""Every network of the zoo: its ends, its published number of parameters, and at a small size one training step,
export, and comparison with ONNX Runtime.
"""

from __future__ import annotations

import inspect
import math
import re
from pathlib import Path

import numpy as np
import pytest
from combinations import in_one_item
from zoo_training import LARGE

import graphkit as gk
from graphkit import cli
from graphkit.checks.inputs import make_feeds
from graphkit.errors import UsageError
from graphkit.models.ssd import multibox_loss
from graphkit.models.vae import negative_elbo
from graphkit.train.losses import with_loss

INPUTS = {
    "bert": ("x", "segments", "mask"),
    "dlrm": ("x", "categories"),
    "gan": ("noise",),
    "matrix_factorization": ("user", "item"),
    "ncf": ("user", "item"),
    "seq2seq": ("source", "lengths", "previous"),
    "text_classifier": ("x", "lengths"),
    "text_cnn": ("x", "lengths"),
    "vae": ("x", "noise"),
    "wide_and_deep": ("x", "categories"),
}
OUTPUTS = {
    "dqn": ("q",),
    "gan": ("image",),
    "matrix_factorization": ("rating",),
    "ssd": ("logits", "offsets"),
    "vae": ("logits", "mean", "log_variance"),
}

PUBLISHED = [
    # torchvision's documentation, "num_params" of the weights of each network
    ("alexnet", {}, 61_100_840),
    ("googlenet", {}, 6_624_904),
    ("mobilenetv2", {}, 3_504_872),
    ("densenet", {}, 7_978_856),
    ("densenet", {"layers": 161}, 28_681_000),
    ("densenet", {"layers": 169}, 14_149_480),
    ("densenet", {"layers": 201}, 20_013_928),
    ("mobilenetv3", {}, 5_483_032),
    ("mobilenetv3", {"size": "small"}, 2_542_856),
    ("vgg", {"layers": 11}, 132_863_336),
    ("vgg", {"layers": 13}, 133_047_848),
    ("vgg", {"layers": 16}, 138_357_544),
    ("vgg", {"layers": 19}, 143_667_240),
    ("vgg", {"layers": 11, "batch_norm": True}, 132_868_840),
    ("vgg", {"layers": 16, "batch_norm": True}, 138_365_992),
    ("ssd", {"classes": 91}, 35_641_826),
    ("vit", {}, 86_567_656),
    ("vit", {"patch": 32}, 88_224_232),
    pytest.param("vit", {"size": "large"}, 304_326_632, marks=pytest.mark.full),  # 1.2 GB
    # timm's table of results, deit_tiny_patch16_224 and deit_small_patch16_224: 5.72 and 22.05 million
    ("vit", {"size": "tiny"}, 5_717_416),
    ("vit", {"size": "small"}, 22_050_664),
    # imgclsmob's table of models, "BN-Inception", with the weights of Cadene/pretrained-models.pytorch
    ("inception_bn", {}, 11_295_240),
    # Caffe's bvlc_googlenet without its auxiliary classifiers: table 1 of the paper, with biases
    ("googlenet", {"batch_norm": False}, 6_998_552),
    # Hugging Face's GPT2Model("gpt2") and BertModel("bert-base-uncased"), the latter with a classifier of 768 * 2 + 2
    ("transformer_lm", {"vocab": 50257, "width": 768, "heads": 12, "layers": 12, "length": 1024}, 124_439_808),
    ("bert", {}, 109_482_240 + 1_538),
    # torch.hub's mateuszbuda/brain-segmentation-pytorch
    ("unet", {"image": (3, 256, 256), "classes": 1, "width": 32, "batch_norm": True}, 7_763_041),
    # figure 1 of the paper: 23 convolutions with biases, four of them transposed
    ("unet", {}, 31_030_658),
    # pytorch/examples, dcgan: the generator and the discriminator
    ("gan", {}, 3_576_704),
    ("gan", {"part": "discriminator"}, 2_765_568),
    # pytorch/examples, vae: 784-400-(20, 20)-400-784
    ("vae", {}, 652_824),
    # pytorch/examples, word_language_model on WikiText-2, two layers of 200 units; with one table for both ends
    ("lstm_lm", {"vocab": 33278}, 13_987_678),
    ("lstm_lm", {"vocab": 33278, "tied": True}, 7_332_078),
    # torch.nn.Embedding(10000, 128), GRU(128, 128, bidirectional=True), Linear(256, 2)
    ("text_classifier", {}, 1_280_000 + 198_144 + 514),
    # two Embedding(10000, 128), GRU(128, 256), GRU(128 + 256, 256), Linear(256, 256) and (512, 256) without bias, and
    # Linear(256, 10000); additive attention has (256, 256) twice and (256, 1)
    ("seq2seq", {}, 2 * 1_280_000 + 296_448 + 493_056 + 65_536 + 131_072 + 2_570_000),
    ("seq2seq", {"attention": "bahdanau"}, 2 * 1_280_000 + 296_448 + 493_056 + 2 * 65_536 + 256 + 2_570_000),
    # PyTorch's tutorial, "Reinforcement Learning (DQN)", for CartPole: 4-128-128-2
    ("dqn", {"observations": 4, "actions": 2, "hidden": (128, 128)}, 17_410),
    # the paper's table 3: windows of 3, 4 and 5 words of 300 numbers, 100 maps each
    ("text_cnn", {}, 10_000 * 300 + (3 + 4 + 5) * 300 * 100 + 300 + 300 * 2 + 2),
    # the MovieLens 100K sizes: a vector and a bias per user and item, and the mean
    ("matrix_factorization", {"factors": 10}, (943 + 1682) * 11 + 1),
    # hexiangnan/neural_collaborative_filtering, NeuMF.py with --num_factors 8 --layers [64,32,16,8], MovieLens 1M
    ("ncf", {}, (6040 + 3706) * (8 + 32) + (64 + 1) * 32 + (32 + 1) * 16 + (16 + 1) * 8 + (16 + 1)),
    # facebookresearch/dlrm, bench/dlrm_s_criteo_kaggle.sh: 13-512-256-64-16, 367-512-256-1; 367 = 16 + 27 * 26 / 2
    ("dlrm", {"sizes": (7,) * 26}, 26 * 7 * 16 + 7_168 + 131_328 + 16_448 + 1_040 + 188_416 + 131_328 + 257),
    # 8 tables of 32 and of 1, 2 crosses, 1024-512-256-1 on 262 features, and 6 weights of numbers
    ("wide_and_deep", {}, 107 * 33 + 17 * 15 + 42 * 15 + 263 * 1024 + 1025 * 512 + 513 * 256 + 257 + 6),
]

SMALL = {
    "alexnet": {"image": (3, 64, 64), "classes": 7, "hidden": 24},
    "bert": {"vocab": 50, "width": 16, "heads": 4, "layers": 2, "length": 8, "classes": 3},
    "dlrm": {"numbers": 4, "sizes": (5, 3, 4), "width": 6, "bottom": (8,), "top": (9, 7)},
    "densenet": {"image": (3, 64, 64), "classes": 5, "growth": 4},
    "dqn": {"observations": 9, "actions": 3, "hidden": (16,), "dueling": True},
    "gan": {"image": (2, 16, 16), "latent": 5, "width": 4},
    "googlenet": {"image": (3, 32, 32), "classes": 5},
    "inception_bn": {"image": (3, 64, 64), "classes": 5},
    "lenet": {"image": (1, 8, 8)},
    "lstm_lm": {"vocab": 40, "hidden": 8, "layers": 2},
    "matrix_factorization": {"users": 6, "items": 9, "factors": 4},
    "mlp": {"inputs": 12},
    "mobilenetv2": {"image": (3, 64, 64), "classes": 5},  # maps of one element would leave two to normalise by
    "ncf": {"users": 6, "items": 9, "factors": 4, "hidden": (10, 8, 6)},
    "mobilenetv3": {"size": "small", "image": (3, 64, 64), "classes": 5, "width": 0.25},
    "resnet": {"layers": 20, "image": (3, 12, 12), "classes": 5},
    "seq2seq": {"vocab": 40, "target_vocab": 30, "width": 8, "hidden": 6, "layers": 2},
    "ssd": {"image": (3, 268, 268), "classes": 4, "width": 4},
    "text_classifier": {"vocab": 40, "width": 8, "hidden": 6, "classes": 3},
    "text_cnn": {"vocab": 40, "width": 8, "windows": (2, 3), "maps": 6, "classes": 3},
    "transformer_lm": {"vocab": 40, "width": 16, "heads": 2, "layers": 2, "length": 8},
    "unet": {"image": (1, 16, 16), "width": 4, "depth": 2, "classes": 1},
    "vae": {"image": (1, 6, 6), "hidden": 12, "latent": 3},
    "vgg": {"layers": 11, "image": (3, 32, 32), "classes": 5, "hidden": 24},
    "wide_and_deep": {"numbers": 3, "sizes": (4, 3, 5), "crosses": (0, 2), "width": 4, "hidden": (9, 7)},
    "vit": {"size": "tiny", "patch": 8, "image": (3, 32, 24), "classes": 5, "layers": 2},
}
TOKENS = 6  # in a small sequence; shorter than its `length`
# The default lane trains and writes the networks that compile fast; it runs all.
BY_LANE = [pytest.param(n, marks=[pytest.mark.full] if n in LARGE - {"mobilenetv3"} else []) for n in SMALL]

PIXELS = {"target": gk.TensorType("float32", ["N", 1, 6, 6])}
BOXES = {"classes": gk.TensorType("int64", ["N", 7034]), "places": gk.TensorType("float32", ["N", 7034, 4])}
LOSSES = {
    "dlrm": ("sigmoid_binary_cross_entropy", None),
    "dqn": ("huber", None),
    "gan": ("mse", None),
    "matrix_factorization": ("mse", None),
    "ncf": ("sigmoid_binary_cross_entropy", None),
    "ssd": (multibox_loss, BOXES),
    "unet": ("sigmoid_binary_cross_entropy", None),
    "vae": (negative_elbo, PIXELS),
    "wide_and_deep": ("sigmoid_binary_cross_entropy", None),
}


@pytest.mark.parametrize("name", gk.models.names())
def test_every_network_builds_by_default_and_names_its_ends(name, unset_parameters):
    net = gk.models.build(name)
    assert net.inputs == INPUTS.get(name, ("x",))
    assert net.outputs == OUTPUTS.get(name, ("logits",))
    for kind in (*net.input_types.values(), *net.output_types.values()):
        assert str(kind.shape[0]) == ("T" if name == "lstm_lm" else "N")
    assert gk.models.describe(name)
    assert all(option.default is not inspect.Parameter.empty for option in gk.models.options(name))
    assert name in SMALL


@pytest.mark.parametrize(("name", "options", "count"), PUBLISHED)
def test_parameter_counts_are_the_published_ones(name, options, count, unset_parameters):
    assert gk.models.build(name, **options).num_parameters == count


# MXNet's documentation of gluon.model_zoo.vision, resnet18_v2 to resnet152_v2. Statistics count there, and a
# normalisation of three channels before the first convolution, which the paper does not have.
GLUON = {18: 11_695_796, 34: 21_811_380, 50: 25_595_060, 101: 44_639_412, 152: 60_329_140}


@in_one_item()
@pytest.mark.parametrize("layers", GLUON)
def test_preactivation_has_as_many_parameters_as_in_gluon(layers, unset_parameters):
    net = gk.models.build("resnet", layers=layers, preactivation=True)
    assert sum(a.size for a in net.params.values()) == GLUON[layers] - 4 * 3
    assert f"{net.num_parameters:,}" in gk.models.describe("resnet")


@in_one_item()
@pytest.mark.parametrize("name", BY_LANE)
def test_the_command_line_builds_it(name, tmp_path):
    texts = {k: "x".join(map(str, v)) if isinstance(v, tuple) else str(v) for k, v in SMALL[name].items()}
    options = [word for key, text in texts.items() for word in ("--option", f"{key}={text}")]
    assert cli.invoke(["build", name, *options, "-o", str(tmp_path / "net.json")]) == 0
    assert gk.load(tmp_path / "net.json").num_parameters == gk.models.build(name, **SMALL[name]).num_parameters


@pytest.mark.full
def test_the_guide_lists_every_network_with_its_options_and_size(unset_parameters):
    text = (Path(__file__).parents[2] / "docs" / "models.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| [^|]+ \| ([^|]+) \| ([\d,]+) \|", text, re.MULTILINE)
    assert sorted(name for name, _, _ in rows) == gk.models.names()
    for name, listed, count in rows:
        written = dict(re.findall(r"`(\w+)=([^`]*)`", listed))
        known = gk.models.options(name)
        assert {o.name: o.parse(written[o.name]) for o in known} == {o.name: o.default for o in known}, name
        assert list(written) == [o.name for o in known], name
        assert gk.models.build(name).num_parameters == int(count.replace(",", "")), name


@pytest.mark.parametrize("name", BY_LANE)
def test_one_step_of_training_then_onnx_runtime_agrees(name):
    net = gk.models.build(name, **SMALL[name])
    loss, targets = LOSSES.get(name, ("softmax_cross_entropy", None))
    graph = with_loss(net, loss, targets)
    shapes = {n: _shape(t) for n, t in graph.input_types.items()}
    feeds = make_feeds(graph, shapes=shapes, seed=1).arrays
    feeds = {n: np.abs(a) / (1 + np.abs(a)) if a.dtype == np.float32 else a for n, a in feeds.items()}
    if name == "ssd":
        feeds["x"] *= 100  # its pixels are not scaled to 1
    target = {n: feeds.pop(n) for n in list(feeds) if n not in net.inputs}
    # Biases before a normalisation have no gradient, so only weights have to move.
    before = {n: net.params[n].copy() for n in net.trainable if net.params[n].ndim > 1}
    trainer = gk.Trainer(net, loss, gk.optim.SGD(1e-3), targets=targets, threads=2, seed=0)
    losses = [float(trainer.step(feeds, target)) for _ in range(2)]
    assert all(map(math.isfinite, losses))
    still = [n for n, a in before.items() if np.array_equal(net.params[n], a)]
    assert not still, f"no gradient reached {still}"
    report = gk.verify(net, feeds, threads=2)
    assert report.passed, str(report)
    assert [o.name for o in report.outputs] == list(net.outputs)
    assert {o.shape[0] for o in report.outputs} == {2}


@pytest.mark.parametrize("name", SMALL)
def test_every_step_has_a_native_kernel(name, monkeypatch):
    monkeypatch.setenv("GRAPHKIT_STRICT", "1")
    net = gk.models.build(name, **SMALL[name])
    feeds = make_feeds(net, shapes={n: _shape(t) for n, t in net.input_types.items()}, seed=1).arrays
    assert net.compile(threads=1).run(feeds)


def _shape(kind):
    return (2, *(d if isinstance(d, int) else TOKENS for d in kind.shape[1:]))


@in_one_item()
@pytest.mark.parametrize("tokens", [1, 3, 8])
def test_sequences_of_any_length_up_to_the_limit(tokens):
    net = gk.models.build("transformer_lm", **SMALL["transformer_lm"])
    (logits,) = net.compile(threads=1).run({"x": np.zeros((2, tokens), np.int64)}).values()
    assert logits.shape == (2, tokens, 40)


def test_a_causal_model_does_not_look_ahead():
    net = gk.models.build("transformer_lm", **SMALL["transformer_lm"])
    exe = net.compile(threads=1)
    x = np.random.default_rng(0).integers(0, 40, (1, 8))
    changed = x.copy()
    changed[0, 5] = (x[0, 5] + 1) % 40
    a, b = exe.run({"x": x})["logits"], exe.run({"x": changed})["logits"]
    np.testing.assert_array_equal(a[:, :5], b[:, :5])
    assert (np.abs(a[:, 5:] - b[:, 5:]).max(axis=-1) > 0).all()


def test_masked_tokens_do_not_matter():
    net = gk.models.build("bert", **SMALL["bert"])
    exe = net.compile(threads=1)
    x = np.random.default_rng(0).integers(0, 50, (2, 8))
    mask = np.ones_like(x)
    mask[:, 6:] = 0
    other = x.copy()
    other[:, 6:] = 49 - x[:, 6:]
    feeds = {"segments": np.zeros_like(x), "mask": mask}
    np.testing.assert_array_equal(exe.run({"x": x, **feeds})["logits"], exe.run({"x": other, **feeds})["logits"])
    assert (exe.run({"x": x, **feeds, "mask": mask | 1})["logits"] != exe.run({"x": other, **feeds})["logits"]).all()


def test_matrix_factorization_is_its_equation():
    net = gk.models.build("matrix_factorization", **SMALL["matrix_factorization"])
    rng = np.random.default_rng(0)
    for n in net.params:
        net.params[n] = rng.standard_normal(net.params[n].shape).astype(np.float32)
    p = net.params
    user, item = np.array([0, 5, 2]), np.array([8, 1, 1])
    wanted = p["mean"] + p["user_bias_weight"][user, 0] + p["item_bias_weight"][item, 0]
    wanted += (p["user_weight"][user] * p["item_weight"][item]).sum(axis=1)
    np.testing.assert_allclose(net.compile(threads=1).run({"user": user, "item": item})["rating"], wanted, rtol=1e-5)


def test_the_elbo_is_minus_log_likelihood_plus_divergence():
    rng = np.random.default_rng(0)
    logits, mean, log_variance = (rng.standard_normal(s) for s in ((2, 1, 6, 6), (2, 3), (2, 3)))
    target = rng.random((2, 1, 6, 6))
    values = [
        gk.input(n, a.shape, "float64") for n, a in zip("lmvt", (logits, mean, log_variance, target), strict=True)
    ]
    (loss,) = gk.Model(negative_elbo(*values)).compile(threads=1)(logits, mean, log_variance, target)
    probability = 1 / (1 + np.exp(-logits))
    likelihood = target * np.log(probability) + (1 - target) * np.log(1 - probability)
    # KL between normal distributions, coordinate by coordinate.
    divergence = (np.exp(log_variance) + mean**2 - 1 - log_variance) / 2
    np.testing.assert_allclose(loss, (divergence.sum() - likelihood.sum()) / 2, rtol=1e-12)


@in_one_item()
@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("alexnet", {"image": (3, 62, 64)}, "at least 63 pixels a side"),
        ("mobilenetv3", {"size": "medium"}, "size must be 'large' or 'small', not 'medium'"),
        ("mobilenetv3", {"width": 0.0}, "width must be a positive number, not 0.0"),
        ("densenet", {"layers": 100}, "layers must be one of 121, 161, 169, 201, not 100"),
        ("densenet", {"growth": 0}, "growth must be a positive integer"),
        ("vgg", {"layers": 12}, "layers must be one of 11, 13, 16, 19, not 12"),
        ("vgg", {"image": (3, 31, 32)}, "at least 32 pixels a side"),
        ("ssd", {"image": (3, 300, 267)}, "at least 268 pixels a side, not 300x267"),
        ("ssd", {"classes": 1}, "classes must be 2 or more"),
        ("ssd", {"classes": 2, "detections": 8733}, "detections=8733 is above 8732"),
        ("vit", {"size": "bsae"}, "unknown size 'bsae'; did you mean 'base'"),
        ("vit", {"image": (3, 32, 40)}, "32x40 pixels does not divide into patches of 16x16"),
        ("vit", {"layers": 0}, "layers must be a positive integer"),
        ("unet", {"image": (1, 24, 32)}, r"divisible by 16 \(2\^depth\)"),
        ("transformer_lm", {"heads": 3}, "width 256 does not divide into 3 heads"),
        ("bert", {"layers": 0}, "layers must be a positive integer"),
        ("dqn", {"hidden": (8, 0)}, "hidden must be positive integers"),
        ("wide_and_deep", {"sizes": ()}, "sizes must be a positive integer per column"),
        ("wide_and_deep", {"numbers": -1}, "numbers must be 0 or a positive integer, not -1"),
        ("wide_and_deep", {"crosses": (1, 8)}, "crosses must be different pairs of columns from 0 to 7"),
        ("wide_and_deep", {"crosses": (1, 3, 3)}, "crosses must be different pairs"),
        ("wide_and_deep", {"crosses": (2, 2)}, "crosses must be different pairs"),
        ("wide_and_deep", {"crosses": (1, 2, 2, 1)}, "crosses must be different pairs"),
        ("gan", {"image": (3, 28, 28)}, "images must be square, and the side a power of two"),
        ("gan", {"part": "judge"}, "part must be generator or discriminator, not 'judge'"),
        ("text_cnn", {"windows": (3, 0)}, "windows must be positive integers"),
        ("text_cnn", {"windows": (3, 3)}, "windows must be different positive integers"),
        ("ncf", {"hidden": (7, 4)}, "the first number of hidden must be even"),
        ("ncf", {"hidden": (8, 0)}, "hidden must be positive integers"),
        ("dlrm", {"numbers": 0}, "numbers must be a positive integer"),
        ("dlrm", {"interaction": "sum"}, "interaction must be dot or cat, not 'sum'"),
    ],
)
def test_wrong_options(name, options, message):
    with pytest.raises(UsageError, match=message):
        gk.models.build(name, **options)
