"""Train a wide and deep network on a table with gaps and categories; predict other rows with the ONNX file alone.

    python examples/tabular/tabular.py
    python examples/tabular/tabular.py --data mine.csv --rows new.csv

config.toml contains the options of `graphkit train`.
"""

from __future__ import annotations

import csv
import json
import shlex
import subprocess
import sys
from pathlib import Path

import click
import numpy as np

CONFIG = Path(__file__).with_name("config.toml")
COLUMNS = ("age", "education", "occupation", "region", "hours", "income")
EDUCATION = ("school", "apprentice", "bachelor", "master", "doctor")
OCCUPATION = ("care", "craft", "farm", "office", "science", "trade")
REGION = ("east", "north", "south", "west")


def census(rows: int, seed: int) -> tuple[list[list[object]], np.ndarray]:
    """Return a generated table of people, and for each person the true probability of a high income.

    The odds rise with age up to 50, with working hours, and with education, twice as much in science and the office.
    At random, the age is missing in one row of ten, and the occupation in one of twenty.
    """
    draw = np.random.default_rng(seed)
    age, hours = draw.integers(18, 70, rows), np.clip(draw.normal(38, 10, rows), 5, 80).round()
    education, occupation, region = (draw.integers(0, len(of), rows) for of in (EDUCATION, OCCUPATION, REGION))
    pays = np.where(np.isin(occupation, (3, 4)), 1.3, 0.4)
    odds = -3.2 - ((age - 50) / 20) ** 2 + 0.05 * (hours - 38) + pays * education + 0.3 * (region == 1)
    chance = 1 / (1 + np.exp(-odds))
    much = draw.random(rows) < chance
    no_age, no_occupation = draw.random(rows) < 0.1, draw.random(rows) < 0.05
    table: list[list[object]] = [
        [
            "" if no_age[i] else age[i], EDUCATION[education[i]], "" if no_occupation[i] else OCCUPATION[occupation[i]],
            REGION[region[i]], hours[i], "much" if much[i] else "little",
        ]
        for i in range(rows)
    ]  # fmt: skip
    return table, chance


def write(path: Path, header: tuple[str, ...], rows: list[list[object]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *rows])


def area(chance: np.ndarray, much: np.ndarray) -> float:
    """Return the area under the ROC curve: how often a person with high income gets the larger number of two."""
    ranks = np.empty(len(chance))
    ranks[chance.argsort()] = np.arange(1, len(chance) + 1)
    positive = int(much.sum())
    return float((ranks[much].sum() - positive * (positive + 1) / 2) / (positive * (len(much) - positive)))


def graphkit(*words: object) -> None:
    """Print a graphkit command and run it. If it fails, this program ends with its exit code."""
    arguments = [str(word) for word in words]
    click.secho(f"$ graphkit {shlex.join(arguments)}", bold=True)
    if code := subprocess.run([sys.executable, "-P", "-m", "graphkit", *arguments]).returncode:
        sys.exit(code)


@click.command()
@click.option("--data", type=click.Path(exists=True, path_type=Path), help="Your own .csv, .tsv or .parquet file.")
@click.option("--rows", type=click.Path(exists=True, path_type=Path), help="Rows to predict in the end.")
@click.option("--count", default=8000, show_default=True, type=click.IntRange(100), help="People to make up.")
@click.option("--epochs", type=click.IntRange(1), help="In place of those in config.toml.")
@click.option("-o", "--output", default="runs/tabular", show_default=True, type=click.Path(path_type=Path))
def main(data: Path | None, rows: Path | None, count: int, epochs: int | None, output: Path) -> None:
    """Generate a census (or take your table), train, export, verify, and predict other rows."""
    output.mkdir(parents=True, exist_ok=True)
    run, file = output / "run", output / "net.onnx"
    best = None
    if data is None:
        people, chance = census(count, seed=0)
        held_out = count // 5
        data, rows = output / "census", output / "rows.csv"
        data.mkdir(exist_ok=True)
        write(data / "train.csv", COLUMNS, people[held_out:])
        write(data / "test.csv", COLUMNS, people[:held_out])
        write(rows, COLUMNS[:-1], [person[:-1] for person in people[:5]])
        best = area(chance[:held_out], np.array([person[-1] == "much" for person in people[:held_out]]))
    longer = () if epochs is None else ("--epochs", epochs)
    graphkit("train", CONFIG, "--data", data, *longer, "-o", run, "--overwrite")
    graphkit("export", run / "best.json", "-o", file)
    if rows is not None:
        graphkit("run", file, rows, "--top", 1)
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    reached = max(line["valid_auc"] for line in lines if line["event"] == "epoch")
    click.echo(f"area under the curve: {reached:.4f}" + ("" if best is None else f"; of the true odds: {best:.4f}"))


if __name__ == "__main__":
    main()
