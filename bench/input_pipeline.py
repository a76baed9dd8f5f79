"""What loading data costs an epoch of training, with batches loaded one after the other and beside the steps.

    python bench/input_pipeline.py [--rounds 7] [--batches 40] [--threads 4]

Images of 28 x 28 as in MNIST, batches of 64. Of each network and source, in milliseconds per batch: a step alone (on
batches that are there), the batch alone, `fit` with prefetch=0 and with prefetch=2; the sum is what the first two
make one after the other. `2 / 0` compares both ways of `fit`; `hidden` is the share of the shorter of step and batch
that the overlap hides, where a batch takes long enough to go to a worker.
All take turns; the fastest epoch of each counts.
"""

from __future__ import annotations

import argparse
import time
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
from tables import table

import graphkit as gk
from graphkit.config import num_threads
from graphkit.data import Dataset
from graphkit.executor.run.offload import WORTH_SECONDS

BATCH = 64
WAIT = 3e-3


class Augmented(Dataset):
    """Each image is unpacked on its own, as PNG files are, moved by up to 2 pixels, and scaled to [0, 1]."""

    def __init__(self, images: np.ndarray, targets: np.ndarray):
        super().__init__(np.arange(len(images)), targets, name="augmented")
        self.files = [zlib.compress(image.tobytes()) for image in images]

    def take(self, index: Any) -> tuple[np.ndarray, np.ndarray | None]:
        rows, targets = super().take(index)
        found = np.zeros((len(rows), 1, 28, 28), np.float32)
        for place, row in zip(found, rows, strict=True):
            image = np.frombuffer(zlib.decompress(self.files[row]), np.uint8).reshape(28, 28)
            down, right = np.random.Philox(int(row)).random_raw(2) % 5
            place[0] = np.pad(image, 2)[down : down + 28, right : right + 28] / np.float32(255)
        return found, targets


class Remote(Dataset):
    """In memory, after a wait of 3 ms for whoever sends it."""

    def take(self, index: Any) -> tuple[Any, np.ndarray | None]:
        time.sleep(WAIT)
        return super().take(index)


def sources(batches: int) -> dict[str, Dataset]:
    rng = np.random.default_rng(0)
    # Smooth, so that they compress about as digits do.
    coarse = rng.integers(0, 256, (BATCH * batches, 7, 7), np.uint8) * (rng.random((BATCH * batches, 7, 7)) < 0.3)
    images = np.repeat(np.repeat(coarse.astype(np.uint8), 4, 1), 4, 2)
    targets = rng.integers(0, 10, len(images))
    floats = images[:, None].astype(np.float32) / np.float32(255)
    return {
        "in memory": Dataset(floats, targets),
        "augmented": Augmented(images, targets),
        "remote": Remote(floats, targets),
    }


def networks() -> dict[str, gk.Model]:
    return {
        "mlp": gk.models.build("mlp", inputs=(1, 28, 28), hidden=(256, 128), classes=10),
        "lenet": gk.models.build("lenet"),
    }


def measure(net: gk.Model, data: Dataset, options: argparse.Namespace) -> dict[str, float]:
    """Milliseconds per batch of the step, the batch, and both ways of `fit`."""
    trainer = gk.Trainer(net, optimizer=gk.optim.SGD(1e-3, momentum=0.9), threads=options.threads)
    ready = list(data.batches(BATCH))

    def step() -> None:
        for inputs, targets in ready:
            trainer.step(inputs, targets)

    def batch() -> None:
        for _ in data.batches(BATCH):
            pass

    def fit(prefetch: int) -> Callable[[], None]:
        def run() -> None:
            trainer.fit(data, batch_size=BATCH, progress=False, prefetch=prefetch)

        return run

    ways = {"step": step, "batch": batch, "0": fit(0), "2": fit(2)}
    times: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(options.rounds + 1):
        for name, way in ways.items():
            start = time.perf_counter()
            way()
            if turn:  # the first one prepares the programs
                times[name].append((time.perf_counter() - start) * 1e3 / len(ready))
    return {name: min(found) for name, found in times.items()}


def row(label: list[str], found: dict[str, float]) -> list[str]:
    step, batch = found["step"], found["batch"]
    hidden = (found["0"] - found["2"]) / min(step, batch)
    return [
        *label,
        *(f"{n:.2f}" for n in (step, batch, step + batch, found["0"], found["2"])),
        f"{found['2'] / found['0']:.2f}",
        f"{hidden:.0%}" if batch > WORTH_SECONDS * 1e3 else "",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--batches", type=int, default=40)
    parser.add_argument("--threads", type=int, default=num_threads())
    options = parser.parse_args()
    head = ["network", "data", "step", "batch", "sum", "prefetch=0", "prefetch=2", "2 / 0", "hidden"]
    lines = []
    for name, net in networks().items():
        for source, data in sources(options.batches).items():
            lines.append(row([name, source], measure(net, data, options)))
    print(table(head, lines))


if __name__ == "__main__":
    main()
