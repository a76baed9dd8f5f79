"""The graph core: dimensions, types, nodes, graphs, text. It does not depend on the operators."""

from __future__ import annotations

import copyreg
from typing import Any

from graphkit.ir.graph import Graph


def _reduced(graph: Graph) -> tuple[Any, ...]:
    from graphkit.ir.pickling import reduced

    return reduced(graph)


# Registered here, because the codec imports Graph, so Graph cannot import the codec.
copyreg.pickle(Graph, _reduced)
