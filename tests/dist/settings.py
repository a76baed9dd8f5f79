"""Combinations of settings, most of which are for the full lane."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest


def covering(*values: Sequence[Any]) -> list[Any]:
    """Return all combinations of these values as parameters of a test; most are marked `full`.

    The default lane runs as many combinations as the longest sequence has values, so that each value is in one of them.
    """
    longest = max(map(len, values))
    default = {tuple(row % len(v) for v in values) for row in range(longest)}
    return [
        pytest.param(
            *(v[place] for v, place in zip(values, places, strict=True)),
            marks=() if places in default else pytest.mark.full,
        )
        for places in itertools.product(*(range(len(v)) for v in values))
    ]
