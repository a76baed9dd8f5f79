"""Nodes with operands of run-time sizes: a run prepares a kernel for its sizes, and later runs reuse it.

If lowering finds no kernel for placeholder sizes, the node is interpreted, and the plan says so.
"""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, TypeAlias, cast

import numpy as np

from graphkit import config
from graphkit.errors import BAD_VALUE, GraphkitError, RuntimeFailure, TypeMismatch, UnsupportedError
from graphkit.executor.devices.interpreted import check_result, owned_results
from graphkit.executor.devices.kernel import KernelContext, NativeKernel, is_native
from graphkit.executor.devices.recipes import recorded_recipes
from graphkit.executor.devices.registry import make_kernel, rule_of
from graphkit.executor.lower.lowering import ABSENT, NO_BUFFER, Emission, Location, Lowering, Site
from graphkit.executor.lower.placeholders import assumed_sizes, deciding_operands, placeholder_types
from graphkit.executor.memory.placement import has_fixed_size, has_run_time_size
from graphkit.ir.declared import Declarations
from graphkit.ir.dims import Dim
from graphkit.ir.graph import Node, Value
from graphkit.ir.types import DType, TensorType
from graphkit.named_tuples import NamedTuple
from graphkit.ops import Op
from graphkit.ops.evaluate import failure_of, run_node

_KEPT = 4096

# A value of the native program: its buffer, the bytes of an element, the number of elements if it has no buffer, and
# whether shapes depend on its elements.
RunTimeOperand: TypeAlias = tuple[int, int, int, bool]

Shapes: TypeAlias = Sequence[Sequence[int] | None]


class Prepared(NamedTuple):
    """The implementation of a node for given shapes.

    Attributes:
        shapes: The shapes of the results; empty if `function` is set.
        views: Pairs (operand, result): this result is a view of this operand.
        known: The bytes of results with known elements, by position.
    """

    kernel: NativeKernel | None
    shapes: list[tuple[int, ...]]
    views: list[tuple[int, int]]
    known: list[tuple[int, bytes]]
    function: Callable[[Sequence[Any]], list[np.ndarray | None]] | None


class AtRunTime(Lowering):
    """A node for which the native program calls `make` when it reaches the step."""

    may_fail = allocates = True

    def __init__(self, node: Node, by_value: frozenset[int] = frozenset()):
        self.node = node
        self._by_value = by_value

    @abstractmethod
    def make(self, shapes: Shapes, values: Shapes) -> Prepared:
        """Return the code for these operands.

        Args:
            shapes: The shape of each operand; None if its inferred shape is static.
            values: The elements of each operand; None if not needed.
        """

    def emit(self, step: Emission) -> None:
        # A kernel expects a location for each operand, even for absent ones.
        padding = max(len(getattr(self.node.op, "formals", ())) - len(step.inputs), 0)
        operands = enumerate(zip(self.node.inputs, step.inputs, strict=True))
        step.builder.dynamic(
            step.name,
            self.make,
            [*step.inputs, *[ABSENT] * padding],
            [run_time_operand(value, at, i in self._by_value) for i, (value, at) in operands],
            list(step.outputs),
            [run_time_operand(value, at) for value, at in zip(self.node.outputs, step.outputs, strict=True)],
        )


def run_time_operand(value: Value | None, location: Location, by_value: bool = False) -> RunTimeOperand:
    """Return the RunTimeOperand of a value. by_value: whether its elements determine shapes."""
    if value is None or location == ABSENT:
        return NO_BUFFER, 0, 0, False
    kind = value.tensor
    if has_run_time_size(value):
        return location[0], kind.dtype.itemsize, 0, by_value
    return NO_BUFFER, kind.dtype.itemsize, kind.nbytes // kind.dtype.itemsize, by_value


class RunTimeKernel(AtRunTime):
    """A node with its prepared kernels. Several threads may call it at the same time."""

    def __init__(
        self, node: Node, context: KernelContext, by_value: frozenset[int], declared: Declarations | None = None
    ):
        super().__init__(node, by_value)
        self._context = context
        self._declared = declared
        self._prepared: OrderedDict[tuple[tuple[int, ...] | None, ...], Prepared] = OrderedDict()
        self._lock = threading.Lock()

    def make(self, shapes: Shapes, values: Shapes) -> Prepared:
        """Return the kernel. Raise RuntimeFailure for invalid shapes or elements.

        If there is no kernel, and GRAPHKIT_STRICT is set, raise UnsupportedError.
        """
        key = (*(None if s is None else tuple(s) for s in shapes), *(None if v is None else tuple(v) for v in values))
        with self._lock:
            found = self._prepared.get(key)
            if found is None:
                found = self._prepared[key] = self._made(shapes, values)
                if len(self._prepared) > _KEPT:
                    self._prepared.popitem(last=False)
            else:
                self._prepared.move_to_end(key)
            return found

    @cached_property
    def recipe(self) -> bytes | None:
        """The recipe of the native factory that makes the kernels; None if Python makes them."""
        prepare = rule_of("cpu", self.node.op).prepare
        if prepare is None or self._by_value:
            return None
        with recorded_recipes():
            made = prepare(self.node, self._context)
        native = None if getattr(made, "reads_elements", ()) else getattr(made, "native", None)
        return None if native is None else cast("bytes | None", native.recipe)

    @property
    def known_shapes(self) -> list[tuple[int, ...] | None]:
        values = self.node.inputs
        return [v.tensor.static_shape if v is not None and has_fixed_size(v) else None for v in values]

    @property
    def result_sizes(self) -> list[list[tuple[int, int]]] | None:
        """The source of each size of each result: (operand, axis), or (-1, size). None if a size has another source."""
        axes: dict[Dim, tuple[int, int]] = {}
        for i, value in enumerate(self.node.inputs):
            for axis, dim in enumerate(() if value is None else value.tensor.shape or ()):
                axes.setdefault(dim, (i, axis))
        found = []
        for value in self.node.outputs:
            shape = value.tensor.shape
            if shape is None or not all(isinstance(dim, int) for dim in shape[1:]):
                return None
            if not all(isinstance(dim, int) or dim in axes for dim in shape):
                return None
            found.append([(-1, dim) if isinstance(dim, int) else axes[dim] for dim in shape])
        return found

    def _made(self, shapes: Shapes, values: Shapes) -> Prepared:
        types: list[TensorType | None] = []
        for operand, shape, value in zip(self.node.inputs, shapes, values, strict=True):
            kind = None if operand is None else operand.tensor
            if kind is not None and (shape is not None or (kind.constants is None and kind.floats is None)):
                kind = _with_elements(kind, kind.shape if shape is None else shape, value)
            types.append(kind)
        try:
            bound = _bound(self.node, types)
        except TypeMismatch as error:
            own, text = self.node.describe(), str(error)
            # Most errors name the node already.
            is_named = text.startswith(own.partition("(")[0])
            raise RuntimeFailure(text if is_named else f"{own}: {text}") from error
        for declared, output in zip(self.node.outputs, bound.outputs, strict=True):
            if has_fixed_size(declared) and declared.type != output.type:
                raise RuntimeFailure(f"{self.node.describe()}: a result is {output.type}; {declared.type} was inferred")
        try:
            found = _prepared(bound, self._context)
        except GraphkitError:
            raise
        except (*BAD_VALUE, MemoryError) as error:
            raise failure_of(bound, error) from error
        if found is not None and self._declared:
            self._declared.found(self.node.outputs, [v.tensor.static_shape for v in bound.outputs])
        if found is None:
            if config.STRICT.get():
                raise UnsupportedError(f"GRAPHKIT_STRICT=1, but there is no native kernel for {bound.describe()}")
            run = _interpreted(self.node, types, self._context.used_outputs, self._declared)
            found = Prepared(None, [], [], [], run)
        return found


def run_time_kernel(site: Site) -> RunTimeKernel | None:
    """Return the lowering of a node with run-time sizes, or None.

    None if nothing can be prepared for placeholders, a result has a data-dependent shape, a value is not a tensor of
    numbers, or no size or element is unknown.
    """
    node, declared = site.node, site.settings.declared
    context = site.without_constants._replace(sizes_vary=True)
    if not isinstance(node.op, Op) or not all(is_numeric(v) for v in (*node.operands, *node.outputs)):
        return None
    undecided = deciding_operands(node)
    if site.static and not undecided:
        return None
    without_elements = not undecided or decided_by_sizes(node)
    for by_value in (*([frozenset[int]()] if without_elements else []), *([undecided] if undecided else [])):
        for sizes in assumed_sizes(node):
            try:
                types = placeholder_types(node, sizes, by_value)
                found = _prepared(_bound(node, types), context)
                # If all sizes are known, only elements of operands are placeholders. Views, or results computed from
                # placeholders, may then be wrong for the real elements, so only a kernel is accepted.
                if found is not None and (found.kernel is not None or not site.static):
                    return RunTimeKernel(node, context, by_value, declared)
            except GraphkitError:  # a shape is unknown, or does not fit others
                continue
    return None


def decided_by_sizes(node: Node) -> bool:
    """Whether the shapes of the operands alone determine those of the results. An unknown size may be 1.

    Expand is a counterexample: along an axis of size 1, the elements of `shape` determine the result.
    """
    try:
        ones: dict[str, Dim] = dict.fromkeys(next(assumed_sizes(node)), 1)
        bound = _bound(node, placeholder_types(node, ones, frozenset()))
    except GraphkitError:
        return True
    return all(has_fixed_size(v) for v in bound.outputs)


class InterpretedInSubgraph(AtRunTime):
    kind = "interpreted"

    def __init__(self, node: Node, used: Sequence[bool], declared: Declarations | None = None):
        super().__init__(node)
        self._used = used
        self._declared = declared

    def make(self, shapes: Shapes, values: Shapes) -> Prepared:
        types = [
            None if v is None else TensorType(v.dtype, v.tensor.static_shape if s is None else s)
            for v, s in zip(self.node.inputs, shapes, strict=True)
        ]
        return Prepared(None, [], [], [], _interpreted(self.node, types, self._used, self._declared))


def interpreted_in_subgraph(site: Site) -> InterpretedInSubgraph | None:
    node = site.node
    if not site.inner or not all(is_numeric(v) for v in (*node.operands, *node.outputs)):
        return None
    return InterpretedInSubgraph(node, site.context.used_outputs, site.settings.declared)


def is_numeric(value: Value) -> bool:
    return has_fixed_size(value) or has_run_time_size(value)


def _with_elements(kind: TensorType, shape: Sequence[Dim] | None, elements: Sequence[int] | None) -> TensorType:
    """Return a type with known elements. The native program passes float32 elements as their bits."""
    if elements is None or kind.dtype is not DType.FLOAT32:
        return TensorType(kind.dtype, shape, elements)
    return TensorType(kind.dtype, shape, None, np.array(elements, np.int32).view(np.float32).tolist())


def _bound(node: Node, types: Sequence[TensorType | None]) -> Node:
    return node.rebuilt([None if kind is None else Value(kind) for kind in types])


def _prepared(node: Node, context: KernelContext) -> Prepared | None:
    if not all(has_fixed_size(v) for v in node.outputs):
        return None
    shapes = [v.tensor.static_shape for v in node.outputs]
    used = [i for i, needed in enumerate(context.used_outputs) if needed]
    views = [(source, result) for source, result in getattr(node.op, "views", ()) if result in used]
    same_size = all(node.inputs[a].tensor.nbytes == node.outputs[b].tensor.nbytes for a, b in views)
    if views and same_size and len(views) == len(used):
        return Prepared(None, shapes, views, [], None)
    known = [node.outputs[i].tensor for i in used]
    if all(kind.constants is not None for kind in known):
        elements = [np.array(kind.constants, kind.dtype.numpy).tobytes() for kind in known]
        return Prepared(None, shapes, [], list(zip(used, elements, strict=True)), None)
    kernel = make_kernel("cpu", node, context)
    if kernel is None or not is_native(kernel) or kernel.packed_inputs:
        return None
    return Prepared(kernel, shapes, [], [], None)


def _interpreted(
    node: Node, types: Sequence[TensorType | None], used: Sequence[bool], declared: Declarations | None
) -> Callable[[Sequence[Any]], list[np.ndarray | None]]:
    """Return a function that takes the operands' memory and returns the node's results; None for unused results."""

    def run(memory: Sequence[Any]) -> list[np.ndarray | None]:
        operands = [
            None if kind is None else np.ndarray(kind.static_shape, kind.dtype.numpy, data)
            for kind, data in zip(types, memory, strict=False)
        ]
        results = owned_results(operands, run_node(node, operands))
        for position, (value, result) in enumerate(zip(node.outputs, results, strict=True)):
            if has_fixed_size(value):
                check_result(node, position, result, value.tensor.static_shape, value.dtype.numpy)
        if declared:
            declared.found(node.outputs, [np.shape(a) for a in results])
        return [np.asarray(a, order="C") if needed else None for a, needed in zip(results, used, strict=True)]

    return run
