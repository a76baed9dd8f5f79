"""DFT: the axis is an attribute, with another default."""

from __future__ import annotations

from graphkit.onnx_io.downgrade import Spelling, spells


@spells("DFT", below=20)
def _axis_to_attribute(spelling: Spelling) -> None:
    if spelling.input(2) is None:
        spelling.attrs["axis"] = -2
    else:
        spelling.input_to_attribute(2, "axis")
