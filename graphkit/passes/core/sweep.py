"""Sweeps with which every pass is written, use counts, and the runner that logs the effect of a pass."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from graphkit import config, debug
from graphkit.ir import context
from graphkit.ir.collector import without_gc
from graphkit.ir.dims import DimExpr
from graphkit.ir.graph import Graph, Node, Value
from graphkit.ir.types import TensorType, Type
from graphkit.ops import Op
from graphkit.ops.control.views import LoopView, is_if
from graphkit.passes.core.declare import CONTROL, Pass, Rewrite, Step

Rule: TypeAlias = Callable[[Node, Sequence[Value | None]], Sequence[Value] | None]


def is_control(node: Node) -> bool:
    """Whether the node is an If, a Loop or a Scan."""
    return node.op.domain == "" and node.op.name in CONTROL


@without_gc
def rewrite(
    graph: Graph,
    rule: Rule,
    *,
    at: Collection[str] | None = None,
    inputs: Mapping[Value, Value] | None = None,
    extra_inputs: Sequence[Value] = (),
    replaced: Callable[[Value, Value], None] | None = None,
) -> Graph:
    """Rewrite a graph in one sweep. `rule(node, operands)` returns one value per output, or None to keep the node.

    `operands` are the node's inputs in the new graph; a kept node is rebuilt on them (itself if nothing changed). The
    rule is called for nodes whose operator is one of `at` (default: all); the others are kept. `inputs` replaces graph
    inputs; `extra_inputs` are appended; `replaced(old, new)` is called for each result that is replaced. Names of
    outputs stay. If nothing is replaced, the graph itself is returned. Linear in nodes. Subgraphs are not entered: see
    `map_subgraphs`.
    """
    # What is replaced; most sweeps replace little.
    table: dict[Any, Value] = dict(inputs or {})
    if not table and not extra_inputs and at is not None and graph.operators.isdisjoint(at):
        return graph
    changed, current = table.keys(), table.get
    with context.detached():
        for node in graph.nodes:
            given, results = node.inputs, node.outputs
            touched = not changed.isdisjoint(given)
            if at is None or node.op.name in at:
                operands = tuple([current(v, v) for v in given]) if touched else given
                replacement = rule(node, operands)
                if replacement is None:
                    replacement = node.rebuilt(operands).outputs if touched else results
            elif touched:
                replacement = node.rebuilt([current(v, v) for v in given]).outputs
            else:
                continue
            if replacement is not results:
                for old, new in zip(results, replacement, strict=True):
                    if new is not old:
                        table[old] = new
                        if replaced is not None:
                            replaced(old, new)
    if not table and not extra_inputs:
        return graph
    return Graph(
        [*(table.get(v, v) for v in graph.inputs), *extra_inputs],
        [table.get(v, v) for v in graph.outputs],
        [(table.get(state, state), table.get(new, new)) for state, new in graph.updates],
        graph.name,
        output_names=graph.output_names,
        meta=graph.meta,
    )


def map_subgraphs(node: Node, operands: Sequence[Value | None], transform: Rewrite) -> Node:
    """The node with `transform` applied to each Graph-valued attribute (which must keep its signature)."""
    subgraphs = node.op.subgraphs()
    if not subgraphs:
        return node.rebuilt(operands)
    changed = {k: new for k, g in subgraphs.items() if (new := transform(g)) is not g}
    operator = node.op.replace(**changed) if changed and isinstance(node.op, Op) else None
    return node.rebuilt(operands, operator)


def map_bodies(node: Node, operands: Sequence[Value | None], transform: Rewrite) -> Node:
    """`map_subgraphs` for control flow, where the declared types of a subgraph's inputs hold whenever it runs.

    The branches of an If are such subgraphs; the body of a Loop or Scan is one when an iteration keeps the types of
    what it carries. Others stay as they are, so that a pass may rely on types.
    """
    if not is_control(node) or not bodies_hold(node, operands):
        return node.rebuilt(operands)
    return map_subgraphs(node, operands, transform)


def bodies_hold(node: Node, operands: Sequence[Value | None]) -> bool:
    """Whether the types that the subgraphs of an If, a Loop or a Scan declare hold whenever they run on `operands`."""
    if is_if(node):
        return True
    view = LoopView.of(node, operands)
    kept = all(state.before.type == state.after.type for state in view.states)
    names: dict[Any, Any] = {}
    # What is scanned loses an axis; inference has checked that the slices fit.
    given = [*((s.before, s.initial) for s in view.states), *view.captures]
    return kept and all(_holds(inner.type, outer.type, names) for inner, outer in given)


def _holds(declared: Type, given: Type, names: dict[Any, Any]) -> bool:
    """Whether a value of the type `given` is of the declared type; `names` says what its dimensions stand for."""
    if not isinstance(declared, TensorType) or not isinstance(given, TensorType) or declared.shape is None:
        return declared == given
    if given.shape is None or len(given.shape) != len(declared.shape):
        return False
    return all(
        names.setdefault(d, g) == g if isinstance(d, DimExpr) else d == g
        for d, g in zip(declared.shape, given.shape, strict=True)
    )


def read_positions(node: Node) -> Sequence[int]:
    """Positions of the operands whose elements are read; of the others only the shape matters."""
    positions = [i for i, v in enumerate(node.inputs) if v is not None]
    if not isinstance(node.op, Op) or not node.op.shape_only:
        return positions
    formals, shape_only = node.op.formals, node.op.shape_only
    return [i for i in positions if formals[min(i, len(formals) - 1)].name not in shape_only]


def elements_read(node: Node) -> Sequence[Value]:
    """The operands whose elements are read."""
    if not isinstance(node.op, Op) or not node.op.shape_only:
        return node.operands
    return [v for i in read_positions(node) if (v := node.inputs[i]) is not None]


def use_counts(graph: Graph) -> Counter[Value]:
    """How many times each value is read: by nodes, as an output, as an update."""
    counts: Counter[Any] = Counter(itertools.chain.from_iterable([node.inputs for node in graph.nodes]))
    del counts[None]  # operands that are absent
    counts.update(graph.outputs)
    counts.update(new for _, new in graph.updates)
    return counts


class Readers:
    """How often the values of a graph that is being built are read."""

    def __init__(self, counts: dict[Value, int]) -> None:
        """`counts`, of the values of the graph that there was, are kept and changed."""
        self._counts = counts

    def replace(self, old: Value, new: Value) -> None:
        """All readers of `old` read `new` from now on."""
        count = self._counts.pop(old, 0)
        self._counts[new] = self._counts.get(new, 0) + count

    def count(self, value: Value) -> int:
        """Readers of a value; 1 for one that a rule has just made."""
        return self._counts.get(value, 1)

    def sole(self, value: Value) -> bool:
        """Whether the value has one reader, so that it may disappear into it."""
        return self._counts.get(value, 1) == 1


FusionRule: TypeAlias = Callable[[Node, Readers], Sequence[Value] | None]


def fuse(
    graph: Graph,
    rule: FusionRule,
    *,
    needs: Collection[str] | None = None,
    at: Collection[str] | None = None,
    nested: bool = False,
) -> Graph:
    """Apply a local rule in one sweep, subgraphs included (see `map_bodies`).

    `rule` gets each node on its operands in the new graph, and the number of readers of values there. It returns one
    value per output, or None to keep the node. Later nodes see the replacements of earlier ones, so a chain is absorbed
    link by link. A reader that only reads the shape of a value does not count if binding the inputs' dimensions makes
    this shape a constant. The rule is called for nodes whose operator is one of `at` (default: all). A graph without
    any operator of `needs`, or of `at`, is returned as it is. Linear in nodes for a rule that looks a bounded number of
    nodes back.
    """
    for names in (needs, at):
        if names is not None and graph.operators.isdisjoint(names) and graph.operators.isdisjoint(CONTROL):
            return graph
    counts = use_counts(graph)
    if not nested:
        counts.subtract(v for node in _shape_readers(graph) for v in node.operands)
    readers = Readers(counts)

    def visit(node: Node, operands: Sequence[Value | None]) -> Sequence[Value]:
        if is_control(node):
            rebuilt = map_bodies(node, operands, lambda inner: fuse(inner, rule, needs=needs, at=at, nested=True))
        else:
            rebuilt = node.rebuilt(operands)
        return rule(rebuilt, readers) or rebuilt.outputs

    return rewrite(graph, visit, at=None if at is None else {*at, *CONTROL}, replaced=readers.replace)


def readers_of(graph: Graph, *, nested: bool = False) -> dict[Value, list[Node]]:
    """The nodes that read each value, once for each operand; without those that `fuse` does not count."""
    shapes = set() if nested else set(_shape_readers(graph))
    readers: dict[Value, list[Node]] = {}
    for node in graph.nodes:
        for value in node.operands if node not in shapes else ():
            readers.setdefault(value, []).append(node)
    return readers


def _shape_readers(graph: Graph) -> Iterator[Node]:
    """Nodes whose result is constant as soon as the dimensions of the graph's inputs are bound."""
    if graph.operators.isdisjoint(("Shape", "Size")):
        return
    known = {s for v in graph.inputs for d in open_dims(v) for s in d.symbols}
    for node in graph.nodes:
        if node.op.name in ("Shape", "Size") and not node.op.domain:
            (value,) = node.operands
            if value.rank is not None and all(d.symbols <= known for d in open_dims(value)):
                yield node


def open_dims(value: Value) -> list[DimExpr]:
    """The dimensions of a tensor that are expressions, not numbers."""
    shape = value.type.shape if isinstance(value.type, TensorType) else None
    return [d for d in shape or () if isinstance(d, DimExpr)]


def all_nodes(graph: Graph) -> Iterator[Node]:
    """The nodes of a graph and of its subgraphs."""
    for node in graph.nodes:
        yield node
        for inner in node.op.subgraphs().values():
            yield from all_nodes(inner)


def groups_of(graph: Graph) -> dict[str, None]:
    """Return the groups of a graph's nodes, also inside control flow, in their order."""
    return dict.fromkeys(group for node in all_nodes(graph) if (group := node.meta.get(context.GROUP)) is not None)


def fused_node(op: Op, operands: Sequence[Value | None], parts: Sequence[Node]) -> Value:
    """Return the output of a new node that replaces `parts`, whose last one made the result.

    It has the name of the first part that has one, the name of the result, and all attributes that users gave.
    """
    inputs = list(operands)
    while inputs and inputs[-1] is None:
        inputs.pop()
    name = next((part.name for part in parts if part.name), "")
    meta = {k: v for part in parts for k, v in part.meta.items()}
    return Node(op, inputs, name, meta, output_names=[parts[-1].outputs[0].name]).output


def run_passes(graph: Graph, passes: Sequence[Step]) -> Graph:
    """Apply passes, or functions under a name, in order; whether the order fits is for `declare.pipeline` to say.

    With GRAPHKIT_DEBUG=1 the effect of each goes to stderr, with 2 also its time, with 3 the graph that it changed.
    With GRAPHKIT_CHECK_PASSES=1 a pass that has not ensured what it declares raises CheckFailed.
    """
    level, checking = debug.level(), config.CHECK_PASSES.get()
    for step in passes:
        name, transform = (step.name, step) if isinstance(step, Pass) else step
        begin = time.perf_counter() if level else 0.0
        with context.made_by(f"pass {name}"):
            before, graph = graph, transform(graph)
        if level:
            _log(level, name, before, graph, time.perf_counter() - begin)
        if checking and isinstance(step, Pass):
            step.verify(graph)
    return graph


def _log(level: int, name: str, before: Graph, graph: Graph, seconds: float) -> None:
    """Print what a pass did, as GRAPHKIT_DEBUG asks for."""
    took = f"; {debug.milliseconds(seconds)}" if level >= debug.DECISIONS else ""
    debug.say(f"pass {name}: {effect(before, graph)}{took}")
    if level >= debug.LISTINGS and graph is not before:
        debug.show(str(graph))


def operators(graph: Graph) -> Counter[str]:
    """How many nodes there are of each operator, in the subgraphs of control flow too; constants are left out."""
    found: Counter[str] = Counter()
    pending = [graph]
    while pending:
        for node in pending.pop().nodes:
            if not is_constant(node):
                found[node.op.name] += 1
                # The body of a fused region is no node of its own.
                pending += node.op.subgraphs().values() if node.op.domain == "" else ()
    return found


def is_constant(node: Node) -> bool:
    return node.op.name == "Constant" and node.op.domain == ""


def effect(before: Graph, after: Graph) -> str:
    """One line: `175 -> 158 nodes: BatchNormalization -17`; `175 nodes` when the numbers stay."""
    old, new = operators(before), operators(after)
    changed = {name: new[name] - old[name] for name in sorted({*old, *new}) if new[name] != old[name]}
    if not changed:
        return f"{new.total()} nodes"
    listed = ", ".join(f"{name} {count:+d}" for name, count in changed.items())
    return f"{old.total()} -> {new.total()} nodes: {listed}"
