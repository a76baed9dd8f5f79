"""graphkit quickstart"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click
import numpy as np

from graphkit.cli._options import json_option
from graphkit.cli._output import log, print_json, print_table
from graphkit.cli._ranges import IntRange
from graphkit.text import quantity

PROBABILITY_TOLERANCE = 1e-5
LEARNING_RATE, MOMENTUM, BATCH_SIZE = 0.05, 0.9, 64


@click.command()
@click.option(
    "-o", "--output", "folder", default="graphkit-quickstart", show_default=True, type=click.Path(file_okay=False),
    help="Output folder.",
)  # fmt: skip
@click.option("--epochs", type=IntRange(1), default=10, show_default=True, help="Number of epochs to train.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the data order and of random operators.")
@json_option
def command(folder: str, epochs: int, seed: int, as_json: bool) -> int:
    """Build LeNet for 8x8 handwritten digits, train and test it, export ONNX, and verify the file in ONNX Runtime.

    Exit code 1 if the exported file computes other results than the trained model.
    """
    result = quickstart(Path(folder), epochs, seed)
    if as_json:
        print_json("quickstart", result)
    else:
        _show(result, Path(folder), epochs)
    return 0 if result["verified"] else 1


def quickstart(folder: Path, epochs: int, seed: int) -> dict[str, Any]:
    """Run all steps and return their results."""
    import graphkit as gk
    from graphkit.checks.verify import verify
    from graphkit.onnx_io.compare import OnnxRuntimeModel

    started = time.perf_counter()
    train, test = gk.data.load("digits")
    net = gk.models.build("lenet", image=train.shape, classes=train.num_classes)
    trainer = gk.Trainer(net, optimizer=gk.optim.SGD(LEARNING_RATE, momentum=MOMENTUM), seed=seed)
    log(f"training {net!r} on {len(train)} digits")
    trainer.run = "quickstart"  # a fixed name, so that quickstart can be repeated in its folder
    history = trainer.fit(train, epochs=epochs, batch_size=BATCH_SIZE, metrics=["accuracy"], folder=folder)
    accuracy = trainer.evaluate(test)["accuracy"]
    trained = time.perf_counter()

    onnx_file = folder / "net.onnx"
    net.save(folder / "net.json")
    net.save(onnx_file)
    images = np.asarray(test.inputs)
    again = _probabilities(gk.load(onnx_file).run({net.inputs[0]: images})[net.outputs[0]])
    theirs = _probabilities(OnnxRuntimeModel(onnx_file).run({net.inputs[0]: images})[net.outputs[0]])
    difference = float(np.max(np.abs(again - theirs)))
    same_classes = bool((again.argmax(1) == theirs.argmax(1)).all())
    report = verify(net, against=onnx_file)
    return {
        "model": net.name,
        "parameters": net.num_parameters,
        "train_images": len(train),
        "test_images": len(test),
        "final_loss": history[-1]["loss"],
        "test_accuracy": accuracy,
        "same_classes": same_classes,
        "max_probability_difference": difference,
        "verified": report.passed and same_classes and difference < PROBABILITY_TOLERANCE,
        "training_seconds": trained - started,
        "seconds": time.perf_counter() - started,
        "files": sorted(p.name for p in folder.iterdir()),
    }


def _probabilities(logits: np.ndarray) -> np.ndarray:
    shifted = np.exp(logits - logits.max(axis=1, keepdims=True))
    probabilities: np.ndarray = shifted / shifted.sum(axis=1, keepdims=True)
    return probabilities


def _show(result: dict[str, Any], folder: Path, epochs: int) -> None:
    training = f"{quantity(epochs, 'epoch')} on {result['train_images']} images in {result['training_seconds']:.1f} s"
    verdict = "PASSED" if result["verified"] else "FAILED"
    rows = [
        ("built", f"{result['model']}, {result['parameters']:,} parameters"),
        ("trained", f"{training}, loss {result['final_loss']:.4f}"),
        ("tested", f"{result['test_accuracy']:.2%} of {result['test_images']} held-out images"),
        ("exported", str(folder / "net.onnx")),
        ("ran", f"the file predicts {'the same' if result['same_classes'] else 'OTHER'} classes"),
        ("verified", f"{verdict}: largest difference in probability {result['max_probability_difference']:.1e}"),
    ]
    print_table("graphkit quickstart", ["step", "result"], rows)
    click.echo(f"files in {folder}/: " + ", ".join(result["files"]))
    click.echo("the same steps as single commands:")
    for line in (
        "graphkit build lenet --data digits -o net.json",
        f"graphkit train net.json --data digits --epochs {epochs} -o run/",
        "graphkit export run/ -o net.onnx",
        "graphkit run net.onnx",
        "graphkit verify net.onnx",
    ):
        click.echo(f"  {line}")
