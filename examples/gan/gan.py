"""Train a generator of digits against a discriminator; write a sheet of generated digits, and an ONNX file.

python examples/gan/gan.py
"""

from __future__ import annotations

from pathlib import Path

import click
import numpy as np
from adversarial import adversarial_step, fit
from PIL import Image

import graphkit as gk

SIDE, LATENT, WIDTH = 16, 32, 16
ROWS = 10  # number of rows, and of columns, of the sheet


def real_digits() -> tuple[np.ndarray, np.ndarray]:
    """Return real images in the generator's format, float32 [1797, 1, 16, 16] in (-1, 1), and labels int64 [1797]."""
    data = gk.data.read("digits")
    images = np.asarray(data.inputs).reshape(-1, 8, 8)
    large = [Image.fromarray(image).resize((SIDE, SIDE), Image.Resampling.BICUBIC) for image in images]
    pixels = np.clip(np.stack([np.asarray(image) for image in large]), 0, 1)
    return (1.8 * pixels - 0.9).astype(np.float32)[:, None], np.asarray(data.targets)


def judge(images: np.ndarray, digits: np.ndarray) -> gk.Model:
    """Train a classifier on real digits. It judges the generated ones."""
    net = gk.models.build("lenet", image=(1, SIDE, SIDE), classes=10)
    gk.Trainer(net, seed=0).fit((images, digits), epochs=6)
    return net


def inception_score(net: gk.Model, images: np.ndarray) -> float:
    """Return the inception score with the classifier `net` (Salimans et al. 2016, section 4).

    This is exp of the mean of KL(p(y|x) || p(y)): 1 if all images look alike to the classifier, 10 if it is sure of
    each image and finds all ten digits equally often.
    """
    logits = net.run({"x": images})[net.outputs[0]].astype(np.float64)
    log_p = logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)
    p = np.exp(log_p)
    return float(np.exp((p * (log_p - np.log(p.mean(axis=0)))).sum(axis=1).mean()))


def sheet(images: np.ndarray, path: Path) -> None:
    """Write ROWS x ROWS images, [N, 1, SIDE, SIDE] in (-1, 1), into one picture, enlarged twofold."""
    tiles = images[: ROWS * ROWS].reshape(ROWS, ROWS, SIDE, SIDE).swapaxes(1, 2).reshape(ROWS * SIDE, ROWS * SIDE)
    picture = Image.fromarray(np.clip((tiles + 1) * 127.5, 0, 255).astype(np.uint8))
    picture.resize((2 * picture.width, 2 * picture.height), Image.Resampling.NEAREST).save(path)


@click.command()
@click.option("--epochs", default=40, show_default=True, type=click.IntRange(1))
@click.option("--every", default=10, show_default=True, type=click.IntRange(1), help="Epochs between two sheets.")
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0))
@click.option("--resume", is_flag=True, help="Go on from the checkpoint that a run has left in the output folder.")
@click.option("-o", "--output", default="runs/gan", show_default=True, type=click.Path(path_type=Path))
def main(epochs: int, every: int, seed: int, resume: bool, output: Path) -> None:
    """Train both networks, write sheets of generated digits, export the generator and verify it."""
    output.mkdir(parents=True, exist_ok=True)
    images, digits = real_digits()
    net = judge(images, digits)
    options = {"image": (1, SIDE, SIDE), "latent": LATENT, "width": WIDTH}
    generator = gk.models.build("gan", part="generator", **options)
    discriminator = gk.models.build("gan", part="discriminator", **options)
    optimizer = gk.optim.Adam(1e-3, beta1=0.5)
    step = adversarial_step(generator, discriminator, (optimizer, optimizer), smoothing=0.1)
    trainer = gk.CustomTrainer(step, seed=seed)
    if resume:
        trainer.resume(output)
    noise = np.random.default_rng(seed).standard_normal((1000, LATENT)).astype(np.float32)
    score = inception_score(net, generator.run({"noise": noise})["image"])
    click.echo(f"inception score of real digits {inception_score(net, images):.2f}, before the training {score:.2f}")
    with trainer.folder(output, overwrite=True):
        for done in range(trainer.notes.get("epochs", 0), epochs, every):
            more = min(every, epochs - done)
            losses = fit(trainer, images, more, folder=output)[-1]
            made = generator.run({"noise": noise})["image"]
            sheet(made, output / f"made-{done + more:03}.png")
            click.echo(
                f"epoch {done + more}: generator {losses['generator']:.3f}, discriminator "
                f"{losses['discriminator']:.3f}, inception score {inception_score(net, made):.2f}"
            )

    generator.save(output / "generator.onnx")
    report = gk.verify(generator, {"noise": noise[:16]}, against=output / "generator.onnx")
    click.echo(f"the file in ONNX Runtime: {'PASSED' if report.passed else 'FAILED'}")
    if not report.passed:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
