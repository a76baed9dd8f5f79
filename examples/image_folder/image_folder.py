"""Train a classifier on a folder of pictures with one subfolder per class; export an ONNX file with the class names.

    python examples/image_folder/image_folder.py
    python examples/image_folder/image_folder.py --pictures photos/ --photo photos/cat/0.png

config.toml contains the options of `graphkit train`.
"""

from __future__ import annotations

import math
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click
import numpy as np
from PIL import Image, ImageDraw

CONFIG = Path(__file__).with_name("config.toml")
SIZE = 48  # pixels per side

Point = tuple[float, float]


def regular(corners: int, turn: float, inner: float = 1.0) -> list[Point]:
    """Return the corners of a polygon around (0, 0). The first is above it; every second one has the radius `inner`."""
    radii = [1.0 if i % 2 == 0 else inner for i in range(corners)]
    angles = [turn - math.pi / 2 + 2 * math.pi * i / corners for i in range(corners)]
    return [(r * math.cos(a), r * math.sin(a)) for r, a in zip(radii, angles, strict=True)]


def cross(turn: float) -> list[Point]:
    """Return the corners of a plus sign made of five squares, turned by `turn`."""
    third = 1 / 3
    right = [(third, -1), (third, -third), (1, -third), (1, third), (third, third), (third, 1)]
    outline = [*right, *((-x, -y) for x, y in right)]
    cos, sin = math.cos(turn), math.sin(turn)
    return [(cos * x - sin * y, sin * x + cos * y) for x, y in outline]


SHAPES: dict[str, Callable[[float], list[Point]]] = {
    "circle": lambda turn: regular(60, turn),
    "cross": cross,
    "hexagon": lambda turn: regular(6, turn),
    "square": lambda turn: regular(4, turn + math.pi / 4),
    "star": lambda turn: regular(10, turn, inner=0.4),
    "triangle": lambda turn: regular(3, turn),
}


def picture(shape: str, draw: np.random.Generator) -> Image.Image:
    """Draw a shape with random colour, size, place and a small rotation, on a noisy background of another colour."""
    ground, colour = draw.integers(0, 256, (2, 3))
    while np.abs(ground - colour).max() < 90:  # too similar to be visible
        colour = draw.integers(0, 256, 3)
    image = Image.new("RGB", (SIZE, SIZE), tuple(ground.tolist()))
    radius = draw.uniform(0.25, 0.42) * SIZE
    x, y = draw.uniform(radius, SIZE - radius, 2)
    outline = SHAPES[shape](draw.uniform(-0.25, 0.25))
    ImageDraw.Draw(image).polygon([(x + radius * a, y + radius * b) for a, b in outline], tuple(colour.tolist()))
    noisy = np.asarray(image) + draw.normal(0, 12, (SIZE, SIZE, 3))
    return Image.fromarray(np.clip(noisy, 0, 255).astype(np.uint8))


def draw_pictures(folder: Path, count: int, seed: int) -> None:
    """Draw `count` pictures of every shape. The folder appears when all of them are complete."""
    draw = np.random.default_rng(seed)
    unfinished = folder.with_name(f"{folder.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    for shape in SHAPES:
        (unfinished / shape).mkdir(parents=True)
        for number in range(count):
            picture(shape, draw).save(unfinished / shape / f"{number}.png")
    os.replace(unfinished, folder)


def graphkit(*words: object) -> None:
    """Print a graphkit command and run it. If it fails, this program ends with its exit code."""
    arguments = [str(word) for word in words]
    click.secho(f"$ graphkit {shlex.join(arguments)}", bold=True)
    if code := subprocess.run([sys.executable, "-P", "-m", "graphkit", *arguments]).returncode:
        sys.exit(code)


@click.command()
@click.option("--pictures", type=click.Path(exists=True, file_okay=False, path_type=Path), help="Your own folder.")
@click.option("--photo", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="What to name in the end.")
@click.option("--count", default=200, show_default=True, type=click.IntRange(10), help="Pictures of a shape to draw.")
@click.option("--epochs", type=click.IntRange(1), help="In place of those in config.toml.")
@click.option("-o", "--output", default="runs/image_folder", show_default=True, type=click.Path(path_type=Path))
def main(pictures: Path | None, photo: Path | None, count: int, epochs: int | None, output: Path) -> None:
    """Draw shapes (or take your pictures), train, export, verify, and classify a photo."""
    output.mkdir(parents=True, exist_ok=True)
    if pictures is None:
        pictures = output / f"shapes-{count}"
        if not pictures.exists():
            draw_pictures(pictures, count, seed=0)
    if photo is None:
        photo = output / "photo.png"
        picture("star", np.random.default_rng(1)).save(photo)
    run, file = output / "run", output / "net.onnx"
    longer = () if epochs is None else ("--epochs", epochs)
    graphkit("train", CONFIG, "--data", pictures, *longer, "-o", run, "--overwrite")
    graphkit("export", run / "best.json", "-o", file)
    graphkit("run", file, photo, "--top", 5)


if __name__ == "__main__":
    main()
