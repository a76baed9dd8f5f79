"""Measure how long a trainer takes to set up: its construction and the first step, per node of the network.

    python bench/training_setup.py [--networks chain,wide] [--nodes 2000,10000,50000] [--repeat 3] [--calls]

Prints the processor time of one thread, the lowest of several repetitions. The number of calls of functions does not
depend on the load of the machine.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import pstats
import time
from collections.abc import Callable

import numpy as np

import graphkit as gk
from graphkit.ir.graph import Value
from graphkit.models._transformer import attention, feed_forward
from graphkit.ops import F

# Small, so that deep networks have finite losses.
INIT = {"type": "normal", "std": 0.01}
RATE = 1e-6


def chain(nodes: int) -> Value:
    """A long chain of linear layers with activation and residual."""
    h = gk.input("x", ["N", 4])
    for i in range(max(1, nodes // 3)):
        h = F.add(h, F.mul(gk.nn.linear(F.tanh(h), 4, init=INIT, name=f"fc{i}"), np.float32(0.01)))
    return h


def wide(nodes: int) -> Value:
    """Many layers that read the same input."""
    x = gk.input("x", ["N", 4])
    return F.sum(*[F.tanh(gk.nn.linear(x, 4, init=INIT, name=f"fc{i}")) for i in range(max(2, nodes // 2))])


def transformer(nodes: int) -> Value:
    """Blocks of attention and a feed-forward layer."""
    h = gk.input("x", ["N", 4, 8])
    for i in range(max(1, nodes // 24)):
        with gk.name_scope(f"block{i}"):
            h = F.add(h, attention(gk.nn.layer_norm(h, name="norm1"), 2, init=INIT, project_init=INIT))
            normed = gk.nn.layer_norm(h, name="norm2")
            h = F.add(h, feed_forward(normed, 16, approximate="tanh", init=INIT, project_init=INIT))
    return h


def resnet(nodes: int) -> Value:
    """Residual blocks of two convolutions with batch normalisation."""
    h = gk.input("x", ["N", 4, 6, 6])
    for i in range(max(1, nodes // 7)):
        y = h
        for part in range(2):
            conv = gk.nn.conv2d(y, 4, 3, pad=1, bias=False, name=f"conv{i}_{part}")
            y = gk.nn.batch_norm(conv, name=f"norm{i}_{part}")
            y = y if part else F.relu(y)
        h = F.relu(F.add(h, F.mul(y, np.float32(0.01))))
    return h


NETWORKS: dict[str, Callable[[int], Value]] = {
    "chain": chain, "wide": wide, "transformer": transformer, "resnet": resnet,
}  # fmt: skip


def set_up(net: gk.Model) -> None:
    """Construct a trainer and take its first step."""
    trainer = gk.Trainer(net, "mse", gk.optim.SGD(RATE, momentum=0.9), threads=1)
    (kind,) = net.input_types.values()
    shape = net.graph.outputs[0].tensor.known_shape
    trainer.step({"x": np.ones([2, *kind.known_shape[1:]], np.float32)}, np.ones([2, *shape[1:]], np.float32))


def seconds(net: gk.Model, repeat: int) -> float:
    found = []
    for _ in range(repeat):
        gc.collect()
        start = time.thread_time()
        set_up(net)
        found.append(time.thread_time() - start)
    return min(found)


def calls(net: gk.Model) -> int:
    profile = cProfile.Profile()
    profile.runcall(set_up, net)
    return int(pstats.Stats(profile).total_calls)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", default=",".join(NETWORKS))
    parser.add_argument("--nodes", default="2000,10000,50000")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--calls", action="store_true", help="count calls of functions, too")
    options = parser.parse_args()
    for name in options.networks.split(","):
        set_up(gk.Model({"y": NETWORKS[name](40)}))  # imports
        for wanted in map(int, options.nodes.split(",")):
            net = gk.Model({"y": NETWORKS[name](wanted)})
            count = len(net.graph.nodes)
            taken = seconds(net, options.repeat)
            line = f"{name} {count} nodes: {taken:.2f} s, {1e3 * taken / count:.3f} ms per node"
            if options.calls:
                line += f", {calls(net) / count:.0f} calls per node"
            print(line, flush=True)


if __name__ == "__main__":
    main()
