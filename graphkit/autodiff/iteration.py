"""A view of a Loop or Scan for its gradient rule: states that propagate gradients, values that the node must save."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from graphkit.autodiff.subgraphs import differentiable
from graphkit.errors import MissingGradient
from graphkit.ir.graph import Node, Value, topological
from graphkit.ir.types import TensorType
from graphkit.ops.control.views import Along, LoopState, LoopView, repeating
from graphkit.passes.control.merge import merge_control


@dataclass(frozen=True)
class Iteration:
    """A Loop or Scan, as its gradient rule reads it."""

    view: LoopView

    @staticmethod
    def of(node: Node) -> Iteration:
        return Iteration(LoopView.of(node))

    def carrying_gradients(self, active: set[Value], seeded: set[Value], outputs: Sequence[Value]) -> list[LoopState]:
        """The states that propagate gradients from one iteration to the one before it.

        Such a state depends on a value that is differentiated, and a result that has a gradient depends on the state.

        active: outer values that are differentiated.
        seeded: states, as inputs of the body, whose final value has a gradient.
        outputs: results of the body that have a gradient.
        """
        view = self.view
        operands = zip(view.body.inputs[view.lead :], view.operands[view.lead :], strict=True)
        varying = {a for a, b in operands if b in active and differentiable(a)}
        while True:
            reached = set(varying)
            for inner in view.body.nodes:
                if any(v in reached for v in inner.operands):
                    reached.update(v for v in inner.outputs if differentiable(v))
            more = {c.before for c in view.states if c.after in reached and differentiable(c.before)} - varying
            if not more:
                break
            varying |= more
        live = set(seeded)
        while True:
            seeds = [*outputs, *(c.after for c in view.states if c.before in live)]
            used = {*seeds, *(v for n in topological(seeds) for v in n.operands)}
            more = {c.before for c in view.states if c.before in used} - live
            if not more:
                break
            live |= more
        return [c for c in view.states if c.before in varying and c.before in live]

    def stacking(self, values: Sequence[Value]) -> tuple[Node | None, list[Along]]:
        """The forward node that stacks those of `values` that have no stack yet (None if all have), and all stacks."""
        existing = {s.inner: s for s in (*self.view.scan_outputs, *self.view.scan_inputs)}
        new = [v for v in dict.fromkeys(values) if v not in existing]
        for value in new:
            if not isinstance(value.type, TensorType) and not self.view.is_loop:
                raise MissingGradient(f"the backward pass needs {value} of every iteration; Scan stacks only tensors")
        node = self.view.node
        if new:
            op = repeating(node)
            body = self.view.body
            changes: dict[str, Any] = {"body": merge_control(body.replace(outputs=[*body.outputs, *new]))}
            for field in ("scan_output_axes", "scan_output_directions") if op.name == "Scan" else ():
                if getattr(op, field) is not None:
                    changes[field] = (*getattr(op, field), *(0 for _ in new))
            node = Node(op.replace(**changes), node.inputs, node.name, node.meta)
            stacks = node.outputs[len(node.outputs) - len(new) :]
            existing |= {v: Along(v, stack) for v, stack in zip(new, stacks, strict=True)}
        return node if new else None, [existing[v] for v in dict.fromkeys(values)]

    def counter(self) -> Value:
        """A value whose stack has one slice per iteration, so that its length is the number of iterations."""
        view = self.view
        return view.scan_inputs[0].inner if view.scan_inputs else view.body.inputs[0]
