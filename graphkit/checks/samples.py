"""From an operator's `Sample`s to arrays and single-node graphs: what the checks and the test suite run."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from graphkit.errors import UsageError
from graphkit.ir.dims import Dim, symbol
from graphkit.ir.graph import Graph, Node, Value
from graphkit.ir.types import ANY, BOOLS, FLOATS, INTEGERS, UNSIGNED, DType, MapType, TensorType, dtype_of
from graphkit.ops import Op, Rand, Sample, as_value

# Element types that random sample inputs are drawn in, in the order of the report.
SWEPT = (
    DType.FLOAT32, DType.FLOAT64, DType.FLOAT16, DType.BFLOAT16,
    DType.INT8, DType.INT16, DType.INT32, DType.INT64,
    DType.UINT8, DType.UINT16, DType.UINT32, DType.UINT64, DType.BOOL,
)  # fmt: skip


@dataclass(frozen=True)
class Case:
    """One sample of one operator in one element type: the operator with its attributes, and its input arrays."""

    op: Op
    sample: Sample
    number: int
    dtype: DType
    arrays: tuple[Any, ...]

    @property
    def name(self) -> str:
        """`Softmax-1-float32`: operator, number of the sample, element type."""
        return f"{self.op.name}-{self.number}-{self.dtype}"

    def as_stored(self) -> Case:
        """The case with its float attributes rounded to float32, as ONNX stores them."""
        rounded = {k: float(np.float32(v)) for k, v in self.op.attributes().items() if isinstance(v, float)}
        return replace(self, op=self.op.replace(**rounded)) if rounded else self

    def converted(self, dtype: DType) -> Case:
        """The same numbers in another element type: drawn inputs, and float arrays that follow them."""
        if dtype is self.dtype:
            return self
        arrays = []
        for spec, array in zip(self.sample.inputs, self.arrays, strict=True):
            follows = isinstance(array, np.ndarray) and dtype_of(array.dtype) is self.dtype
            follows = follows and (_is_drawn(spec) or self.dtype in FLOATS)
            arrays.append(array.astype(dtype.numpy) if array is not None and follows else array)
        return replace(self, dtype=dtype, arrays=tuple(arrays))

    @property
    def is_constant(self) -> tuple[bool, ...]:
        """Per input, whether it is a constant of `graph`: what a sample gives literally (axes, indices, bounds).

        When a sample gives everything literally, its float arrays are inputs.
        """
        literal = [_is_literal(s) for s in self.sample.inputs]
        if all(known or s is None for known, s in zip(literal, self.sample.inputs, strict=True)):
            return tuple(
                a is not None and not isinstance(a, dict) and dtype_of(a.dtype) not in FLOATS for a in self.arrays
            )
        return tuple(literal)

    def graph(self, *, symbolic: bool = False, all_inputs: bool = False) -> Graph:
        """A graph of this one node; its inputs are `feeds(all_inputs)`.

        Arrays that the sample gives literally are constants unless `all_inputs` (see `is_constant`); with `symbolic`
        every dimension of every graph input is a name of its own, `d<input>_<axis>`.
        """
        operands: list[Value | None] = []
        inputs = []
        for position, (array, constant) in enumerate(zip(self.arrays, self.is_constant, strict=True)):
            if array is None:
                operands.append(None)
                continue
            if constant and not all_inputs:
                operands.append(as_value(array))
                continue
            if isinstance(array, dict):
                inputs.append(Value(map_type(array), f"x{position}"))
                operands.append(inputs[-1])
                continue
            shape: Sequence[Dim] = array.shape
            if symbolic:
                shape = [symbol(f"d{position}_{axis}") for axis in range(array.ndim)]
            value = Value(TensorType(dtype_of(array.dtype), shape), f"x{position}")
            inputs.append(value)
            operands.append(value)
        while operands and operands[-1] is None:
            operands.pop()
        return Graph(inputs, Node(self.op, operands).outputs, name=self.op.name)

    def feeds(self, *, all_inputs: bool = False) -> list[np.ndarray]:
        """The arrays for the inputs of `graph`."""
        pairs = zip(self.arrays, self.is_constant, strict=True)
        return [array for array, constant in pairs if array is not None and (all_inputs or not constant)]

    @property
    def bindings(self) -> dict[str, int]:
        """What the names of a symbolic `graph` stand for."""
        return {
            f"d{position}_{axis}": size
            for position, array in enumerate(self.arrays)
            if isinstance(array, np.ndarray)
            for axis, size in enumerate(array.shape)
        }


def samples_of(cls: type[Op]) -> tuple[Sample, ...]:
    """The operator's samples, whether they are a tuple or a function that returns one."""
    samples = cls.samples
    return tuple(samples() if callable(samples) else samples)


def dtypes_of(cls: type[Op], sample: Sample) -> tuple[DType, ...]:
    """The element types that a sample's random inputs may have; float32 alone when it has none."""
    allowed = frozenset(ANY)
    drawn = False
    for name, spec in zip(_formal_names(cls, len(sample.inputs)), sample.inputs, strict=True):
        if _is_drawn(spec):
            drawn = True
            allowed &= _allowed(cls, name)
    if not drawn:
        return (DType.FLOAT32,)
    if sample.dtypes is not None:
        allowed &= sample.dtypes
    return tuple(d for d in SWEPT if d in allowed)


def make_case(cls: type[Op], number: int, dtype: Any = DType.FLOAT32, seed: int = 0) -> Case:
    """Draw the inputs of sample `number`. Float arrays given literally follow the element type under test."""
    sample, under_test = samples_of(cls)[number], dtype_of(dtype)
    # An operator that gets another name keeps its numbers.
    rng = np.random.default_rng([seed, number, *(*cls.former_names, cls.name)[0].encode()])
    arrays: list[Any] = []
    for name, spec in zip(_formal_names(cls, len(sample.inputs)), sample.inputs, strict=True):
        if spec is None:
            arrays.append(None)
        elif isinstance(spec, Rand):
            arrays.append(draw(spec, under_test if spec.dtype is None else dtype_of(spec.dtype), rng))
        elif isinstance(spec, dict):
            arrays.append(spec)
        elif _is_literal(spec):
            arrays.append(_adapted(np.asarray(spec), under_test, _allowed(cls, name)))
        elif isinstance(spec, tuple):
            arrays.append(draw(Rand(spec), under_test, rng))
        else:
            raise UsageError(f"{cls.name}: a sample input is a shape, a Rand, an array or None, not {spec!r}")
    return Case(cls(**sample.attrs), sample, number, under_test, tuple(arrays))


def all_cases(cls: type[Op], seed: int = 0) -> Iterator[Case]:
    """Every sample in every element type that it allows."""
    for number, sample in enumerate(samples_of(cls)):
        for dtype in dtypes_of(cls, sample):
            yield make_case(cls, number, dtype, seed)


def draw(spec: Rand, dtype: DType, rng: np.random.Generator) -> np.ndarray:
    """Random values: standard normal or uniform for floats, small integers, fair booleans."""
    low, high = spec.low, spec.high
    if dtype in BOOLS:
        return rng.integers(0, 2, spec.shape).astype(bool)
    if dtype in INTEGERS:
        first, last = (-4, 5) if low is None else (math.ceil(low), math.ceil(high))
        if dtype in UNSIGNED and first < 0:
            first, last = (0, max(last, 1)) if last > 0 else (-last, -first)
        return rng.integers(first, max(last, first) + 1, spec.shape).astype(dtype.numpy)
    values = rng.standard_normal(spec.shape) if low is None else rng.uniform(low, high, spec.shape)
    if spec.definite:
        values = values @ np.swapaxes(values, -1, -2) + spec.shape[-1] * np.eye(spec.shape[-1])
    return np.asarray(values).astype(dtype.numpy)


def map_type(entries: dict[Any, Any]) -> MapType:
    """The type of a map that a sample gives."""
    key, value = next(iter(entries.items()))
    return MapType(
        DType.STRING if isinstance(key, str) else DType.INT64, TensorType(dtype_of(np.asarray(value).dtype), ())
    )


def _is_literal(spec: Any) -> bool:
    return isinstance(spec, (np.ndarray, np.generic, bool, int, float, str, list, dict))


def _is_drawn(spec: Any) -> bool:
    if isinstance(spec, Rand):
        return spec.dtype is None
    return isinstance(spec, tuple)


def _formal_names(cls: type[Op], count: int) -> list[str]:
    formals = cls.formals
    if count > len(formals) and not (formals and formals[-1].variadic):
        raise UsageError(f"{cls.name}: a sample has {count} inputs, the operator takes {len(formals)}")
    return [formals[min(i, len(formals) - 1)].name for i in range(count)]


def _allowed(cls: type[Op], formal: str) -> frozenset[DType]:
    """The dtypes of an operand; a constraint that names an earlier operand has that operand's."""
    constraint = cls.types.get(formal, ANY)
    while isinstance(constraint, str):
        constraint = cls.types.get(constraint, ANY)
    return frozenset(constraint)


def _adapted(array: np.ndarray, under_test: DType, allowed: frozenset[DType]) -> np.ndarray:
    if array.dtype.kind in "US":
        return array.astype(object)
    if dtype_of(array.dtype) in FLOATS and under_test in FLOATS and under_test in allowed:
        return array.astype(under_test.numpy)
    return array
