"""One process of a job that trains on the stand-in for a card: card_job.py FOLDER OPTIONS. Prints what it came to.

The same steps are made on the processor; what is printed is how far parameters are apart.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from emulator import Emulator
from stand_in import Card

import graphkit as gk
from graphkit.executor.devices import cuda


def network(*, lazy: bool) -> gk.Value:
    if lazy:
        words = gk.input("words", ["N", 3], dtype="int64")
        return gk.nn.linear(gk.flatten(gk.nn.embedding(words, 20, 4)), 5)
    x = gk.input("x", ["N", 4, 3, 3])
    return gk.nn.linear(gk.flatten(gk.relu(gk.nn.batch_norm(gk.nn.conv2d(x, 6, 3, pad=1)))), 5)


class Trained(NamedTuple):
    """params: after three steps. total: of those that are trained. skipped: steps."""

    params: dict[str, np.ndarray]
    total: float
    skipped: int


def trained(device: str, kv: Any, lazy: bool, options: dict[str, Any]) -> Trained:
    if device == "cpu":
        options = {name: value for name, value in options.items() if name != "precision"}
    rng = np.random.default_rng(kv.rank)
    net = gk.Model({"y": network(lazy=lazy)}, name="net", seed=3)
    optimizer = gk.optim.SGD(0.1, momentum=0.9)
    trainer = gk.Trainer(
        net, "softmax_cross_entropy", optimizer, device=device, seed=1, kvstore=kv, threads=1, **options
    )
    for count in (4, 4, 6):
        x = rng.integers(0, 20, (count, 3)) if lazy else rng.standard_normal((count, 4, 3, 3)).astype(np.float32)
        trainer.step(x, rng.integers(0, 5, count))
    params = {name: np.array(array) for name, array in net.params.items()}
    total = sum(float(np.abs(params[name]).sum()) for name in trainer.trained)
    return Trained(params, total, trainer._stepper.skipped)


def main(folder: str, options: str) -> None:
    given = json.loads(options)
    lazy = "lazy" in given
    mixed = given.pop("mixed", False)
    kv = gk.kvstore.create("dist_sync")
    if (compression := given.pop("compression", None)) is not None:
        kv.set_gradient_compression(compression)
    own = Path(folder) / str(kv.rank)
    own.mkdir()
    card = Card(Emulator(own))
    cuda.device = cuda.card.device = lambda number=0: card
    cuda.cards = lambda: 1
    second = "cpu" if mixed and kv.rank == 0 else "cuda"
    here, there = (trained(device, kv, lazy, dict(given)) for device in ("cpu", second))
    apart = max(float(np.abs(there.params[name] - array).max()) for name, array in here.params.items())
    facts = {
        "apart": apart, "total": there.total, "skipped": there.skipped, "replays": card.replays,
        "launched": sorted({*card.launched}),
    }  # fmt: skip
    sys.stdout.write(json.dumps(facts) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
