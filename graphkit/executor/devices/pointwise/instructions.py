"""Instructions of pointwise kernels: collected operator by operator, and read by the machine of every device.

An opcode's name says what it computes. The type of an instruction is that of its first operand (of `select` its second)
and that of its result, but that comparisons give booleans, and a cast its target.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from graphkit.ir.graph import Node
from graphkit.ir.types import HALVES, INTEGERS, DType, TensorType

# Operators that have no result for integers whose divisor (of Pow: base, below a negative exponent) is zero.
DIVISIONS = frozenset({"Div", "Mod", "Pow"})


class Term(NamedTuple):
    """A value inside of a kernel. Its dtype is the graph's."""

    number: int
    dtype: DType


class PointwiseProgram(NamedTuple):
    """A pointwise kernel. Values are numbered: the inputs, then the constants, then the results of the instructions.

    shape: of every output. inputs: shape and type, None for one that is left out. constants: type and the bytes of one
    element, half floats as float32. instructions: opcode, operands, and of a cast the target. outputs: the value, or -1
    for one that nobody reads, and the type; a half float's value is a float32. divisions: the nodes that divide
    integers, for the message when a divisor is 0.
    """

    name: str
    shape: tuple[int, ...]
    inputs: list[tuple[tuple[int, ...], str] | None]
    constants: list[tuple[str, bytes]]
    instructions: list[tuple[str, list[int], str]]
    outputs: list[tuple[int, str]]
    divisions: str

    @property
    def read(self) -> set[int]:
        """The values that an instruction, or a result, is made of."""
        return {n for _, operands, _ in self.instructions for n in operands} | {value for value, _ in self.outputs}


class Instructions:
    """The instructions of one kernel.

    Half floats are widened when they are read and rounded when they are written: between, they are float32, so that a
    chain of operators rounds once, and no less precisely than operator by operator. A Cast rounds where it stands.
    """

    def __init__(self, inputs: Sequence[TensorType | None]):
        self._inputs = inputs
        self._constants: dict[tuple[str, bytes], int] = {}
        self._code: list[tuple[str, list[int], str]] = []
        self._divisions: list[str] = []

    def divides(self, node: Node) -> None:
        """Name `node` in the error when an integer is divided by zero, if it may do that."""
        if node.op.name in DIVISIONS and node.operands[0].dtype in INTEGERS:
            self._divisions.append(node.name or node.describe())

    def input(self, position: int) -> Term:
        """Operand `position`, which is there."""
        tensor = self._inputs[position]
        assert tensor is not None
        return Term(position, tensor.dtype)

    def constant(self, value: Any, dtype: DType) -> Term:
        """A number for all elements, of a half float type as float32 has it.

        Constants have negative numbers until all are known.
        """
        stored = DType.FLOAT32 if dtype in HALVES else dtype
        with np.errstate(over="ignore"):
            key = (stored.value, np.asarray(value).astype(stored.numpy).tobytes())
        return Term(-1 - self._constants.setdefault(key, len(self._constants)), dtype)

    def value_of(self, term: Term) -> Any:
        """The number that a constant is; None for other terms."""
        if term.number >= 0:
            return None
        dtype, element = list(self._constants)[-1 - term.number]
        return np.frombuffer(element, DType(dtype).numpy)[0]

    def emit(self, opcode: str, *operands: Term | float, dtype: DType | None = None) -> Term:
        """Append an instruction. Numbers take the dtype of the first term; `dtype` is the result's, if another."""
        like = next(t for t in operands if isinstance(t, Term)).dtype
        terms = [t if isinstance(t, Term) else self.constant(t, like) for t in operands]
        return self._append(opcode, [t.number for t in terms], "", dtype or like)

    def cast(self, x: Term, dtype: DType) -> Term:
        """x's elements as `dtype`, by the rules of the standard's Cast."""
        if x.dtype is dtype:
            return x
        inside, target = (DType.FLOAT32 if d in HALVES else d for d in (x.dtype, dtype))
        number = x.number
        if inside is not target:
            # From float64 to float16 in two steps, without rounding twice.
            opcode = "cast_to_odd" if inside is DType.FLOAT64 and dtype is DType.FLOAT16 else "cast"
            number = self._append(opcode, [number], target.value, dtype).number
        if dtype in HALVES:
            return self._append(f"round_{dtype.value}", [number], "", dtype)
        return Term(number, dtype)

    def _append(self, opcode: str, operands: list[int], target: str, dtype: DType) -> Term:
        self._code.append((opcode, operands, target))
        return Term(len(self._inputs) + len(self._code) - 1, dtype)

    def program(self, name: str, shape: Sequence[int], outputs: Sequence[Term | None]) -> PointwiseProgram:
        """The program that computes `outputs`, all of `shape`; None for those that nobody reads."""
        first = len(self._inputs)
        results = [t.number for t in outputs if t is not None]
        if len(self._code) > 1:
            self._join_products(results)
        renumbered = self._without_unread(results)
        return PointwiseProgram(
            name,
            tuple(shape),
            inputs=[None if t is None else (t.static_shape, t.dtype.value) for t in self._inputs],
            constants=list(self._constants),
            instructions=[
                (opcode, [renumbered(n) for n in operands], target)
                for index, (opcode, operands, target) in enumerate(self._code)
                if renumbered(first + index) >= 0
            ],
            outputs=[(-1, "bool") if t is None else (renumbered(t.number), t.dtype.value) for t in outputs],
            divisions=", ".join(self._divisions),
        )

    def _join_products(self, results: Sequence[int]) -> None:
        """Turn a sum or difference with a product that nobody else reads into one instruction."""
        first = len(self._inputs)
        uses = [0] * (first + len(self._code))
        for number in (*(n for _, operands, _ in self._code for n in operands), *results):
            if number >= 0:
                uses[number] += 1
        for index, (opcode, operands, _) in enumerate(self._code):
            if opcode not in ("add", "sub"):
                continue
            left, right = operands
            for product, other, joined in (
                (left, right, "mul_add" if opcode == "add" else "mul_sub"),
                (right, left, "mul_add" if opcode == "add" else "nmul_add"),
            ):
                if product >= first and uses[product] == 1 and self._code[product - first][0] == "mul":
                    self._code[index] = (joined, [*self._code[product - first][1], other], "")
                    uses[product] = 0
                    break

    def _without_unread(self, results: Sequence[int]) -> Any:
        """Numbers as the kernel counts them: inputs, constants, then instructions whose results are read (else -1)."""
        first = len(self._inputs)
        read = [False] * len(self._code)
        pending = [n - first for n in results if n >= first]
        while pending:
            index = pending.pop()
            if not read[index]:
                read[index] = True
                pending.extend(n - first for n in self._code[index][1] if n >= first)
        base = first + len(self._constants)
        positions = list(itertools.accumulate(read, initial=0))

        def renumbered(number: int) -> int:
            if number < 0:
                return first - 1 - number
            if number < first:
                return number
            return base + positions[number - first] if read[number - first] else -1

        return renumbered
