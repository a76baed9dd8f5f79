"""Split tensors with several roles: exporters merge equal tensors, but training must update them separately."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence

from graphkit.ir.graph import Graph, Node, Value
from graphkit.ir.names import Names
from graphkit.named_tuples import NamedTuple
from graphkit.ops.control.views import capture_count
from graphkit.ops.operands import SETTINGS
from graphkit.passes.core.captures import add_captures, captured
from graphkit.passes.core.sweep import is_control, rewrite
from graphkit.passes.training.to_training import is_batch_norm

_STATISTICS = {3: "running_mean", 4: "running_var"}
# Roles that several readers may share. The role of a running statistic belongs to one node: it is (node, position).
_LEARNED, _SETTING = "learned", "setting"


def separate_roles(graph: Graph) -> tuple[Graph, dict[str, str]]:
    """Return the graph with a separate copy of each stored tensor for each of its roles, and the origin of each copy.

    Roles are:
    - learned: all layers that share the tensor continue to share it,
    - a running statistic of one BatchNormalization,
    - a setting, such as a bound of Clip or a ratio of Dropout.

    The tensor itself keeps the first role in this list that it has. The copies are appended to the inputs. They have
    the role "state" and the name of the node and the operand. Tensors are followed through Identity nodes and captures
    of If, Loop and Scan. Takes linear time.

    Returns:
        The graph, and a dictionary from the names of copies to the names of the original tensors.
    """
    stored = {v: v for v in graph.inputs if v.role in ("parameter", "state")}
    uses: dict[Value, dict[Hashable, str]] = {}
    has_indirect_statistic = False
    for use in _uses(graph, stored):
        uses.setdefault(use.origin, {}).setdefault(use.role, use.name)
        has_indirect_statistic = has_indirect_statistic or (use.is_statistic and not use.direct)
    copies: dict[tuple[Value, Hashable], Value] = {}
    sources: dict[Value, Value] = {}
    unlearned: dict[Value, Value] = {}
    names = Names(graph.input_names)
    for origin, found in uses.items():
        for role in _copied_roles(origin, list(found)):
            name = names.take(found[role] or f"{graph.name_of(origin)}_{_suffix(role)}")
            copies[origin, role] = Value(origin.type, name, role="state")
            sources[copies[origin, role]] = origin
        if origin.role == "parameter" and _LEARNED not in found and any(isinstance(role, tuple) for role in found):
            unlearned[origin] = origin.like(role="state", name=graph.name_of(origin))
    if not copies and not has_indirect_statistic and not unlearned:
        return graph, {}
    result = _with_copies(graph, stored, copies, list(copies.values()), unlearned)
    return result, {result.name_of(copy): graph.name_of(origin) for copy, origin in sources.items()}


class _Use(NamedTuple):
    """An operand that is a stored tensor, with its role, and the name for a copy.

    direct: Whether the node reads the tensor itself, and not the result of an Identity.
    """

    origin: Value
    role: Hashable
    name: str = ""
    direct: bool = True

    @property
    def is_statistic(self) -> bool:
        return isinstance(self.role, tuple)


def _copied_roles(origin: Value, roles: Sequence[Hashable]) -> list[Hashable]:
    """Return the roles that get a copy.

    If a state is the statistic of a BatchNormalization, its other readers keep reading it, because they need the
    updates.
    """
    statistics = [r for r in roles if r not in (_LEARNED, _SETTING)]
    if origin.role == "state" and statistics:
        return statistics[1:]
    if not statistics and _LEARNED not in roles:
        return []
    first = _LEARNED if _LEARNED in roles else statistics[0]
    return [r for r in roles if r != first]


def _suffix(role: Hashable) -> str:
    return _STATISTICS[role[1]] if isinstance(role, tuple) else _SETTING


def _role(node: Node, position: int) -> Hashable:
    if is_batch_norm(node) and position in _STATISTICS:
        return node, position
    setting = not node.op.domain and position in SETTINGS.get(node.op.name, ())
    return _SETTING if setting else _LEARNED


def _uses(graph: Graph, table: Mapping[Value, Value]) -> Iterator[_Use]:
    """Yield every use of a stored tensor. `table` maps inputs of the graph to stored tensors.

    A copy is named after the result of an Identity, if there is one, or else after the node.
    """
    table = dict(table)
    named: dict[Value, str] = {}
    for node in graph.nodes:
        if _is_identity(node) and node.inputs[0] in table:
            table[node.output] = table[node.inputs[0]]
            named[node.output] = node.output.name
            continue
        if is_control(node):
            for body in node.op.subgraphs().values():
                yield from _uses(body, {inner: table[outer] for outer, inner in captured(node, body) if outer in table})
        for position, value in enumerate(node.inputs):
            # A captured tensor is used where the body reads it.
            if value in table and not _is_capture(node, position):
                role = _role(node, position)
                own = f"{node.name}.{_suffix(role)}" if node.name and role != _LEARNED else ""
                yield _Use(table[value], role, named.get(value, "") or own, value not in named)
    for value in graph.outputs:
        if value in table:
            yield _Use(table[value], _LEARNED)


def _is_identity(node: Node) -> bool:
    return node.op.name == "Identity" and not node.op.domain


def _is_capture(node: Node, position: int) -> bool:
    return is_control(node) and position >= len(node.inputs) - capture_count(node)


def _with_copies(
    graph: Graph,
    stored: Mapping[Value, Value],
    copies: Mapping[tuple[Value, Hashable], Value],
    added: Sequence[Value],
    replaced: Mapping[Value, Value] | None = None,
) -> Graph:
    """Return the graph with each use on its copy.

    stored: By value, the stored tensor that it is. copies: The value of the copy in this graph, by (tensor, role).
    added: Inputs to append. replaced: Inputs to replace.
    """
    table, inputs = dict(stored), dict(replaced or {})
    here = {origin: inputs.get(v, v) for v, origin in stored.items()}

    def placed(old: Value | None, new: Value | None, role: Hashable) -> Value | None:
        if old not in table:
            return new
        # A statistic is updated, so the node must read the stored tensor itself, not the result of an Identity.
        return copies.get((table[old], role), here[table[old]] if isinstance(role, tuple) else new)

    def rule(node: Node, operands: Sequence[Value | None]) -> Sequence[Value] | None:
        if _is_identity(node) and node.inputs[0] in table:
            table[node.output] = table[node.inputs[0]]
            return None
        if is_control(node):
            return _in_bodies(node, operands, table, copies)
        placing = enumerate(zip(node.inputs, operands, strict=True))
        return node.rebuilt([placed(old, new, _role(node, i)) for i, (old, new) in placing]).outputs

    return rewrite(graph, rule, inputs=inputs, extra_inputs=added)


def _in_bodies(
    node: Node,
    operands: Sequence[Value | None],
    table: Mapping[Value, Value],
    copies: Mapping[tuple[Value, Hashable], Value],
) -> Sequence[Value]:
    """Let the subgraphs of a node read copies, which they capture. Return the results of the new node."""
    origins = {
        key: {inner: table[outer] for outer, inner in captured(node, body) if outer in table}
        for key, body in node.op.subgraphs().items()
    }
    read = {(use.origin, use.role) for key, body in node.op.subgraphs().items() for use in _uses(body, origins[key])}
    wanted = [key for key in copies if key in read]
    bodies = {}
    for key, body in node.op.subgraphs().items():
        inner = {k: Value(copies[k].type, copies[k].name) for k in wanted}
        bodies[key] = _with_copies(body, origins[key], inner, list(inner.values()))
    return add_captures(node, operands, bodies, [copies[k] for k in wanted]).outputs
