"""Find the weights that bodies of loops and branches capture, and replace nodes in these bodies."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from graphkit.ir.graph import Graph, Node, Value
from graphkit.ops.control.views import LoopView, is_if
from graphkit.passes.core.captures import add_captures, captured, drop_unused_captures
from graphkit.passes.core.draws import is_random
from graphkit.passes.core.match import FixedValues
from graphkit.passes.core.sweep import all_nodes, is_control, rewrite


class Scope:
    """A graph or a body, with its fixed values: those that parameters, constants and unchanged states determine."""

    def __init__(self, graph: Graph, path: str, captures: Mapping[Value, Value] | None, slices: set[Value]):
        """Find the fixed values of `graph`.

        Args:
            captures: Maps each input of a body that captures a fixed value to this value in the outermost graph. None
                if `graph` is the outermost graph.
            slices: Inputs of a body that are slices of fixed values.
        """
        self.graph, self.path = graph, path
        self._fixed = FixedValues(graph) if captures is None else None
        self._outer = dict(captures or {})
        self._slices = slices
        if captures is not None:
            self._follow()

    def fixed(self, value: Value | None) -> Value | None:
        """Return the value of the outermost graph that equals `value`; None if it is not fixed."""
        if self._fixed is None:
            return None if value is None else self._outer.get(value)
        return value if value is not None and value in self._fixed else None

    def is_sliced(self, value: Value) -> bool:
        """Whether a value depends on slices of fixed values, and so differs between iterations of a Scan."""
        return value in self._slices

    def _follow(self) -> None:
        for node in self.graph.nodes:
            operands = [self._outer.get(v) for v in node.operands]
            if is_random(node.op):
                continue
            if None not in operands:
                made = node.rebuilt([None if v is None else self._outer[v] for v in node.inputs])
                self._outer.update(zip(node.outputs, made.outputs, strict=True))
            elif all(v in self._outer or v in self._slices for v in node.operands):
                self._slices.update(node.outputs)

    def bodies(self) -> Iterator[Scope]:
        for node in filter(is_control, self.graph.nodes):
            scanned = () if is_if(node) else LoopView.of(node).scan_inputs
            slices = [s for s in scanned if self.fixed(s.outer) is not None or self.is_sliced(s.outer)]
            for key, body in node.op.subgraphs().items():
                pairs = [(inner, self.fixed(outer)) for outer, inner in captured(node, body)]
                name = self.graph.node_name(node)
                yield Scope(
                    body,
                    f"{self.path}{f'{name}.{key}' if is_if(node) else name}.",
                    {inner: outer for inner, outer in pairs if outer is not None},
                    {s.inner for s in slices},
                )


def scopes(graph: Graph) -> Iterator[Scope]:
    """Yield a graph, then all bodies in it, outer before inner."""
    pending = [Scope(graph, "", None, set())]
    while pending:
        scope = pending.pop(0)
        yield scope
        pending[:0] = scope.bodies()


def replace_nodes(
    graph: Graph,
    needs: Mapping[Node, Sequence[Value]],
    replace: Callable[[Node, Sequence[Value | None], Sequence[Value]], Sequence[Value]],
    *,
    inputs: Mapping[Value, Value] | None = None,
    extra_inputs: Sequence[Value] = (),
) -> Graph:
    """Replace nodes of a graph and its bodies. Bodies capture the values that the replacements need.

    Args:
        needs: The nodes to replace, each with the values of the new outermost graph that its replacement reads.
        replace: `replace(node, operands, values)` returns one value per output. `values` are those of `needs`; in a
            body, the inputs that capture them.
    """

    def rewritten(
        body: Graph, own: Mapping[Value, Value], table: Mapping[Value, Value], extra: Sequence[Value]
    ) -> Graph:
        def rule(node: Node, operands: Sequence[Value | None]) -> Sequence[Value] | None:
            if node in needs:
                return replace(node, operands, [own.get(v, v) for v in needs[node]])
            added = _needed(node, needs)
            if added is None:
                return None
            inner = {}
            for key, each in node.op.subgraphs().items():
                captures = {v: Value(v.type, v.name) for v in added}
                inner[key] = rewritten(each, captures, {}, list(captures.values()))
            made = add_captures(node, operands, inner, [own.get(v, v) for v in added])
            return drop_unused_captures(made, made.inputs).outputs

        return rewrite(body, rule, inputs=table, extra_inputs=extra)

    return rewritten(graph, {}, inputs or {}, extra_inputs)


def _needed(node: Node, needs: Mapping[Node, Sequence[Value]]) -> list[Value] | None:
    if not is_control(node):
        return None
    replaced = [inner for body in node.op.subgraphs().values() for inner in all_nodes(body) if inner in needs]
    return list(dict.fromkeys(v for inner in replaced for v in needs[inner])) if replaced else None
