"""Data of the tests of training graphs: small networks, their losses, and the graphs of their gradients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

import graphkit as gk
from graphkit.autodiff import gradient
from graphkit.checks.inputs import make_feeds
from graphkit.ir.graph import Graph, Node, Value
from graphkit.ir.types import DType, TensorType
from graphkit.models.ssd import multibox_loss
from graphkit.models.vae import negative_elbo
from graphkit.ops import F
from graphkit.passes.core.sweep import rewrite
from graphkit.passes.training.to_training import to_training
from graphkit.train.losses import attach

TOKENS = 6  # in a small sequence; shorter than its `length`

# Without dropout, so that a training graph gives the same numbers everywhere.
SMALL = [
    ("alexnet", {"image": (3, 64, 64), "classes": 7, "hidden": 24, "dropout": 0.0}),
    ("bert", {"vocab": 50, "width": 16, "heads": 4, "layers": 2, "length": 8, "classes": 3, "dropout": 0.0}),
    ("densenet", {"layers": 121, "image": (3, 64, 64), "classes": 5, "growth": 4, "dropout": 0.0}),
    ("dqn", {"observations": 9, "actions": 3, "hidden": (16, 8)}),
    ("dqn", {"observations": 9, "actions": 3, "hidden": (16, 8), "dueling": True}),
    ("gan", {"part": "generator", "image": (2, 16, 16), "latent": 5, "width": 4}),
    ("gan", {"part": "discriminator", "image": (2, 16, 16), "latent": 5, "width": 4}),
    ("googlenet", {"image": (3, 32, 32), "classes": 5, "dropout": 0.0}),
    ("googlenet", {"image": (3, 32, 32), "classes": 5, "dropout": 0.0, "batch_norm": False}),
    ("inception_bn", {"image": (3, 64, 64), "classes": 5}),
    ("dlrm", {"numbers": 4, "sizes": (5, 3, 4), "width": 6, "bottom": (8,), "top": (9, 7)}),
    ("dlrm", {"numbers": 4, "sizes": (5, 3, 4), "width": 6, "bottom": (8,), "top": (9, 7), "interaction": "cat"}),
    ("lenet", {"image": (1, 8, 8)}),
    ("lenet", {"image": (1, 28, 28)}),
    ("matrix_factorization", {"users": 6, "items": 9, "factors": 4}),
    ("mlp", {"inputs": 12}),
    ("mobilenetv2", {"image": (3, 32, 32), "classes": 5, "dropout": 0.0}),
    ("mobilenetv3", {"size": "large", "image": (3, 32, 32), "classes": 5, "width": 0.25, "dropout": 0.0}),
    ("mobilenetv3", {"size": "small", "image": (3, 32, 32), "classes": 5, "width": 0.5, "dropout": 0.0}),
    ("ncf", {"users": 6, "items": 9, "factors": 4, "hidden": (10, 8, 6)}),
    ("resnet", {"layers": 18, "image": (3, 32, 32), "classes": 5}),
    ("resnet", {"layers": 50, "image": (3, 32, 32), "classes": 5}),
    ("resnet", {"layers": 18, "image": (3, 32, 32), "classes": 5, "preactivation": True}),
    ("resnet", {"layers": 50, "image": (3, 32, 32), "classes": 5, "preactivation": True}),
    ("resnet", {"layers": 20, "image": (3, 12, 12), "classes": 5}),
    ("resnet", {"layers": 20, "image": (3, 12, 12), "classes": 5, "preactivation": True}),
    ("ssd", {"image": (3, 268, 268), "classes": 4, "width": 4}),
    (
        "text_cnn",
        {"vocab": 20, "width": 5, "windows": (2, 3, 8), "maps": 4, "classes": 3, "dropout": 0.0},
    ),
    # Heads of 4 channels: their scale, a half, is the same number in single and double precision.
    ("transformer_lm", {"vocab": 40, "width": 16, "heads": 4, "layers": 2, "length": 8, "dropout": 0.0}),
    ("unet", {"image": (1, 16, 16), "width": 4, "depth": 2, "classes": 1}),
    ("unet", {"image": (1, 16, 16), "width": 4, "depth": 2, "classes": 1, "batch_norm": True}),
    ("vae", {"image": (1, 6, 6), "hidden": 12, "latent": 3}),
    ("vgg", {"layers": 11, "image": (3, 32, 32), "classes": 5, "hidden": 24, "dropout": 0.0}),
    ("vgg", {"layers": 11, "image": (3, 32, 32), "classes": 5, "hidden": 24, "dropout": 0.0, "batch_norm": True}),
    ("vit", {"size": "tiny", "patch": 8, "image": (3, 32, 24), "classes": 5, "layers": 2, "dropout": 0.0}),
    (
        "wide_and_deep",
        {"numbers": 3, "sizes": (4, 3, 5), "crosses": (0, 2), "width": 4, "hidden": (9, 7), "dropout": 0.0},
    ),
    (
        "wide_and_deep",
        {"numbers": 3, "sizes": (4, 3, 5), "crosses": (0, 2), "width": 4, "hidden": (9,), "classes": 3, "dropout": 0.0},
    ),
]


# As they are trained: with dropout, and the recurrent networks, whose sequences have any length.
TRAINED = [
    *((name, options | ({"dropout": 0.3} if "dropout" in options else {})) for name, options in SMALL),
    ("lstm_lm", {"vocab": 20, "hidden": 6, "layers": 2, "dropout": 0.3}),
    ("lstm_lm", {"vocab": 20, "hidden": 6, "layers": 2, "tied": True}),
    ("lstm_lm", {"vocab": 20, "hidden": 6, "layers": 2, "stateful": True}),
    ("seq2seq", {"vocab": 12, "width": 8, "hidden": 8, "attention": "luong", "dropout": 0.3}),
    ("seq2seq", {"vocab": 12, "width": 8, "hidden": 8, "layers": 2, "attention": "bahdanau"}),
    ("text_classifier", {"vocab": 20, "width": 5, "hidden": 4, "classes": 3, "pooling": "mean", "dropout": 0.3}),
    ("text_classifier", {"vocab": 20, "width": 5, "hidden": 4, "classes": 3, "pooling": "last"}),
]


# Networks that take long to differentiate and compile: many layers, or many parameters.
LARGE = {"alexnet", "densenet", "googlenet", "inception_bn", "mobilenetv2", "mobilenetv3", "ssd", "vgg"}
# One network of each kind: convolutions, residual blocks with normalisation, attention, a recurrence with state.
CORE = {
    "bert": "layers=2-classes=3",
    "lenet": "plain",
    "lstm_lm": "layers=2-stateful=True",
    "resnet": "layers=20-classes=5",
}


def is_large(name: str, options: Mapping[str, Any]) -> bool:
    """Whether a network belongs to the full lane. The small MobileNetV3 stays: it has layers that no other has."""
    if name == "mobilenetv3":
        return options["size"] == "large"
    return name in LARGE or (name == "resnet" and options["layers"] != 20)


def is_core(name: str, options: Mapping[str, Any]) -> bool:
    """Whether the default lane tries a network in every way."""
    return CORE.get(name) == label(options)


# At the sizes of the papers. BERT, VGG and ViT have fewer layers: with all of them, each takes more than ten seconds.
WHOLE = [
    ("alexnet", {"dropout": 0.0}),
    ("bert", {"layers": 4, "dropout": 0.0}),
    ("densenet", {}),
    ("dlrm", {}),
    ("dqn", {}),
    ("gan", {}),
    ("gan", {"part": "discriminator"}),
    ("googlenet", {"dropout": 0.0}),
    ("googlenet", {"dropout": 0.0, "batch_norm": False}),
    ("inception_bn", {}),
    ("lenet", {}),
    ("matrix_factorization", {}),
    ("mlp", {}),
    ("mobilenetv2", {"dropout": 0.0}),
    ("mobilenetv3", {"dropout": 0.0}),
    ("ncf", {}),
    ("resnet", {"layers": 50}),
    ("resnet", {"layers": 50, "preactivation": True}),
    ("ssd", {}),
    ("text_cnn", {"dropout": 0.0}),
    ("transformer_lm", {"dropout": 0.0}),
    ("unet", {"classes": 1}),
    ("vae", {}),
    ("vgg", {"layers": 11, "dropout": 0.0}),
    ("vit", {"layers": 4}),
    ("wide_and_deep", {}),
]


def label(case: Any) -> str | None:
    """Return the id of a case: the options that distinguish the rows of SMALL and TRAINED."""
    if not isinstance(case, dict):
        return None
    told = (
        "attention",
        "batch_norm",
        "classes",
        "dueling",
        "interaction",
        "layers",
        "part",
        "pooling",
        "preactivation",
        "size",
        "stateful",
        "tied",
    )
    return "-".join(f"{k}={v}" for k, v in case.items() if k in told) or "plain"


def loss_of(name: str, net: gk.Model) -> tuple[Any, Mapping[str, TensorType] | None]:
    """Return the training loss of a network, and its targets if the loss does not determine them."""
    match name:
        case "dqn":
            return "huber", None
        case "matrix_factorization":
            return "mse", None
        case "gan":
            return ("mse" if "image" in net.outputs else "sigmoid_binary_cross_entropy"), None
        case "ssd":
            boxes = net.output_types["logits"].known_shape[1]
            targets = {
                "classes": TensorType("int64", ["N", boxes]), "offsets_target": TensorType("float32", ["N", boxes, 4])
            }  # fmt: skip
            return multibox_loss, targets
        case "dlrm" | "ncf" | "unet":
            return "sigmoid_binary_cross_entropy", None
        case "vae":
            return negative_elbo, {"target": net.input_types["x"]}
        case "wide_and_deep" if net.output_types["logits"].shape[-1] == 1:
            return "sigmoid_binary_cross_entropy", None
    return "softmax_cross_entropy", None


def feeds_of(name: str, net: gk.Model, batch: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Return random inputs and targets of one batch.

    They are standard normal. Pixels and probabilities are in (0, 1). One box in fifty is not background.
    """
    loss, targets = loss_of(name, net)
    graph = gk.losses.with_loss(net, loss, targets, output=net.outputs[0] if targets is None else None)
    sizes = {"N": batch}
    shapes = {
        n: tuple(d if isinstance(d, int) else sizes.get(str(d), TOKENS) for d in t.shape)
        for n, t in graph.input_types.items()
    }
    feeds = make_feeds(graph, shapes=shapes, seed=seed).arrays
    if loss in ("sigmoid_binary_cross_entropy", negative_elbo):
        feeds["target"] = 1 / (1 + np.exp(-feeds["target"]))
    if name == "ssd":
        rng = np.random.default_rng(seed)
        shape, classes = feeds["classes"].shape, net.output_types["logits"].known_shape[2]
        feeds["classes"] = np.where(rng.random(shape) < 0.02, rng.integers(1, classes, shape), 0)
    return feeds


def shuffle(net: gk.Model, seed: int = 0) -> None:
    """Other values for parameters that start as zeros or ones, biases and running statistics among them."""
    rng = np.random.default_rng(seed)
    for name, array in dict(net.params).items():
        if name.endswith("running_var"):
            net.params[name] = rng.uniform(0.5, 1.5, array.shape).astype(array.dtype)
        elif array.ndim == 1:
            net.params[name] = (array + 0.1 * rng.standard_normal(array.shape)).astype(array.dtype)


def condition(net: gk.Model, seed: int = 0) -> None:
    """Normalised channels of mean 2 and deviation around 1, so that rectifiers mask few elements.

    With a mean of 0, some elements would lie so near to the kink that rounding decides, and a chain of normalisations
    would amplify what that changes: in float32 no two implementations would agree.
    """
    rng = np.random.default_rng(seed)
    for name in [n.removesuffix("_running_mean") for n in net.params if n.endswith("_running_mean")]:
        shape = net.params[f"{name}_bias"].shape
        net.params[f"{name}_bias"] = np.full(shape, 2, np.float32)
        net.params[f"{name}_weight"] = rng.uniform(0.7, 1.3, shape).astype(np.float32)


def training_graph(name: str, net: gk.Model, *, wide: bool = False) -> Graph:
    """Loss, outputs and every gradient, with the new running statistics as updates. wide: in float64."""
    graph = to_training(net.graph)
    graph = attach(in_float64(graph) if wide else graph, *_loss(name, net, wide))
    names = net.trainable
    gradients = gradient([graph.outputs[0]], [graph.find(n) for n in names])
    outputs = dict(zip(graph.output_names, graph.outputs, strict=True))
    outputs |= {f"{n}_grad": g for n, g in zip(names, gradients, strict=True)}
    return Graph(graph.inputs, outputs.values(), graph.updates, output_names=list(outputs))


def _loss(name: str, net: gk.Model, wide: bool) -> tuple[Any, Mapping[str, TensorType] | None]:
    loss, targets = loss_of(name, net)
    if targets and wide:
        targets = {n: TensorType(DType.FLOAT64 if t.dtype.is_float else t.dtype, t.shape) for n, t in targets.items()}
    return loss, targets


def run(graph: Graph, params: Mapping[str, np.ndarray], feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Outputs and updated states, called as in an export with updates. Parameters and feeds take the graph's types."""
    types = {graph.name_of(v): v.dtype for v in graph.inputs}
    floats = {DType.FLOAT32, DType.FLOAT64}

    def fit(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {n: a.astype(types[n].numpy) if types[n] in floats else a for n, a in arrays.items()}

    model = gk.Model.from_graph(graph, fit(params))
    results = model.compile(threads=2).run(fit(feeds))
    return results | {f"{n}_updated": model.params[n] for n in (graph.name_of(s) for s, _ in graph.updates)}


def in_float64(graph: Graph) -> Graph:
    """The graph with float64 in place of float32: inputs, constants and casts."""

    def rule(node: Node, operands: list[Value | None]) -> Any:
        operator: Any = node.op
        if node.op.name == "Constant" and node.output.dtype is DType.FLOAT32:
            return [F.constant(value=np.asarray(operator.value.array, np.float64))]
        if node.op.name == "Cast" and node.output.dtype is DType.FLOAT32:
            return node.rebuilt(operands, operator.replace(to=DType.FLOAT64)).outputs
        return None

    floats = [v for v in graph.inputs if v.dtype is DType.FLOAT32]
    wide = {v: Value(TensorType(DType.FLOAT64, v.tensor.shape), v.name, role=v.role, attrs=v.attrs) for v in floats}
    return rewrite(graph, rule, inputs=wide)


def difference(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the difference of two arrays: in float32 if both are float32, because its rounding error is negligible."""
    return np.subtract(a, b, dtype=np.float32 if a.dtype == b.dtype == np.float32 else np.float64)


def relative_errors(ours: Mapping[str, np.ndarray], theirs: Mapping[str, np.ndarray]) -> dict[str, float]:
    """Largest difference over the largest element, by name.

    A bias is measured by the weight of its layer as well: its gradient may vanish by symmetry (before a
    normalisation), and is then nothing but the rounding of what the weight's is made of. So is the first
    normalisation of a network by the convolution before it: in DenseNet all that reads it normalises again.
    """
    assert set(ours) == set(theirs)
    peaks = {n: float(np.abs(a).max()) for n, a in theirs.items()}
    errors = {n: float(np.abs(difference(ours[n], theirs[n])).max()) for n in ours}
    layer = {n: n.replace("_bias_grad", "_weight_grad") for n in peaks}
    layer |= dict.fromkeys(("bn1_weight_grad", "bn1_bias_grad"), "conv1_weight_grad")
    scales = {n: max(p, peaks.get(layer[n], 0.0)) for n, p in peaks.items()}
    return {n: errors[n] / scales[n] if errors[n] else 0.0 for n in ours}


def joint_error(ours: Mapping[str, np.ndarray], theirs: Mapping[str, np.ndarray]) -> float:
    """The norm of the difference of all gradients over their norm, as one vector."""
    names = [n for n in theirs if n.endswith("_grad")]
    error = sum(float(np.sum(np.square(difference(ours[n], theirs[n])), dtype=np.float64)) for n in names)
    return (error / sum(float(np.sum(np.square(theirs[n]), dtype=np.float64)) for n in names)) ** 0.5
