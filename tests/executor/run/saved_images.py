"""Networks for images of any height and width, which several files of tests save."""

import numpy as np

import graphkit as gk
from graphkit.passes.core.sweep import rewrite


def residual():
    """Few channels, padding by size, a residual sum, one filter for each channel, and a transposed convolution."""
    x = gk.input("x", ["N", 3, "H", "W"])
    h = gk.nn.conv2d(x, 24, 7, stride=2, pad=3, name="stem")
    h = gk.relu(gk.nn.batch_norm(h, name="norm"))
    same = gk.constant(np.random.default_rng(1).standard_normal((24, 24, 3, 3), dtype=np.float32) / 15)
    h = h + gk.conv(h, same, auto_pad="SAME_LOWER", name="same")
    h = gk.clip(gk.nn.conv2d(h, 24, 3, stride=2, pad=1, groups=24, name="depthwise"), 0.0, 6.0)
    h = gk.conv(h, same, auto_pad="SAME_UPPER", strides=(2, 3), name="strided")
    ups = gk.nn.conv_transpose2d(h, 8, 3, stride=2, pad=1, name="up")
    h = gk.flatten(gk.nn.global_avg_pool(gk.tanh(h)), axis=1)
    return gk.Model(
        {"logits": gk.nn.linear(h, 10, name="fc"), "map": gk.conv(ups, gk.constant(np.ones((2, 8, 1, 1), np.float32)))}
    )


def of_any_image(net):
    """The network for images of any height and width."""
    (x,) = net.graph.inputs[:1]
    kind = x.tensor.with_shape(["N", x.tensor.shape[1], "H", "W"])
    graph = rewrite(net.graph.replace(updates=()), lambda *_: None, inputs={x: x.like(type=kind, name="x")})
    return gk.Model.from_graph(graph.replace(output_names=net.graph.output_names), net.params.entries())
