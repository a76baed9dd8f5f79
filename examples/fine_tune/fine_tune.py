"""Fine-tune an ONNX file to new classes from a few samples of each: first a new head, then the whole network.

    python examples/fine_tune/fine_tune.py
    python examples/fine_tune/fine_tune.py --model net.onnx --at VALUE --data mine.npz --classes 3

`graphkit inspect net.onnx --text` lists the values that the head can be attached to (`--at`).
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import click
import numpy as np

import graphkit as gk

FEATURES = "tanh3"  # LeNet's input of the last layer, [N, 500]


def graphkit(*words: object) -> None:
    """Print a graphkit command and run it. If it fails, this program ends with its exit code."""
    arguments = [str(word) for word in words]
    click.secho(f"$ graphkit {shlex.join(arguments)}", bold=True)
    if code := subprocess.run([sys.executable, "-P", "-m", "graphkit", *arguments]).returncode:
        sys.exit(code)


def write_parity(path: str, shots: int) -> None:
    """Write an .npz file of digits with the classes even and odd. The first `shots` of each digit are for training."""
    train, test = gk.data.load("digits")
    digits = np.asarray(train.targets)
    rows = np.sort(np.concatenate([np.flatnonzero(digits == digit)[:shots] for digit in range(10)]))
    np.savez(
        path, classes=np.array(["even", "odd"]), x_train=train.inputs[rows], y_train=digits[rows] % 2,
        x_test=test.inputs, y_test=np.asarray(test.targets) % 2,
    )  # fmt: skip


def accuracy(run: Path) -> float:
    """Return the validation accuracy of a run after the last epoch."""
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    return float([line for line in lines if line["event"] == "epoch"][-1]["valid_accuracy"])


def make_known(model: Path, folder: Path) -> None:
    """Train LeNet to classify the ten digits, and write it as an ONNX file."""
    net, run = folder / "known.json", folder / "known"
    graphkit("build", "lenet", "--data", "digits", "-o", net)
    graphkit("train", net, "--data", "digits", "--epochs", 5, "--seed", 1, "--overwrite", "-o", run)
    graphkit("export", run, "-o", model)


@click.command()
@click.option("--model", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="An .onnx file of yours.")
@click.option("--at", help="The value of the model that the new head reads.")
@click.option("--data", help="Your data, in any form that graphkit train takes.")
@click.option("--classes", type=click.IntRange(2), help="Number of classes of your data.")
@click.option(
    "--shots", default=4, show_default=True, type=click.IntRange(1), help="Pictures of a digit to learn from."
)
@click.option("--epochs", default=30, show_default=True, type=click.IntRange(1), help="Of each of the two trainings.")
@click.option("-o", "--output", default="runs/fine_tune", show_default=True, type=click.Path(path_type=Path))
def main(
    model: Path | None, at: str | None, data: str | None, classes: int | None, shots: int, epochs: int, output: Path
) -> None:
    """Train a network on digits (or take your file), fine-tune it to other classes, export and verify it."""
    given = (model, at, data, classes)
    if any(given) and not all(given):
        raise click.UsageError("--model, --at, --data and --classes come together")
    output.mkdir(parents=True, exist_ok=True)
    if model is None or data is None:
        model, data = output / "known.onnx", str(output / "new.npz")
        at, classes = FEATURES, 2
        make_known(model, output)
        write_parity(data, shots)
    common = ("--data", data, "--batch-size", 16, "--optimizer", "adamw", "--seed", 1, "--overwrite")
    down = ("--lr-schedule", "cosine")
    head, whole = output / "head", output / "whole"
    new = ("--head", f"classes={classes}", "--head-at", at, "--train", "head*")
    graphkit("train", model, *new, *common, "--epochs", epochs, "--lr", 3e-3, "-o", head)
    graphkit("train", head, *common, "--epochs", epochs, "--lr", 1e-4, *down, "-o", whole)
    graphkit("export", whole, "-o", output / "net.onnx")
    results = {"a fresh head": accuracy(head), "then everything": accuracy(whole)}
    if not any(given):
        fresh, scratch = output / "fresh.json", output / "scratch"
        graphkit("build", "lenet", "--data", data, "-o", fresh)
        graphkit("train", fresh, *common, "--epochs", 2 * epochs, "--lr", 1e-3, *down, "-o", scratch)
        results["all from random weights"] = accuracy(scratch)
    for name, value in results.items():
        click.echo(f"{value:7.2%}  {name}")


if __name__ == "__main__":
    main()
