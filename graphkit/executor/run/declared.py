"""Compare the shapes that a file declares with the shapes of a run."""

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


class DeclarationChecker:
    """Compares declared shapes with inferred shapes before a run, and with the shapes of outputs after it.

    Kernels that are created during a run compare the shapes of their results (see `Declarations.found`). A mismatch is
    reported by a DeclarationWarning.

    Args:
        graph: The graph as it is in the file, without rewrites, because the declarations name its values.
        declarations: The declared shapes.
    """

    def __init__(self, graph: Graph, declarations: Declarations):
        self._declarations = declarations
        names = {s for v in graph.inputs for d in open_dims(v) for s in d.symbols}
        declared = [
            v for v in graph.values if v.node is not None and _adds_to_type(declarations.shape(v.name), v, names)
        ]
        # The part of the graph that declared values depend on. Its types are inferred again for new shapes.
        self._graph = graph.replace(outputs=declared, updates=())
        self._inputs = dict(zip(graph.input_names, graph.inputs, strict=True))
        self._outputs = {
            name: v.name for name, v in zip(graph.output_names, graph.outputs, strict=True) if v.name in declarations
        }
        self._compared: dict[str, tuple[int, ...]] = {}  # the latest shape of each output that was compared

    def check_inputs(self, shapes: Mapping[str, Sequence[int]]) -> None:
        """Compare the shapes that follow from these input shapes, by name."""
        if not self._declarations:
            return
        given = {name: shape for name, shape in shapes.items() if name in self._inputs}
        try:
            bound = bind(self._graph, given)
        except GraphkitError:
            # The error is in a part of the graph that this run does not compute, else the run would have failed.
            return
        pairs = [(name, self._inputs[name].tensor, shape) for name, shape in given.items()]
        names = match_shapes([(name, kind, kind.with_shape(shape)) for name, kind, shape in pairs])
        for old, new in zip(self._graph.outputs, bound.outputs, strict=True):
            if isinstance(new.type, TensorType):
                self._declarations.check(old.name, new.type.shape, names)

    def check_outputs(self, outputs: Mapping[str, Any]) -> None:
        """Compare the shapes of these results, by name of the output."""
        if not self._declarations:
            return
        for name, declared in self._outputs.items():
            array = outputs.get(name)
            if isinstance(array, np.ndarray) and self._compared.get(name) != array.shape:
                self._declarations.check(declared, array.shape, {})
                self._compared[name] = array.shape


def _adds_to_type(declared: Sequence[Dim] | None, value: Value, names: set[str]) -> bool:
    """Whether a declared shape says more than the inferred type of the value.

    names: The symbolic dimensions of the inputs. A declared dimension with other symbols says nothing.
    """
    shape = value.type.shape if isinstance(value.type, TensorType) else None
    if declared is None or shape is None:
        return declared is not None
    return any(
        d != known and (not isinstance(d, DimExpr) or d.symbols <= names)
        for d, known in zip(declared, shape, strict=True)
    )
