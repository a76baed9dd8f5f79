"""Combinations of settings for tests, most of which are for the full lane."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest


def covering(*values: Sequence[Any]) -> list[Any]:
    """Return combinations of these values as parameters of a test; most are marked `full`.

    The default lane runs as many combinations as the longest sequence has values: each value is in one of them. With
    the full lane, each pair of values of two sequences is in one combination.
    """
    longest = max(map(len, values))
    default = [tuple(row % len(v) for v in values) for row in range(longest)]
    return [
        pytest.param(
            *(v[place] for v, place in zip(values, places, strict=True)),
            marks=() if number < len(default) else pytest.mark.full,
        )
        for number, places in enumerate(_all_pairs(default, list(map(len, values))))
    ]


def _all_pairs(first: list[tuple[int, ...]], lengths: list[int]) -> list[tuple[int, ...]]:
    """Add rows to `first`, each that with the most new pairs of columns, until all pairs are there."""
    rows = list(dict.fromkeys(first))
    missing = set().union(*map(_pairs, itertools.product(*map(range, lengths)))) - set().union(*map(_pairs, rows))
    while missing:
        best = max(itertools.product(*map(range, lengths)), key=lambda row: len(_pairs(row) & missing))
        missing -= _pairs(best)
        rows.append(best)
    return rows


def _pairs(row: tuple[int, ...]) -> set[Any]:
    return set(itertools.combinations(enumerate(row), 2))
