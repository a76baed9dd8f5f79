"""Make arrays and single-node graphs from an operator's `Sample`s, for the checks and the test suite."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from graphkit.errors import UsageError
from graphkit.ir.dims import fresh, symbol
from graphkit.ir.graph import Graph, Node, Value
from graphkit.ir.types import (
    ANY,
    BOOLS,
    FLOATS,
    INTEGERS,
    UNSIGNED,
    DType,
    MapType,
    OptionalType,
    SequenceType,
    TensorType,
    Type,
    dtype_of,
)
from graphkit.ops import F, Op, OptionalSample, Rand, Sample, SequenceSample, as_value
from graphkit.ops.evaluate import evaluate
from graphkit.ops.sequence.elements import holds_maps, joint, with_own_sizes

# Element types in which random sample inputs are drawn, in report order.
SWEPT = (
    DType.FLOAT32, DType.FLOAT64, DType.FLOAT16, DType.BFLOAT16,
    DType.INT8, DType.INT16, DType.INT32, DType.INT64,
    DType.UINT8, DType.UINT16, DType.UINT32, DType.UINT64, DType.BOOL,
)  # fmt: skip


@dataclass(frozen=True)
class Case:
    """One sample of one operator in one element type: the operator with its attributes, and the input arrays.

    `types` are those of the operands, None for an absent one. An array is a list for a sequence, None for an absent
    operand and for an empty optional.
    """

    op: Op
    sample: Sample
    number: int
    dtype: DType
    arrays: tuple[Any, ...]
    types: tuple[Type | None, ...]

    @property
    def name(self) -> str:
        """`Softmax-1-float32`: operator, number of the sample, element type."""
        return f"{self.op.name}-{self.number}-{self.dtype}"

    def as_stored(self) -> Case:
        """The case with its float attributes rounded to float32, as ONNX stores them."""
        rounded = {k: float(np.float32(v)) for k, v in self.op.attributes().items() if isinstance(v, float)}
        return replace(self, op=self.op.replace(**rounded)) if rounded else self

    def converted(self, dtype: DType) -> Case:
        """The same numbers in another element type: random inputs and literal float arrays of that type change."""
        if dtype is self.dtype:
            return self
        specs = self.sample.inputs
        arrays = [_converted(s, a, self.dtype, dtype) for s, a in zip(specs, self.arrays, strict=True)]
        types = [_type_of(s, a, dtype) for s, a in zip(specs, arrays, strict=True)]
        return replace(self, dtype=dtype, arrays=tuple(arrays), types=tuple(types))

    @property
    def is_constant(self) -> tuple[bool, ...]:
        """Per input, whether it is a constant of `graph`: literal arrays of the sample (axes, indices, bounds) are.

        If all inputs are literal, the float arrays among them are graph inputs.
        """
        literal = [_is_literal(s) for s in self.sample.inputs]
        if all(known or s is None for known, s in zip(literal, self.sample.inputs, strict=True)):
            return tuple(isinstance(t, TensorType) and t.dtype not in FLOATS for t in self.types)
        return tuple(literal)

    @property
    def has_tensors_only(self) -> bool:
        """Whether no operand and no result is a sequence or an optional."""
        if not all(t is None or isinstance(t, TensorType) for t in self.types):
            return False
        return all(isinstance(v.type, TensorType) for v in self.graph().outputs)

    def graph(self, *, symbolic: bool = False, all_inputs: bool = False) -> Graph:
        """A graph of this one node; its inputs are `feeds(all_inputs)`.

        Literal arrays of the sample are constants unless `all_inputs` (see `is_constant`). With `symbolic`, every
        dimension of every graph input is a symbol of its own, `d<input>_<axis>`; dimensions inside sequences and
        optionals are unknown.
        """
        operands: list[Value | None] = []
        inputs = []
        for position, (kind, constant) in enumerate(zip(self.types, self.is_constant, strict=True)):
            if kind is None:
                operands.append(None)
                continue
            if constant and not all_inputs:
                operands.append(as_value(self.arrays[position]))
                continue
            value = Value(_with_names(kind, position) if symbolic else kind, f"x{position}")
            inputs.append(value)
            operands.append(value)
        return Graph(inputs, self._node(operands).outputs, name=self.op.name)

    def _node(self, operands: list[Value | None]) -> Node:
        while operands and operands[-1] is None:
            operands.pop()
        return Node(self.op, operands)

    def feeds(self, *, all_inputs: bool = False) -> list[Any]:
        """The arrays for the inputs of `graph`."""
        operands = zip(self.arrays, self.types, self.is_constant, strict=True)
        return [array for array, kind, constant in operands if kind is not None and (all_inputs or not constant)]

    @property
    def has_maps(self) -> bool:
        """Whether an operand or a result holds maps. No operators build maps from arbitrary tensors."""
        kinds = [*self.types, *(v.type for v in self.graph().outputs)]
        return any(t is not None and holds_maps(t) for t in kinds)

    def between_tensors(self, *, symbolic: bool = False) -> tuple[Graph, list[Any]]:
        """`graph` and `feeds` with tensors only: added nodes build sequences and optionals, and take results apart.

        Maps stay as they are.
        """
        graph = self.graph(symbolic=symbolic)
        if self.has_tensors_only or self.has_maps:
            return graph, self.feeds()
        inputs: list[Value] = []
        arrays: list[Any] = []
        built: list[Value] = []

        def tensors(array: Any, kind: Type, name: str) -> Any:
            if isinstance(kind, SequenceType):
                items = [tensors(item, kind.element, f"{name}_{i}") for i, item in enumerate(array)]
                return F.sequence_construct(*items) if items else F.sequence_empty(dtype=tensor_within(kind).dtype)
            if isinstance(kind, OptionalType):
                return (
                    F.optional(type=kind.element) if array is None else F.optional(tensors(array, kind.element, name))
                )
            single = TensorType(dtype_of(array.dtype), array.shape)
            inputs.append(Value(_with_names(single, name) if symbolic else single, f"x{name}"))
            arrays.append(array)
            return inputs[-1]

        for value, array in zip(graph.inputs, self.feeds(), strict=True):
            built.append(tensors(array, value.type, value.name.removeprefix("x")))
        (node,) = [n for n in graph.nodes if n.op is self.op]
        table = dict(zip(graph.inputs, built, strict=True))
        operands = [None if v is None else table.get(v, v) for v in node.inputs]
        pairs = zip(self._node(operands).outputs, evaluate(graph, self.feeds()), strict=True)
        outputs = [tensor for value, result in pairs for tensor in taken_apart(value, result)]
        return Graph(inputs, outputs, name=self.op.name), arrays

    @property
    def bindings(self) -> dict[str, int]:
        """The sizes of the symbols in a symbolic `graph`."""
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
    """The element types that a sample's random inputs may have; only float32 if it has no random inputs."""
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
    """Draw the inputs of sample `number`. Literal float arrays are converted to `dtype`, if the operand allows it.

    Equal arguments return the same case, so its arrays are read-only.
    """
    key: Any = cls  # mypy looks for the hash of an instance
    return _make_case(key, number, dtype_of(dtype), seed)


@functools.lru_cache(maxsize=1 << 14)
def _make_case(cls: type[Op], number: int, under_test: DType, seed: int) -> Case:
    sample = samples_of(cls)[number]
    # The seed uses the operator's first name, so that renaming it does not change the drawn numbers.
    rng = np.random.default_rng([seed, number, *(*cls.former_names, cls.name)[0].encode()])

    def made(spec: Any, allowed: frozenset[DType]) -> Any:
        if spec is None:
            return None
        if isinstance(spec, SequenceSample):
            return [made(item, allowed) for item in spec.items]
        if isinstance(spec, OptionalSample):
            return made(spec.item, allowed)
        if isinstance(spec, dict):
            return spec
        if isinstance(spec, Rand):
            return draw(spec, under_test if spec.dtype is None else dtype_of(spec.dtype), rng)
        if _is_literal(spec):
            return _adapted(np.asarray(spec), under_test, allowed)
        if isinstance(spec, tuple):
            return draw(Rand(spec), under_test, rng)
        raise UsageError(
            f"{cls.name}: a sample input is a shape, a Rand, an array, a SequenceSample, "
            f"an OptionalSample or None, not {spec!r}"
        )

    names = _formal_names(cls, len(sample.inputs))
    arrays = tuple(made(spec, _allowed(cls, name)) for name, spec in zip(names, sample.inputs, strict=True))
    types = tuple(_type_of(spec, array, under_test) for spec, array in zip(sample.inputs, arrays, strict=True))
    _freeze(arrays)
    return Case(cls(**sample.attrs), sample, number, under_test, arrays, types)


def _freeze(arrays: Iterable[Any]) -> None:
    for array in arrays:
        if isinstance(array, np.ndarray):
            array.flags.writeable = False
        elif isinstance(array, list):
            _freeze(array)


def tensor_within(kind: Type) -> TensorType:
    """The type of the tensors that a sequence or an optional holds."""
    while not isinstance(kind, TensorType):
        kind = kind.element
    return kind


def _type_of(spec: Any, array: Any, dtype: DType) -> Type | None:
    """The type of the graph input for a sample input; None for an absent operand."""
    if isinstance(spec, OptionalSample):
        held = _type_of(spec.item, array, dtype)
        return OptionalType(TensorType(dtype) if held is None else held)
    if isinstance(spec, SequenceSample):
        kinds = [t for s, a in zip(spec.items, array, strict=True) if (t := _type_of(s, a, dtype)) is not None]
        empty = TensorType(dtype if spec.dtype is None else spec.dtype)
        return with_own_sizes(SequenceType(joint(kinds) if kinds else empty))
    if isinstance(spec, dict):
        return map_type(spec)
    return None if spec is None else TensorType(dtype_of(array.dtype), array.shape)


def _with_names(kind: Type, position: int | str) -> Type:
    """The type with its tensors' dimensions replaced by symbols."""
    if not isinstance(kind, TensorType):
        return kind.with_element(_with_fresh(kind.element))
    return TensorType(kind.dtype, [symbol(f"d{position}_{axis}") for axis in range(len(kind.known_shape))])


def _with_fresh(kind: Type) -> Type:
    if not isinstance(kind, TensorType):
        return kind.with_element(_with_fresh(kind.element))
    return TensorType(kind.dtype, None if kind.shape is None else [fresh() for _ in kind.shape])


def _converted(spec: Any, array: Any, before: DType, after: DType) -> Any:
    """A sample input in another element type, if its type is the one under test."""
    if isinstance(spec, SequenceSample):
        return [_converted(s, a, before, after) for s, a in zip(spec.items, array, strict=True)]
    if isinstance(spec, OptionalSample):
        return _converted(spec.item, array, before, after)
    follows = isinstance(array, np.ndarray) and dtype_of(array.dtype) is before
    follows = follows and (_is_drawn(spec) or before in FLOATS)
    return array.astype(after.numpy) if follows else array


def taken_apart(value: Value, result: Any) -> Iterator[Value]:
    """The tensors that a value holds. `result` is the evaluated value: an array, or a list."""
    if isinstance(value.type, OptionalType):
        if result is None:
            return
        yield from taken_apart(F.optional_get_element(value), result)
    elif isinstance(value.type, SequenceType):
        for i, item in enumerate(result):
            yield from taken_apart(F.sequence_at(value, np.array(i)), item)
    else:
        yield value


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
    return isinstance(spec, (np.ndarray, np.generic, bool, int, float, str, list))


def _is_drawn(spec: Any) -> bool:
    if isinstance(spec, SequenceSample):
        return any(map(_is_drawn, spec.items))
    if isinstance(spec, OptionalSample):
        return _is_drawn(spec.item)
    if isinstance(spec, Rand):
        return spec.dtype is None
    return isinstance(spec, tuple)


def _formal_names(cls: type[Op], count: int) -> list[str]:
    formals = cls.formals
    if count > len(formals) and not (formals and formals[-1].variadic):
        raise UsageError(f"{cls.name}: a sample has {count} inputs, the operator takes {len(formals)}")
    return [formals[min(i, len(formals) - 1)].name for i in range(count)]


def _allowed(cls: type[Op], formal: str) -> frozenset[DType]:
    """The element types that an operand allows. Some constraints refer to an earlier operand: they allow its types."""
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


def has_doubles(value: Any) -> bool:
    """Whether a result is float64, or contains float64."""
    if isinstance(value, (list, tuple)):
        return any(map(has_doubles, value))
    if isinstance(value, dict):
        return any(map(has_doubles, value.values()))
    return value is not None and np.asarray(value).dtype == np.float64
