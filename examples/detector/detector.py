"""Train a single-shot detector to find shapes of three kinds; measure it, and export it with its box search to ONNX.

    python examples/detector/detector.py

`Scenes` is an example of your own data set with boxes. Its samples are drawn when their batch is made.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
from average_precision import OVERLAP, Boxes, average_precision, overlap
from PIL import Image, ImageDraw

import graphkit as gk
from graphkit.models.ssd import default_boxes, match, multibox_loss

KINDS = ("background", "filled", "frame", "striped")
SIZE = 268  # pixels per side: the smallest images that SSD accepts
NETWORK: dict[str, Any] = {"image": (3, SIZE, SIZE), "classes": len(KINDS), "width": 8}


class Scenes(gk.data.LazyDataset):
    """Images with one to three shapes in random colours, determined by the image's number and the seed."""

    def __init__(self, count: int, seed: int):
        super().__init__(count, name=f"scenes of seed {seed}")
        self.seed = seed
        self.defaults = default_boxes(NETWORK["image"])

    def scene(self, number: int) -> tuple[np.ndarray, Boxes]:
        """Return image `number`, uint8 [SIZE, SIZE, 3], and the boxes of its objects."""
        draw = np.random.default_rng((self.seed, number))
        image = Image.new("RGB", (SIZE, SIZE), tuple(draw.integers(0, 100, 3).tolist()))
        pen, boxes = ImageDraw.Draw(image), np.zeros((0, 4))
        labels: list[int] = []
        for _ in range(draw.integers(1, 4)):
            width, height = draw.uniform(0.15, 0.5, 2)
            x, y = draw.uniform(0, 1 - width), draw.uniform(0, 1 - height)
            box = np.array([[x, y, x + width, y + height]])
            if len(boxes) and overlap(box, boxes).max() > 0.02:
                continue
            kind = int(draw.integers(1, len(KINDS)))
            paint(pen, KINDS[kind], (box[0] * SIZE).tolist(), tuple(draw.integers(140, 256, 3).tolist()))
            boxes, labels = np.concatenate([boxes, box]), [*labels, kind]
        noisy = np.asarray(image) + draw.normal(0, 10, (SIZE, SIZE, 3))
        return np.clip(noisy, 0, 255).astype(np.uint8), Boxes(boxes, np.array(labels))

    def sample(self, number: int, draw: np.random.Generator | None) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        pixels, there = self.scene(number)
        classes, offsets = match([there.boxes], [there.labels], self.defaults)
        return prepared(pixels), {"target_classes": classes[0], "target_offsets": offsets[0]}


def paint(pen: ImageDraw.ImageDraw, kind: str, box: list[float], colour: tuple[int, ...]) -> None:
    x1, y1, x2, y2 = box
    if kind == "striped":
        for y in np.arange(y1, y2, 12):
            pen.rectangle((x1, y, x2, min(y + 5, y2)), fill=colour)
    else:
        pen.rectangle(box, fill=colour if kind == "filled" else None, outline=colour, width=6)


def prepared(pixels: np.ndarray) -> np.ndarray:
    """Convert an image, uint8 [H, W, 3], to the network's input: float32 [3, H, W], centred at 0."""
    return np.ascontiguousarray((pixels.transpose(2, 0, 1).astype(np.float32) - 128) / 64)


def detect(detector: gk.Model, scenes: Scenes) -> tuple[list[Boxes], list[Boxes]]:
    """Return the detected boxes and the true boxes of each image."""
    run, found, there = detector.compile().run, [], []
    for number in range(len(scenes)):
        pixels, truth = scenes.scene(number)
        made = run({"x": prepared(pixels)[None]})
        real = made["scores"][0] > 0  # the other rows are unused
        found.append(Boxes(*(made[name][0][real] for name in ("boxes", "labels", "scores"))))
        there.append(truth)
    return found, there


def draw_found(scenes: Scenes, found: Sequence[Boxes], path: Path) -> None:
    """Draw the first images side by side, with the boxes whose score is above one half."""
    shown = min(4, len(scenes))
    sheet = Image.new("RGB", (SIZE * shown, SIZE))
    for number in range(shown):
        image = Image.fromarray(scenes.scene(number)[0])
        pen, (boxes, labels, scores) = ImageDraw.Draw(image), found[number]
        assert scores is not None
        for box, label, score in zip(boxes * SIZE, labels, scores, strict=True):
            if score > 0.5:
                pen.rectangle(box.tolist(), outline="red", width=2)
                pen.text((box[0] + 4, box[1] + 4), f"{KINDS[label]} {score:.2f}", fill="red")
        sheet.paste(image, (SIZE * number, 0))
    sheet.save(path)


@click.command()
@click.option("--count", default=600, show_default=True, type=click.IntRange(8), help="Images to train on.")
@click.option("--test", "held_out", default=100, show_default=True, type=click.IntRange(10), help="Images to test on.")
@click.option("--epochs", default=6, show_default=True, type=click.IntRange(1))
@click.option("-o", "--output", default="runs/detector", show_default=True, type=click.Path(path_type=Path))
def main(count: int, held_out: int, epochs: int, output: Path) -> None:
    """Train, export the detector with its box search, verify the file, and measure its average precision."""
    output.mkdir(parents=True, exist_ok=True)
    train, test = Scenes(count, seed=0), Scenes(held_out, seed=1)
    net = gk.models.build("ssd", **NETWORK)
    targets = {
        "target_classes": gk.TensorType("int64", ["N", len(train.defaults)]),
        "target_offsets": gk.TensorType("float32", ["N", len(train.defaults), 4]),
    }
    optimizer = gk.optim.Adam(gk.optim.Warmup(gk.optim.Cosine(2e-3), steps=20))
    trainer = gk.Trainer(net, multibox_loss, optimizer, targets=targets, clip_norm=5.0, seed=0)
    trainer.fit(
        train, epochs=epochs, batch_size=4, folder=output / "run", overwrite=True,
        on_epoch=lambda epoch, numbers: click.echo(f"epoch {epoch}: loss {numbers['loss']:.4f}"),
    )  # fmt: skip

    detector = gk.models.build("ssd", **NETWORK, detections=10)
    for name in net.params:
        detector.params[name] = net.params[name]
    detector.save(output / "detector.onnx")
    report = gk.verify(detector, {"x": prepared(test.scene(0)[0])[None]}, against=output / "detector.onnx")
    click.echo(f"the file in ONNX Runtime: {'PASSED' if report.passed else 'FAILED'}")
    found, there = detect(gk.load(output / "detector.onnx"), test)
    draw_found(test, found, output / "found.png")
    precisions = [average_precision(found, there, label) for label in range(1, len(KINDS))]
    for kind, value in zip(KINDS[1:], precisions, strict=True):
        click.echo(f"{value:.4f}  average precision of {kind}")
    click.echo(f"{np.mean(precisions):.4f}  mean average precision at an overlap of {OVERLAP}")
    if not report.passed:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
