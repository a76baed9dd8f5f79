"""Permutations that depend only on a seed, on any machine and with any version of numpy.

The order of n samples is the stable argsort of n raw 64-bit outputs of Philox4x64-10, a stream that numpy guarantees,
with the key (seed, epoch) and counter 0.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from graphkit.errors import InputError, UsageError
from graphkit.text import quantity

# The second half of the key for splitting: no epoch has this number.
_SPLIT = (1 << 64) - 1

# Number of blocks per window of `windowed`.
_BLOCKS = 16


def permutation(count: int, seed: int, epoch: int) -> np.ndarray:
    """Return the order in which epoch `epoch` visits the samples, int64 [count]. seed and epoch: 0 to 2^64 - 2."""
    if not 0 <= epoch < _SPLIT:
        raise UsageError(f"epoch must be an integer from 0 to 2^64 - 2, not {epoch!r}")
    return _permutation(count, seed, epoch)


def _permutation(count: int, seed: int, stream: int) -> np.ndarray:
    if not 0 <= seed < _SPLIT:
        raise UsageError(f"the seed of a data set must be an integer from 0 to 2^64 - 2, not {seed!r}")
    bits = np.random.Philox(key=np.array([seed, stream], np.uint64))
    return np.argsort(bits.random_raw(count), kind="stable").astype(np.int64)


def windowed(count: int, seed: int, epoch: int, window: int) -> np.ndarray:
    """Return a shuffled order int64 [count] that reads from only a few places at a time, for files read sequentially.

    Blocks of window / 16 samples, rounded up, stay together. The order of the blocks is `permutation`; then each
    `window` samples of the result are shuffled among themselves. A reader that reads one window ahead reads from at
    most 17 places. The sort keys of windows are raw outputs of Philox4x64-10 with the key (seed, epoch), from counter
    2^192 on.
    """
    block = -(-window // _BLOCKS)
    blocks = permutation(-(-count // block), seed, epoch)
    lying = (blocks[:, None] * block + np.arange(block)).reshape(-1)
    lying = lying[lying < count]
    bits = np.random.Philox(key=np.array([seed, epoch], np.uint64), counter=[0, 0, 0, 1]).random_raw(count)
    return lying[np.lexsort((bits, np.arange(count) // window))].astype(np.int64)


def split(
    count: int, test_fraction: float, seed: int, classes: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Return sorted indices (train, test) with round(test_fraction * count) test samples.

    With `classes` (one label per sample), every class is divided in that proportion. Largest remainders decide how many
    test samples a class has. They are the first samples of the class in the seeded permutation. If there are more
    different labels than test samples, the labels are taken for regression targets, and ignored.
    """
    order = _permutation(count, seed, _SPLIT)
    wanted = round(test_fraction * count)
    labels = None
    if classes is not None:
        labels, group, sizes = np.unique(classes, return_inverse=True, return_counts=True)
    if labels is None or len(labels) > wanted:
        chosen = order[:wanted]
    else:
        share = sizes * (wanted / max(count, 1))
        seats = np.floor(share).astype(np.int64)
        largest = np.argsort(-(share - seats), kind="stable")
        seats[largest[: wanted - int(seats.sum())]] += 1
        ordered = group.reshape(-1)[order]
        chosen = np.concatenate([order[ordered == i][: seats[i]] for i in range(len(labels))] or [order[:0]])
    test = np.sort(chosen)
    return np.setdiff1d(np.arange(count), test, assume_unique=True), test


def split_by_name(
    names: Sequence[str], test_fraction: float, seed: int, classes: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Divide samples by their names, so that each sample stays in its part when others are added or removed.

    A sample is in the test part if the hash of seed and name, as a number in [0, 1), is below `test_fraction`. The
    share of the test part therefore varies at random. With `classes` (one label per sample), each part gets at least
    one sample of every class that has two or more. If the hash gives a part none, the sample with the nearest hash is
    moved there. It may move back when others are added, and small classes have more than `test_fraction` in the test
    part.

    Returns:
        Sorted indices (train, test).
    """
    places = np.array([_place(name, seed) for name in names], np.float64)
    held_out = places < test_fraction
    groups = [np.arange(len(places))]
    if classes is not None:
        labels, group = np.unique(classes, return_inverse=True)
        groups = [np.flatnonzero(group.reshape(-1) == number) for number in range(len(labels))]
    for members in groups:
        if len(members) > 1 and not held_out[members].any():
            held_out[members[np.argmin(places[members])]] = True
        elif len(members) > 1 and held_out[members].all():
            held_out[members[np.argmax(places[members])]] = False
    return np.flatnonzero(~held_out), np.flatnonzero(held_out)


def _place(name: str, seed: int) -> float:
    """A number in [0, 1) that depends only on the seed and the name."""
    digest = hashlib.sha256(f"{seed}\0".encode() + name.encode("utf-8", "surrogateescape")).digest()
    return int.from_bytes(digest[:6]) / (1 << 48)


# The end of an error for samples with names.
_BY_POSITION = (
    ". The split depends on the names of the samples. To split by position instead, use split='position' of "
    "gk.data.load (--data-option split=position), or by='position' of Dataset.split"
)


def hold_out(
    source: str, count: int, test_fraction: float, seed: int, classes: np.ndarray | None = None,
    names: Sequence[str] | None = None,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """Divide samples into (train, test): by name (see `split_by_name`) if they have names, else with `split`.

    Raises:
        UsageError: The fraction is not between 0 and 1.
        InputError: A part would have no sample. Both errors name the source.
    """
    if not 0.0 < test_fraction < 1.0:
        raise UsageError(f"{source}: test_fraction must be between 0 and 1, not {test_fraction!r}")
    if names is None:
        train, test = split(count, test_fraction, seed, classes)
    else:
        train, test = split_by_name(names, test_fraction, seed, classes)
    if not train.size or not test.size:
        raise InputError(
            f"{source}: {quantity(count, 'sample')} cannot be divided into training and test data (test_fraction="
            f"{test_fraction}), because one part would be empty. Add samples, choose another test_fraction "
            "(--data-option test_fraction=X), or give validation data separately (valid=, --valid)"
            + ("" if names is None else _BY_POSITION)
        )
    return train, test
