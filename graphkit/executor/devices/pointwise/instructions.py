"""Instructions of pointwise kernels. `rules` emits them operator by operator; each device interprets or compiles them.

An instruction computes in the type of its first operand; `select` in the type of its second one. The result has the
same type, except that comparisons return booleans, and casts return their target type.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from graphkit.ir.graph import Node
from graphkit.ir.types import HALVES, DType, TensorType
from graphkit.named_tuples import NamedTuple
from graphkit.ops.pointwise import divides_integers


class Term(NamedTuple):
    """A value inside a kernel, by its number. dtype: its type in the graph; float16 is computed as float32."""

    number: int
    dtype: DType


# Opcode, numbers of the operands, and the target type of a cast (else empty).
Instruction: TypeAlias = tuple[str, tuple[int, ...], str]


class PointwiseProgram(NamedTuple):
    """A pointwise kernel. Values are numbered: the inputs, then the constants, then the results of the instructions.

    Attributes:
        name: Name of the operator.
        shape: Shape of every output.
        inputs: Shape and type of each operand; None for an absent one.
        constants: Type and bytes of one element. Constants of type float16 or bfloat16 are float32 here.
        instructions: The instructions, in order.
        outputs: Number of the value, or -1 for an unused output, and type of the output. The value is float32 if the
            type is float16 or bfloat16.
        divisions: Names of the nodes that divide integers, for the error message if a divisor is 0.
    """

    name: str
    shape: tuple[int, ...]
    inputs: list[tuple[tuple[int, ...], str] | None]
    constants: tuple[tuple[str, bytes], ...]
    instructions: tuple[Instruction, ...]
    outputs: tuple[tuple[int, str], ...]
    divisions: str

    @property
    def read(self) -> set[int]:
        """The numbers of the values that an instruction or an output reads."""
        return {n for _, operands, _ in self.instructions for n in operands} | {value for value, _ in self.outputs}


class PointwiseCode(NamedTuple):
    """A pointwise kernel for all sizes. Attributes as in PointwiseProgram; `inputs` are only the types of operands."""

    name: str
    inputs: tuple[str | None, ...]
    constants: tuple[tuple[str, bytes], ...]
    instructions: tuple[Instruction, ...]
    outputs: tuple[tuple[int, str], ...]
    divisions: str

    def at(self, inputs: Sequence[tuple[int, ...] | None], shape: tuple[int, ...]) -> PointwiseProgram:
        """Return the program for operands with the shapes `inputs` and outputs that all have the shape `shape`."""
        given = [
            None if dtype is None or size is None else (size, dtype)
            for size, dtype in zip(inputs, self.inputs, strict=True)
        ]
        return PointwiseProgram(self.name, shape, given, *self[2:])


class Instructions:
    """The instructions of one kernel.

    The kernel converts float16 and bfloat16 operands to float32 when it reads them, and rounds when it writes a result.
    So a chain of operators rounds only once, and is at least as precise as separate operators. But a Cast to these
    types rounds its own result.
    """

    def __init__(self, inputs: Sequence[TensorType | None]):
        self._inputs = inputs
        self._constants: dict[tuple[str, bytes], int] = {}
        self._code: list[Instruction] = []
        self._divisions: list[str] = []

    def divides(self, node: Node) -> None:
        """If a node divides integers, add its name to the error message for a division by zero."""
        if divides_integers(node):
            self._divisions.append(node.name or node.describe())

    def input(self, position: int) -> Term:
        """Return the term of an operand, which must be present."""
        tensor = self._inputs[position]
        assert tensor is not None
        return Term(position, tensor.dtype)

    def constant(self, value: Any, dtype: DType) -> Term:
        """Return the term of a constant, which is one number for all elements.

        Its value is stored as float32 if `dtype` is float16 or bfloat16. Constants have negative numbers until
        `program` renumbers all values.
        """
        stored = DType.FLOAT32 if dtype in HALVES else dtype
        with np.errstate(over="ignore"):
            key = (stored.value, np.asarray(value).astype(stored.numpy).tobytes())
        return Term(-1 - self._constants.setdefault(key, len(self._constants)), dtype)

    def value_of(self, term: Term) -> Any:
        """Return the value of a constant; None for other terms."""
        if term.number >= 0:
            return None
        dtype, element = list(self._constants)[-1 - term.number]
        return np.frombuffer(element, DType(dtype).numpy)[0]

    def emit(self, opcode: str, *operands: Term | float, dtype: DType | None = None) -> Term:
        """Append an instruction, and return the term of its result.

        Args:
            opcode: The operation.
            operands: Terms, or numbers, which become constants of the dtype of the first term.
            dtype: The dtype of the result. By default, it is that of the first term.
        """
        like = next(t for t in operands if isinstance(t, Term)).dtype
        terms = [t if isinstance(t, Term) else self.constant(t, like) for t in operands]
        return self._append(opcode, tuple([t.number for t in terms]), "", dtype or like)

    def cast(self, x: Term, dtype: DType) -> Term:
        """Return x converted to `dtype`, by the rules of ONNX's Cast."""
        if x.dtype is dtype:
            return x
        inside, target = (DType.FLOAT32 if d in HALVES else d for d in (x.dtype, dtype))
        number = x.number
        if inside is not target:
            # float64 becomes float16 through float32. Rounding to odd in the first step avoids a double rounding.
            opcode = "cast_to_odd" if inside is DType.FLOAT64 and dtype is DType.FLOAT16 else "cast"
            number = self._append(opcode, (number,), target.value, dtype).number
        if dtype in HALVES:
            return self._append(f"round_{dtype.value}", (number,), "", dtype)
        return Term(number, dtype)

    def _append(self, opcode: str, operands: tuple[int, ...], target: str, dtype: DType) -> Term:
        self._code.append((opcode, operands, target))
        return Term(len(self._inputs) + len(self._code) - 1, dtype)

    def code(self, name: str, outputs: Sequence[Term | None]) -> PointwiseCode:
        """Return the code that computes `outputs`; None for unused outputs."""
        first = len(self._inputs)
        stored = [None if t is None else self._unrounded(t) for t in outputs]
        results = [n for n in stored if n is not None]
        if len(self._code) > 1:
            self._join_products(results)
        renumbered = self._without_unread(results)
        return PointwiseCode(
            name,
            inputs=tuple([None if t is None else t.dtype.value for t in self._inputs]),
            constants=tuple(self._constants),
            instructions=tuple(
                [
                    (opcode, tuple([renumbered(n) for n in operands]), target)
                    for index, (opcode, operands, target) in enumerate(self._code)
                    if renumbered(first + index) >= 0
                ]
            ),
            outputs=tuple(
                [
                    (-1, "bool") if t is None or n is None else (renumbered(n), t.dtype.value)
                    for t, n in zip(outputs, stored, strict=True)
                ]
            ),
            divisions=", ".join(self._divisions),
        )

    def _unrounded(self, output: Term) -> int:
        """Return the number of the value to write. If an instruction rounds to the output's type, that is the value
        before rounding, because the kernel rounds when it writes.
        """
        index = output.number - len(self._inputs)
        if index >= 0 and self._code[index][0] == f"round_{output.dtype.value}":
            return self._code[index][1][0]
        return output.number

    def _join_products(self, results: Sequence[int]) -> None:
        """Fuse a product with the addition or subtraction that reads it, if no other instruction reads the product."""
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
                    self._code[index] = (joined, (*self._code[product - first][1], other), "")
                    uses[product] = 0
                    break

    def _without_unread(self, results: Sequence[int]) -> Any:
        """Return a function that renumbers values as `PointwiseProgram` does.

        Only instructions whose results are read get numbers; for the others it returns -1.
        """
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
