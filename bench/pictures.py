"""Pictures per second from JPEG files, beside PyTorch's DataLoader with torchvision's transforms.

    python bench/pictures.py [--rounds 5] [--count 1024] [--workers 2] [--side 256] [--size 224]

Both read the same files of `side` x `side` pixels with as many workers: decoded by Pillow, a part at random resized to
`size` (RandomResizedCrop, bilinear), flipped with probability 1/2, normalised to float32, in batches of 64.
What torchvision does to a Pillow image is written out with Pillow and PyTorch, line by line as its functions do it
(`crop`, `resize`, `pil_to_tensor` and `convert_image_dtype` as in `to_tensor`, `normalize`), so that torchvision itself
need not be there. Processes live from epoch to epoch in both; both go by turns, and the table has the median of the
rounds, with the median of the ratios of a round. The second table has the processor's time for a picture, of all
processes, which says more where other programs run; the third one the parts of a picture in one thread. Both are in
microseconds.
"""

from __future__ import annotations

import argparse
import io
import math
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
from torch.utils.data import Dataset as TorchDataset

from graphkit import data
from graphkit.data.images.augment import Augment
from graphkit.data.images.decode import opened
from graphkit.data.images.geometry import Window
from graphkit.data.images.numbers import planes
from graphkit.data.images.numbers import table as numbers_of
from graphkit.data.images.preprocess import IMAGENET, Preprocess

BATCH = 64
MEAN, STD = (torch.tensor(values).view(-1, 1, 1) for values in IMAGENET)


class Photos(TorchDataset[tuple[torch.Tensor, int]]):
    """ImageFolder with Compose([RandomResizedCrop(size), RandomHorizontalFlip(), ToTensor(), Normalize(...)])."""

    def __init__(self, files: list[Path], size: int):
        self.files, self.size = [str(file) for file in files], size

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, number: int) -> tuple[torch.Tensor, int]:
        with open(self.files[number], "rb") as file:
            image = Image.open(file).convert("RGB")
        left, top, width, height = random_window(*image.size)
        image = image.crop((left, top, left + width, top + height))
        image = image.resize((self.size, self.size), Image.Resampling.BILINEAR)
        if torch.rand(1) < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        return normalised(tensor_of(image)), number % 2


def random_window(width: int, height: int) -> Window:
    """RandomResizedCrop.get_params."""
    area = width * height
    low, high = torch.log(torch.tensor((3 / 4, 4 / 3))).tolist()
    for _ in range(10):
        target = area * torch.empty(1).uniform_(0.08, 1.0).item()
        ratio = torch.exp(torch.empty(1).uniform_(low, high)).item()
        w, h = round(math.sqrt(target * ratio)), round(math.sqrt(target / ratio))
        if 0 < w <= width and 0 < h <= height:
            top = int(torch.randint(0, height - h + 1, size=(1,)).item())
            return Window(int(torch.randint(0, width - w + 1, size=(1,)).item()), top, w, h)
    return Window(0, 0, width, height)


def tensor_of(image: Image.Image) -> torch.Tensor:
    """to_tensor."""
    pixels = torch.from_numpy(np.array(image, np.uint8, copy=True))
    pixels = pixels.view(image.size[1], image.size[0], 3).permute(2, 0, 1).contiguous()
    return pixels.to(torch.float32).div(255)


def normalised(tensor: torch.Tensor) -> torch.Tensor:
    """normalize, which copies."""
    return tensor.clone().sub_(MEAN).div_(STD)


def write_photos(folder: Path, count: int, side: int) -> list[Path]:
    """JPEGs of about the bytes that a photo of that size has: coarse shapes, with some noise on them."""
    rng = np.random.default_rng(0)
    files = []
    for number in range(count):
        coarse = Image.fromarray(rng.integers(0, 256, (12, 12, 3), np.uint8))
        shapes = np.asarray(coarse.resize((side, side), Image.Resampling.BICUBIC), np.float32)
        pixels = shapes + rng.normal(0, 6, (side, side, 3))
        file = folder / ("cat", "dog")[number % 2] / f"{number}.jpg"
        file.parent.mkdir(exist_ok=True)
        Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8)).save(file, quality=90)
        files.append(file)
    return files


def seconds(batches: Iterable[Any]) -> float:
    start = time.perf_counter()
    for _ in batches:
        pass
    return time.perf_counter() - start


def epochs(folder: Path, files: list[Path], size: int, workers: int, rounds: int) -> list[str]:
    loader = DataLoader(
        Photos(files, size), BATCH, shuffle=True, num_workers=workers, persistent_workers=workers > 0, drop_last=False
    )
    photos = data.read(folder, size=size, augment="crop,flip")
    found: dict[str, list[float]] = {"torch": [], "graphkit": []}
    with data.Workers(max(workers, 1)) as pool:
        given = pool if workers else 0
        seconds(loader), seconds(photos.batches(BATCH, workers=given))  # processes start, files are read
        for epoch in range(rounds):
            found["torch"].append(len(files) / seconds(loader))
            found["graphkit"].append(len(files) / seconds(photos.batches(BATCH, workers=given, seed=1, epoch=epoch)))
    ratios = [g / t for g, t in zip(found["graphkit"], found["torch"], strict=True)]
    middle = {name: statistics.median(rates) for name, rates in found.items()}
    row = [str(workers), f"{middle['torch']:.0f}", f"{middle['graphkit']:.0f}", f"{statistics.median(ratios):.2f}"]
    return [*row, f"{min(ratios):.2f} to {max(ratios):.2f}"]


def processor(folder: Path, files: list[Path], size: int, workers: int) -> list[list[str]]:
    """What epochs take of the processor, in user and in system mode: ten epochs less two, so that starts are out."""

    def of_torch(count: int) -> None:
        loader = DataLoader(Photos(files, size), BATCH, shuffle=True, num_workers=workers, persistent_workers=True)
        for _ in range(count):
            seconds(loader)
        loader._iterator._shutdown_workers()  # type: ignore[union-attr]

    def of_graphkit(count: int) -> None:
        photos = data.read(folder, size=size, augment="crop,flip")
        with data.Workers(workers) as pool:
            for epoch in range(count):
                seconds(photos.batches(BATCH, workers=pool, seed=1, epoch=epoch))

    rows = []
    for name, run in (("torch", of_torch), ("graphkit", of_graphkit)):
        taken = []
        for count in (2, 10):
            before = _taken()
            run(count)
            taken.append(_taken() - before)
        user, system = (taken[1] - taken[0]) / (8 * len(files)) * 1e6
        rows.append([name, f"{user:.0f}", f"{system:.0f}", f"{user + system:.0f}"])
    return rows


def _taken() -> np.ndarray:
    """Seconds in user and in system mode of this process, and of those that it had and that ended."""
    found = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return np.array([[use.ru_utime, use.ru_stime] for use in found]).sum(axis=0)


def parts(file: Path, size: int) -> list[list[str]]:
    content = file.read_bytes()
    preprocess = Preprocess.of_size(size, size, mean=IMAGENET[0], std=IMAGENET[1])
    numbers = numbers_of(1 / 255, *IMAGENET, "float32", 3)
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
        ("to numbers", lambda: normalised(tensor_of(small)), lambda: planes(pixels, numbers)),
        ("to numbers, as bytes", None, lambda: np.ascontiguousarray(pixels.transpose(2, 0, 1))),
        ("all of it", lambda: Photos([file], size)[0], ours),
    )
    return [[name, "" if a is None else f"{fastest(a):.0f}", f"{fastest(b):.0f}"] for name, a, b in compared]


def fastest(call: Callable[[], Any]) -> float:
    """Microseconds."""
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
        files = write_photos(Path(name), o.count, o.side)
        kilobytes = sum(file.stat().st_size for file in files) / o.count / 1000
        print(f"{o.count} JPEGs of {o.side} x {o.side}, {kilobytes:.1f} kB each; load {os.getloadavg()[0]:.1f}\n")
        rows = [epochs(Path(name), files, o.size, workers, o.rounds) for workers in (0, o.workers)]
        print(table(["workers", "torch, pictures/s", "graphkit", "ratio", "of a round"], rows))
        print()
        print(table(["processor", "user", "system", "both"], processor(Path(name), files, o.size, max(o.workers, 1))))
        print()
        print(table(["microseconds of one", "torch", "graphkit"], parts(files[0], o.size)))


if __name__ == "__main__":
    main()
