"""The pipeline that cleans up a graph before other passes."""

from __future__ import annotations

from graphkit.passes.core.declare import deferred, pipeline

_NAMES = ("count_loops", "resolve_sequences", "simplify", "fold", "cse", "merge_control", "prune_control")

CLEANUP = pipeline(*map(deferred, _NAMES))
