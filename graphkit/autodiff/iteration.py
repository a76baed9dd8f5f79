"""A Loop or a Scan taken apart: its body beside the operands and results that it works on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from graphkit.autodiff.subgraphs import differentiable
from graphkit.errors import MissingGradient
from graphkit.ir.graph import Graph, Node, Value, topological
from graphkit.ir.types import TensorType
from graphkit.passes.control.merge import merge_control


@dataclass(frozen=True)
class Stacked:
    """A tensor of the surrounding graph that is read or written slice by slice."""

    inner: Value
    outer: Value
    axis: int = 0
    backwards: int = 0


@dataclass(frozen=True)
class Carried:
    """A state: as an iteration finds and leaves it, and as the loop returns it."""

    before: Value
    after: Value
    final: Value


@dataclass(frozen=True)
class Iteration:
    """The parts of a Loop or Scan; `captures` are pairs (inside, outside), `first_operand` is behind m and cond."""

    node: Node
    body: Graph
    carried: tuple[Carried, ...]
    slices: tuple[Stacked, ...]
    captures: tuple[tuple[Value, Value], ...]
    stacked: tuple[Stacked, ...]
    first_operand: int

    @staticmethod
    def of(node: Node) -> Iteration:
        op: Any = node.op
        loop = op.name == "Loop"
        first, scanned = (2, 0) if loop else (0, op.num_scan_inputs)
        operands, inner = node.inputs[first:], op.body.inputs[first:]
        results = op.body.outputs[1 if loop else 0 :]
        states = len(operands) - scanned - op.captures
        pairs = [(a, b) for a, b in zip(inner, operands, strict=True) if b is not None]
        assert len(pairs) == len(operands), "values of a loop are never absent"
        count = len(results) - states
        read, written = _places(op, "scan_input", scanned), _places(op, "scan_output", count)
        return Iteration(
            node,
            op.body,
            tuple(map(Carried, inner[:states], results[:states], node.outputs[:states])),
            _stacked(pairs[states : states + scanned], read),
            tuple(pairs[states + scanned :]),
            _stacked(list(zip(results[states:], node.outputs[states:], strict=True)), written),
            first,
        )

    @property
    def entry(self) -> Sequence[Value]:
        """What a Loop's body is told: the number of the iteration, and the condition, which holds."""
        return self.body.inputs[: self.first_operand]

    def carrying_gradients(self, active: set[Value], seeded: set[Value], outputs: Sequence[Value]) -> list[Carried]:
        """The states whose gradient an iteration passes on: they depend on what is differentiated, and results on them.

        active: outer values that are differentiated; seeded: states (as an iteration finds them) whose final value
        has a gradient; outputs: results of the body that have one.
        """
        operands = zip(self.body.inputs[self.first_operand :], self.node.inputs[self.first_operand :], strict=True)
        varying = {a for a, b in operands if b in active and differentiable(a)}
        while True:
            reached = set(varying)
            for inner in self.body.nodes:
                if any(v in reached for v in inner.operands):
                    reached.update(v for v in inner.outputs if differentiable(v))
            more = {c.before for c in self.carried if c.after in reached and differentiable(c.before)} - varying
            if not more:
                break
            varying |= more
        live = set(seeded)
        while True:
            seeds = [*outputs, *(c.after for c in self.carried if c.before in live)]
            used = {*seeds, *(v for n in topological(seeds) for v in n.operands)}
            more = {c.before for c in self.carried if c.before in used} - live
            if not more:
                break
            live |= more
        return [c for c in self.carried if c.before in varying and c.before in live]

    def stacking(self, values: Sequence[Value]) -> tuple[Node | None, list[Stacked]]:
        """The forward node that also stacks those of `values` which are not scanned yet; where each is found."""
        existing = {s.inner: s for s in (*self.stacked, *self.slices)}
        new = [v for v in dict.fromkeys(values) if v not in existing]
        for value in new:
            if not isinstance(value.type, TensorType):
                raise MissingGradient(f"the backward pass needs {value} of every iteration; only tensors stack")
        node = self.node
        if new:
            op: Any = node.op
            changes: dict[str, Any] = {"body": merge_control(self.body.replace(outputs=[*self.body.outputs, *new]))}
            for field in ("scan_output_axes", "scan_output_directions") if op.name == "Scan" else ():
                if getattr(op, field) is not None:
                    changes[field] = (*getattr(op, field), *(0 for _ in new))
            node = Node(op.replace(**changes), node.inputs, node.name, node.meta)
            stacks = node.outputs[len(node.outputs) - len(new) :]
            existing |= {v: Stacked(v, stack) for v, stack in zip(new, stacks, strict=True)}
        return node if new else None, [existing[v] for v in dict.fromkeys(values)]

    def counter(self) -> Value:
        """A value that each iteration has."""
        return self.slices[0].inner if self.slices else self.body.inputs[0]

    def keeps_size(self, value: Value) -> bool:
        """Whether all iterations give `value` one shape, as far as types tell, so that it can be stacked.

        Sizes that are known only at run time are the same in all iterations when they come from outside: from what
        the loop captures or slices, or from a state that keeps its shape.
        """
        if not isinstance(value.type, TensorType) or value.type.shape is None:
            return False
        symbols = {s for d in value.type.shape if not isinstance(d, int) for s in d.symbols if s.startswith("?")}
        return symbols <= self._outer_symbols

    @cached_property
    def _outer_symbols(self) -> set[str]:
        steady = [c.before for c in self.carried if c.before.type == c.after.type]
        found: set[str] = set()
        for value in (*steady, *(s.inner for s in self.slices), *(a for a, _ in self.captures)):
            if isinstance(value.type, TensorType):
                for d in (*(value.type.shape or ()), *(value.type.value or ())):
                    found.update(() if isinstance(d, int) else d.symbols)
        return found


def _stacked(pairs: Sequence[tuple[Value, Value]], places: Sequence[tuple[int, int]]) -> tuple[Stacked, ...]:
    return tuple(Stacked(a, b, axis, backwards) for (a, b), (axis, backwards) in zip(pairs, places, strict=True))


def _places(op: Any, kind: str, count: int) -> list[tuple[int, int]]:
    """Axis and direction of each scan input, or output; a Loop stacks along the first axis, forwards."""
    none = (0,) * count
    return list(zip(*(getattr(op, f"{kind}_{what}", None) or none for what in ("axes", "directions")), strict=True))
