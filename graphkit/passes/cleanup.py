"""Passes that only remove nodes."""

from __future__ import annotations

from graphkit.passes.control.merge import merge_control
from graphkit.passes.control.prune import prune_control
from graphkit.passes.core.declare import pipeline
from graphkit.passes.simplify.cse import cse
from graphkit.passes.simplify.fold import fold
from graphkit.passes.simplify.identities import simplify
from graphkit.passes.simplify.sequences import resolve_sequences

CLEANUP = pipeline(resolve_sequences, simplify, fold, cse, merge_control, prune_control)
