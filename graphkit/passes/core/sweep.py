"""Functions for writing passes: rewrite a graph in one sweep, count uses, and run passes with debug output."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from graphkit import config, debug
from graphkit.collector import without_gc
from graphkit.ir import context
from graphkit.ir.dims import DimExpr
from graphkit.ir.graph import Graph, Node, Value, native_sweeps
from graphkit.ir.types import TensorType, Type
from graphkit.ops import Op
from graphkit.passes.core.declare import CONTROL, Pass, Rewrite, Step

if TYPE_CHECKING:
    from graphkit.ir.sweeps import NativeSweeps

Rule: TypeAlias = Callable[[Node, Sequence[Value | None]], Sequence[Value] | None]
# Copies nodes from a position on, and returns the position of the next node that the rule must see. The arguments are
# the native sweeps, the nodes, the position and the table of replaced values.
Advance: TypeAlias = Callable[["NativeSweeps", tuple[Node, ...], int, dict[Any, Value]], int]


def is_control(node: Node) -> bool:
    """Return whether the node is an If, a Loop or a Scan."""
    return node.op.domain == "" and node.op.name in CONTROL


@without_gc
def rewrite(
    graph: Graph,
    rule: Rule,
    *,
    at: Collection[str] | None = None,
    after: Collection[str] = (),
    among: Collection[str] | None = None,
    inputs: Mapping[Value, Value] | None = None,
    extra_inputs: Sequence[Value] = (),
    readers: Readers | None = None,
    advance: Advance | None = None,
    replaced: dict[Any, Value] | None = None,
) -> Graph:
    """Rewrite a graph in one sweep. `rule(node, operands)` returns one value per output, or None to keep the node.

    `operands` are the node's inputs in the new graph. A kept node is rebuilt on them if they differ from the old ones.
    Outputs keep their names. If nothing is replaced, the same graph is returned. Subgraphs are not rewritten: see
    `map_subgraphs`. Takes linear time.

    Args:
        graph: The graph.
        rule: See above.
        at: Names of operators. The rule is called only for nodes with one of them; others are kept. None: all nodes.
        after: Names of operators. With `at`, the rule is also called for readers of their results in the new graph.
        among: Names of operators. `after` is about nodes with one of them. None: all nodes.
        inputs: Values that replace graph inputs.
        extra_inputs: Values that are appended to the graph inputs.
        readers: Gets the replaced results, so that it counts the uses in the new graph.
        advance: Copies nodes that the rule would keep, if native sweeps exist (see `Advance`). Then do not give `at`.
        replaced: An empty dictionary, which gets the new value of each replaced one.
    """
    table: dict[Any, Value] = {} if replaced is None else replaced
    table.update(inputs or {})
    if not table and not extra_inputs and at is not None and graph.operators.isdisjoint((*at, *after)):
        return graph
    changed, current, nodes, position = table.keys(), table.get, graph.nodes, 0
    visited, limited = (None if names is None else frozenset(names) for names in (at, among))
    read, sweeps = frozenset(after) or None, native_sweeps()
    advance = advance if visited is None else _copying(visited, read, limited, readers)
    with context.detached():
        while True:
            if sweeps is not None and advance is not None:
                position = advance(sweeps, nodes, position, table)
            if position == len(nodes):
                break
            node, position = nodes[position], position + 1
            given, results = node.inputs, node.outputs
            touched = not changed.isdisjoint(given)
            if visited is None or node.op.name in visited or (read and _reads(node, read, limited, table)):
                operands = tuple([current(v, v) for v in given]) if touched else given
                replacement = rule(node, operands)
                if replacement is None:
                    replacement = node.rebuilt(operands).outputs if touched else results
            elif touched:
                replacement = node.rebuilt([current(v, v) for v in given]).outputs
            else:
                continue
            if replacement is not results:
                _record(results, replacement, table, readers)
    return _with_replaced(graph, table, extra_inputs) if table or extra_inputs else graph


def _copying(
    visited: frozenset[str], read: frozenset[str] | None, among: frozenset[str] | None, readers: Readers | None
) -> Advance:
    """Return the function that copies nodes up to those that `rewrite` calls the rule for."""
    counts = None if readers is None else readers.counts

    def advance(sweeps: NativeSweeps, nodes: tuple[Node, ...], position: int, table: dict[Any, Value]) -> int:
        return sweeps.copy_until(nodes, position, visited, table, counts, None, read, among)

    return advance


def _record(
    results: Sequence[Value], replacement: Sequence[Value], table: dict[Any, Value], readers: Readers | None
) -> None:
    """Record which values replace the results of a node."""
    for old, new in zip(results, replacement, strict=True):
        if new is not old:
            table[old] = new
            if readers is not None:
                readers.replace(old, new)


def _reads(node: Node, names: frozenset[str], among: frozenset[str] | None, table: Mapping[Any, Value]) -> bool:
    """Return whether an operand is, in the new graph, the result of an operator with one of these names.

    among: If it is given, return False for nodes with other operators than these.
    """
    if among is not None and node.op.name not in among:
        return False
    for value in node.operands:
        made = table.get(value, value).node
        if made is not None and made.op.name in names:
            return True
    return False


def _with_replaced(graph: Graph, table: dict[Any, Value], extra_inputs: Sequence[Value]) -> Graph:
    """Return the graph with values replaced by those of `table`, and with more inputs."""
    native = native_sweeps()

    def replaced(given: tuple[Any, ...]) -> tuple[Any, ...]:
        if native is not None:
            return native.replaced(given, table)
        return tuple([replaced(v) if isinstance(v, tuple) else table.get(v, v) for v in given])

    return Graph(
        [*replaced(graph.inputs), *extra_inputs] if extra_inputs else replaced(graph.inputs),
        replaced(graph.outputs),
        replaced(graph.updates),
        graph.name,
        output_names=graph.output_names,
        meta=graph.meta,
    )


def map_subgraphs(node: Node, operands: Sequence[Value | None], transform: Rewrite) -> Node:
    """Return the node with `transform` applied to each of its subgraphs. The transform must keep inputs and outputs."""
    subgraphs = node.op.subgraphs()
    if not subgraphs:
        return node if operands is node.inputs else node.rebuilt(operands)
    changed = {k: new for k, g in subgraphs.items() if (new := transform(g)) is not g}
    operator = node.op.replace(**changed) if changed and isinstance(node.op, Op) else None
    return node.rebuilt(operands, operator)


def map_branches(node: Node, operands: Sequence[Value | None], transform: Rewrite) -> Node:
    """Apply `map_subgraphs` to an If only: the declared types of its branches hold in every run.

    The bodies of loops are not transformed. The shape of a state may change from one iteration to the next, so a
    rewrite that relies on declared types would be wrong there.
    """
    if node.op.name == "If" and node.op.domain == "":
        return map_subgraphs(node, operands, transform)
    return node.rebuilt(operands)


def map_bodies(node: Node, operands: Sequence[Value | None], transform: Rewrite) -> Node:
    """Apply `map_subgraphs` to an If, Loop or Scan whose declared subgraph types hold in every run.

    They always hold for the branches of an If. They hold for the body of a Loop or Scan if no iteration changes the
    types of the states. Other nodes keep their subgraphs, so the transform may rely on the declared types.
    """
    if not is_control(node) or not declared_types_hold(node, operands):
        return node.rebuilt(operands)
    return map_subgraphs(node, operands, transform)


def declared_types_hold(node: Node, operands: Sequence[Value | None]) -> bool:
    """Return whether the declared types of the subgraphs of an If, Loop or Scan hold in every run on `operands`."""
    if node.op.name == "If":
        return True
    from graphkit.ops.control.views import LoopView

    view = LoopView.of(node, operands)
    kept = all(state.before.type == state.after.type for state in view.states)
    names: dict[Any, Any] = {}
    # Scan inputs are not compared: inference has checked their slices.
    given = [*((s.before, s.initial) for s in view.states), *view.captures]
    return kept and all(_holds(inner.type, outer.type, names) for inner, outer in given)


def _holds(declared: Type, given: Type, names: dict[Any, Any]) -> bool:
    """Return whether a value of type `given` has the declared type. `names` collects the sizes of dimension names."""
    if not isinstance(declared, TensorType) or not isinstance(given, TensorType) or declared.shape is None:
        return declared == given
    if given.shape is None or len(given.shape) != len(declared.shape):
        return False
    return all(
        names.setdefault(d, g) == g if isinstance(d, DimExpr) else d == g
        for d, g in zip(declared.shape, given.shape, strict=True)
    )


def read_positions(node: Node) -> Sequence[int]:
    """Return the positions of the operands whose elements are read. Of other operands, only the shape is read."""
    positions = [i for i, v in enumerate(node.inputs) if v is not None]
    if not isinstance(node.op, Op) or not node.op.shape_only:
        return positions
    formals, shape_only = node.op.formals, node.op.shape_only
    return [i for i in positions if formals[min(i, len(formals) - 1)].name not in shape_only]


def elements_read(node: Node) -> Sequence[Value]:
    """Return the operands whose elements are read."""
    if not isinstance(node.op, Op) or not node.op.shape_only:
        return node.operands
    return [v for i in read_positions(node) if (v := node.inputs[i]) is not None]


def use_counts(graph: Graph) -> Counter[Value]:
    """Return how many times each value is used: as operand of nodes, as output, and as new value of an update."""
    return graph.cached(_count_uses).copy()


def cached_use_counts(graph: Graph) -> Mapping[Value, int]:
    """Return what `use_counts` returns, without a copy."""
    return graph.cached(_count_uses)


def _count_uses(graph: Graph) -> Counter[Value]:
    counts: Counter[Any] = Counter(itertools.chain.from_iterable([node.inputs for node in graph.nodes]))
    del counts[None]  # operands that are absent
    counts.update(graph.outputs)
    counts.update(new for _, new in graph.updates)
    return counts


class Readers:
    """The number of uses of each value in a graph that is being rewritten.

    Attributes:
        counts: The uses by value.
    """

    def __init__(self, counts: dict[Value, int]) -> None:
        """counts: The uses in the old graph. The object keeps and changes this dictionary."""
        self.counts = counts

    def replace(self, old: Value, new: Value) -> None:
        """Record that all readers of `old` now read `new`."""
        count = self.counts.pop(old, 0)
        self.counts[new] = self.counts.get(new, 0) + count

    def count(self, value: Value) -> int:
        """Return the number of uses; 1 for a value that a rule has just made."""
        return self.counts.get(value, 1)

    def has_one_use(self, value: Value) -> bool:
        """Return whether the value has a single use. Then it may be fused into its reader."""
        return self.counts.get(value, 1) == 1


FusionRule: TypeAlias = Callable[[Node, Readers], Sequence[Value] | None]


def fuse(
    graph: Graph,
    rule: FusionRule,
    *,
    needs: Collection[str] | None = None,
    at: Collection[str] | None = None,
    after: Collection[str] = (),
    among: Collection[str] | None = None,
    counts_uses: bool = True,
    nested: bool = False,
) -> Graph:
    """Apply a local rule in one sweep, also to subgraphs (see `map_bodies`).

    `rule(node, readers)` gets each node with its operands in the new graph, and the number of uses of values there. It
    returns one value per output, or None to keep the node. Nodes later in the graph see the replacements of earlier
    ones, so a chain is fused step by step.

    Some readers do not count: those that read only a value's shape, if this shape becomes a constant when the
    dimensions of the inputs are bound.

    The rule is called only for operators in `at` (default: all), and for nodes that read results of operators in
    `after`; if `among` is given, only for those whose own operator is in it. A graph without any operator of `needs`,
    or of `at` and `after`, is returned unchanged. Takes linear time if the rule looks at a bounded number of preceding
    nodes.

    With `counts_uses=False`, `readers` is empty: for rules that do not look at it.
    """
    for names in (needs, None if at is None else (*at, *after)):
        if names is not None and graph.operators.isdisjoint(names) and graph.operators.isdisjoint(CONTROL):
            return graph
    counts = use_counts(graph) if counts_uses else Counter()
    if counts_uses and not nested:
        counts.subtract(v for node in shape_readers(graph) for v in node.operands)
    readers = Readers(counts)
    has_control = not graph.operators.isdisjoint(CONTROL)

    def visit(node: Node, operands: Sequence[Value | None]) -> Sequence[Value]:
        if has_control and is_control(node):
            options: Any = {"needs": needs, "at": at, "after": after, "among": among, "counts_uses": counts_uses}
            rebuilt = map_bodies(node, operands, lambda inner: fuse(inner, rule, nested=True, **options))
        else:
            rebuilt = node if operands is node.inputs else node.rebuilt(operands)
        return rule(rebuilt, readers) or rebuilt.outputs

    followed = readers if counts_uses else None
    visited = None if at is None else {*at, *CONTROL}
    return rewrite(graph, visit, at=visited, after=after, among=among, readers=followed)


def readers_of(graph: Graph, *, nested: bool = False) -> dict[Value, list[Node]]:
    """Return the nodes that read each value, once for each operand. Excludes the readers that `fuse` does not count."""
    shapes = set() if nested else set(shape_readers(graph))
    readers: dict[Value, list[Node]] = {}
    for node in graph.nodes:
        if shapes and node in shapes:
            continue
        for value in node.inputs:
            if value is None:
                continue
            found = readers.get(value)
            if found is None:
                readers[value] = [node]
            else:
                found.append(node)
    return readers


def shape_readers(graph: Graph) -> Sequence[Node]:
    """Return the Shape and Size nodes that become constant when the dimensions of the graph's inputs are bound."""
    return graph.cached(_find_readers_of_shapes)


def _find_readers_of_shapes(graph: Graph) -> Sequence[Node]:
    if graph.operators.isdisjoint(("Shape", "Size")):
        return ()
    found: list[Node] = []
    known = {s for v in graph.inputs for d in symbolic_dims(v) for s in d.symbols}
    for node in graph.nodes:
        if node.op.name in ("Shape", "Size") and not node.op.domain:
            (value,) = node.operands
            if value.rank is not None and all(d.symbols <= known for d in symbolic_dims(value)):
                found.append(node)
    return found


def symbolic_dims(value: Value) -> list[DimExpr]:
    """Return the symbolic dimensions of a tensor."""
    kind = value.type
    if not isinstance(kind, TensorType) or kind.shape is None or kind.is_static:
        return []
    return [d for d in kind.shape if isinstance(d, DimExpr)]


def all_nodes(graph: Graph) -> Iterator[Node]:
    """Yield the nodes of a graph and of its subgraphs."""
    for node in graph.nodes:
        yield node
        for inner in node.op.subgraphs().values():
            yield from all_nodes(inner)


def groups_of(graph: Graph) -> dict[str, None]:
    """Return the groups of a graph's nodes, also inside control flow, in their order."""
    return dict.fromkeys(group for node in all_nodes(graph) if (group := node.meta.get(context.GROUP)) is not None)


def fused_node(op: Op, operands: Sequence[Value | None], parts: Sequence[Node], *, keeps_type: bool = False) -> Value:
    """Return the output of a new node that replaces `parts`. The last of them computes the result.

    The new node has the name of the first part that has a name. The output keeps its name. The metadata of all parts is
    merged.

    keeps_type: Whether the output has the type of the last part's output. If that is static, it is not inferred again.
    """
    inputs = list(operands)
    while inputs and inputs[-1] is None:
        inputs.pop()
    name = next((part.name for part in parts if part.name), "")
    meta = {k: v for part in parts for k, v in part.meta.items()}
    result = parts[-1].outputs[0]
    types = [result.type] if keeps_type and _is_plain(result.type) else None
    return Node(op, inputs, name, meta, output_names=[result.name], types=types).output


def _is_plain(kind: Type) -> bool:
    """Return whether a type consists of an element type and known sizes."""
    return isinstance(kind, TensorType) and kind.is_static and kind.value is None and kind.floats is None


def run_passes(graph: Graph, passes: Sequence[Step]) -> Graph:
    """Apply passes, or pairs (name, function), in this order. `declare.pipeline` checks orders; this function does not.

    GRAPHKIT_DEBUG=1 prints the effect of each pass to stderr, 2 also its time, and 3 also each graph that a pass
    changed. With GRAPHKIT_CHECK_PASSES=1, CheckFailed is raised if a property that a pass ensures does not hold.
    """
    level, checking = debug.level(), config.CHECK_PASSES.get()
    is_quiet = not level and not checking
    for step in passes:
        if is_quiet and isinstance(step, Pass) and not step.concerns(graph):
            continue
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
    """Print the effect of a pass, in as much detail as GRAPHKIT_DEBUG selects."""
    took = f"; {debug.milliseconds(seconds)}" if level >= debug.DECISIONS else ""
    debug.say(f"pass {name}: {effect(before, graph)}{took}")
    if level >= debug.LISTINGS and graph is not before:
        debug.show(str(graph))


def operators(graph: Graph) -> Counter[str]:
    """Return the number of nodes of each operator, without constants. Includes subgraphs of If, Loop and Scan."""
    found: Counter[str] = Counter()
    pending = [graph]
    while pending:
        for node in pending.pop().nodes:
            if not is_constant(node):
                found[node.op.name] += 1
                # The nodes inside of a fused region are not counted.
                pending += node.op.subgraphs().values() if node.op.domain == "" else ()
    return found


def is_constant(node: Node) -> bool:
    return node.op.name == "Constant" and node.op.domain == ""


def effect(before: Graph, after: Graph) -> str:
    """Return one line: `175 -> 158 nodes: BatchNormalization -17`, or `175 nodes` if no number changes."""
    old, new = operators(before), operators(after)
    changed = {name: new[name] - old[name] for name in sorted({*old, *new}) if new[name] != old[name]}
    if not changed:
        return f"{new.total()} nodes"
    listed = ", ".join(f"{name} {count:+d}" for name, count in changed.items())
    return f"{old.total()} -> {new.total()} nodes: {listed}"
