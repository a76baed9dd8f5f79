"""Small forms of InsightFace networks as symbols: pyramid and heads of RetinaFace, a branch of LFFD, MobileFaceNet."""

import numpy as np

from tests.mxnet_io.operator_cases import node, symbol, variable


class Net:
    """Nodes of a symbol, and parameters: sines of their positions, so that MXNet can make the same ones."""

    def __init__(self):
        self.nodes = [variable("data")]
        self.params = {}

    def add(self, op, *inputs, **attributes):
        self.nodes.append(node(op, f"{op.lower()}{len(self.nodes)}", inputs, **attributes))
        return len(self.nodes) - 1

    def parameter(self, kind, *shape):
        name = f"{kind}{len(self.nodes)}"
        waves = np.sin(np.arange(np.prod(shape)) * 1.7 + len(self.nodes))
        scale = {"weight": waves / np.sqrt(np.prod(shape[1:])), "gamma": 1 + waves / 4, "var": 1.5 + waves}
        self.params[name] = np.float32(scale.get(kind, waves / 8)).reshape(shape)
        self.nodes.append(variable(name))
        return len(self.nodes) - 1

    def conv(self, x, inputs, outputs, size=1, stride=1, group=1, bias=True):
        operands = [self.parameter("weight", outputs, inputs // group, size, size)]
        operands += [self.parameter("bias", outputs)] if bias else []
        return self.add("Convolution", x, *operands, kernel=(size, size), pad=(size // 2, size // 2), num_group=group,
                        stride=(stride, stride), num_filter=outputs, no_bias=not bias)  # fmt: skip

    def norm(self, x, channels, **attributes):
        parts = [self.parameter(kind, channels) for kind in ("gamma", "beta", "mean", "var")]
        return self.add("BatchNorm", x, *parts, eps=2e-5, momentum=0.9, **{"fix_gamma": False, **attributes})

    def block(self, x, inputs, outputs, kind="relu", **options):
        """A convolution, a normalisation and an activation."""
        y = self.norm(self.conv(x, inputs, outputs, bias=False, **options), outputs)
        if kind == "prelu":
            return self.add("LeakyReLU", y, self.parameter("slope", outputs), act_type="prelu")
        return self.add("Activation", y, act_type=kind) if kind else y

    def document(self, *heads):
        return symbol(self.nodes, heads)


def retinaface():
    """Two scales: a feature pyramid with Crop, a context module, scores, boxes and landmarks. Data: [N, 3, H, W]."""
    net = Net()
    fine = net.block(0, 3, 4, size=3, stride=2)
    coarse = net.block(fine, 4, 4, size=3, stride=2)
    up = net.add("UpSampling", net.block(coarse, 4, 4), scale=2, sample_type="nearest", num_args=1, workspace=512)
    side = net.block(fine, 4, 4)
    merged = net.add("elemwise_add", side, net.add("Crop", up, side, num_args=2))
    context = net.block(merged, 4, 2, size=3)
    parts = [net.block(merged, 4, 4, None, size=3), net.block(context, 2, 2, None, size=3)]
    features = net.add("Activation", net.add("Concat", *parts, num_args=2, dim=1), act_type="relu")
    scores = net.add("Reshape", net.conv(features, 6, 4), shape=(0, 2, -1, 0))
    chances = net.add("Reshape", net.add("SoftmaxActivation", scores, mode="channel"), shape=(0, 4, -1, 0))
    return net, net.document(chances, net.conv(features, 6, 8), net.conv(features, 6, 20))


def lffd():
    """A residual block without normalisation and its branch. Data: [N, 3, H, W]."""
    net = Net()
    x = net.add("_div_scalar", net.add("_minus_scalar", 0, scalar=127.5), scalar=127.5)
    x = net.add("Activation", net.conv(x, 3, 4, 3, 2), act_type="relu")
    y = net.add("Activation", net.conv(x, 4, 4, 3), act_type="relu")
    x = net.add("Activation", net.add("elemwise_add", net.conv(y, 4, 4, 3), x), act_type="relu")
    branch = net.add("Activation", net.conv(x, 4, 6), act_type="relu")
    scores = net.add("softmax", net.conv(branch, 6, 2), axis=1)
    return net, net.document(net.add("slice_axis", scores, axis=1, begin=0, end=1), net.conv(branch, 6, 4))


def mobileface():
    """A depthwise residual block, a global depthwise convolution and the normalised embedding. Data: [N, 3, 8, 8]."""
    net = Net()
    x = net.add("_mul_scalar", net.add("_minus_scalar", net.add("identity", 0), scalar=127.5), scalar=0.0078125)
    x = net.block(x, 3, 4, "prelu", size=3, stride=2)
    y = net.block(net.block(x, 4, 8, "prelu"), 8, 8, "prelu", size=3, group=8)
    x = net.add("_Plus", x, net.block(y, 8, 4, None))
    weight = net.parameter("weight", 4, 1, 4, 4)
    x = net.add("Convolution", x, weight, kernel=(4, 4), num_filter=4, num_group=4, no_bias=True)
    x = net.add("FullyConnected", net.norm(x, 4), net.parameter("weight", 6, 4), net.parameter("bias", 6), num_hidden=6)
    return net, net.document(net.norm(x, 6, fix_gamma=True))


def pixels(*shape):
    return np.float32(np.arange(np.prod(shape)) * 37 % 251).reshape(shape)
