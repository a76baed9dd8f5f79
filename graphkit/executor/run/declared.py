"""Compare the shapes that a file declares with those that a run computes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from graphkit.errors import GraphkitError
from graphkit.ir.declared import Declarations
from graphkit.ir.dims import Dim, DimExpr
from graphkit.ir.graph import Graph, Value
from graphkit.ir.types import TensorType
from graphkit.passes.core.bind import bind, match_shapes
from graphkit.passes.core.sweep import open_dims


class Declared:
    """Declarations of the values of `graph`, as it is in the file: rewrites change what names and shapes go together.

    Before a run what inference says of shapes that are fed is compared, after it the shapes of the outputs; kernels
    that are made in a run compare what they make (see `Declarations.found`).
    """

    def __init__(self, graph: Graph, declarations: Declarations):
        self._declarations = declarations
        names = {s for v in graph.inputs for d in open_dims(v) for s in d.symbols}
        claimed = [v for v in graph.values if v.node is not None and _tells(declarations.shape(v.name), v, names)]
        # Inferred again for new shapes: only what the declared values depend on.
        self._graph = graph.replace(outputs=claimed, updates=())
        self._inputs = dict(zip(graph.input_names, graph.inputs, strict=True))
        self._outputs = {
            name: v.name for name, v in zip(graph.output_names, graph.outputs, strict=True) if v.name in declarations
        }
        self._fitted: dict[str, tuple[int, ...]] = {}  # the latest shape of each that was compared

    def before(self, shapes: Mapping[str, Sequence[int]]) -> None:
        """For inputs of these shapes."""
        if not self._declarations:
            return
        given = {name: shape for name, shape in shapes.items() if name in self._inputs}
        try:
            bound = bind(self._graph, given)
        except GraphkitError:
            # A part of the graph that this run does not compute; where it does, it has failed already.
            return
        pairs = [(name, self._inputs[name].tensor, shape) for name, shape in given.items()]
        names = match_shapes([(name, kind, kind.with_shape(shape)) for name, kind, shape in pairs])
        for old, new in zip(self._graph.outputs, bound.outputs, strict=True):
            if isinstance(new.type, TensorType):
                self._declarations.check(old.name, new.type.shape, names)

    def after(self, outputs: Mapping[str, Any]) -> None:
        """For these results, by the names of the graph's outputs."""
        if not self._declarations:
            return
        for name, declared in self._outputs.items():
            array = outputs.get(name)
            if isinstance(array, np.ndarray) and self._fitted.get(name) != array.shape:
                self._declarations.check(declared, array.shape, {})
                self._fitted[name] = array.shape


def _tells(declared: Sequence[Dim] | None, value: Value, names: set[str]) -> bool:
    """Whether a declaration says anything that the type of the value leaves open: numbers, or names of the inputs."""
    shape = value.type.shape if isinstance(value.type, TensorType) else None
    if declared is None or shape is None:
        return declared is not None
    return any(
        d != known and (not isinstance(d, DimExpr) or d.symbols <= names)
        for d, known in zip(declared, shape, strict=True)
    )
