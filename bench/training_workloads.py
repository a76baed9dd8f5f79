"""The workloads of the training benchmark: networks of `gk.models` with a loss, and one batch each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import graphkit as gk
from graphkit.checks.inputs import make_feeds

MOMENTUM = 0.9
# So small that thousands of steps on one batch change next to nothing: every step computes with ordinary numbers.
LEARNING_RATE = 1e-5


@dataclass(frozen=True)
class Workload:
    """`name` is for the command line, `title` for tables; `options` and the shapes of one batch are the network's."""

    name: str
    title: str
    network: str
    shapes: Mapping[str, tuple[int, ...]]
    options: Mapping[str, Any]
    loss: str = "softmax_cross_entropy"

    @property
    def available(self) -> bool:
        return self.network in gk.models.names()

    def net(self) -> gk.Model:
        """The network with its initial parameters, the same every time.

        The channels of batch normalisation get mean 3 and a deviation around 1, instead of 0 and 1. With a mean of 0,
        some elements are so near to the kinks of ReLU and ReLU6 that rounding decides, and a chain of normalisations
        amplifies the change of the gradients: in float32, no two engines would agree.
        """
        net = gk.models.build(self.network, **self.options)
        random = np.random.default_rng(0)
        for norm in [n.removesuffix("_running_mean") for n in net.params if n.endswith("_running_mean")]:
            shape = net.params[f"{norm}_bias"].shape
            net.params[f"{norm}_bias"] = np.full(shape, 3, np.float32)
            net.params[f"{norm}_weight"] = random.uniform(0.7, 1.3, shape).astype(np.float32)
        return net

    def feeds(self) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """One batch: inputs by name, and the target; numbers are standard normal, indices uniform."""
        graph = gk.losses.with_loss(gk.models.build(self.network, **self.options), self.loss)
        arrays = make_feeds(graph, shapes=self.shapes).arrays
        return arrays, arrays.pop("target")

    def with_batch(self, size: int) -> Workload:
        """The workload with `size` samples in a batch, where the samples lie along the first axis."""
        return replace(self, shapes={name: (size, *shape[1:]) for name, shape in self.shapes.items()})

    @property
    def all_options(self) -> dict[str, Any]:
        """Also those that the network has by default."""
        return {option.name: option.default for option in gk.models.options(self.network)} | dict(self.options)


def _images(name: str, title: str, network: str, batch: int, **options: Any) -> Workload:
    shape = options.get("image", (3, 224, 224))
    return Workload(name, f"{title}, batch {batch}", network, {"x": (batch, *shape)}, options)


WORKLOADS: dict[str, Workload] = {
    w.name: w
    for w in (
        Workload("mlp", "mlp 784-512-512-10, batch 64", "mlp", {"x": (64, 784)},
                 {"inputs": 784, "hidden": (512, 512), "classes": 10}),
        _images("lenet", "lenet 28x28", "lenet", 64, image=(1, 28, 28)),
        _images("resnet18", "resnet18", "resnet", 16, layers=18),
        _images("resnet50", "resnet50", "resnet", 16, layers=50),
        _images("mobilenetv2", "mobilenetv2", "mobilenetv2", 16, dropout=0.0),
        Workload("lstm_lm", "lstm 2x256, 35 steps, batch 20", "lstm_lm", {"x": (35, 20)},
                 {"vocab": 10_000, "hidden": 256, "layers": 2, "dropout": 0.0}),
        Workload("transformer_lm", "causal transformer 4x256, 8x128 tokens", "transformer_lm", {"x": (8, 128)},
                 {"vocab": 8192, "width": 256, "heads": 8, "layers": 4, "length": 128, "dropout": 0.0}),
        Workload("matrix_factorization", "factors 100k x 50k x 64, batch 4096", "matrix_factorization",
                 {"user": (4096,), "item": (4096,)}, {"users": 100_000, "items": 50_000, "factors": 64}, "mse"),
    )
}  # fmt: skip

# No row: see `training_engines.load`.
TINY = Workload("tiny", "tiny", "mlp", {"x": (2, 4)}, {"inputs": 4, "hidden": (4,), "classes": 2})
