"""Train a network of arrays with a KVStore, in the loop of the MXNet paper: pull, forward and backward, push.

python examples/arrays/arrays.py
mpiexec -n 2 python examples/arrays/arrays.py --store dist_sync
"""

from __future__ import annotations

from collections.abc import Iterator

import click
import numpy as np

import graphkit as gk

nd = gk.nd


class Network:
    """A multilayer perceptron for images of 8x8.

    w: The weights and biases. g: their gradients, which `forward_backward` computes.
    """

    def __init__(self, hidden: int = 64, seed: int = 0):
        rng = np.random.default_rng(seed)
        shapes = [(64, hidden), (hidden,), (hidden, 10), (10,)]
        self.w = [nd.array(rng.normal(0, 0.1, s).astype(np.float32)) for s in shapes]
        for weight in self.w:
            weight.attach_grad()

    @property
    def g(self) -> list[nd.NDArray]:
        return [weight.grad for weight in self.w]

    def forward(self, x: nd.NDArray) -> nd.NDArray:
        w1, b1, w2, b2 = self.w
        return gk.relu(x @ w1 + b1) @ w2 + b2

    def forward_backward(self, x: nd.NDArray, t: nd.NDArray) -> nd.NDArray:
        with nd.record():
            loss = gk.softmax_cross_entropy_loss(self.forward(x), t)[0]
        loss.backward()
        return loss


def train(store: str = "local", epochs: int = 20, batch: int = 64, rate: float = 0.2) -> float:
    """Train on the digits that come with graphkit. Return the accuracy on the test images."""
    kv = gk.kvstore.create(store)
    net, keys = Network(), [0, 1, 2, 3]
    kv.init(keys, net.w)

    def updater(key: int, gradient: np.ndarray, weight: np.ndarray) -> None:
        weight -= rate / kv.num_workers * gradient

    kv.set_updater(updater)
    training, test = gk.data.load("digits")
    for x, t in batches(training, epochs, batch, kv.rank, kv.num_workers):
        kv.pull(keys, net.w)
        net.forward_backward(x, t)
        kv.push(keys, net.g)
    kv.pull(keys, net.w)
    images, labels = pair(test)
    found = gk.arg_max(net.forward(images), axis=1, keepdims=False)
    return float(gk.reduce_mean(gk.cast(found == labels, to="float32")))


def pair(data: gk.data.Dataset) -> tuple[nd.NDArray, nd.NDArray]:
    """Return images as rows of 64 numbers, and their labels."""
    images, labels = data.take(slice(None))
    return nd.array(images).reshape(len(images), 64), nd.array(labels, "int64")


def batches(
    data: gk.data.Dataset, epochs: int, size: int, rank: int, workers: int
) -> Iterator[tuple[nd.NDArray, nd.NDArray]]:
    """Yield the batches of this worker: every worker gets another part of each batch."""
    images, labels = pair(data)
    rng = np.random.default_rng(0)
    for _ in range(epochs):
        order = rng.permutation(len(labels))
        for start in range(0, len(order) - size + 1, size):
            rows = order[start + rank : start + size : workers]
            yield images[rows], labels[rows]


@click.command()
@click.option("--store", default="local", help="local or dist_sync")
@click.option("--epochs", default=20, help="how often each image is used")
def main(store: str, epochs: int) -> None:
    """Train, and print the accuracy."""
    click.echo(f"accuracy: {train(store, epochs):.4f} on the test images")


if __name__ == "__main__":
    main()
