"""Compare the shapes that a file declares with the shapes of a run."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Any

import numpy as np

from graphkit.errors import GraphkitError
from graphkit.ir.declared import Declarations
from graphkit.ir.dims import Dim, DimExpr
from graphkit.ir.graph import Graph, Value
from graphkit.ir.sizes import SizeTable, defined_names
from graphkit.ir.types import TensorType
from graphkit.passes.core.bind import bind, match_shapes
from graphkit.passes.core.sweep import symbolic_dims


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
        symbols = {s for v in graph.inputs for d in symbolic_dims(v) for s in d.symbols}
        declared = [
            v for v in graph.values if v.node is not None and _adds_to_type(declarations.shape(v.name), v, symbols)
        ]
        known = (
            symbols | defined_names({s for v in declared for d in symbolic_dims(v) for s in d.symbols}, symbols).keys()
        )
        self._table = SizeTable(tuple(symbols))
        # The declared values whose inferred sizes follow from the inputs' sizes, each with the positions of its
        # inferred sizes in `_table`.
        self._computed = [
            (v.name, self._table.add_all(v.tensor.known_shape)) for v in declared if _is_computed(v, known)
        ]
        # Pairs of positions in `_table`: a declared size and the inferred size of the same axis. They are equal if the
        # declarations are true.
        self._equal = list(
            {
                (self._table.add(size), position)
                for name, inferred in self._computed
                for size, position in zip(declarations.shape(name) or (), inferred, strict=True)
                if _names(size) <= known
            }
        )
        # The parts of the graph that compute all declared values, and only those that are not in `_computed`. For new
        # shapes, types are inferred in the second part; if some sizes in the table are unknown, in the first.
        self._graph = graph.replace(outputs=declared, updates=())
        self._others = graph.replace(outputs=[v for v in declared if not _is_computed(v, known)], updates=())
        self._inputs = dict(zip(graph.input_names, graph.inputs, strict=True))
        self._outputs = {
            name: v.name
            for name, v in zip(graph.output_names, graph.outputs, strict=True)
            if isinstance(v.type, TensorType) and declarations.may_contradict(v.name, v.type)
        }
        self._compared: dict[str, tuple[int, ...]] = {}  # the latest shape of each output that was compared

    def check_inputs(self, shapes: Mapping[str, Sequence[int]]) -> None:
        """Compare the shapes that follow from these input shapes, by name."""
        if not self._declarations:
            return
        given = {name: shape for name, shape in shapes.items() if name in self._inputs}
        pairs = [(name, self._inputs[name].tensor, shape) for name, shape in given.items()]
        try:
            bindings = match_shapes([(name, kind, kind.with_shape(shape)) for name, kind, shape in pairs])
            is_complete = all(name in bindings for name in self._table.symbols)
            sizes = self._table.values(bindings) if is_complete else ()  # type: ignore[arg-type]
            graph = self._others if is_complete else self._graph
            bound = bind(graph, given) if graph.outputs else graph
        except GraphkitError:
            # The error is in a part of the graph that this run does not compute, else the run would have failed.
            return
        if is_complete and any(sizes[declared] != sizes[inferred] for declared, inferred in self._equal):
            for name, positions in self._computed:
                self._declarations.check(name, [sizes[p] for p in positions], bindings)
        for old, new in zip(graph.outputs, bound.outputs, strict=True):
            if isinstance(new.type, TensorType):
                self._declarations.check(old.name, new.type.shape, bindings)

    def check_outputs(self, outputs: Mapping[str, Any]) -> None:
        """Compare the shapes of these results, by name of the output."""
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
    return any(d != known and _names(d) <= names for d, known in zip(declared, shape, strict=True))


def _is_computed(value: Value, known: Container[str]) -> bool:
    """Whether the sizes of this value are expressions of these names."""
    shape = value.type.shape if isinstance(value.type, TensorType) else None
    return shape is not None and all(s in known for d in symbolic_dims(value) for s in d.symbols)


def _names(dim: Dim) -> frozenset[str]:
    return dim.symbols if isinstance(dim, DimExpr) else frozenset()
