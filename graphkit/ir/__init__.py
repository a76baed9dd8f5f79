"""The graph core: dimensions, types, nodes, graphs, text. It knows no operator."""

from __future__ import annotations

import copyreg
from typing import Any

from graphkit.ir.graph import Graph


def _reduced(graph: Graph) -> tuple[Any, ...]:
    from graphkit.ir.pickling import reduced

    return reduced(graph)


# The codec builds graphs, so that Graph cannot know of it.
copyreg.pickle(Graph, _reduced)
