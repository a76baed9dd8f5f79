"""What loading data costs an epoch of training, with batches loaded one after the other and beside the steps.

    python bench/input_pipeline.py [--rounds 7] [--batches 40] [--threads 4]

Images of 28 x 28 as in MNIST, batches of 64. Of each network and source, in milliseconds per batch: a step alone (on
batches that are there), the batch alone, `fit` with prefetch=0 and with prefetch=2; the sum is what the first two
make one after the other. `2 / 0` compares both ways of `fit`; `hidden` is the share of the shorter of step and batch
that the overlap hides, where a batch takes long enough to go to a worker. The last row of a network is about a metric.
All take turns; medians over the rounds, of quotients and differences too.
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
from graphkit.executor.handoff import WORTH_SECONDS

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


class Confusion:
    """How often which class is taken for which, first to fifth choice, counted in plain Python."""

    name = "confusion"

    def reset(self) -> None:
        self.counts = np.zeros((10, 10), np.int64)

    def update(self, output: np.ndarray, target: np.ndarray) -> None:
        for row, label in zip(output, target, strict=True):
            for choice in sorted(range(10), key=lambda i, row=row: -row[i])[:5]:
                self.counts[label, choice] += 1

    @property
    def value(self) -> float:
        return float(np.trace(self.counts) / self.counts.sum())


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


def measure(net: gk.Model, data: Dataset, metrics: list[Any], options: argparse.Namespace) -> dict[str, np.ndarray]:
    """Milliseconds per batch of the step, the batch, and both ways of `fit`, in every round."""
    trainer = gk.Trainer(net, optimizer=gk.optim.SGD(1e-3, momentum=0.9), threads=options.threads)
    ready = list(data.batches(BATCH))
    outputs = np.random.default_rng(0).random((BATCH, 10), np.float32)

    def step() -> None:
        for inputs, targets in ready:
            trainer.step(inputs, targets)

    def batch() -> None:
        for found in data.batches(BATCH):
            for metric in metrics:
                metric.update(outputs, found.targets)

    def fit(prefetch: int) -> Callable[[], None]:
        def run() -> None:
            trainer.epoch = 0
            trainer.fit(data, batch_size=BATCH, metrics=metrics, progress=False, prefetch=prefetch)

        return run

    ways = {"step": step, "batch": batch, "0": fit(0), "2": fit(2)}
    times: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(options.rounds + 1):
        for name, way in ways.items():
            start = time.perf_counter()
            way()
            if turn:  # the first one prepares the programs
                times[name].append((time.perf_counter() - start) * 1e3 / len(ready))
    return {name: np.array(found) for name, found in times.items()}


def row(label: list[str], times: dict[str, np.ndarray]) -> list[str]:
    middle = {name: float(np.median(found)) for name, found in times.items()}
    step, batch = middle["step"], middle["batch"]
    hidden = float(np.median(times["0"] - times["2"])) / min(step, batch)
    return [
        *label,
        *(f"{n:.2f}" for n in (step, batch, step + batch, middle["0"], middle["2"])),
        f"{np.median(times['2'] / times['0']):.2f}",
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
            lines.append(row([name, source], measure(net, data, [], options)))
        confusion = Confusion()
        confusion.reset()
        measured = measure(net, sources(options.batches)["in memory"], [confusion], options)
        lines.append(row([name, "in memory, slow metric"], measured))
    print(table(head, lines))


if __name__ == "__main__":
    main()
