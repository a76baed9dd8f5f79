"""Train with one process and with several that share each batch, and compare the losses of every update.

python examples/processes/processes.py
python examples/processes/processes.py --processes 4
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

CONFIG = Path(__file__).with_name("config.toml")


def graphkit(*words: object) -> None:
    """Print a graphkit command and run it. If it fails, this program ends with its exit code."""
    arguments = [str(word) for word in words]
    click.secho(f"$ graphkit {shlex.join(arguments)}", bold=True)
    if code := subprocess.run([sys.executable, "-P", "-m", "graphkit", *arguments]).returncode:
        sys.exit(code)


def losses(run: Path) -> np.ndarray:
    """Return the loss of every update, over the samples of all processes."""
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    return np.array([line["loss"] for line in lines if line["event"] == "step"])


def largest_difference(one: Path, other: Path) -> float:
    """Return the largest difference between two runs, relative to the largest element of the same parameter."""
    nets = gk.load(one), gk.load(other)
    pairs = [[np.asarray(net.params[name], np.float64) for net in nets] for name in nets[0].params]
    return float(max(np.abs(a - b).max() / np.abs(a).max() for a, b in pairs))


@click.command()
@click.option("--processes", default=2, show_default=True, type=click.IntRange(2))
@click.option("--batch", default=64, show_default=True, type=click.IntRange(2), help="Samples of all processes.")
@click.option("--epochs", type=click.IntRange(1), help="In place of those in config.toml.")
@click.option("-o", "--output", default="runs/processes", show_default=True, type=click.Path(path_type=Path))
def main(processes: int, batch: int, epochs: int | None, output: Path) -> None:
    """Train twice, and compare losses and parameters."""
    if batch % processes:
        raise click.BadParameter(f"{batch} is not a multiple of {processes} processes", param_hint="--batch")
    output.mkdir(parents=True, exist_ok=True)
    longer = () if epochs is None else ("--epochs", epochs)
    one, several = output / "one", output / "several"
    graphkit("train", CONFIG, "--batch-size", batch, *longer, "-o", one, "--overwrite")
    shared = ("--processes", processes, "--batch-size", batch // processes)
    graphkit("train", CONFIG, *shared, *longer, "-o", several, "--overwrite")
    graphkit("report", one, several, "-o", output / "curves.html")
    by_one, by_several = losses(one), losses(several)
    apart = np.abs(by_one - by_several).max()
    click.echo(f"losses of {len(by_one)} updates, from {by_one[0]:.4f} to {by_one[-1]:.4f}: at most {apart:.1e} apart")
    largest = largest_difference(one, several)
    click.echo(f"parameters at the end: at most {largest:.1e} apart, relative to the largest of each")


if __name__ == "__main__":
    main()
