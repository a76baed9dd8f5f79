"""Option types for numbers within limits. Their errors say what is expected; those of click say "float range"."""

from __future__ import annotations

import click


class IntRange(click.IntRange):
    """An integer within limits. Other texts are errors such as "'a' is not a valid integer"."""

    name = "integer"


class FloatRange(click.FloatRange):
    """A number within limits. Other texts are errors such as "'a' is not a valid number"."""

    name = "number"
