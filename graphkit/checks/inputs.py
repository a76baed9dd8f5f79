"""Generate arrays for a model's inputs: fills, sizes for dimension names, bounds for indices."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from graphkit.errors import GraphkitError, InputError, OutOfMemory, UsageError, did_you_mean, lacks_memory
from graphkit.ir.dims import DimExpr, evaluate
from graphkit.ir.graph import Graph, Node, Value
from graphkit.ir.limits import require_memory
from graphkit.ir.types import (
    BOOLS,
    INTEGERS,
    UNSIGNED,
    DType,
    MapType,
    OptionalType,
    TensorType,
    Type,
    dtype_of,
)
from graphkit.passes.core.bind import bind, match_shapes

FILLS = ("random", "ones", "zeros", "arange")

# Sizes that are tried for unknown dimensions, in this order: powers of two, then the sizes of images of known networks.
_SIZES = (
    2, 1, 3, 4, 8, 16, 32, 64, 128, 224, 256, 320, 416, 512, 640,
    28, 24, 48, 96, 112, 160, 192, 299, 300, 331, 384, 480, 608, 800,
)  # fmt: skip
_BATCHES = (2, 1)
# Upper limit (exclusive) of random integers that do not index an axis of known size.
_INTEGER_BOUND = 10
# Shapes that are tried for inputs of unknown rank, in this order.
_UNKNOWN_SHAPES = ((1,), (1, 1), (1, 1, 1), (1, 1, 1, 1))
# Number of elements of a generated sequence.
_ELEMENTS = 2
# Upper limit of the bytes per element that generating an array takes.
_WIDEST = 16

# _HANDS_ON: operators that copy elements of their first operand. _INDEXES: operators with an index operand: operator ->
# (position of the indices, position of the data, attribute that gives the axis, or the axis itself).
_HANDS_ON = frozenset(
    {"Cast", "Identity", "Reshape", "Unsqueeze", "Squeeze", "Flatten", "Transpose", "Expand", "Slice", "Split"}
    | {"Gather", "GatherElements", "GatherND"}
)
_INDEXES: Mapping[str, tuple[int, int, Any]] = {
    "Gather": (1, 0, "axis"),
    "GatherElements": (1, 0, "axis"),
    "GatherND": (1, 0, 0),
    "ScatterElements": (1, 0, "axis"),
    "ScatterND": (1, 0, 0),
    "SoftmaxCrossEntropyLoss": (1, 0, 1),
    "NegativeLogLikelihoodLoss": (1, 0, 1),
}

# Operators with windows. If no window fits, a result is empty, and everything computed from it is meaningless.
_WINDOWS = frozenset({"AveragePool", "Conv", "LpPool", "MaxPool"})


@dataclass(frozen=True)
class Feeds:
    """Arrays by input name, and the sizes that were guessed for dimensions (by name, or `input[axis]`)."""

    arrays: dict[str, Any]
    guesses: dict[str, int] = field(default_factory=dict)

    @property
    def announcement(self) -> str:
        """A message to the user about guessed dimensions; empty if there are none."""
        if not self.guesses:
            return ""
        return "guessed dimensions: " + ", ".join(f"{k}={v}" for k, v in self.guesses.items())


def make_feeds(
    model: Any,
    fill: str = "random",
    *,
    given: Mapping[str, Any] | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    fixed: Mapping[str, int] | None = None,
    seed: int = 0,
) -> Feeds:
    """Return arrays for every data input of a Model: those in `given`, and generated ones for the others.

    `fill` is random (standard normal; integers that index a known axis stay inside it), ones, zeros or arange.
    Dimension names are taken from `given` and `shapes`, then from `fixed`, which has sizes by symbol. The others are
    guessed so that shape inference accepts them.
    Raises UsageError for an unknown fill, InputError for an unknown input or dimensions that do not fit.
    """
    if fill not in FILLS:
        raise UsageError(f"unknown fill {fill!r}{did_you_mean(fill, FILLS)}")
    graph: Graph = model.graph
    inputs = {graph.name_of(v): v for v in graph.inputs if v.role == "data"}
    chosen = {k: _as_given(v, inputs.get(k)) for k, v in (given or {}).items()}
    known: dict[str, TensorType] = {}
    for name in (*chosen, *(shapes or {})):
        if name not in inputs:
            raise InputError(f"no input {name!r}{did_you_mean(name, inputs)}")
    for name, shape in (shapes or {}).items():
        known[name] = TensorType(inputs[name].dtype, shape)
    for name, array in chosen.items():
        if isinstance(array, np.ndarray):
            known[name] = TensorType(dtype_of(array.dtype), array.shape)
    missing = {name: value for name, value in inputs.items() if name not in chosen}
    sizes, guesses = _choose_sizes(graph, inputs, known, fixed or {})
    if seed < 0:
        raise UsageError(f"a seed must be an integer of at least 0, not {seed}")
    rng = np.random.default_rng(seed)
    readers, limits = _readers(graph), _index_limits(graph)
    for name, value in missing.items():
        shape = sizes.get(name, ())
        where = f"input {name!r} of shape {list(shape)}"
        require_memory(_WIDEST * math.prod(shape), f"{where}, with up to {_WIDEST} bytes for each element")
        try:
            if isinstance(value.type, MapType):
                chosen[name] = _filled_map(value.type, fill, rng, _keys_read(value, readers))
            else:
                chosen[name] = _filled(value.type, shape, fill, rng, limits.get(value, _INTEGER_BOUND))
        except (MemoryError, ValueError) as error:
            if lacks_memory(error):
                raise OutOfMemory(f"{where}: {error}") from error
            raise
    return Feeds({name: chosen[name] for name in inputs}, guesses)


def concrete_shapes(
    model: Any, shapes: Mapping[str, Sequence[int]] | None = None, batch: int | None = None
) -> tuple[dict[str, tuple[int, ...]], dict[str, int]]:
    """A static shape for every tensor input, and the guessed sizes. `batch`: size of unknown leading dimensions."""
    graph: Graph = model.graph
    inputs = {graph.name_of(v): v for v in graph.inputs if v.role == "data"}
    known = {name: TensorType(_input(inputs, name).dtype, shape) for name, shape in (shapes or {}).items()}
    leading = {} if batch is None else {
        symbol: batch
        for name, value in inputs.items()
        if name not in known and value.tensor.shape and isinstance(dim := value.tensor.shape[0], DimExpr)
        for symbol in dim.symbols
    }  # fmt: skip
    return _choose_sizes(graph, inputs, known, leading)


def fixed_sizes(types: Iterable[tuple[Type, Type]]) -> dict[str, int]:
    """Return the sizes that inputs of a second model fix for symbolic dimensions of a first one, by symbol.

    types: pairs of types of inputs that belong together: of the first model, and of the second one.
    """
    return {
        symbol: size
        for one, other in types
        if isinstance(one, TensorType) and isinstance(other, TensorType)
        for dim, size in zip(one.shape or (), other.shape or (), strict=False)
        if isinstance(dim, DimExpr) and isinstance(size, int)
        for symbol in dim.symbols
        if str(dim) == symbol
    }


def _input(inputs: Mapping[str, Value], name: str) -> Value:
    if name not in inputs:
        raise InputError(f"no input {name!r}{did_you_mean(name, inputs)}")
    return inputs[name]


# --- sizes --------------------------------------------------------------------------------------------


def _choose_sizes(
    graph: Graph, inputs: Mapping[str, Value], known: Mapping[str, TensorType], fixed: Mapping[str, int] = {}
) -> tuple[dict[str, tuple[int, ...]], dict[str, int]]:
    """A static shape per tensor input, and the guessed sizes by dimension. `fixed`: known sizes of symbols."""
    tensors = {name: value.tensor for name, value in inputs.items() if isinstance(value.type, TensorType)}
    bindings = dict(fixed) | match_shapes(
        [(name, tensors[name], actual) for name, actual in known.items() if name in tensors]
    )
    open_dims: dict[str, bool] = {}
    for name, declared in tensors.items():
        if name not in known:
            for axis, dim in enumerate(declared.shape or ()):
                for symbol in sorted(dim.symbols) if isinstance(dim, DimExpr) else ():
                    if symbol not in bindings:
                        open_dims[symbol] = open_dims.get(symbol, False) or axis == 0
    unranked = [name for name, declared in tensors.items() if name not in known and declared.shape is None]
    failure: GraphkitError | None = None
    for guess, shape in itertools.product(_candidates(open_dims), _UNKNOWN_SHAPES if unranked else ((),)):
        try:
            shapes = {
                n: known[n].static_shape if n in known else _static(t, bindings | guess, shape)
                for n, t in tensors.items()
            }
            if (open_dims or unranked) and not _accepts(graph, shapes):
                continue
        except GraphkitError as error:
            failure = failure or error
            continue
        return shapes, _labelled(tensors, guess)
    if unranked:
        raise InputError(
            f"the model does not say the shape of {', '.join(map(repr, unranked))}; give it, such as {unranked[0]}:1,10"
            + (f" ({failure})" if failure else "")
        )
    raise InputError(
        f"no sizes found for {', '.join(open_dims)} that the model accepts; give shapes, such as NAME:1,3,224,224"
        + (f" ({failure})" if failure else "")
    )


def _candidates(open_dims: Mapping[str, bool]) -> Iterator[dict[str, int]]:
    """Yield sizes by symbol. `open_dims`: symbol -> whether it is a leading dimension, and so a batch.

    If there are several other dimensions, each in turn is then treated as a batch, too: a recurrent state may have its
    layers before the batch.
    """
    others = [symbol for symbol, leads in open_dims.items() if not leads]
    batches = [symbol for symbol, leads in open_dims.items() if leads]
    if not others:
        yield from (dict.fromkeys(batches, size) for size in _SIZES)
        return
    for more in ((), *((symbol,) for symbol in others if len(others) > 1)):
        for size in _SIZES:
            for batch in _BATCHES:
                yield {s: batch if s in batches or s in more else size for s in open_dims}


def _static(
    declared: TensorType, bindings: Mapping[str, Any], unknown: tuple[int, ...] = _UNKNOWN_SHAPES[0]
) -> tuple[int, ...]:
    """A static shape. `unknown`: the shape of a tensor of unknown rank."""
    if declared.shape is None:
        return unknown
    return tuple(evaluate(d, bindings) for d in declared.shape)


def _accepts(graph: Graph, shapes: Mapping[str, Sequence[int]]) -> bool:
    """Whether shape inference accepts these sizes, without empty results, negative sizes, windows that do not fit,
    or reflections of more elements than there are.
    """
    declared = {name: TensorType(graph.find(name, inputs_first=True).dtype, shape) for name, shape in shapes.items()}
    bound = bind(graph, declared)
    dims = (
        d for node in bound.nodes for v in node.outputs if isinstance(v.type, TensorType) for d in v.type.shape or ()
    )
    if any(not isinstance(d, DimExpr) and d < 0 for d in dims):
        return False
    if any(0 in (node.outputs[0].tensor.shape or ()) for node in bound.nodes if node.op.name in _WINDOWS):
        return False
    if any(node.op.name == "Pad" and _reflects_too_far(node) for node in bound.nodes):
        return False
    results = (d for v in bound.outputs if isinstance(v.type, TensorType) for d in v.type.shape or ())
    return all(isinstance(d, DimExpr) or d > 0 for d in results)


def _reflects_too_far(node: Node) -> bool:
    """Whether a Pad of mode "reflect" adds as many elements to an axis as it has. ONNX Runtime rejects that."""
    data, pads = node.inputs[0], node.inputs[1] if len(node.inputs) > 1 else None
    if node.op.attributes().get("mode") != "reflect" or data is None or pads is None or len(node.inputs) > 3:
        return False
    shape, amounts = data.tensor.shape or (), pads.tensor.constants or ()
    if len(amounts) != 2 * len(shape):
        return False
    return any(isinstance(size, int) and amount >= size for size, amount in zip(2 * shape, amounts, strict=True))


def _labelled(tensors: Mapping[str, TensorType], guess: Mapping[str, int]) -> dict[str, int]:
    """Guessed sizes by dimension name. Anonymous dimensions are called `input[axis]`, after their first occurrence."""
    labels: dict[str, int] = {}
    for symbol, size in guess.items():
        label = symbol
        if symbol.startswith("?"):
            label = next(
                f"{name}[{axis}]"
                for name, t in tensors.items()
                for axis, d in enumerate(t.shape or ())
                if isinstance(d, DimExpr) and symbol in d.symbols
            )
        labels[label] = size
    return labels


# --- values -------------------------------------------------------------------------------------------


def _filled(type_: Type, shape: Sequence[int], fill: str, rng: np.random.Generator, bound: int) -> Any:
    if not isinstance(type_, TensorType):
        inner = _sizes_inside(type_.element)
        if isinstance(type_, OptionalType):
            return _filled(type_.element, inner, fill, rng, bound)
        return [_filled(type_.element, inner, fill, rng, bound) for _ in range(_ELEMENTS)]
    dtype, count = type_.dtype, int(np.prod(shape, dtype=np.int64))
    if dtype is DType.STRING:
        return np.array([f"s{i}" for i in range(count)], object).reshape(shape)
    if fill in ("ones", "zeros"):
        return np.full(shape, fill == "ones", dtype.numpy)
    if fill == "arange":
        numbers = np.arange(count)
        return (numbers % bound if dtype in INTEGERS else numbers).astype(dtype.numpy).reshape(shape)
    if dtype in BOOLS:
        return rng.integers(0, 2, shape).astype(bool)
    if dtype in INTEGERS:
        return rng.integers(0, min(bound, 128 if dtype not in UNSIGNED else 256), shape).astype(dtype.numpy)
    values = rng.standard_normal(shape)
    if dtype in (DType.COMPLEX64, DType.COMPLEX128):
        values = values + 1j * rng.standard_normal(shape)
    return np.asarray(values).astype(dtype.numpy)


def _as_given(value: Any, input_: Value | None) -> Any:
    """Convert the value of a tensor input to an array. Values of sequences, optionals and maps stay as they are."""
    tensor = input_ is None or isinstance(input_.type, TensorType)
    return np.asarray(value) if tensor and not isinstance(value, (list, Mapping)) else value


def _sizes_inside(kind: Type) -> tuple[int, ...]:
    """A shape for tensors in sequences and optionals. Unknown sizes become the first of `_SIZES`."""
    if not isinstance(kind, TensorType):
        return ()
    open_sizes = {s: _SIZES[0] for d in kind.shape or () if isinstance(d, DimExpr) for s in d.symbols}
    return _static(kind, open_sizes)


def _filled_map(type_: MapType, fill: str, rng: np.random.Generator, keys: Sequence[Any]) -> dict[Any, Any]:
    """A map with the keys that the model reads (if `fill` is "random", every other one), by default three keys."""
    if not keys:
        keys = [f"s{i}" for i in range(3)] if type_.key is DType.STRING else list(range(3))
    kept = keys if fill != "random" else keys[::2]
    values = _filled(TensorType(_tensor(type_.element).dtype, (len(kept),)), (len(kept),), fill, rng, _INTEGER_BOUND)
    if values.dtype == object:  # CastMap can convert the strings to numbers.
        values = np.array([str(i) for i in range(len(kept))], object)
    return dict(zip(kept, values, strict=True))


def _keys_read(value: Value, readers: Mapping[Value, Iterable[tuple[Node, int]]]) -> list[Any]:
    """The keys that the vocabularies of a map's readers contain, sorted."""
    attributes = [node.op.attributes() for node, _ in readers.get(value, ())]
    found = (a.get(name) or () for a in attributes for name in ("int64_vocabulary", "string_vocabulary"))
    return sorted({key for words in found for key in words})


def _tensor(type_: Type) -> TensorType:
    if not isinstance(type_, TensorType):
        raise UsageError(f"an input of type {type_} cannot be filled; give a value")
    return type_


def _readers(graph: Graph) -> dict[Value, list[tuple[Node, int]]]:
    table: dict[Value, list[tuple[Node, int]]] = {}
    for node in graph.nodes:
        for position, value in enumerate(node.inputs):
            if value is not None:
                table.setdefault(value, []).append((node, position))
    return table


def _index_limits(graph: Graph) -> dict[Value, int]:
    """The exclusive upper limit of the integers of each value that indexes an axis of known size.

    A sum or product of two values may index an axis, too. Then each of them gets its part of the limit.
    """
    limits: dict[Value, int] = {}
    for node in reversed(graph.nodes):
        found = [limits[v] for v in node.outputs if v in limits]
        for position, operand in enumerate(node.inputs):
            if operand is not None and (limit := _operand_limit(node, position, min(found, default=None))) is not None:
                # At least 1, also if an axis is empty, or a constant that is added is larger than the axis.
                limits[operand] = max(min(limits.get(operand, limit), limit), 1)
    return limits


def _operand_limit(node: Node, position: int, result: int | None) -> int | None:
    """The limit of one operand. `result` is the limit of the results of the node."""
    rule, name = _INDEXES.get(node.op.name), node.op.name
    if rule is not None and position == rule[0]:
        axis = node.op.attributes().get(rule[2], 0) if isinstance(rule[2], str) else rule[2]
        return _indexed_size(node.inputs[rule[1]], axis)
    if result is None or (name not in ("Add", "Mul") and (position != 0 or name not in _HANDS_ON)):
        return None
    if name not in ("Add", "Mul"):
        return result
    other = node.inputs[1 - position]
    known = other.type.constants if other is not None and isinstance(other.type, TensorType) else None
    if name == "Add":
        return result - max(known) if known else (result - 1) // 2 + 1
    return (result - 1) // max(1, *known) + 1 if known else math.isqrt(result - 1) + 1


def _indexed_size(data: Value | None, axis: int) -> int | None:
    """The size of the axis that is indexed; None if it is unknown."""
    shape = None if data is None or not isinstance(data.type, TensorType) else data.type.shape
    size = shape[axis] if shape is not None and -len(shape) <= axis < len(shape) else None
    return size if isinstance(size, int) else None
