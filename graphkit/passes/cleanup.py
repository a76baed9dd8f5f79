"""The passes that leave fewer nodes and change nothing else."""

from __future__ import annotations

from graphkit.passes._base import Pass
from graphkit.passes.cse import cse
from graphkit.passes.fold import fold
from graphkit.passes.merge_control import merge_control
from graphkit.passes.prune_control import prune_control
from graphkit.passes.simplify import simplify

CLEANUP: tuple[tuple[str, Pass], ...] = (
    ("simplify", simplify),
    ("fold", fold),
    ("cse", cse),
    ("merge_control", merge_control),
    ("prune_control", prune_control),
)
