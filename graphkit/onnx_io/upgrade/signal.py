"""DFT: the axis, once an attribute with another default, became an operand."""

from __future__ import annotations

import numpy as np

from graphkit.onnx_io.upgrade import NodeView, upgrade
from graphkit.ops import constant


@upgrade("DFT", below=20)
def _axis_to_input(node: NodeView) -> None:
    node.set_input(2, constant(np.asarray(node.take("axis", 1), np.int64)))
