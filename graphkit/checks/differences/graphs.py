"""Compare two graphs, and the subgraphs of their corresponding nodes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from graphkit.checks.differences.matching import Matching
from graphkit.checks.differences.ports import Ports
from graphkit.checks.differences.result import (
    Difference,
    InterfaceDifference,
    ModelDiff,
    NodeDifference,
    NodeEntry,
)
from graphkit.checks.differences.structure import Keys, Structure, attributes_of, constant_of, is_weight, type_text
from graphkit.checks.differences.weights import Weights, compared_weights, paired_weights
from graphkit.collector import without_gc
from graphkit.ir.graph import Graph, Node, Value
from graphkit.ir.tensor import Tensor
from graphkit.model import Model

# Metadata that describe the file from which a model was imported, and those that say which names the import changed.
_FILE_FACTS, _RENAMED = ("onnx.", "mxnet."), ("onnx.renamed", "onnx.replaced")
# Elements of a constant that are shown.
_MOST_ELEMENTS = 8


class GraphDiff:
    """The differences of two graphs. `result` returns them.

    Args:
        a, b: The graphs.
        ports: Their corresponding inputs and outputs.
        models: The models that the graphs belong to; None for subgraphs.
        keys: Numbers of structural keys, shared by subgraphs.
        place: Where a subgraph is, such as `loop.body/`.
    """

    @without_gc
    def __init__(
        self,
        a: Graph,
        b: Graph,
        ports: Ports,
        models: tuple[Model, Model] | None = None,
        keys: Keys | None = None,
        place: str = "",
    ):
        self.a, self.b, self.ports, self.models, self.place = a, b, ports, models, place
        self.keys = Keys() if keys is None else keys
        first, second = models or (None, None)
        self.weights = Weights(a, first), Weights(b, second)
        one, other = (Structure(graph, self.keys, *ports.keys(side)) for side, graph in enumerate((a, b)))
        self.sides = one, other
        exact = one, other
        if all(weights.names for weights in self.weights):
            exact = self._exact(0, a), self._exact(1, b)
        results = [(one.source(v), other.source(w)) for v, w in ports.output_pairs]
        self.matching = Matching(one, other, ports.value_pairs, results, exact)
        self.pairs = [(n, self.matching.pairs[n]) for n in one.nodes if n in self.matching.pairs]
        self.inputs = dict(ports.value_pairs)
        operands = itertools.chain.from_iterable(map(self._operands, self.pairs))
        self.weight_pairs = paired_weights(*self.weights, operands)
        self.inner: list[ModelDiff] = []

    def _exact(self, side: int, graph: Graph) -> Structure:
        """Return the structure with keys of the elements of weights."""
        return Structure(graph, self.keys, *self.ports.keys(side), self.weights[side].fingerprint)

    @without_gc
    def result(self) -> ModelDiff:
        """Return the differences, those of subgraphs included."""
        changed = [found for pair in self.pairs if (found := self._node(*pair)) is not None]
        weights = compared_weights(*self.weights, self.weight_pairs, self.place)
        inner = self.inner

        def all_of(own: Sequence[Any], name: str) -> tuple[Any, ...]:
            return (*own, *itertools.chain.from_iterable(getattr(found, name) for found in inner))

        return ModelDiff(
            inputs=tuple(self._inputs()) if self.models else (),
            outputs=all_of([*self._outputs()], "outputs"),
            only_a=all_of([self._entry(self.sides[0], n) for n in self.matching.only_a], "only_a"),
            only_b=all_of([self._entry(self.sides[1], n) for n in self.matching.only_b], "only_b"),
            changed=all_of(changed, "changed"),
            weights=all_of(weights.differing, "weights"),
            updates=tuple(self._updates()),
            metadata=tuple(self._metadata(facts=False)),
            renamed_nodes=all_of([*self._renamed()], "renamed_nodes"),
            renamed_weights=all_of(weights.renamed, "renamed_weights"),
            file_facts=tuple(self._metadata(facts=True)),
            nodes=(len(self.matching.a.nodes), len(self.matching.b.nodes)),
            matched=len(self.pairs),
            weights_compared=weights.compared + sum(found.weights_compared for found in inner),
        )

    def _operands(self, pair: tuple[Node, Node]) -> Iterator[tuple[Value | None, Value | None]]:
        """Yield the operands of two nodes by position."""
        a, b = self.sides
        return itertools.zip_longest(a.operands[pair[0]], b.operands[pair[1]])

    def _renamed(self) -> Iterator[tuple[str, str]]:
        for one, other in self.pairs:
            names = self.place + self.a.node_name(one), self.place + self.b.node_name(other)
            if names[0] != names[1]:
                yield names

    def _entry(self, side: Structure, node: Node) -> NodeEntry:
        operands = tuple(_operand(side.graph, v) for v in side.operands[node])
        return NodeEntry(self.place + side.graph.node_name(node), _operator(node), operands)

    # --- nodes -----------------------------------------------------------------------------------------

    def _node(self, one: Node, other: Node) -> NodeDifference | None:
        found = []
        operators = _operator(one), _operator(other)
        if operators[0] != operators[1]:
            found.append(Difference("operator", *operators))
        if self.sides[0].local[one] != self.sides[1].local[other] or one.op.subgraphs():
            found += self._attributes(one, other)
        for place, (before, after) in enumerate(self._operands((one, other))):
            if not self._same(before, after):
                found.append(Difference(f"input {place}", *self._texts(before, after)))
        if not found:
            return None
        names = self.place + self.a.node_name(one), self.place + self.b.node_name(other)
        return NodeDifference(*names, operators[0], tuple(found))

    def _texts(self, before: Value | None, after: Value | None) -> tuple[str, str]:
        """Return the names of two operands, with their origin if the names are equal."""
        texts = _operand(self.a, before), _operand(self.b, after)
        if texts[0] != texts[1] or before is None or after is None:
            return texts
        return f"{texts[0]} ({_origin(before)})", f"{texts[1]} ({_origin(after)})"

    def _attributes(self, one: Node, other: Node) -> Iterator[Difference]:
        before, after = attributes_of(one), attributes_of(other)
        for name in dict.fromkeys((*before, *after)):
            x, y = before.get(name), after.get(name)
            same = self.keys.attribute(x) == self.keys.attribute(y)
            if isinstance(x, Graph) and isinstance(y, Graph):
                # Subgraphs with the same structure may have constants with other weights.
                found = self._subgraph(f"{self.place}{self.a.node_name(one)}.{name}/", x, y)
                same = same or (len(x.inputs) == len(y.inputs) and not found.equal)
            if same:
                continue
            yield Difference(f"attribute {name}", _attribute(x), _attribute(y))

    def _subgraph(self, place: str, a: Graph, b: Graph) -> ModelDiff:
        found = GraphDiff(a, b, Ports.of_subgraphs(a, b), keys=self.keys, place=place).result()
        self.inner.append(found)
        return found

    def _same(self, before: Value | None, after: Value | None) -> bool:
        """Whether two operands correspond."""
        if before is None or after is None:
            return before is after
        before, after = self.sides[0].source(before), self.sides[1].source(after)
        if is_weight(before) and is_weight(after):
            return self.weight_pairs.get(before) is after
        one, other = constant_of(before), constant_of(after)
        if one is not None and other is not None:
            return one.digest == other.digest
        if before.node is None or after.node is None:
            return self.inputs.get(before) is after
        return self.matching.pairs.get(before.node) is after.node and before.index == after.index

    # --- inputs, outputs, updates, metadata --------------------------------------------------------------

    def _inputs(self) -> Iterator[InterfaceDifference]:
        values = self.ports.values
        for i, j in self.ports.inputs:
            one = None if i is None else values[0][i]
            other = None if j is None else values[1][j]
            name_a = None if one is None else self.a.name_of(one)
            name_b = None if other is None else self.b.name_of(other)
            found = InterfaceDifference(name_a, name_b, _type(one), _type(other))
            if found.is_different:
                yield found

    def _outputs(self) -> Iterator[InterfaceDifference]:
        """Yield outputs that differ; those of subgraphs only if they are other values."""
        for i, j in self.ports.outputs:
            one = None if i is None else self.a.outputs[i]
            other = None if j is None else self.b.outputs[j]
            is_other = one is not None and other is not None and not self._same(one, other)
            values = self._texts(one, other) if is_other else (None, None)
            names = self._output_name(self.a, i), self._output_name(self.b, j)
            found = InterfaceDifference(*names, _type(one), _type(other), *values)
            if found.is_different if self.models else is_other or one is None or other is None:
                yield found

    def _output_name(self, graph: Graph, place: int | None) -> str | None:
        if place is None:
            return None
        return graph.output_names[place] if self.models else f"{self.place}output {place}"

    def _updates(self) -> Iterator[Difference]:
        after = dict(self.b.updates)
        for state, new in self.a.updates:
            other = self.weight_pairs.get(state)
            found = None if other is None else after.pop(other, None)
            if not self._same(new, found):
                text = None if found is None else _operand(self.b, found)
                yield Difference(self.a.name_of(state), _operand(self.a, new), text)
        for state, new in after.items():
            yield Difference(self.b.name_of(state), None, _operand(self.b, new))

    def _metadata(self, *, facts: bool) -> Iterator[Difference]:
        """Yield metadata that differ, or facts of the files that differ."""
        if not self.models:
            return
        before, after = self.a.meta, self.b.meta
        if facts and self.a.name != self.b.name:
            yield Difference("name of the model", self.a.name, self.b.name)
        for key in dict.fromkeys((*before, *after)):
            if key.startswith(_FILE_FACTS) == facts and key not in _RENAMED and before.get(key) != after.get(key):
                yield Difference(key.partition(".")[2] if facts else key, before.get(key), after.get(key))


def _type(value: Value | None) -> str | None:
    return None if value is None else type_text(value.type)


def _operator(node: Node) -> str:
    return f"{node.op.domain}.{node.op.name}" if node.op.domain else node.op.name


def _origin(value: Value) -> str:
    """Return what kind of value an operand is: an input, a parameter, or the result of an operator."""
    if value.node is None:
        return "input" if value.role == "data" else value.role
    return f"result of {_operator(value.node)}"


def _operand(graph: Graph, value: Value | None) -> str:
    """Return the name of an operand; for a constant that is not a weight, its type and elements."""
    if value is None:
        return "(none)"
    tensor = constant_of(value)
    return graph.name_of(value) if tensor is None or is_weight(value) else _elements(tensor)


def _attribute(value: Any) -> str | None:
    if isinstance(value, Graph):
        return f"{len(value.nodes)} nodes, {len(value.inputs)} inputs, {len(value.outputs)} outputs"
    if value is None:
        return None
    if isinstance(value, Tensor):
        return _elements(value)
    return f"{value:.8g}" if isinstance(value, float) else str(value)


def _elements(tensor: Tensor) -> str:
    shape = ", ".join(map(str, tensor.shape))
    flat = tensor.array.reshape(-1)[:_MOST_ELEMENTS].tolist()
    shown = ", ".join(map(str, flat)) + (", ..." if tensor.array.size > _MOST_ELEMENTS else "")
    return f"{tensor.dtype}[{shape}] = [{shown}]" if tensor.shape else f"{tensor.dtype} {shown}"
