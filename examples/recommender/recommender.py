"""Train two recommender networks on film ratings; compare their errors with the best constant and the rating noise.

    python examples/recommender/recommender.py
    python examples/recommender/recommender.py --ratings ml-latest-small/

The .toml files contain the options of `graphkit train`.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import click
import numpy as np

import graphkit as gk

NETWORKS = ("matrix_factorization", "ncf")
RANK, NOISE = 3, 0.5


def true_scores(users: int, items: int, seed: int) -> np.ndarray:
    """Return scores [users, items]: a mean, biases of users and items, and preferences of rank RANK."""
    draw = np.random.default_rng(seed)
    biases = draw.normal(0, 0.35, (users, 1)) + draw.normal(0, 0.35, (1, items))
    tastes = draw.normal(0, 1, (users, RANK)) @ draw.normal(0, 0.45, (RANK, items))
    scores: np.ndarray = 3.5 + biases + tastes
    return scores


def write_ratings(path: Path, scores: np.ndarray, count: int, seed: int) -> None:
    """Write `count` different pairs with their scores and normal noise, in the format of MovieLens' ratings.csv."""
    draw = np.random.default_rng(seed)
    pairs = draw.choice(scores.size, count, replace=False)
    ratings = scores.ravel()[pairs] + draw.normal(0, NOISE, count)
    lines = [
        f"{pair // scores.shape[1]},{pair % scores.shape[1]},{rating:.3f},{time}\n"
        for time, (pair, rating) in enumerate(zip(pairs, ratings, strict=True))
    ]
    path.write_text("".join(["userId,movieId,rating,timestamp\n", *lines]))


def rmse(predicted: np.ndarray | float, ratings: np.ndarray) -> float:
    return float(np.sqrt(np.mean((ratings - predicted) ** 2)))


def best_of(net: gk.Model, train: gk.data.Ratings, user: int, count: int) -> list[str]:
    """Return the items with the highest predictions among those that a user has not rated."""
    every = np.arange(len(train.items))
    predicted = net.run({"user": np.full_like(every, user), "item": every})[net.outputs[0]].ravel()
    predicted[train.arrays["item"][train.arrays["user"] == user]] = -np.inf
    return [f"{train.items[i]} ({predicted[i]:.2f})" for i in predicted.argsort()[::-1][:count]]


def graphkit(*words: object) -> None:
    """Print a graphkit command and run it. If it fails, this program ends with its exit code."""
    arguments = [str(word) for word in words]
    click.secho(f"$ graphkit {shlex.join(arguments)}", bold=True)
    if code := subprocess.run([sys.executable, "-P", "-m", "graphkit", *arguments]).returncode:
        sys.exit(code)


@click.command()
@click.option("--ratings", type=click.Path(exists=True, file_okay=False, path_type=Path), help="MovieLens' folder.")
@click.option("--users", default=600, show_default=True, type=click.IntRange(20), help="To make up.")
@click.option("--items", default=400, show_default=True, type=click.IntRange(20), help="To make up.")
@click.option("--count", default=40_000, show_default=True, type=click.IntRange(500), help="Ratings to make up.")
@click.option("--epochs", type=click.IntRange(1), help="In place of those in the .toml files.")
@click.option("-o", "--output", default="runs/recommender", show_default=True, type=click.Path(path_type=Path))
def main(ratings: Path | None, users: int, items: int, count: int, epochs: int | None, output: Path) -> None:
    """Generate ratings (or take those of MovieLens), train two networks, export and verify them, and compare."""
    if count > users * items // 2:
        raise click.BadParameter(f"{users} users and {items} items have {users * items} pairs", param_hint="--count")
    output.mkdir(parents=True, exist_ok=True)
    scores = None
    if ratings is None:
        ratings, scores = output / "ratings", true_scores(users, items, seed=0)
        ratings.mkdir(exist_ok=True)
        write_ratings(ratings / "ratings.csv", scores, count, seed=1)
    train, test = gk.data.load(ratings)
    assert isinstance(train, gk.data.Ratings)
    assert isinstance(test, gk.data.Ratings)
    results = {"the best constant": rmse(train.targets.mean(), test.targets)}
    longer = () if epochs is None else ("--epochs", epochs)
    for name in NETWORKS:
        run, file = output / name, output / f"{name}.onnx"
        graphkit(
            "train", Path(__file__).with_name(f"{name}.toml"), "--data", ratings, *longer, "-o", run, "--overwrite"
        )
        graphkit("export", run / "best.json", "-o", file)
        net = gk.load(file)
        results[name] = rmse(net.run(test.inputs)[net.outputs[0]].ravel(), test.targets)
        click.echo(f"for user {train.users[0]}, who has not rated them: {', '.join(best_of(net, train, 0, 5))}")
    if scores is not None:
        user, item = (
            np.array(names, int)[test.arrays[of]] for names, of in ((test.users, "user"), (test.items, "item"))
        )
        results["the noise of the ratings"] = rmse(scores[user, item], test.targets)
    click.echo(f"root mean square error of {len(test)} ratings that were held out")
    for name, value in results.items():
        click.echo(f"{value:.4f}  {name}")


if __name__ == "__main__":
    main()
