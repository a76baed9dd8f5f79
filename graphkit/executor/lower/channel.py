"""Steps that send values to other processes and receive values from them.

A native program calls Python for each step. The plan does not count these steps as interpreted: a message takes longer
than a call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from graphkit.errors import RuntimeFailure, UnsupportedError
from graphkit.executor.lower.collaborators import Channels
from graphkit.executor.lower.lowering import Site
from graphkit.executor.lower.run_time_kernel import AtRunTime, Prepared, Shapes
from graphkit.executor.memory.placement import has_fixed_size
from graphkit.ir.graph import Node
from graphkit.ops.internal.transfer import Receive, Send
from graphkit.passes.core.sweep import all_nodes


class ChannelStep(AtRunTime):
    def __init__(self, node: Node, channels: Channels, used: Sequence[bool]):
        super().__init__(node)
        self._channels = channels
        self._used = used

    def make(self, shapes: Shapes, values: Shapes) -> Prepared:
        op = self.node.op
        if isinstance(op, Send):
            x = self.node.inputs[0]
            assert x is not None, "Send has an operand"
            shape = x.tensor.static_shape if shapes[0] is None else tuple(shapes[0])
            return Prepared(None, [], [], [], self._sending(op, shape, x.dtype.numpy))
        assert isinstance(op, Receive), "a channel step sends or receives"
        return Prepared(None, [], [], [], self._receiving(op))

    def _sending(
        self, op: Send, shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> Callable[[Sequence[Any]], list[np.ndarray | None]]:
        def run(memory: Sequence[Any]) -> list[np.ndarray | None]:
            self._channels.send(op.to, op.number, op.key, np.ndarray(shape, dtype, memory[0]))
            return [np.zeros((), np.int64)]

        return run

    def _receiving(self, op: Receive) -> Callable[[Sequence[Any]], list[np.ndarray | None]]:
        y = self.node.outputs[0]
        expected = y.tensor.static_shape if has_fixed_size(y) else None

        def run(memory: Sequence[Any]) -> list[np.ndarray | None]:
            found = self._channels.receive(op.source, op.number, op.key, op.dtype.numpy, len(op.shape))
            if expected is not None and found.shape != expected:
                raise RuntimeFailure(
                    f"{op.key} of rank {op.source} has the shape {list(found.shape)}; {list(expected)} was inferred"
                )
            return [found if self._used[0] else None, np.zeros((), np.int64)]

        return run


def channel(site: Site) -> ChannelStep | None:
    op = site.node.op
    if not isinstance(op, (Send, Receive)):
        return None
    if site.settings.channels is None:
        raise UnsupportedError(f"{site.node.describe()}: the executor has no channels to other processes")
    return ChannelStep(site.node, site.settings.channels, site.context.used_outputs)


def check_channels(node: Node, reason: str) -> None:
    """Raise UnsupportedError if a node contains Send or Receive, which cannot be interpreted.

    reason: why no lowering applies, for the message; may be empty.
    """
    inner = (n for graph in node.op.subgraphs().values() for n in all_nodes(graph))
    for found in (node, *inner):
        if isinstance(found.op, (Send, Receive)):
            why = f": {reason}" if reason else ""
            raise UnsupportedError(
                f"{node.describe()} exchanges {found.op.key} with another process, which only native programs can "
                f"do{why}"
            )
