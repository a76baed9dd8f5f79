"""Results of operators whose references return views keep their numbers while memory is used again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice

import numpy as np
import pytest
from cases import each_case
from compiled_graph import Native

import graphkit as gk
from graphkit.checks.samples import Case, dtypes_of, make_case, samples_of
from graphkit.errors import GraphkitError
from graphkit.ir.graph import Node, Value
from graphkit.ir.types import FLOATS, INTEGERS, DType, TensorType, dtype_of
from graphkit.ops import F, Op, registry
from graphkit.ops.evaluate import run_node


def views_of(cls: type[Op]) -> Iterator[Case]:
    """The samples of an operator whose reference returns a view of an operand."""
    for number, sample in enumerate(samples_of(cls)):
        case = make_case(cls, number, dtypes_of(cls, sample)[0])
        if not case.has_tensors_only:
            continue
        operands = [None if a is None else a.copy() for a in case.arrays]
        (node,) = (n for n in case.graph(all_inputs=True).nodes if n.op is case.op)
        results = run_node(node, operands[: len(node.inputs)])
        if any(np.may_share_memory(r, x) for r in results for x in operands if x is not None):
            yield case


class Network:
    """An operator between steps whose memory is used again. Its operands are computed in the run.

    unknown: the element types of operands whose shapes a branch decides.
    """

    def __init__(self, case: Case, unknown: frozenset[DType]):
        self.inputs: list[Value] = []
        self.arrays: list[np.ndarray] = []
        self.case, self._unknown = case, unknown
        self.flag = self._input(np.array(True))
        self._zeros: dict[DType, Value] = {}
        self._row = self._input(np.arange(24, dtype=np.float32) / 24)

    def _input(self, array: np.ndarray) -> Value:
        self.inputs.append(Value(TensorType(dtype_of(array.dtype), array.shape), f"in{len(self.inputs)}"))
        self.arrays.append(array)
        return self.inputs[-1]

    def operands(self) -> list[Value | None]:
        return [None if a is None else self._computed(a) for a in self.case.arrays]

    def _computed(self, array: np.ndarray) -> Value:
        value, kind = self._input(array), dtype_of(array.dtype)
        if kind in FLOATS | INTEGERS:
            if kind not in self._zeros:
                self._zeros[kind] = self._input(np.zeros((), array.dtype))
            value = F.add(value, self._zeros[kind])
        if kind not in self._unknown:
            return value
        other = np.zeros((2, *array.shape), array.dtype)
        return gk.cond(self.flag, lambda: F.add(value, self._zeros[kind]), lambda: F.constant(value=other))

    def results(self, operands: list[Value | None]) -> list[Value]:
        while operands and operands[-1] is None:
            operands.pop()
        return list(Node(self.case.op, operands).outputs)

    def read_later(self, results: list[Value]) -> Value:
        """Read the results after steps that need their own memory."""
        steps = [self._row]
        for step in (F.sin, F.cos, F.erf, F.atan, F.sin):
            steps.append(step(steps[-1]))
        flat = [F.reshape(r, np.array([-1])) for r in results]
        return F.concat(*(F.cast(r, to="float32") for r in flat), F.sum(*steps), axis=0)


def plain(net: Network) -> Value:
    return net.read_later(net.results(net.operands()))


def read_in_a_loop(net: Network) -> Value:
    results = net.results(net.operands())
    return gk.scan(lambda carry, _: (carry, net.read_later(results)), np.float32(0), None, length=2)[1]


def in_a_loop(net: Network) -> Value:
    operands = net.operands()
    return gk.scan(lambda carry, _: (carry, net.read_later(net.results(operands))), np.float32(0), None, length=2)[1]


def in_a_branch(net: Network) -> Value:
    operands = net.operands()
    zero = np.zeros(1, np.float32)
    return gk.cond(net.flag, lambda: net.read_later(net.results(operands)), lambda: F.constant(value=zero))


UNKNOWN = [frozenset[DType](), INTEGERS, FLOATS, FLOATS | INTEGERS]
PLACES = [plain, read_in_a_loop, in_a_loop, in_a_branch]


def runs_natively(case: Case, unknown: frozenset[DType], place: Callable[[Network], Value]) -> bool:
    """Compare the case in a network with its reference. False if the operator needs to know a shape or elements."""
    net = Network(case, unknown)
    try:
        output = place(net)
    except GraphkitError:
        return False
    for optimize in (True, False):
        Native(net.inputs, [output], optimize=optimize)(*net.arrays)
    return True


@each_case(
    [(cls, others) for cls in registry for others in (False, True)],
    group=lambda part: "all",
    name=lambda part: part[0].name,
    full=lambda part: part[1],
)
def test_views_outlive_the_memory_of_their_operands(part: tuple[type[Op], bool]) -> None:
    """By default the first sample of an operator that is a view, with each unknown type and at each place once.

    The full lane has all samples, with each unknown type at each place.
    """
    cls, others = part
    turn = len(cls.name)
    found = [
        runs_natively(case, unknown, place)
        for case in islice(views_of(cls), None if others else 1)
        for row, unknown in enumerate(UNKNOWN)
        for column, place in enumerate(PLACES)
        if others or (row + column + turn) % len(PLACES) == 0
    ]
    if not any(found):
        pytest.skip("no reference of a sample returns a view")


def test_operators_that_move_nothing_have_views() -> None:
    for op in ("Reshape", "Identity", "Squeeze", "Unsqueeze", "Flatten"):
        assert any(views_of(registry.get("", op))), op
