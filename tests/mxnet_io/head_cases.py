"""Networks of one layer with MXNet's output operators, and MXNet's rules of their gradients in numpy.

Sources of the rules: softmax_output-inl.h, regression_output-inl.h, svm_output-inl.h and make_loss-inl.h of MXNet 1.9.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tests.mxnet_io.files import node, symbol, write_model

SAMPLES, CLASSES, POSITIONS, FEATURES = 6, 5, 3, 4
RATE, MOMENTUM, STEPS = 0.1, 0.9, 10


@dataclass(frozen=True)
class HeadCase:
    """An output operator.

    Attributes:
        op: MXNet's name of the operator.
        attributes: Its attributes.
        label: The label; None if the operator has none.
        form: "rows" for operands [N, classes], "sequence" for [N, T, classes], "channels" for [N, classes, T], "flat"
            for [N * T, classes] with a label that is reshaped, too.
    """

    op: str
    attributes: dict
    label: np.ndarray | None
    form: str = "rows"


def _random(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def _some_ignored(label, ignored):
    label = label.copy()
    label.reshape(-1)[::2] = ignored
    return label


_RNG = np.random.default_rng(5)
CLASS = _RNG.integers(0, CLASSES, SAMPLES)
EACH = _RNG.integers(0, CLASSES, (SAMPLES, POSITIONS))
NUMBERS = _random(6, SAMPLES, CLASSES)
YES = (NUMBERS > 0).astype(np.float32)

CASES = {
    "softmax": HeadCase("SoftmaxOutput", {}, CLASS),
    "old name": HeadCase("Softmax", {"grad_scale": 0.3}, CLASS),
    "smooth": HeadCase("SoftmaxOutput", {"smooth_alpha": 0.1, "grad_scale": 0.5, "normalization": "batch"}, CLASS),
    "ignored smooth": HeadCase(
        "SoftmaxOutput", {"smooth_alpha": 0.1, "use_ignore": True, "ignore_label": 2}, _some_ignored(CLASS, 2)
    ),
    "valid": HeadCase(
        "SoftmaxOutput", {"use_ignore": True, "ignore_label": -1, "normalization": "valid"}, _some_ignored(CLASS, -1)
    ),
    "valid without use_ignore": HeadCase(
        "SoftmaxOutput", {"ignore_label": 2, "normalization": "valid"}, _some_ignored(CLASS, 2)
    ),
    "all ignored": HeadCase(
        "SoftmaxOutput", {"use_ignore": True, "ignore_label": 255, "normalization": "valid"}, np.full(SAMPLES, 255)
    ),
    "probabilities": HeadCase("SoftmaxOutput", {"grad_scale": 2.0, "normalization": "batch"}, np.abs(NUMBERS)),
    "channels": HeadCase("SoftmaxOutput", {"multi_output": True, "smooth_alpha": 0.1}, EACH, "channels"),
    "channels batch": HeadCase(
        "SoftmaxOutput", {"multi_output": True, "normalization": "batch", "use_ignore": True, "ignore_label": 1},
        EACH, "channels",
    ),
    "channels valid": HeadCase(
        "SoftmaxOutput", {"multi_output": True, "normalization": "valid", "use_ignore": True, "ignore_label": 255},
        _some_ignored(EACH, 255), "channels",
    ),
    "positions": HeadCase("SoftmaxOutput", {"preserve_shape": True, "normalization": "batch"}, EACH, "sequence"),
    "reshaped label": HeadCase("SoftmaxOutput", {"use_ignore": True, "ignore_label": 0}, EACH, "flat"),
    "linear": HeadCase("LinearRegressionOutput", {"grad_scale": 2.0}, NUMBERS),
    "linear of positions": HeadCase("LinearRegressionOutput", {}, _random(7, SAMPLES, POSITIONS, CLASSES), "sequence"),
    "absolute": HeadCase("MAERegressionOutput", {"grad_scale": 0.3}, NUMBERS),
    "logistic": HeadCase("LogisticRegressionOutput", {}, YES),
    "svm": HeadCase("SVMOutput", {"margin": 0.7, "regularization_coefficient": 0.4}, CLASS),
    "svm linear": HeadCase("SVMOutput", {"use_linear": True}, CLASS),
    "MakeLoss": HeadCase("MakeLoss", {"grad_scale": 0.5, "normalization": "batch"}, None),
    "MakeLoss valid": HeadCase("MakeLoss", {"normalization": "valid", "valid_thresh": 0.2}, None),
    "make_loss": HeadCase("make_loss", {}, None),
}  # fmt: skip

# weight[0, 0], weight[0, 1], weight[4, 3] and bias[0] after 10 steps of MXNet 1.9.1's Module.
FIGURES = {
    "softmax": (0.125377, -0.791043, -0.259114, 0.652097),
    "old name": (0.159985, -0.612872, -0.689249, 1.567809),
    "smooth": (0.178832, -0.549435, -0.841705, 1.906479),
    "ignored smooth": (0.20224, -0.58179, -0.275048, 1.461754),
    "valid": (0.190775, -0.542699, -0.660925, 1.803776),
    "valid without use_ignore": (0.032367, -0.759117, -0.557581, 0.981179),
    "all ignored": (0.189053, -0.522748, -0.892274, 2.040919),
    "probabilities": (0.8613, -0.347847, -0.924804, 7.121999),
    "channels": (0.207987, -0.212684, -1.022351, 1.05659),
    "channels batch": (0.188856, -0.457686, -0.913698, 1.924007),
    "channels valid": (0.122801, -0.598394, -0.977298, 1.839455),
    "positions": (0.205721, -0.459866, -0.917172, 1.849537),
    "reshaped label": (0.479045, -0.341912, -1.100811, -1.348281),
    "linear": (-0.05244, -0.73577, -0.153818, 0.458175),
    "linear of positions": (0.568916, 0.015652, -0.566471, 0.222942),
    "absolute": (0.164675, -0.533682, -0.822446, 1.958157),
    "logistic": (0.207146, -0.445258, -0.749153, 2.003825),
    "svm": (-0.28456, -1.540926, 0.468584, -1.435524),
    "svm linear": (0.087261, -0.777269, 0.402427, -0.268706),
    "MakeLoss": (0.13578, -0.570518, -0.959694, 1.696077),
    "MakeLoss valid": (0.111057, -0.592686, -0.990981, 1.536048),
    "make_loss": (-0.450231, -1.095984, -1.70131, -2.097187),
}


def data_of(case):
    return _random(1, *((SAMPLES, FEATURES) if case.form == "rows" else (SAMPLES, POSITIONS, FEATURES)))


def arrays():
    return {"arg:fc_weight": _random(2, CLASSES, FEATURES), "arg:fc_bias": _random(3, CLASSES)}


def written(folder, case):
    """Write the network; return the path of its symbol."""
    texts = {key: str(value) for key, value in case.attributes.items()}
    declared = case.label is not None and case.label.shape == (SAMPLES, CLASSES) and case.op == "SoftmaxOutput"
    label = node("null", "out_label", attrs={"__shape__": f"(0, {CLASSES})"} if declared else {})
    flatten = str(case.form == "rows")
    nodes = [
        node("null", "data", attrs={"__shape__": str((0, *data_of(case).shape[1:]))}),
        node("null", "fc_weight"),
        node("null", "fc_bias"),
        node("FullyConnected", "fc", [(0, 0), (1, 0), (2, 0)], attrs={"num_hidden": str(CLASSES), "flatten": flatten}),
    ]
    if case.form == "channels":
        nodes.append(node("transpose", "moved", [(3, 0)], attrs={"axes": "(0, 2, 1)"}))
    if case.form == "flat":
        nodes.append(node("Reshape", "moved", [(3, 0)], attrs={"shape": f"(-1, {CLASSES})"}))
    inputs = [(len(nodes) - 1, 0)]
    if case.label is not None:
        inputs.append((len(nodes), 0))
        nodes.append(label)
    if case.form == "flat":
        inputs[1] = (len(nodes), 0)
        nodes.append(node("Reshape", "labels", [(len(nodes) - 1, 0)], attrs={"shape": "(-1,)"}))
    nodes.append(node(case.op, "out", inputs, attrs=texts))
    return write_model(folder, symbol(nodes, [(len(nodes) - 1, 0)]), arrays())


def trained(case, steps=STEPS):
    """Return weight and bias after steps of SGD with momentum, as MXNet's Module takes them: divided by the samples."""
    x, (weight, bias) = data_of(case).astype(np.float64), (a.astype(np.float64) for a in arrays().values())
    rows = x.reshape(-1, FEATURES)
    speed = [np.zeros_like(weight), np.zeros_like(bias)]
    for _ in range(steps):
        logits = (rows @ weight.T + bias).reshape(*x.shape[:-1], CLASSES)
        gradient = gradient_of(case, _formed(case, logits)) / SAMPLES
        if case.form == "channels":
            gradient = gradient.swapaxes(1, 2)
        gradient = gradient.reshape(-1, CLASSES)
        for i, (value, change) in enumerate(((weight, gradient.T @ rows), (bias, gradient.sum(0)))):
            speed[i] = MOMENTUM * speed[i] - RATE * change
            value += speed[i]
    return weight, bias


def _formed(case, logits):
    if case.form == "channels":
        return logits.swapaxes(1, 2)
    return logits.reshape(-1, CLASSES) if case.form == "flat" else logits


def gradient_of(case, x):
    """Return MXNet's gradient of the operand x."""
    scale = case.attributes.get("grad_scale", 1.0)
    if case.op in ("SoftmaxOutput", "Softmax"):
        return scale * _softmax_gradient(case, x)
    if case.op == "SVMOutput":
        return _svm_gradient(case, x)
    if case.op in ("MakeLoss", "make_loss"):
        counted = max((x > case.attributes.get("valid_thresh", 0.0)).sum(), 1)
        divisor = {"null": 1, "batch": len(x), "valid": counted}[case.attributes.get("normalization", "null")]
        return np.full(x.shape, scale / divisor)
    error = {
        "LinearRegressionOutput": lambda: x - case.label,
        "MAERegressionOutput": lambda: np.where(x - case.label > 0, 1.0, -1.0),
        "LogisticRegressionOutput": lambda: 1 / (1 + np.exp(-x)) - case.label,
    }[case.op]()
    return scale * error / (case.label.size / len(case.label))


def _softmax_gradient(case, x):
    get, axis = case.attributes.get, 1 if case.form == "channels" else -1
    exponentials = np.exp(x - x.max(axis, keepdims=True))
    p = exponentials / exponentials.sum(axis, keepdims=True)
    if case.label.shape == x.shape:
        return p - case.label
    label = case.label.reshape(-1) if case.form == "flat" else case.label
    alpha = 0.0 if case.form == "channels" else get("smooth_alpha", 0.0)  # multi_output ignores smooth_alpha
    own = np.moveaxis(label[..., None] == np.arange(CLASSES), -1, axis)
    gradient = p - np.where(own, 1 - alpha, alpha / (CLASSES - 1))
    counts = label != get("ignore_label", -1)
    if get("use_ignore", False):
        gradient = gradient * np.expand_dims(counts, axis)
    places = POSITIONS if case.form == "channels" else 1
    labels = len(x) if case.form == "channels" else label.size
    return (
        gradient
        / {"null": places, "batch": places * labels, "valid": max(counts.sum(), 1)}[get("normalization", "null")]
    )


def _svm_gradient(case, x):
    side = np.where(case.label[:, None] == np.arange(CLASSES), 1.0, -1.0)
    lack = np.maximum(case.attributes.get("margin", 1.0) - side * x, 0)
    each = (lack > 0) * 1.0 if case.attributes.get("use_linear") else 2 * lack
    return -side * each * case.attributes.get("regularization_coefficient", 1.0)
