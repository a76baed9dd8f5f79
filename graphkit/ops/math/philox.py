"""Philox4x32-10, a counter-based generator, on uint32 arrays of numpy or CuPy.

Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011. A draw is a pure function of
(seed, step, stream, element index): the key is the seed, the counter is (block, stream, step low, step high), and
element i takes its words from block i * (words per element) // 4. Nothing depends on device or thread count.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from graphkit.errors import RuntimeFailure

MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)
ROUNDS = 10
# Counter word 1 of derived states; streams of nodes stay below it.
FOLD_STREAM = 0xFFFFFFFF


def philox4x32(xp: Any, counter: tuple[Any, Any, Any, Any], key: tuple[Any, Any]) -> tuple[Any, Any, Any, Any]:
    """Run ten rounds on counters and keys: uint32 arrays of rank >= 1, which broadcast. Returns four words."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for turn in range(ROUNDS):
        if turn:
            k0, k1 = k0 + np.uint32(WEYL[0]), k1 + np.uint32(WEYL[1])
        high0, low0 = _multiply(xp, c0, MULTIPLIERS[0])
        high1, low1 = _multiply(xp, c2, MULTIPLIERS[1])
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
    return c0, c1, c2, c3


def _multiply(xp: Any, word: Any, factor: int) -> tuple[Any, Any]:
    """High and low half of the 64-bit product."""
    product = word.astype(xp.uint64) * np.uint64(factor)
    return (product >> np.uint64(32)).astype(xp.uint32), product.astype(xp.uint32)


def _halves(xp: Any, number: Any) -> tuple[Any, Any]:
    """Low and high word of a uint64 array."""
    return number.astype(xp.uint32), (number >> np.uint64(32)).astype(xp.uint32)


def _blocks(xp: Any, state: Any, stream: int, first: Any) -> tuple[Any, Any, Any, Any]:
    """Return four words for each block number in `first` (counter word 0). state: uint64[2] = (seed, step)."""
    step_low, step_high = _halves(xp, state[1:2])
    streams = xp.full((1,), stream, dtype=xp.uint32)
    return philox4x32(xp, (first, streams, step_low, step_high), _halves(xp, state[0:1]))


def words(xp: Any, state: Any, stream: int, count: int) -> Any:
    """Return `count` uint32 words. Raises RuntimeFailure for more than 2**34, where the block number would wrap."""
    if not 0 <= stream < FOLD_STREAM:
        raise RuntimeFailure(f"stream {stream} is outside [0, {FOLD_STREAM})")
    if count > 1 << 34:
        raise RuntimeFailure(f"{count} words are more than one random node can draw (2**34)")
    first = xp.arange(-(-count // 4), dtype=xp.uint32)
    return xp.stack(_blocks(xp, state, stream, first), axis=-1).reshape(-1)[:count]


def fold_in(xp: Any, state: Any, index: Any) -> Any:
    """Return a new (seed, step), derived from `state` and the number of a loop iteration, in [0, 2**32)."""
    first = xp.asarray(index).reshape(1).astype(xp.uint32)
    w0, w1, w2, w3 = (w.astype(xp.uint64) for w in _blocks(xp, state, FOLD_STREAM, first))
    shift = np.uint64(32)
    return xp.concatenate([w0 | (w1 << shift), w2 | (w3 << shift)])


def uniform(xp: Any, state: Any, stream: int, shape: tuple[int, ...], bits: int) -> Any:
    """Return float64 numbers in [0, 1), multiples of 2**-bits. bits: 24, from one word each, or 53, from two."""
    count = _count(shape)
    if bits == 24:
        return (words(xp, state, stream, count) >> np.uint32(8)).astype(xp.float64).reshape(shape) * 2.0**-24
    pairs = words(xp, state, stream, 2 * count).reshape(-1, 2)
    return _fraction53(xp, pairs[:, 0], pairs[:, 1]).reshape(shape)


def normal(xp: Any, state: Any, stream: int, shape: tuple[int, ...], bits: int) -> Any:
    """Return float64 standard normals by Box and Muller (1958). Elements 2j and 2j + 1 share two uniform numbers.

    The uniforms have 32 bits (for results of at most float32), or 53.
    """
    count = _count(shape)
    pairs = -(-count // 2)
    if bits == 24:
        drawn = words(xp, state, stream, 2 * pairs).reshape(-1, 2).astype(xp.float64)
        radial, turn, unit = drawn[:, 0] * 2.0**-32, drawn[:, 1] * 2.0**-32, 2.0**-32
    else:
        drawn = words(xp, state, stream, 4 * pairs).reshape(-1, 4)
        radial, turn = (_fraction53(xp, drawn[:, i], drawn[:, i + 1]) for i in (0, 2))
        unit = 2.0**-53
    # radial + unit is in (0, 1], so that the logarithm is finite.
    radius = xp.sqrt(-2.0 * xp.log(radial + unit))
    angle = 2.0 * xp.pi * turn
    both = xp.stack([radius * xp.cos(angle), radius * xp.sin(angle)], axis=-1)
    return both.reshape(-1)[:count].reshape(shape)


def _fraction53(xp: Any, high: Any, low: Any) -> Any:
    whole = (high >> np.uint32(5)).astype(xp.float64) * 2.0**26 + (low >> np.uint32(6)).astype(xp.float64)
    return whole * 2.0**-53


def _count(shape: tuple[int, ...]) -> int:
    count = 1
    for size in shape:
        count *= int(size)
    return count
