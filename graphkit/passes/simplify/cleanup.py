"""The passes that leave fewer nodes and change nothing else."""

from __future__ import annotations

from graphkit.passes.control.merge import merge_control
from graphkit.passes.control.prune import prune_control
from graphkit.passes.core.sweep import Pass
from graphkit.passes.simplify.cse import cse
from graphkit.passes.simplify.fold import fold
from graphkit.passes.simplify.identities import simplify

CLEANUP: tuple[tuple[str, Pass], ...] = (
    ("simplify", simplify),
    ("fold", fold),
    ("cse", cse),
    ("merge_control", merge_control),
    ("prune_control", prune_control),
)
