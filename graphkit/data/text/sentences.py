"""Sentences with labels: one file per class, one sentence per line."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from graphkit.data import order
from graphkit.data.dataset import Dataset, Splits
from graphkit.data.preprocessing.vocabulary import Vocabulary, read_text
from graphkit.errors import InputError, UsageError
from graphkit.signatures import typed_constructor

# Number of batches whose sentences are sorted by length together. More batches mean less padding, fewer mean that the
# batches of two epochs differ more.
_POOL = 32


@typed_constructor("gk.data")
class Sentences(Dataset):
    """Sentences with labels.

    Inputs are x int64 [N, T], numbers of tokens with padding, and lengths int64 [N]. Targets are int64 [N].

    T is the length of the longest sentence in the batch, rounded up to a multiple of `bucket`, so that batches have
    only a few different lengths. Shuffled batches contain sentences of similar length. Sentences longer than `length`
    are cut off. `gk.data.load("sentences:FOLDER")` creates this data set.

    Args:
        rows: Token numbers of each sentence, integers [tokens].
        targets: int64 [N].
        vocabulary: The tokens of the numbers.
        classes: Names of the classes.
        length: Maximum number of tokens of a sentence.
        bucket: T is a multiple of this number.
        name: Name of the data in error messages.
    """

    vocabulary: Vocabulary

    def __init__(
        self, rows: Sequence[np.ndarray], targets: Any, vocabulary: Vocabulary, *, classes: Sequence[Any] | None = None,
        length: int = 128, bucket: int = 8, name: str = "sentences",
    ):  # fmt: skip
        if length < 1 or bucket < 1:
            raise UsageError(f"{name}: length and bucket must be positive, not {length} and {bucket}")
        lengths = np.array([min(len(row), length) for row in rows], np.int64)
        x = np.full((len(rows), _rounded_up(lengths, bucket)), vocabulary.padding, np.int64)
        for padded, row, size in zip(x, rows, lengths, strict=True):
            padded[:size] = row[:size]
        super().__init__({"x": x, "lengths": lengths}, targets, classes=classes, name=name)
        self.vocabulary = vocabulary
        self.bucket = bucket

    def take(self, index: Any) -> tuple[dict[str, np.ndarray], np.ndarray | None]:
        inputs, targets = super().take(index)
        return inputs | {"x": inputs["x"][:, : _rounded_up(inputs["lengths"], self.bucket)]}, targets

    def order(self, seed: int, epoch: int, width: int) -> np.ndarray:
        shuffled = super().order(seed, epoch, width)
        lengths = self.arrays["lengths"]
        pools = np.split(shuffled, range(_POOL * width, len(shuffled), _POOL * width))
        by_length = np.concatenate([pool[np.argsort(lengths[pool], kind="stable")] for pool in pools])
        whole = len(by_length) // width
        batches = by_length[: whole * width].reshape(whole, width)[order.permutation(whole, seed, epoch)]
        return np.concatenate([batches.reshape(-1), by_length[whole * width :]])


def _rounded_up(lengths: np.ndarray, multiple: int) -> int:
    return -(-int(lengths.max(initial=1)) // multiple) * multiple


def load(
    path: Path, *, test_fraction: float | None = 0.1, seed: int = 0, vocabulary: Vocabulary | None = None,
    level: str = "word", min_count: int = 1, size: int | None = None, length: int = 128, bucket: int = 8,
) -> Splits | Sentences:  # fmt: skip
    """Load (train, test) of the sentences in a folder, stratified by class.

    With test_fraction None, all sentences are one data set. The vocabulary is built only from the training part,
    unless one is given (level, min_count, size: see Vocabulary.build). length, bucket: see Sentences. Raises
    InputError, which names the folder or the file.
    """
    texts, targets, classes = read_sentences(path)
    everything = np.arange(len(texts))
    train, test = everything, everything[:0]
    if test_fraction is not None:
        train, test = order.hold_out(str(path), len(texts), test_fraction, seed, targets)
    if vocabulary is None:
        vocabulary = Vocabulary.build((texts[i] for i in train), level, min_count=min_count, size=size)
    rows = [vocabulary.encode(text, length) for text in texts]

    def part(index: np.ndarray, name: str) -> Sentences:
        return Sentences(
            [rows[i] for i in index], targets[index], vocabulary, classes=classes, length=length, bucket=bucket,
            name=name,
        )  # fmt: skip

    if test_fraction is None:
        return part(everything, str(path))
    return Splits(part(train, f"{path} (train)"), part(test, f"{path} (test)"))


def read_sentences(path: Path) -> tuple[list[str], np.ndarray, list[str]]:
    """Return the sentences of a folder, their class numbers, and the names of the classes.

    Raises InputError, which names the folder or the file.
    """
    files = _class_files(path)
    classes = sorted(files)
    texts: list[str] = []
    labels: list[int] = []
    for label, name in enumerate(classes):
        # `splitlines` would also divide lines at other characters, such as form feeds.
        lines = [line for file in files[name] for line in read_text(file).split("\n") if line.strip()]
        texts += lines
        labels += [label] * len(lines)
    if not texts:
        raise InputError(f"{path}: found no sentence in {', '.join(f.name for n in classes for f in files[n])}")
    return texts, np.array(labels, np.int64), classes


def _class_files(path: Path) -> dict[str, list[Path]]:
    """Files by class: NAME.pos and NAME.neg if both exist, else CLASS.txt."""
    if not path.is_dir():
        raise InputError(f"{path}: {'not a folder' if path.exists() else 'no such folder'}; expected sentences:FOLDER")
    found = sorted(file for file in path.iterdir() if file.is_file())
    polar = {kind: [f for f in found if f.suffix == f".{kind}"] for kind in ("neg", "pos")}
    if all(polar.values()):
        return polar
    classes = {f.stem: [f] for f in found if f.suffix == ".txt"}
    if len(classes) < 2:
        held = ", ".join(f.name for f in found[:8]) or "no file"
        raise InputError(
            f"{path}: found neither *.pos and *.neg nor a CLASS.txt for each of several classes; it contains {held}"
        )
    return classes
