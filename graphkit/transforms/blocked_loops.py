"""A model whose loops group their iterations in blocks, so that training takes less memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphkit.model import Model
from graphkit.signatures import typed

if TYPE_CHECKING:
    from graphkit.passes.control.block_loops import Block


@typed("gk.block_loops")
def block_loops(model: Model, block: Block = "sqrt") -> Model:
    """Return the model with the iterations of its loops grouped in blocks, so that training takes less memory.

    Training then saves only the states at the borders of blocks. The backward pass recomputes one block at a time. For
    T iterations, this needs memory for the values of T / block + block iterations instead of T, and the time of one
    more forward pass. The change applies to Scan, and to Loop without scan outputs, also in imported files. Parameters
    are copied.

    Args:
        model: Any model.
        block: Iterations per block; or "sqrt" for the square root of the number of iterations, which must be known.

    Raises:
        UsageError: "sqrt" is given, and the number of iterations is unknown.
    """
    from graphkit.passes.control.block_loops import block_loops as blocked

    return Model.from_graph(blocked(model.graph, block), model.params.entries())
