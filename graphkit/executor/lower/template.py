"""Programs for inputs whose sizes change. A graph is lowered once with symbolic sizes; each program is derived from it.

The order of the steps, the views and the values that may share memory do not depend on the sizes. `Template.at` makes
the kernels and computes the bytes of values for given sizes. If the sizes in a node's types have not changed, its
kernel is reused.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from graphkit.errors import GraphkitError, RuntimeFailure
from graphkit.executor.devices.kernel import (
    MOST_READ_BYTES,
    Kernel,
    KernelContext,
    NativeKernel,
    VersionedArray,
    is_native,
)
from graphkit.executor.devices.loading import native_module
from graphkit.executor.devices.registry import SizedFactory, make_kernel, rule_of
from graphkit.executor.lower.lowering import ABSENT, ARENA, Location, NotNative, Settings
from graphkit.executor.lower.native_kernel import unread_operands
from graphkit.executor.lower.recorded_template import (
    RecordedFactory,
    RecordedStep,
    RecordedTemplate,
    StepRecorder,
    UnplannedKernel,
)
from graphkit.executor.lower.registry import kernel_context
from graphkit.executor.memory.packing import PackedOperand, SharedOperands
from graphkit.executor.memory.placement import Placement, place_values
from graphkit.executor.memory.plan_graph import MemoryPlan, StepMemory, plan_graph
from graphkit.ir import context
from graphkit.ir.dims import Dim, DimExpr, assumptions, symbol
from graphkit.ir.graph import Graph, Node, Value
from graphkit.ir.sizes import SizeTable, defined_names
from graphkit.ir.types import TensorType
from graphkit.named_tuples import NamedTuple
from graphkit.ops._base import DOMAIN, Op
from graphkit.ops.tensor.constants import Constant
from graphkit.passes.core.bind import match_shapes, plain_name

if TYPE_CHECKING:
    from graphkit.executor.devices.loading import _native
    from graphkit.ir.stored import Scratch

# For each node, the kernels for this many of the most recently used sizes are kept. If more were kept, the oldest ones
# would no longer be in the processor's caches. Programs keep their own kernels.
_KEPT = 32


class SizedCode(NamedTuple):
    """A native program for given sizes, and the memory outside its arena.

    `results`: shape, dtype and bytes of each output. `operands`: the parameters and constants that the program reads.
    External memory is numbered in this order: inputs, then outputs.
    """

    native: _native.Program
    operands: SharedOperands
    arena_bytes: int
    results: Sequence[tuple[tuple[int, ...], np.dtype, int]]


class _Typed:
    """The type of a value, with its shape as positions in a table of sizes."""

    __slots__ = ("kind", "is_static", "shape", "elements")

    def __init__(self, kind: TensorType, table: SizeTable):
        self.kind = kind
        self.is_static = not any(_names(d) for d in (*kind.known_shape, *(kind.value or ())))
        self.shape = table.add_all(kind.known_shape)
        self.elements = None if kind.value is None else table.add_all(kind.value)

    def at(self, sizes: Sequence[int]) -> TensorType:
        if self.is_static:
            return self.kind
        shape = tuple([sizes[p] for p in self.shape])
        elements = None if self.elements is None else tuple([sizes[p] for p in self.elements])
        return TensorType.of_sizes(self.kind.dtype, shape, elements, self.kind.floats)


class _Step:
    """Nodes with equal operators and types, which share their kernels."""

    __slots__ = ("node", "symbolic_inference", "mentioned", "context", "make", "native", "inputs", "outputs")

    def __init__(
        self,
        node: Node,
        mentioned: tuple[int, ...],
        known: KernelContext | None,
        symbolic_inference: bool,
        types: Mapping[Value, _Typed],
    ):
        self.node = node  # the first of the nodes
        # Whether symbolic inference determines the results' types. If so, types are not inferred again for given sizes.
        self.symbolic_inference = symbolic_inference
        # Positions, in the table of sizes, of the symbols in the nodes' types.
        self.mentioned = mentioned
        self.context = known  # None: no kernel is needed
        # Makes a kernel from sizes. None if a kernel must be made from a node with static types (see `_bound`).
        self.make: SizedFactory | None = None
        prepare = rule_of("cpu", node.op).prepare
        if prepare is not None and known is not None and symbolic_inference:
            self.make = prepare(node, known)
        self.native: _native.KernelFactory | None = getattr(self.make, "native", None)
        # For each operand and result, the positions of its sizes in the table. If `make` reads the elements of an
        # operand, the positions of these elements instead.
        read = getattr(self.make, "reads_elements", ())
        self.inputs = [
            None if v is None else types[v].shape if i not in read else types[v].elements
            for i, v in enumerate(node.inputs)
        ]
        self.outputs = [types[v].shape for v in node.outputs]


class _HiddenElements:
    """A large constant operand of a node that shares its kernel with others. The kernel cannot read its elements."""

    version = 0

    @property
    def array(self) -> np.ndarray:
        raise NotNative("a kernel depends on the elements of a large operand")

    def borrowed(self, scratch: Scratch) -> np.ndarray:
        return self.array


_HIDDEN = _HiddenElements()


class Template:
    """A graph that is lowered once, with symbolic sizes. `at` makes the program for given sizes.

    `programs`: the native part, which makes the programs.

    `fixed`: the arrays of parameters among the inputs. Kernels may keep packed copies of them, until their version
    changes. Raises NotNative, with the reason, if the inputs have fixed sizes, or if `_require` rejects the graph: for
    example, because it has updates, control flow, or sizes that are known only in a run.
    """

    def __init__(self, graph: Graph, fixed: Mapping[Value, VersionedArray], settings: Settings):
        self.graph = graph
        self.settings = settings
        symbols = _symbols_of(graph)
        defined = defined_names({s for v in graph.values for d in _sizes_of(v) for s in _names(d)}, symbols)
        self.placement = _require(graph, place_values(graph, frozenset([*symbols, *defined])), fixed)
        self._known = {**fixed, **{n.output: n.op.value for n in graph.nodes if isinstance(n.op, Constant)}}
        self._inputs = {graph.name_of(v): v.tensor for v in graph.inputs if not v.tensor.is_static}
        self._table = SizeTable(symbols)
        self._symbols = {name: self._table.add(symbol(name)) for name in (*symbols, *defined)}
        self._types: dict[Value, _Typed] = {}
        self._bytes: dict[Value, int] = {}
        for value in graph.values:
            self._types[value] = _Typed(value.tensor, self._table)
            self._bytes[value] = self._table.add(value.tensor.size * value.dtype.itemsize)
        # Pairs of positions in the table whose sizes must be equal, and the name of the node that requires it. Some
        # pairs are what symbolic inference has assumed; others are the bytes of a view and those of its root.
        self._equal: list[tuple[int, int, str]] = []
        computed = set(self.placement.steps)
        alike: dict[Hashable, _Step] = {}
        nodes = [self._step(node, node in computed, alike) for node in graph.nodes if not isinstance(node.op, Constant)]
        nodes = [step for step in nodes if step.context is not None or not step.symbolic_inference]
        self._distinct_steps = list(dict.fromkeys(nodes))
        for view, root in self.placement.root.items():
            if self._bytes[view] != self._bytes[root]:
                self._equal.append((self._bytes[view], self._bytes[root], self._node_name(view)))
        self._plans: dict[Hashable, MemoryPlan] = {}
        self._nodes = nodes
        self._result_types = [r.value.dtype.numpy for r in self.placement.results]
        self.programs = self._native_programs(nodes)

    def _native_programs(self, nodes: Sequence[_Step]) -> _native.SizedPrograms:
        """Return the native part, which makes the programs. nodes: the step of each node."""
        try:
            instructions = self._table.instructions()
        except KeyError as unknown:
            raise NotNative(f"the value of {unknown} is unknown") from unknown
        except GraphkitError as error:
            raise NotNative(str(error)) from error
        axes: dict[str, tuple[int, int]] = {}
        for i, kind in enumerate(self._inputs.values()):
            for axis, dim in enumerate(kind.known_shape):
                if isinstance(dim, DimExpr) and (name := plain_name(dim)) is not None:
                    axes.setdefault(name, (i, axis))
        symbols = self._table.symbols
        number = {step: i for i, step in enumerate(self._distinct_steps)}
        native = native_module()
        made: _native.SizedPrograms = native.SizedPrograms(
            kept=_KEPT,
            table=native.SizeTable(len(symbols), instructions.steps, instructions.results),
            sources=[axes[name] for name in symbols] if axes.keys() >= set(symbols) else [],
            inputs=[self._table.add_all(kind.known_shape) for kind in self._inputs.values()],
            steps=[(step.native, step.mentioned, step.inputs, step.outputs) for step in self._distinct_steps],
            nodes=[number[step] for step in nodes],
            equal=self._equal,
            nonnegative=self._nonnegative(),
            results=[(self._types[r.value].shape, self._bytes[r.value]) for r in self.placement.results],
        )
        return made

    def at(self, shapes: Mapping[str, tuple[int, ...]]) -> SizedCode:
        """Return the program for inputs of these shapes, by name.

        Raises InputError if the shapes contradict each other. Raises NotNative if there is no kernel, or if inference
        or the kernel rejects the sizes. The caller then compiles a program for these sizes only. If the sizes are
        invalid, this compilation raises an error for the user.
        """
        given = [shapes.get(name) for name in self._inputs]
        try:
            made = self.programs.at(given, None, self.make_kernel, self.make_structure)
            if made is None:
                made = self.programs.at((), self._bound_symbols(shapes), self.make_kernel, self.make_structure)
        except native_module().Error as error:
            raise NotNative(str(error)) from error
        assert made is not None, "the values of the symbols are given"
        native, operands, arena_bytes, results = made
        types = zip(results, self._result_types, strict=True)
        return SizedCode(native, operands, arena_bytes, [(shape, dtype, nbytes) for (shape, nbytes), dtype in types])

    def _bound_symbols(self, shapes: Mapping[str, tuple[int, ...]]) -> list[int]:
        """Return the values of the table's symbols. Raises InputError if the shapes contradict each other."""
        given = [(name, kind, shapes[name]) for name, kind in self._inputs.items() if name in shapes]
        bindings = match_shapes([(name, kind, kind.with_shape(shape)) for name, kind, shape in given])
        try:
            return [bindings[name] for name in self._table.symbols]  # type: ignore[misc]
        except KeyError as name:
            raise NotNative(f"the value of {name} is unknown") from name

    def _step(self, node: Node, computed: bool, alike: dict[Hashable, _Step]) -> _Step:
        """Return the _Step of this node. Nodes with equal operators, types and small constants share a _Step."""
        known = kernel_context(node, self.placement, self._known, self.settings)
        # Leave out constant operands whose sizes are symbolic: kernels read them like computed operands.
        arrays = {
            i: (v, a)
            for i, a in known.constant_inputs.items()
            if (v := node.inputs[i]) is not None and v.tensor.is_static
        }
        known = known._replace(constant_inputs={i: a for i, (_, a) in arrays.items()})
        small = {i: a for i, (v, a) in arrays.items() if v.tensor.nbytes <= MOST_READ_BYTES}
        key = (
            node.op,
            tuple(None if v is None else (v.type, v.tensor.value, v.tensor.floats) for v in node.inputs),
            tuple((i, id(small.get(i))) for i in known.constant_inputs),
            known.used_outputs,
            computed,
        )
        if key not in alike:
            constants = {i: small.get(i, _HIDDEN) for i in known.constant_inputs}
            context = known._replace(constant_inputs=constants) if computed else None
            step = _Step(node, self._mentioned(node), context, self._substitutes(node), self._types)
            # Different nodes may have equal factories, for example fused regions of equal operators. They share a
            # _Step, too.
            same = None if step.make is None else (step.make, *step.inputs, None, *step.outputs)
            alike[key] = step if same is None else alike.setdefault(same, step)
        return alike[key]

    def _substitutes(self, node: Node) -> bool:
        """Return whether symbolic inference determines the results' types. Add its assumptions to `_equal`."""
        if not isinstance(node.op, Op) or not node.op.symbolic_inference:
            return False
        with assumptions() as assumed:
            inferred = node.op.infer_types([None if v is None else v.type for v in node.inputs])
        if any(kind != v.type for kind, v in zip(inferred, node.outputs, strict=True)):
            return False
        if any(not _names(d) <= self.placement.symbols for pair in assumed for d in pair):
            return False
        name = self.graph.node_name(node)
        self._equal += [(self._table.add(a), self._table.add(b), name) for a, b in assumed]
        return True

    def _mentioned(self, node: Node) -> tuple[int, ...]:
        found = {s for v in (*node.operands, *node.outputs) for d in _sizes_of(v) for s in _names(d)}
        return tuple(position for name, position in self._symbols.items() if name in found)

    def _nonnegative(self) -> list[tuple[int, str]]:
        """Return the positions of all sizes of axes, each with the name of the first node whose results have it."""
        found: dict[int, str] = {}
        for value in self.graph.values:
            for position in self._types[value].shape:
                if position not in found:
                    found[position] = self._node_name(value)
        return list(found.items())

    def _node_name(self, value: Value) -> str:
        """Return the name of the node that computes a value; an empty text for inputs."""
        return "" if value.node is None else self.graph.node_name(value.node)

    # --- one node ---------------------------------------------------------------------------------------

    def make_kernel(self, number: int, sizes: Sequence[int]) -> NativeKernel | None:
        """Make a kernel in Python. It is called if the step has no native factory, or if the factory returns no kernel.

        number: the position of the step in `_distinct_steps`. Returns None for a view.
        """
        step = self._distinct_steps[number]
        if step.make is not None:
            try:
                kernel = step.make(_shapes(step.inputs, sizes), _shapes(step.outputs, sizes))
            except RuntimeFailure as error:
                raise NotNative(str(error)) from error
            return _native_kernel(kernel, step.node)
        bound = self._bound(step, sizes)
        return None if step.context is None else _native_kernel(make_kernel("cpu", bound, step.context), bound)

    def _bound(self, step: _Step, sizes: Sequence[int]) -> Node:
        """Return the node for these sizes. Raises NotNative if inference finds other types than the template's."""
        node = step.node
        operands = [None if v is None else Value(self._types[v].at(sizes), v.name, role=v.role) for v in node.inputs]
        expected = [self._types[v].at(sizes) for v in node.outputs]
        if step.symbolic_inference:
            return node.with_types(operands, expected)
        with context.detached():
            try:
                bound = Node(node.op, operands, node.name, node.meta)
            except GraphkitError as error:
                raise NotNative(str(error)) from error
        for inferred, kind in zip(bound.outputs, expected, strict=True):
            if inferred.type != kind or (kind.value is not None and inferred.tensor.value != kind.value):
                raise NotNative(f"{bound.describe()}: the result is {inferred.type}; {kind} was expected")
        return bound

    # --- memory and the native program ------------------------------------------------------------------

    def make_structure(self, made: Sequence[_native.NodeKernel], sizes: Sequence[int]) -> tuple[Any, ...]:
        """Return the structure of a program with these kernels, for `SizedPrograms.at`."""
        plan = self._plan(made, sizes)
        writer = _Writer(self.graph, self.placement, self._known, plan)
        program = native_module().Program(self.settings.threads, 0, writer.externals)
        for index in plan.order:
            writer.step(program.root, index, self.placement.steps[index], made[index])
        values = {request: self._bytes[value] for value, request in plan.request_of.items()}
        steps = {request: -1 - index for index, request in plan.scratch_of.items()}
        return (
            program,
            plan.order,
            native_module().MemoryRequests([(r.first, r.last, list(r.inplace)) for r in plan.requests]),
            [values.get(number, steps.get(number, 0)) for number in range(len(plan.requests))],
            [(external, self._elements(value), str(value.dtype)) for external, value in writer.shape_values.items()],
            SharedOperands(writer.fixed),
        )

    def recorded(self, symbols: Mapping[str, int]) -> RecordedTemplate:
        """Return the template as plain data. Raises NotNative, which names a node whose kernels need Python.

        symbols: Sizes by symbol. They are used to choose the order of the steps.
        """
        sizes = self._table.values(symbols)
        made = [self._unplanned(step, sizes) for step in self._nodes]
        steps = [StepMemory(each.scratch_bytes, each.inplace, may_fail=False) for each in made]
        plan = plan_graph(
            self.graph, self.placement, steps, inplace=False, share=self.settings.share,
            nbytes=lambda v: sizes[self._bytes[v]],
        )  # fmt: skip
        writer, builder = _Writer(self.graph, self.placement, self._known, plan), StepRecorder()
        for index in plan.order:
            writer.step(cast(Any, builder), index, self.placement.steps[index], cast(Any, made[index]))
        number = {step: i for i, step in enumerate(self._distinct_steps)}
        place = {index: i for i, index in enumerate(plan.order)}
        values = {request: self._bytes[value] for value, request in plan.request_of.items()}
        values |= {request: -1 - place[index] for index, request in plan.scratch_of.items()}
        return RecordedTemplate(
            self._table.symbols,
            self._table.instructions(),
            lambda value: self._types[value].shape,
            self._equal,
            self._nonnegative(),
            [RecordedFactory(cast(Any, s.native).recipe, s.inputs, s.outputs) for s in self._distinct_steps],
            [(r.first, r.last, values[i]) for i, r in enumerate(plan.requests)],
            [
                RecordedStep(name, number[self._nodes[index]], inputs, outputs, scratch)
                for index, (name, inputs, outputs, scratch) in zip(plan.order, builder.steps, strict=True)
            ],
            {operand.external: operand.array.array for operand in writer.fixed},
            {e: (self._elements(value), str(value.dtype)) for e, value in writer.shape_values.items()},
        )

    def _unplanned(self, step: _Step, sizes: Sequence[int]) -> UnplannedKernel:
        """Return an UnplannedKernel for all kernels of a step. Raises NotNative if a kernel needs Python."""
        name = f"{step.node.op.name} {self.graph.node_name(step.node)!r}"
        if step.native is None or step.native.recipe is None:
            raise NotNative(f"the kernels of {name} are made by Python for each size")
        kernel = step.native(_shapes(step.inputs, sizes), _shapes(step.outputs, sizes))
        if kernel is None:
            raise NotNative(f"the kernels of {name} are made by Python for some sizes")
        return UnplannedKernel(kernel)

    def _plan(self, made: Sequence[_native.NodeKernel], sizes: Sequence[int]) -> MemoryPlan:
        """Return the memory plan. Kernels affect it only by their need of working memory and their in-place pairs."""
        key = tuple([(m.scratch_bytes > 0, *m.inplace) for m in made])
        if key not in self._plans:
            self._plans[key] = plan_graph(
                self.graph,
                self.placement,
                # Only the order of updates depends on `may_fail`, and templates have no updates.
                [StepMemory(m.scratch_bytes, m.inplace, may_fail=False) for m in made],
                inplace=self.settings.inplace,
                share=self.settings.share,
                nbytes=lambda v: sizes[self._bytes[v]],
            )
        return self._plans[key]

    def _elements(self, value: Value) -> tuple[int, ...]:
        """Return the elements of a value that is computed from sizes, as positions in the table."""
        elements = self._types[value].elements
        assert elements is not None, "the placement says that they are known"
        return elements


class _Writer:
    """Writes the steps of a template. Instead of offsets in the arena, it writes the numbers of memory requests.

    `Program.resized` replaces them with offsets.
    """

    def __init__(self, graph: Graph, placement: Placement, known: Mapping[Value, VersionedArray], plan: MemoryPlan):
        self._graph = graph
        self._placement = placement
        self._known = known
        self._plan = plan
        self._outside = {v: (i, 0) for i, v in enumerate(graph.inputs) if v not in known}
        for number, result in enumerate(placement.results):
            self._outside[placement.root[result.value]] = (len(graph.inputs) + number, 0)
        self.externals = len(graph.inputs) + len(placement.results)
        self.fixed: list[PackedOperand] = []
        self.shape_values: dict[int, Value] = {}

    def step(self, builder: _native.Builder, index: int, node: Node, made: _native.NodeKernel) -> None:
        unread = unread_operands(made.kernel, node)
        inputs = [ABSENT if v is None or i in unread else self._operand(made, i, v) for i, v in enumerate(node.inputs)]
        inputs += [ABSENT] * (made.kernel.input_count - len(inputs))
        used = self._placement.used
        outputs = [self._location(v) if v in used else ABSENT for v in node.outputs]
        outputs += [ABSENT] * (made.kernel.output_count - len(outputs))
        scratch = self._plan.scratch_of.get(index)
        at = ABSENT if scratch is None else (ARENA, scratch)
        builder.kernel(self._graph.node_name(node), made.kernel, inputs, outputs, at)

    def _operand(self, made: _native.NodeKernel, position: int, value: Value) -> Location:
        root = self._placement.root[value]
        if root not in self._known:
            return self._location(value)
        external, array = self._new(), self._known[root]
        if position in made.packed:
            layout = made.layouts[made.packed.index(position)]
            self.fixed.append(PackedOperand(external, array, made.kernel, position, layout))
        else:
            self.fixed.append(PackedOperand(external, array))
        return external, 0

    def _location(self, value: Value) -> Location:
        root = self._placement.root[value]
        if root not in self._outside:
            if self._placement.place[root] != "shape":
                return ARENA, self._plan.request_of[root]
            self._outside[root] = (self._new(), 0)
            self.shape_values[self._outside[root][0]] = root
        return self._outside[root]

    def _new(self) -> int:
        self.externals += 1
        return self.externals - 1


def _shapes(positions: Sequence[tuple[int, ...] | None], sizes: Sequence[int]) -> list[tuple[int, ...] | None]:
    return [None if at is None else tuple([sizes[p] for p in at]) for at in positions]


def _native_kernel(kernel: Kernel | None, node: Node) -> NativeKernel:
    if kernel is None or not is_native(kernel):
        raise NotNative(f"no native kernel for {node.describe()}")
    return kernel


def _symbols_of(graph: Graph) -> list[str]:
    """Return the symbols in the shapes of the inputs. Raises NotNative if there are none."""
    found = dict.fromkeys(
        s for v in graph.inputs if isinstance(v.type, TensorType) for d in v.type.shape or () for s in _names(d)
    )
    if not found:
        raise NotNative("the inputs have fixed sizes")
    return list(found)


def _sizes_of(value: Value) -> Iterator[Dim]:
    """Yield the dimensions of a tensor, and its elements if they are known, as dimensions; nothing for other values."""
    if isinstance(value.type, TensorType):
        yield from value.type.shape or ()
        yield from value.type.value or ()


def _names(dim: Dim) -> frozenset[str]:
    return dim.symbols if isinstance(dim, DimExpr) else frozenset()


def _require(graph: Graph, placement: Placement, fixed: Iterable[Value]) -> Placement:
    """Return the placement. Raises NotNative, with the reason, for graphs that a Template cannot represent."""
    if graph.updates:
        raise NotNative("states are written")
    for value in graph.values:
        if not placement.is_sized(value):
            raise NotNative(f"the size of {value} is not known before the run")
    for node in graph.nodes:
        if node.op.subgraphs() and node.op.domain != DOMAIN:
            raise NotNative(f"{graph.node_name(node)} contains subgraphs")
    for value in fixed:
        if not value.tensor.is_static:
            raise NotNative(f"{value} may have another size each time")
    for result in placement.results:
        if not result.owned:
            raise NotNative("an output is not the result of a step, or is also another output")
    return placement
