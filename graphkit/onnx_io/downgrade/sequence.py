"""Optionals: older opsets support fewer operators and types for them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphkit.ir.graph import Value
from graphkit.ir.types import OptionalType
from graphkit.onnx_io.downgrade import Site, rewrites
from graphkit.ops import F, constant


@rewrites("OptionalHasElement", below=18)
def _known_presence(site: Site) -> Sequence[Value] | None:
    x = site.input(0)
    if x is not None and isinstance(x.type, OptionalType):
        return None
    return [constant(np.array(x is not None))]


@rewrites("OptionalGetElement", below=18)
def _no_optional(site: Site) -> Sequence[Value] | None:
    x = site.operand(0)
    return None if isinstance(x.type, OptionalType) else [F.identity(x)]
