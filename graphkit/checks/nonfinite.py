"""Find the first node of a graph that creates a NaN or an infinity."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from graphkit import config
from graphkit.errors import InputError
from graphkit.executor.run.feeds import convert
from graphkit.ir.graph import Graph, Node
from graphkit.ir.types import TensorType, dtype_of
from graphkit.model import Model
from graphkit.ops.evaluate import evaluate, observed
from graphkit.ops.tensor.constants import Constant
from graphkit.passes.core.bind import match_shapes
from graphkit.passes.core.sweep import is_control
from graphkit.passes.training.randomness import bind_rng
from graphkit.signatures import typed
from graphkit.text import short_repr


@dataclass(frozen=True)
class NonFinite:
    """The origin of the first NaN or infinity: a node, or an input or parameter that contains it from the start.

    `kind` is "node", "input" or "parameter" (also for running statistics). `name` is the name of the node, if it has
    one, or of the input or parameter. `operator` is the operator of the node, with its operand types. `value` is the
    name of the result that is not finite, `shape` its shape; `nan` and `infinite` are the numbers of its elements that
    are NaN or infinite. `place` lists the If, Loop and Scan nodes around it, from the outside in,
    each with its branch or iteration. `infinite_before` lists the inputs and parameters that contain infinities.
    """

    kind: str
    name: str
    operator: str
    value: str
    shape: tuple[int, ...]
    nan: int
    infinite: int
    place: tuple[str, ...] = ()
    infinite_before: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return short_repr(self, lambda: [str(self)])

    def __str__(self) -> str:
        counts = " and ".join(f"{n} {what}" for n, what in ((self.nan, "NaN"), (self.infinite, "infinite")) if n)
        what = self.operator if self.kind == "node" else f"{self.kind} {self.name!r}"
        inside = "".join(f", in {p}" for p in self.place)
        result = f" in its result {self.value!r}" if self.kind == "node" and self.value else ""
        before = f" ({', '.join(self.infinite_before)} had infinities before)" if self.infinite_before else ""
        return f"{what}: {counts} of {int(np.prod(self.shape))} elements{result}{inside}{before}"


@typed("gk.find_nonfinite")
def find_nonfinite(model: Model, feeds: Mapping[str, Any], *, seed: int | None = None) -> NonFinite | None:
    """Return the first node of `model` that creates a NaN or an infinity from these inputs; None if there is none.

    This is the first node, in topological order, with a NaN in a result and none in its operands, or with an infinity
    in a result and only finite operands. Constants may be infinite, such as masks of attention. An input or parameter
    with a NaN is itself reported, as `kind` "input" or "parameter". An input or parameter with an infinity is reported
    only if there is no such node, and a result is not finite. The graph is interpreted without fusion, which takes long
    for large models.

    Args:
        model: The model.
        feeds: Arrays by input name.
        seed: Seed of random operators (default: GRAPHKIT_SEED).

    Raises:
        InputError: An input is missing, or does not fit the model.
    """
    graph = bind_rng(model.graph)
    names = [*model.graph.input_names, *("" for _ in graph.inputs[len(model.graph.inputs) :])]
    arrays: list[Any] = []
    for name, value in zip(names, graph.inputs, strict=True):
        if value.role == "rng":
            arrays.append(np.array([config.SEED.get() if seed is None else seed, 0], np.uint64))
        elif name in feeds:
            arrays.append(convert(name, value.type, feeds[name]))
        elif name in model.params:
            arrays.append(model.params[name])
        else:
            raise InputError(f"input {name!r} ({value.type}) is not given")
    match_shapes(
        [
            (name, value.type, TensorType(value.type.dtype, array.shape))
            for name, value, array in zip(names, graph.inputs, arrays, strict=True)
            if isinstance(value.type, TensorType) and isinstance(array, np.ndarray)
        ]
    )
    return first_nonfinite(graph, arrays)


def first_nonfinite(graph: Graph, arrays: Sequence[Any]) -> NonFinite | None:
    """`find_nonfinite` for a graph with bound random states; `arrays` has one array for each of its inputs."""
    infinite: list[NonFinite] = []
    for value, array in zip(graph.inputs, arrays, strict=True):
        nan, inf = counted(array)
        if nan or inf:
            name = graph.name_of(value)
            kind = "input" if value.role == "data" else "parameter"
            found = NonFinite(kind, name, "", name, np.shape(array), nan, inf)
            if nan:
                return found
            infinite.append(found)
    try:
        with observed(_Watch()):
            results = evaluate(graph, arrays)
    except _FoundOne as stop:
        return replace(stop.found, infinite_before=tuple(f"{f.kind} {f.name!r}" for f in infinite))
    return infinite[0] if infinite and any(any(counted(a)) for a in results) else None


def counted(array: Any) -> tuple[int, int]:
    """Count the NaN and infinite elements of a float array, or of all arrays of a sequence; (0, 0) for other types."""
    if isinstance(array, (list, tuple)):
        pairs = [counted(item) for item in array]
        return sum(n for n, _ in pairs), sum(i for _, i in pairs)
    if not isinstance(array, (np.ndarray, np.generic)) or array.dtype.kind in "biuOSUM":
        return 0, 0
    if not dtype_of(array.dtype).is_float or np.isfinite(array).all():
        return 0, 0
    return int(np.isnan(array).sum()), int(np.isinf(array).sum())


class _FoundOne(BaseException):
    """Ends an evaluation. It is not an Exception, because operators with subgraphs would wrap that."""

    def __init__(self, found: NonFinite):
        self.found = found


class _Watch:
    """Ends the evaluation at the first node that creates a NaN or an infinity."""

    def __init__(self) -> None:
        # The control flow nodes that are being evaluated, and for each its subgraphs that were entered so far.
        self._around: list[tuple[Node, list[Graph]]] = []

    def enters(self, graph: Graph) -> None:
        if self._around:
            self._around[-1][1].append(graph)

    def begins(self, node: Node) -> None:
        if is_control(node):
            self._around.append((node, []))

    def ran(self, node: Node, operands: Sequence[Any], results: Sequence[Any]) -> None:
        if is_control(node):
            self._around.pop()
        for value, result in zip(node.outputs, results, strict=True):
            nan, inf = counted(result)
            if (not nan and not inf) or (isinstance(node.op, Constant) and not nan):
                continue
            given = [counted(x) for x in operands]
            if (nan and not any(n for n, _ in given)) or (inf and not any(map(any, given))):
                shape = np.shape(result) if isinstance(value.type, TensorType) else ()
                place = tuple(_where(outer, done) for outer, done in self._around)
                raise _FoundOne(
                    NonFinite("node", node.name, node.describe(), value.name, shape, nan, inf, place)
                )  # fmt: skip


def _where(node: Node, evaluated: Sequence[Graph]) -> str:
    if node.op.name == "If":
        taken = next((k for k, g in node.op.subgraphs().items() if g is evaluated[-1]), "a branch")
        return f"the {taken} of {node.describe()}"
    return f"iteration {len(evaluated) - 1} of {node.describe()}"
