"""RNN, GRU, LSTM."""

from __future__ import annotations

from graphkit.onnx_io.upgrade import NodeView, upgrade


@upgrade("RNN", "GRU", "LSTM", below=7)
def _output_sequence(node: NodeView) -> None:
    # Until 7 an attribute said whether the first output is wanted; it is when it has a name.
    node.take("output_sequence")
