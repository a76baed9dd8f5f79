"""Compare loading of JPEG files with PyTorch's DataLoader and torchvision's transforms, in pictures per second.

    python bench/pictures.py [--rounds 5] [--count 1024] [--workers 2] [--side 256] [--size 224]

Both read the same files of `side` x `side` pixels with the same number of workers. Pictures are decoded by Pillow,
cropped at random and resized to `size` (RandomResizedCrop, bilinear), flipped with probability 1/2, normalised to
float32, and collected in batches of 64. Both keep their processes between epochs, and take turns. The first table shows
the median of the rounds, and the median of the ratios by round. The second table shows the processor time per picture
of all processes; it is more reliable if other programs run. The third table shows the parts of this time in one thread.
Both are in microseconds.
"""

from __future__ import annotations

import argparse
import io
import os
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from tables import table
from torch.utils.data import DataLoader
from torchvision import transforms
from torchvision.datasets import ImageFolder

from graphkit import data
from graphkit.data.images.augment import Augment
from graphkit.data.preprocessing.decode import opened
from graphkit.data.preprocessing.image import IMAGENET, Preprocess
from graphkit.data.preprocessing.numbers import planes
from graphkit.data.preprocessing.numbers import table as numbers_of

BATCH = 64


def photos_of(folder: Path, size: int) -> ImageFolder:
    return ImageFolder(folder, transforms.Compose([
        transforms.RandomResizedCrop(size), transforms.RandomHorizontalFlip(), transforms.ToTensor(),
        transforms.Normalize(*IMAGENET),
    ]))  # fmt: skip


def torch_loader(folder: Path, size: int, workers: int) -> DataLoader[Any]:
    photos = photos_of(folder, size)
    return DataLoader(photos, BATCH, shuffle=True, num_workers=workers, persistent_workers=workers > 0)


def write_photos(folder: Path, count: int, side: int) -> int:
    """Write JPEGs about as large as photos: coarse shapes with some noise. Return the bytes of all."""
    rng = np.random.default_rng(0)
    size = 0
    for number in range(count):
        coarse = Image.fromarray(rng.integers(0, 256, (12, 12, 3), np.uint8))
        shapes = np.asarray(coarse.resize((side, side), Image.Resampling.BICUBIC), np.float32)
        pixels = shapes + rng.normal(0, 6, (side, side, 3))
        file = folder / ("cat", "dog")[number % 2] / f"{number}.jpg"
        file.parent.mkdir(exist_ok=True)
        Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8)).save(file, quality=90)
        size += file.stat().st_size
    return size


def seconds(batches: Iterable[Any]) -> float:
    start = time.perf_counter()
    for _ in batches:
        pass
    return time.perf_counter() - start


def epochs(folder: Path, count: int, size: int, workers: int, rounds: int) -> list[str]:
    loader = torch_loader(folder, size, workers)
    photos = data.read(folder, size=size, augment="crop,flip")
    found: dict[str, list[float]] = {"torch": [], "graphkit": []}
    with data.Workers(max(workers, 1)) as pool:
        given = pool if workers else 0
        seconds(loader), seconds(photos.batches(BATCH, workers=given))  # processes start, files are read
        for epoch in range(rounds):
            found["torch"].append(count / seconds(loader))
            found["graphkit"].append(count / seconds(photos.batches(BATCH, workers=given, seed=1, epoch=epoch)))
    ratios = [g / t for g, t in zip(found["graphkit"], found["torch"], strict=True)]
    middle = {name: statistics.median(rates) for name, rates in found.items()}
    row = [str(workers), f"{middle['torch']:.0f}", f"{middle['graphkit']:.0f}", f"{statistics.median(ratios):.2f}"]
    return [*row, f"{min(ratios):.2f} to {max(ratios):.2f}"]


def processor(folder: Path, count: int, size: int, workers: int) -> list[list[str]]:
    """Return the processor time of epochs, in user and in system mode: ten epochs minus two, to leave out the start."""

    def of_torch(times: int) -> None:
        loader = torch_loader(folder, size, workers)
        for _ in range(times):
            seconds(loader)
        loader._iterator._shutdown_workers()  # type: ignore[union-attr]

    def of_graphkit(times: int) -> None:
        photos = data.read(folder, size=size, augment="crop,flip")
        with data.Workers(workers) as pool:
            for epoch in range(times):
                seconds(photos.batches(BATCH, workers=pool, seed=1, epoch=epoch))

    rows = []
    for name, run in (("torch", of_torch), ("graphkit", of_graphkit)):
        taken = []
        for many in (2, 10):
            before = _taken()
            run(many)
            taken.append(_taken() - before)
        user, system = (taken[1] - taken[0]) / (8 * count) * 1e6
        rows.append([name, f"{user:.0f}", f"{system:.0f}", f"{user + system:.0f}"])
    return rows


def _taken() -> np.ndarray:
    """Return the seconds in user and system mode of this process and of its ended children."""
    found = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return np.array([[use.ru_utime, use.ru_stime] for use in found]).sum(axis=0)


def parts(folder: Path, size: int) -> list[list[str]]:
    theirs = photos_of(folder, size)
    content = Path(theirs.imgs[0][0]).read_bytes()
    preprocess = Preprocess.of_size(size, size, mean=IMAGENET[0], std=IMAGENET[1])
    numbers = numbers_of(1 / 255, *IMAGENET, "float32", 3)
    to_numbers = transforms.Compose(theirs.transform.transforms[-2:])
    image = Image.open(io.BytesIO(content)).convert("RGB")
    small = image.resize((size, size), Image.Resampling.BILINEAR)
    pixels = np.asarray(small)
    draw = np.random.default_rng(0)

    def ours() -> Any:
        with opened(content) as picture:
            return Augment(crop=0.08, flip=0.5).array(picture, preprocess, draw)

    def decoded() -> Any:
        with opened(content) as picture:
            return picture.decoded("RGB")

    compared = (
        ("decode", lambda: Image.open(io.BytesIO(content)).convert("RGB"), decoded),
        ("to numbers", lambda: to_numbers(small), lambda: planes(pixels, numbers)),
        ("to numbers, as bytes", None, lambda: np.ascontiguousarray(pixels.transpose(2, 0, 1))),
        ("all of it", lambda: theirs[0], ours),
    )
    return [[name, "" if a is None else f"{fastest(a):.0f}", f"{fastest(b):.0f}"] for name, a, b in compared]


def fastest(call: Callable[[], Any]) -> float:
    """Return the microseconds of the fastest call."""
    times = []
    for _ in range(7):
        start = time.perf_counter()
        for _ in range(40):
            call()
        times.append((time.perf_counter() - start) / 40)
    return min(times) * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--count", type=int, default=1024)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--side", type=int, default=256)
    parser.add_argument("--size", type=int, default=224)
    o = parser.parse_args()
    torch.set_num_threads(1)  # as in DataLoader's processes
    with tempfile.TemporaryDirectory() as name:
        kilobytes = write_photos(Path(name), o.count, o.side) / o.count / 1000
        print(f"{o.count} JPEGs of {o.side} x {o.side}, {kilobytes:.1f} kB each; load {os.getloadavg()[0]:.1f}\n")
        rows = [epochs(Path(name), o.count, o.size, workers, o.rounds) for workers in (0, o.workers)]
        print(table(["workers", "torch, pictures/s", "graphkit", "ratio", "of a round"], rows))
        print()
        print(table(["processor", "user", "system", "both"], processor(Path(name), o.count, o.size, max(o.workers, 1))))
        print()
        print(table(["microseconds of one", "torch", "graphkit"], parts(Path(name), o.size)))


if __name__ == "__main__":
    main()
