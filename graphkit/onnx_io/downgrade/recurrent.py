"""RNN, GRU, LSTM."""

from __future__ import annotations

from collections.abc import Sequence

from graphkit.ir.graph import Value
from graphkit.onnx_io.downgrade import ALWAYS, Site, Spelling, rewrites, spells
from graphkit.ops import F, operator
from graphkit.ops.rnn.recurrence import Recurrence


@spells("RNN", "GRU", "LSTM", below=ALWAYS)
def _hidden_size(spelling: Spelling) -> None:
    # hidden_size is optional in the standard, but ONNX Runtime rejects a node without it.
    recurrent = spelling.input(2)
    shape = None if recurrent is None else recurrent.tensor.shape
    if spelling.attrs["hidden_size"] is None and shape is not None and isinstance(shape[2], int):
        spelling.attrs["hidden_size"] = shape[2]


@rewrites("RNN", "GRU", "LSTM", below=ALWAYS)
def _batch_first(site: Site) -> Sequence[Value] | None:
    # Before opset 14, time was the first axis of every tensor. Later opsets have layout=1, which ONNX Runtime rejects.
    op = operator(site.node, Recurrence)
    if not op.layout:
        return None
    operands = list(site.inputs)
    for position in (0, 5, 6):
        value = site.input(position)
        if value is not None:
            operands[position] = F.transpose(value, perm=(1, 0, 2))
    y, *states = site.node.rebuilt(operands, op.replace(layout=0)).outputs
    return [F.transpose(y, perm=(2, 0, 1, 3)), *(F.transpose(s, perm=(1, 0, 2)) for s in states)]
