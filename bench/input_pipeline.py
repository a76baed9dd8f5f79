"""Measure the cost of data loading in training, with batches loaded between the steps and during them.

    python bench/input_pipeline.py [--rounds 7] [--batches 40] [--threads 4] [--workers 1]

Images are 28 x 28 as in MNIST, batches have 64 samples. For each network and source, the table shows milliseconds per
batch: a step alone (on loaded batches), a batch alone, their sum, and `fit` with prefetch=0 and prefetch=2. `2 / 0` is
the ratio of the two. `hidden` is the share of the shorter of step and batch that the overlap hides, for batches that
take long enough to be given to a worker thread. All take turns; the fastest epoch of each counts.

With --workers, two tables show the cost of worker processes instead. The first uses batches of 64 float32 images [3,
224, 224] that are in memory, so a sample is a copy. It compares the copy of a batch by one thread, the batch made in
this process, the batch made by workers, and the part of the latter that this process does. The second compares `fit` of
each network on arrays in memory with `fit` if workers make augmented images. The ratio is about 1 if the workers have
their own cores. `busy` shows whether they have: it is `fit` on arrays in memory while an unrelated process computes for
the same time as the workers.
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from tables import table

import graphkit as gk
from graphkit.config import num_threads
from graphkit.data import Dataset, LazyDataset, Workers
from graphkit.executor.run.engine import WORTH_SECONDS

BATCH = 64
WAIT = 3e-3
LARGE = (3, 224, 224)


class Augmented(LazyDataset):
    """Each image is unpacked on its own, as PNG files are, moved by up to 2 pixels, and scaled to [0, 1]."""

    def __init__(self, images: np.ndarray, targets: np.ndarray):
        super().__init__(len(images), targets, name="augmented")
        self.files = [zlib.compress(image.tobytes()) for image in images]

    def sample(self, number: int, draw: np.random.Generator | None) -> tuple[np.ndarray, None]:
        image = np.frombuffer(zlib.decompress(self.files[number]), np.uint8).reshape(28, 28)
        down, right = np.random.Philox(number).random_raw(2) % 5
        return np.pad(image, 2)[None, down : down + 28, right : right + 28] / np.float32(255), None


class Large(LazyDataset):
    """Images of ImageNet's usual size, made before."""

    def __init__(self, count: int):
        super().__init__(count, np.zeros(count, np.int64), name="large")
        self.image = np.ones(LARGE, np.float32)

    def sample(self, number: int, draw: np.random.Generator | None) -> tuple[np.ndarray, None]:
        return self.image, None


class Remote(Dataset):
    """Arrays in memory that arrive after a wait of 3 ms, like those of a remote server."""

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
    """Return the milliseconds per batch of the step, of the batch, and of `fit` with and without prefetching."""
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

    return taking_turns({"step": step, "batch": batch, "0": fit(0), "2": fit(2)}, options.rounds, len(ready))


def taking_turns(
    ways: dict[str, Callable[[], None]], rounds: int, batches: int, clock: Callable[[], float] = time.perf_counter
) -> dict[str, float]:
    """Return the milliseconds per batch of each way, the fastest of `rounds` rounds."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(rounds + 1):
        for name, way in ways.items():
            start = clock()
            way()
            if turn:  # the first one prepares the programs
                times[name].append((clock() - start) * 1e3 / batches)
    return {name: min(found) for name, found in times.items()}


def by_workers(options: argparse.Namespace) -> None:
    """Return the tables of --workers."""
    data = Large(BATCH * options.batches)
    source, target = (np.ones((BATCH, *LARGE), np.float32) for _ in range(2))

    def copy() -> None:
        for _ in range(options.batches):
            np.copyto(target, source)

    def batches(workers: Workers | int) -> Callable[[], None]:
        def run() -> None:
            for _ in data.batches(BATCH, workers=workers):
                pass

        return run

    counts = range(1, options.workers + 1)
    with contextlib.ExitStack() as stack:
        pools = [stack.enter_context(Workers(count)) for count in counts]
        ways = {"copy": copy, "0": batches(0)} | {str(p.count): batches(p) for p in pools}
        found = taking_turns(ways, options.rounds, options.batches)
        own = taking_turns({"1": batches(pools[0])}, options.rounds, options.batches, time.process_time)
    size = f"{source.nbytes / 1e6:.1f} MB"
    head = ["batch", "copy", "workers=0", *(f"workers={count}" for count in counts), "of this process"]
    print(table(head, [[size, *(f"{ms:.2f}" for ms in found.values()), f"{own['1']:.2f}"]]))
    lines = []
    augmented = sources(options.batches)["augmented"]
    for name, net in networks().items():
        with Workers(options.workers) as pool:
            lines.append([name, *beside_steps(net, augmented, pool, options)])
    workers = f"fit, workers={options.workers}"
    head = ["network", "batch", "fit, in memory", workers, "busy", "to in memory", "to busy"]
    print()
    print(table(head, lines))


def beside_steps(net: gk.Model, data: Dataset, pool: Workers, options: argparse.Namespace) -> list[str]:
    """Return the milliseconds of a batch, of a step on data in memory, and of a step on data from workers."""
    trainer = gk.Trainer(net, optimizer=gk.optim.SGD(1e-3, momentum=0.9), threads=options.threads)
    ready = Dataset(*data.take(slice(None)))

    def fit(given: Dataset, workers: Workers | None) -> Callable[[], None]:
        def run() -> None:
            trainer.fit(given, batch_size=BATCH, progress=False, workers=workers)

        return run

    def batch() -> None:
        for _ in data.batches(BATCH):
            pass

    ways = {"batch": batch, "without": fit(ready, None), "with": fit(data, pool)}
    found = taking_turns(ways, options.rounds, options.batches)
    with busy(found["batch"], found["without"]):
        found |= taking_turns({"busy": fit(ready, None)}, options.rounds, options.batches)
    ratios = (found["with"] / found[other] for other in ("without", "busy"))
    return [*(f"{ms:.2f}" for ms in found.values()), *(f"{ratio:.2f}" for ratio in ratios)]


@contextlib.contextmanager
def busy(milliseconds: float, of: float) -> Iterator[None]:
    """Run a process that decompresses for `milliseconds` of every `of` milliseconds, or all the time."""
    program = (
        f"import time, zlib\nfile = zlib.compress(bytes(range(256)) * 20)\nwhile True:\n"
        f"    end = time.perf_counter() + {milliseconds / 1e3}\n"
        f"    while time.perf_counter() < end:\n        zlib.decompress(file)\n"
        f"    time.sleep({max(0.0, of - milliseconds) / 1e3})"
    )
    process = subprocess.Popen([sys.executable, "-c", program])
    try:
        yield
    finally:
        process.kill()
        process.wait()


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
    parser.add_argument("--workers", type=int, help="measure this number of worker processes instead")
    options = parser.parse_args()
    if options.workers:
        by_workers(options)
        return
    head = ["network", "data", "step", "batch", "sum", "prefetch=0", "prefetch=2", "2 / 0", "hidden"]
    lines = []
    for name, net in networks().items():
        for source, data in sources(options.batches).items():
            lines.append(row([name, source], measure(net, data, options)))
    print(table(head, lines))


if __name__ == "__main__":
    main()
