"""ai.onnx.preview.training: no runtime supports it, so it is written in standard operators."""

from __future__ import annotations

from collections.abc import Sequence

from graphkit.ir.graph import Value
from graphkit.onnx_io.downgrade import ALWAYS, Site, rewrites


@rewrites("Adagrad", "Adam", "Momentum", below=ALWAYS)
def _one_step(site: Site) -> Sequence[Value] | None:
    results: Sequence[Value] = site.op.expand(*site.inputs)
    return results
