"""Replace formulas by operators with their own gradients, before a graph is differentiated."""

from __future__ import annotations

from graphkit.ir.graph import Graph
from graphkit.passes.cleanup import CLEANUP
from graphkit.passes.core.declare import pipeline
from graphkit.passes.core.sweep import operators, run_passes
from graphkit.passes.fuse.activation import fuse_activation
from graphkit.passes.fuse.gelu import fuse_gelu
from graphkit.passes.fuse.layer_norm import fuse_layer_norm
from graphkit.passes.fuse.softmax import fuse_softmax
from graphkit.passes.simplify.identities import identity_left, simplify

# The graph is differentiated afterwards, so the markers for this must stay.
_CLEANUP = [p.with_options(identity_left, keep_markers=True) if p.name == simplify.name else p for p in CLEANUP]
_FORMULAS = pipeline(*_CLEANUP, fuse_layer_norm, fuse_gelu, fuse_activation.with_options(bounds=False), fuse_softmax)
# Each formula contains at least one of these operators.
_NEEDS = frozenset({"Clip", "Erf", "HardSigmoid", "Log", "ReduceMax", "ReduceMean", "Sigmoid", "Tanh"})


def recognise(graph: Graph) -> Graph:
    """Replace formulas in files of older opsets by LayerNormalization, Gelu, HardSwish, Softmax and similar.

    The gradients of these operators store less than those of the formulas, and have their own kernels. The result
    consists of standard operators. Linear.
    """
    if _NEEDS.isdisjoint(operators(graph)):
        return graph
    return run_passes(graph, _FORMULAS).replace(output_names=graph.output_names)
