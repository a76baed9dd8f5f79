"""Fuse batch normalisation in training with the residual sum and the activation after it, also in the backward pass.

One kernel then reads and writes each array once, instead of once for each operator.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from graphkit.ir.graph import Graph, Node, Value
from graphkit.ops import DOMAIN, F, operator
from graphkit.ops.internal.channels_last_norm import ChannelsLastBatchNorm, ChannelsLastBatchNormGrad
from graphkit.passes.core.declare import CONTROL, Property, graph_pass
from graphkit.passes.core.match import first, is_op, operand_orders, same_type, scalar
from graphkit.passes.core.sweep import is_control, map_bodies, readers_of, rewrite
from graphkit.passes.fuse.epilogue import activation_of


@dataclass
class _Fusion:
    """The fusion of the normalisation `node`. Its output replaces the value `result`."""

    node: Node
    result: Value
    residual: Value | None = None
    activation: dict[str, Any] = field(default_factory=dict)


@dataclass
class _Gradient:
    """The fusion of the gradient node `node`.

    It replaces the node that computes `source`, the first operand of `node`, and returns `source` as an additional
    result. `source` is the sum of `terms` (one or two). If `mask` is given, it is zero where the gradient of its
    activation is zero.
    """

    node: Node
    source: Value
    terms: Sequence[Value]
    mask: _Fusion | None = None


@graph_pass(requires=[Property.CHANNELS_LAST, Property.POINTWISE_APART], at=["ChannelsLastBatchNorm"])
def fuse_batch_norm(graph: Graph) -> Graph:
    """Fuse ChannelsLastBatchNorm with the operators after it, and its gradient with those before. Takes linear time."""
    return _Plan(graph).result() if any(_is_norm(node) or node.op.subgraphs() for node in graph.nodes) else graph


def _is_norm(node: Node) -> bool:
    return isinstance(node.op, ChannelsLastBatchNorm) and not node.op.activation


class _Plan:
    def __init__(self, graph: Graph):
        self._graph = graph
        self._readers = readers_of(graph)
        self._place = {node: i for i, node in enumerate(graph.nodes)}
        self._results = {*graph.outputs, *(new for _, new in graph.updates)}
        gradients: dict[Value, list[Node]] = {}
        for node in graph.nodes:
            if is_op(node, "ChannelsLastBatchNormGrad", domain=DOMAIN):
                gradients.setdefault(node.operands[4], []).append(node)
        self._fusions: dict[Node, _Fusion] = {}
        # For each fused node, the old value whose new value replaces the node's result.
        self._fused_nodes: dict[Node, Value] = {}
        self._sources: dict[Node, _Gradient] = {}  # by the node of their source
        for node in graph.nodes:
            if _is_norm(node):
                self._plan_fusion(node, gradients.get(node.outputs[3], []))
        self._gradients = {g.node: g for g in self._sources.values()}
        self._replaced: dict[Value, Value] = {}  # the new values, by the old ones that they replace
        self._made: dict[Node, Sequence[Value]] = {}  # fused gradients

    def _sole_reader(self, value: Value, *ignored: Node) -> Node | None:
        if value in self._results:
            return None
        readers = [r for r in self._readers.get(value, []) if r not in ignored]
        return readers[0] if len(readers) == 1 else None

    # --- what fits --------------------------------------------------------------------------------

    def _plan_fusion(self, node: Node, gradients: Sequence[Node]) -> None:
        y = node.outputs[0]
        fusion = self._with_clip(node, gradients) or self._with_residual(node) or self._with_relu(node, y, None)
        if fusion is not None and fusion.result.node is not None:
            self._fusions[node] = fusion
        for gradient in gradients:
            found = self._gradient(gradient, fusion)
            if found is not None and found.source.node is not None and found.source.node not in self._sources:
                self._sources[found.source.node] = found

    def _with_relu(self, node: Node, y: Value, residual: Value | None) -> _Fusion | None:
        reader = self._sole_reader(y)
        if reader is None or not is_op(reader, "Relu"):
            return None
        self._fused_nodes[reader] = y
        return _Fusion(node, reader.output, residual, {"activation": "Relu"})

    def _with_residual(self, node: Node) -> _Fusion | None:
        y = node.outputs[0]
        add = self._sole_reader(y)
        if add is None or not is_op(add, "Add") or add in self._fused_nodes:
            return None
        other = next((b for a, b in operand_orders(add) if a is y), y)
        if other is y or not same_type(y, other) or not self._is_available(other, node):
            return None
        self._fused_nodes[add] = y
        return self._with_relu(node, add.output, other) or _Fusion(node, add.output, other)

    def _is_available(self, value: Value, node: Node) -> bool:
        """Return whether the value is computed before the node."""
        return value.node is None or self._place[value.node] < self._place[node]

    def _with_clip(self, node: Node, gradients: Sequence[Node]) -> _Fusion | None:
        """Fuse a Clip with constant bounds. Its gradient compares the values with the bounds again."""
        y = node.outputs[0]
        readers = self._readers.get(y, [])
        clips = [r for r in readers if is_op(r, "Clip") and first(r) is y]
        if y in self._results or len(clips) != 1:
            return None
        activation = activation_of(clips[0])
        if activation is None or not math.isfinite(activation["activation_alpha"] + activation["activation_beta"]):
            return None
        fusion = _Fusion(node, clips[0].output, None, activation)
        other_readers = [r for r in readers if r is not clips[0]]
        if other_readers:
            masked = [m for g in gradients if (m := self._masked(first(g), fusion)) is not None]
            if len(masked) != 1 or not self._read_only_by(other_readers, masked[0]):
                return None
        self._fused_nodes[clips[0]] = y
        return fusion

    def _read_only_by(self, comparisons: Sequence[Node], mask: Node) -> bool:
        """Return whether only the condition of `mask` reads the comparisons."""
        joint = first(mask).node
        return joint is not None and all(
            c is joint or self._sole_reader(c.output) is joint for c in comparisons
        ) and self._sole_reader(joint.output) is mask  # fmt: skip

    # --- gradients --------------------------------------------------------------------------------

    def _masked(self, value: Value, fusion: _Fusion) -> Node | None:
        """Return the Where that computes `value` if it is the gradient of the fused activation; else None."""
        where = value.node
        if where is None or not is_op(where, "Where"):
            return None
        condition, dropped, _ = where.operands
        test = condition.node
        if test is None or scalar(dropped) != 0.0:
            return None
        if fusion.activation["activation"] == "Relu":
            stops = is_op(test, "LessOrEqual") and first(test) is fusion.result and scalar(test.operands[1]) == 0.0
            return where if stops else None
        if not is_op(test, "Or"):
            return None
        limits = {"Less": fusion.activation["activation_alpha"], "Greater": fusion.activation["activation_beta"]}
        for operand in test.operands:
            side = operand.node
            if side is None or not is_op(side, *limits) or first(side) is not fusion.node.outputs[0]:
                return None
            if scalar(side.operands[1]) != limits.pop(side.op.name):
                return None
        return where

    def _gradient(self, node: Node, fusion: _Fusion | None) -> _Gradient | None:
        dy = first(node)
        if fusion is not None and fusion.activation:
            where = self._masked(dy, fusion)
            if where is None:
                return None
            passed = where.operands[2]
            terms = self._terms(passed) if self._sole_reader(passed) is where else None
            return _Gradient(node, dy, terms or (passed,), fusion)
        terms = self._terms(dy)
        return None if terms is None else _Gradient(node, dy, terms)

    def _terms(self, value: Value) -> Sequence[Value] | None:
        """Return the two terms if `value` is a sum; else None."""
        node = value.node
        if node is None or not is_op(node, "Sum", "Add") or len(node.operands) != 2 or node in self._fused_nodes:
            return None
        return node.operands if all(same_type(v, value) for v in node.operands) else None

    # --- the new graph ----------------------------------------------------------------------------

    def result(self) -> Graph:
        changed = (*self._fusions, *self._fused_nodes, *self._gradients, *self._sources)
        names = {*CONTROL, *[node.op.name for node in changed]}
        return rewrite(self._graph, self._rule, at=names, replaced=self._replaced)

    def _built(self, value: Value) -> Value:
        """Return the new value."""
        return self._replaced.get(value, value)

    def _rule(self, node: Node, operands: Sequence[Value | None]) -> Sequence[Value] | None:
        if node in self._fusions:
            return self._fused(self._fusions[node])
        if node in self._fused_nodes:
            return (self._built(self._fused_nodes[node]),)
        if node in self._gradients:
            return self._made[node]
        if node in self._sources:
            gradient = self._sources[node]
            self._made[gradient.node] = self._fused_gradient(gradient)
            return (self._made[gradient.node][3],)
        return map_bodies(node, operands, fuse_batch_norm).outputs if is_control(node) else None

    def _fused(self, fusion: _Fusion) -> Sequence[Value]:
        node = fusion.node
        operands = [self._built(v) for v in node.operands]
        if fusion.residual is not None:
            operands.append(self._built(fusion.residual))
        names = [fusion.result.name, *(v.name for v in node.outputs[1:])]
        op = operator(node, ChannelsLastBatchNorm)
        return Node(op.replace(**fusion.activation), operands, node.name, node.meta, output_names=names).outputs

    def _fused_gradient(self, gradient: _Gradient) -> Sequence[Value]:
        node, mask = gradient.node, gradient.mask
        _, x, *vectors = node.operands
        dy, *addend = map(self._built, gradient.terms)
        if not same_type(first(node), gradient.terms[0]):
            dy = F.expand(dy, F.shape(self._built(x)))
        from_y = mask is not None and mask.residual is not None
        y = self._built(mask.result) if mask is not None and from_y else None
        op = operator(node, ChannelsLastBatchNormGrad)
        made = op.replace(**(mask.activation if mask is not None else {}))
        operands: list[Value | None] = [dy, self._built(x), *map(self._built, vectors)]
        if y is not None or addend:
            operands += [y, *addend]
        names = [*(v.name for v in node.outputs[:3]), gradient.source.name]
        return Node(made, operands, node.name, node.meta, output_names=names).outputs
