"""Views of If, Loop and Scan that say what each operand and result is for. All other code reads them through these."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Final, TypeAlias, TypeGuard, cast

from graphkit.ir.graph import Graph, Node, Operator, Value
from graphkit.ir.types import TensorType
from graphkit.named_tuples import NamedTuple

# Most graphs have no control flow, and import none of its operators.
if TYPE_CHECKING:
    from graphkit.ops.control.operators import If, Loop, Scan

    Repeating: TypeAlias = Loop | Scan


def repeating(node: Node) -> Repeating:
    """The operator of a Loop or a Scan."""
    if node.op.domain or node.op.name not in ("Loop", "Scan"):
        raise TypeError(f"{node.describe()}: its operator is neither Loop nor Scan")
    return cast("Loop | Scan", node.op)


def _is_scan(op: Repeating) -> TypeGuard[Scan]:
    return op.name == "Scan"


def _branching(node: Node) -> If:
    if not is_if(node):
        raise TypeError(f"{node.describe()}: its operator is not If")
    return cast("If", node.op)


class LoopState(NamedTuple):
    """A state of a loop: its initial value, its value at the begin and end of an iteration, and its final value."""

    initial: Value
    before: Value
    after: Value
    final: Value


class Along(NamedTuple):
    """A tensor that a loop reads or writes slice by slice.

    inner: one slice, in the body. outer: the whole tensor. axis, backwards: the axis of the slices, and 1 if they are
    taken from its end.
    """

    inner: Value
    outer: Value
    axis: int = 0
    backwards: int = 0


class Capture(NamedTuple):
    """A value from outside that every iteration reads."""

    inner: Value
    outer: Value


class IfView:
    """An If: its condition is the first operand; all others are captured, by both branches in the same order."""

    __slots__ = ("node", "operands")

    def __init__(self, node: Node, operands: tuple[Value | None, ...]):
        self.node: Final = node
        self.operands: Final = operands

    @staticmethod
    def of(node: Node, operands: Sequence[Value | None] | None = None) -> IfView:
        """Return the view of an If. operands: replace the node's own operands."""
        return IfView(node, tuple(node.inputs if operands is None else operands))

    @property
    def condition(self) -> Value:
        return _there(self.operands[:1])[0]

    @property
    def captures(self) -> Sequence[Value]:
        """The outer values that the inputs of each branch capture."""
        return _there(self.operands[1:])

    @property
    def branches(self) -> tuple[Graph, Graph]:
        """The branch for a true condition, and the one for a false condition."""
        op = _branching(self.node)
        return op.then_branch, op.else_branch

    @property
    def chosen(self) -> Graph | None:
        """The branch that runs; None if the condition is not known before a run."""
        constants = self.condition.tensor.constants
        return None if constants is None else self.branches[0 if constants[0] else 1]

    def with_branches(self, then: Graph, other: Graph) -> Operator:
        """The operator with these branches."""
        op = _branching(self.node)
        made: Operator = op.replace(then_branch=then, else_branch=other)
        return made


class LoopView:
    """View of a Loop or a Scan. Operands and inputs of the body have the same order (omitted ones are None):

    `lead` of them (Loop: trip count and condition outside, number of the iteration and condition inside), the states,
    the scan inputs, the captures. The body returns `flag` values (Loop: one, whether to continue; Scan: none), the
    states, and a slice of each scan output. The node returns the final states and the scan outputs.
    """

    def __init__(
        self, node: Node, operands: tuple[Value | None, ...], lead: int, flag: int, state_count: int, scan_count: int
    ):
        self.node: Final = node
        self.operands: Final = operands
        self.lead: Final = lead
        self.flag: Final = flag
        self.state_count: Final = state_count
        self.scan_count: Final = scan_count

    @staticmethod
    def of(node: Node, operands: Sequence[Value | None] | None = None) -> LoopView:
        """Return the view of a Loop or Scan. operands: replace the node's own operands."""
        op = repeating(node)
        lead, flag, scanned = (0, 0, op.num_scan_inputs) if _is_scan(op) else (2, 1, 0)
        given = node.inputs if operands is None else operands
        given = (*given, *[None] * (lead - len(given)))
        return LoopView(node, given, lead, flag, len(given) - lead - scanned - op.captures, scanned)

    @property
    def is_loop(self) -> bool:
        return self.flag == 1

    @property
    def body(self) -> Graph:
        return repeating(self.node).body

    @property
    def recompute(self) -> bool:
        """Whether the gradient saves only the states, and computes each iteration again."""
        return repeating(self.node).recompute

    # Positions among the operands, and among the inputs of the body.

    @property
    def at_states(self) -> slice:
        return slice(self.lead, self.lead + self.state_count)

    @property
    def at_scan_inputs(self) -> slice:
        return slice(self.at_states.stop, self.at_states.stop + self.scan_count)

    @property
    def at_captures(self) -> slice:
        return slice(self.at_scan_inputs.stop, len(self.operands))

    # Positions among the results of the body.

    @property
    def at_after(self) -> slice:
        return slice(self.flag, self.flag + self.state_count)

    @property
    def at_slices(self) -> slice:
        return slice(self.at_after.stop, len(self.body.outputs))

    @property
    def entry(self) -> Sequence[Value]:
        """The first inputs of a Loop's body: the iteration number, and the condition, which is always true there."""
        return self.body.inputs[: self.lead]

    @cached_property
    def states(self) -> tuple[LoopState, ...]:
        inner = self.body.inputs[self.at_states]
        after = self.body.outputs[self.at_after]
        initial = _there(self.operands[self.at_states])
        return tuple(map(LoopState, initial, inner, after, self.node.outputs[: self.state_count]))

    @cached_property
    def scan_inputs(self) -> tuple[Along, ...]:
        inner, outer = self.body.inputs[self.at_scan_inputs], _there(self.operands[self.at_scan_inputs])
        return tuple(Along(a, b, *p) for a, b, p in zip(inner, outer, self.scan_input_places, strict=True))

    @cached_property
    def scan_outputs(self) -> tuple[Along, ...]:
        inner, outer = self.body.outputs[self.at_slices], self.node.outputs[self.state_count :]
        return tuple(Along(a, b, *p) for a, b, p in zip(inner, outer, self.scan_output_places, strict=True))

    @cached_property
    def captures(self) -> tuple[Capture, ...]:
        inner, outer = self.body.inputs[self.at_captures], _there(self.operands[self.at_captures])
        return tuple(map(Capture, inner, outer))

    @property
    def scan_input_places(self) -> list[tuple[int, int]]:
        """Axis and direction of each scan input."""
        return self._places("scan_input", self.scan_count)

    @property
    def scan_output_places(self) -> list[tuple[int, int]]:
        """Axis and direction of each scan output; a Loop stacks along the first axis, forwards."""
        return self._places("scan_output", len(self.body.outputs) - self.at_after.stop)

    def keeps_size(self, value: Value) -> bool:
        """Return whether, by the types, `value` has one shape in all iterations, so that it can be stacked.

        Sizes that are known only at run time are equal in all iterations if they are sizes of captures, of slices of
        scan inputs, or of states that keep their shape.
        """
        if not isinstance(value.type, TensorType) or value.type.shape is None:
            return False
        symbols = {s for d in value.type.shape if not isinstance(d, int) for s in d.symbols if s.startswith("?")}
        return symbols <= self._outer_symbols

    @cached_property
    def _outer_symbols(self) -> set[str]:
        steady = [c.before for c in self.states if c.before.type == c.after.type]
        found: set[str] = set()
        for value in (*steady, *(s.inner for s in self.scan_inputs), *(c.inner for c in self.captures)):
            if isinstance(value.type, TensorType):
                for d in (*(value.type.shape or ()), *(value.type.value or ())):
                    found.update(() if isinstance(d, int) else d.symbols)
        return found

    def _places(self, kind: str, count: int) -> list[tuple[int, int]]:
        axes, directions = (getattr(self.node.op, f"{kind}_{what}", None) for what in ("axes", "directions"))
        return list(zip(axes or (0,) * count, directions or (0,) * count, strict=True))


def is_if(node: Node) -> bool:
    return node.op.name == "If" and not node.op.domain


def capture_count(node: Node) -> int:
    """Return the number of captures of an If, Loop or Scan: its last operands, and last inputs of its subgraphs."""
    return len(node.inputs) - 1 if is_if(node) else repeating(node).captures


def _there(values: Sequence[Value | None]) -> list[Value]:
    found = [v for v in values if v is not None]
    assert len(found) == len(values), "conditions, states, scan inputs and captures are never absent"
    return found
