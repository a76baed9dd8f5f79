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
from graphkit.executor.lower.branch import PARTS
from graphkit.executor.lower.lowering import NotNative, Settings
from graphkit.executor.lower.recorded_template import (
    RecordedFactory,
    RecordedStep,
    RecordedTemplate,
    StepRecorder,
    UnplannedKernel,
)
from graphkit.executor.lower.registry import kernel_context
from graphkit.executor.lower.template_parts import (
    Branching,
    Flattened,
    Part,
    Planned,
    Repeating,
    all_graphs,
    assumed_sizes,
    branches_of,
    loop_of,
)
from graphkit.executor.lower.template_writer import Writer
from graphkit.executor.memory.packing import SharedOperands
from graphkit.executor.memory.placement import Placement, place_values
from graphkit.executor.memory.plan_graph import MemoryPlan, StepMemory, plan_graph
from graphkit.ir import context
from graphkit.ir.dims import Dim, DimExpr, assumptions, symbol
from graphkit.ir.graph import Graph, Node, Value
from graphkit.ir.sizes import SizeTable, defined_names
from graphkit.ir.types import TensorType
from graphkit.named_tuples import NamedTuple
from graphkit.ops._base import DOMAIN, Op
from graphkit.ops.control.views import LoopView
from graphkit.ops.tensor.constants import Constant
from graphkit.passes.core.bind import match_shapes, plain_name
from graphkit.passes.core.sweep import is_control

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

    `programs`: the native part, which makes the programs. `kernel_count`: the number of kernels of each program,
    including those of subgraphs.

    `fixed`: the arrays of parameters among the inputs. Kernels may keep packed copies of them, until their version
    changes. Raises NotNative, with the reason, if the inputs have fixed sizes, or if `_require` rejects the graph: for
    example, because it has updates, or sizes that are known only in a run. The subgraphs of control flow must have the
    types of their operands (see `specialise_subgraphs`).
    """

    def __init__(self, graph: Graph, fixed: Mapping[Value, VersionedArray], settings: Settings):
        self.graph = graph
        self.settings = settings
        symbols = _symbols_of(graph)
        values = list(dict.fromkeys(v for each in all_graphs(graph) for v in each.values))
        defined = defined_names({s for v in values for d in _sizes_of(v) for s in _names(d)}, symbols)
        known_symbols = frozenset([*symbols, *defined])
        self.placement = _require(graph, place_values(graph, known_symbols), fixed)
        self._inputs = {graph.name_of(v): v.tensor for v in graph.inputs if not v.tensor.is_static}
        self._table = SizeTable(symbols)
        self._symbols = {name: self._table.add(symbol(name)) for name in (*symbols, *defined)}
        self._types: dict[Value, _Typed] = {}
        self._bytes: dict[Value, int] = {}
        for value in values:
            if not isinstance(value.type, TensorType) or value.type.shape is None:
                raise NotNative(f"the size of {value} is not known before the run")
            self._types[value] = _Typed(value.tensor, self._table)
            self._bytes[value] = self._table.add(value.tensor.size * value.dtype.itemsize)
        # Pairs of positions in the table whose sizes must be equal, and the name of the node that requires it. Some
        # pairs are what symbolic inference has assumed; others are the bytes of a view and those of its root.
        self._equal: list[tuple[int, int, str]] = []
        self._names: dict[Node, str] = {}
        self._nodes: list[_Step] = []
        self.kernel_count = 0
        self._numbers: dict[Dim, int] = {size: self._table.add(size) for size in (1, 8)}
        self._alike: dict[Hashable, _Step] = {}
        self.part = self._part(graph, self.placement, fixed, "")
        nodes = self._nodes
        self._distinct_steps = list(dict.fromkeys(nodes))
        self._plans: dict[Hashable, MemoryPlan] = {}
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

    def _part(self, graph: Graph, placement: Placement, fixed: Mapping[Value, VersionedArray], prefix: str) -> Part:
        """Return a graph of the template with its steps. Their kernels get the next numbers."""
        known = {**fixed, **{n.output: n.op.value for n in graph.nodes if isinstance(n.op, Constant)}}
        computed = set(placement.steps)
        steps: list[int | Branching | Repeating] = []
        for node in graph.nodes:
            if isinstance(node.op, Constant):
                continue
            self._names[node] = prefix + graph.node_name(node)
            if is_control(node):
                self._equal += [
                    (self._table.add(a), self._table.add(b), self._names[node])
                    for a, b in assumed_sizes(node, frozenset(placement.symbols))
                ]
                if node in computed:
                    steps.append(self._control(node, placement, known))
                continue
            step = self._step(node, placement, known, node in computed)
            if step.context is not None or not step.symbolic_inference:
                self._nodes.append(step)
            if node in computed:
                steps.append(self.kernel_count)
                self.kernel_count += 1
        for view, root in placement.root.items():
            if self._bytes[view] != self._bytes[root]:
                self._equal.append((self._bytes[view], self._bytes[root], self._node_name(view)))
        return Part(graph, placement, known, steps)

    def _control(
        self, node: Node, placement: Placement, known: Mapping[Value, VersionedArray]
    ) -> Branching | Repeating:
        """Return the subgraphs of an If, a Loop or a Scan."""
        arrays = kernel_context(node, placement, known, self.settings).constant_inputs
        static = {i: a for i, a in arrays.items() if (v := node.inputs[i]) is not None and v.tensor.is_static}
        name, used = self._names[node], frozenset(placement.used)

        def part(graph: Graph, fixed: Mapping[int, VersionedArray], prefix: str) -> Part:
            inside = _require_sized(graph, place_values(graph, placement.symbols))
            return self._part(graph, inside, {graph.inputs[i]: array for i, array in fixed.items()}, prefix)

        if node.op.name == "If":
            graphs, returned = branches_of(node, used)
            fixed = {i - 1: array for i, array in static.items() if i > 0}
            return Branching(
                [part(g, fixed, f"{name}/{what}/") for g, what in zip(graphs, PARTS, strict=True)], returned
            )
        body, found = loop_of(node, used)
        if found.trips is not None:
            self._numbers[found.trips] = self._table.add(found.trips)
        kept = [*(p for p, _ in found.unchanged), *range(len(node.inputs))[LoopView.of(node).at_captures]]
        return found._replace(parts=[part(body, {p: static[p] for p in kept if p in static}, f"{name}/body/")])

    def _step(
        self, node: Node, placement: Placement, arrays_of: Mapping[Value, VersionedArray], computed: bool
    ) -> _Step:
        """Return the _Step of this node. Nodes with equal operators, types and small constants share a _Step."""
        alike = self._alike
        known = kernel_context(node, placement, arrays_of, self.settings)
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
        name = self._names[node]
        self._equal += [(self._table.add(a), self._table.add(b), name) for a, b in assumed]
        return True

    def _mentioned(self, node: Node) -> tuple[int, ...]:
        found = {s for v in (*node.operands, *node.outputs) for d in _sizes_of(v) for s in _names(d)}
        return tuple(position for name, position in self._symbols.items() if name in found)

    def _nonnegative(self) -> list[tuple[int, str]]:
        """Return the positions of all sizes of axes, each with the name of the first node whose results have it."""
        found: dict[int, str] = {}
        for value in self._types:
            for position in self._types[value].shape:
                if position not in found:
                    found[position] = self._node_name(value)
        return list(found.items())

    def _node_name(self, value: Value) -> str:
        """Return the name of the node that computes a value; an empty text for inputs."""
        return "" if value.node is None else self._names.get(value.node, "")

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
        flat = Flattened(lambda part: self._plan(part, made, sizes), self._position)
        planned = flat.add(self.part)
        writer = Writer(self.part, made, self._position)
        program = native_module().Program(self.settings.threads, 0, writer.externals)
        writer.write(program.root, self.part, planned)
        return (
            program,
            flat.order,
            native_module().MemoryRequests(flat.requests),
            flat.sizes,
            [(external, self._elements(value), str(value.dtype)) for external, value in writer.shape_values.items()],
            SharedOperands(writer.fixed),
        )

    def _position(self, what: Value | Dim) -> int:
        """Return the position of the bytes of a value, or of a number of a control node, in the table of sizes."""
        return self._bytes[what] if isinstance(what, Value) else self._numbers[what]

    def recorded(self, symbols: Mapping[str, int]) -> RecordedTemplate:
        """Return the template as plain data. Raises NotNative, which names a node whose kernels need Python.

        symbols: Sizes by symbol. They are used to choose the order of the steps.
        """
        for node in self.graph.nodes:
            if is_control(node):
                raise NotNative(f"{self.graph.node_name(node)} contains subgraphs")
        sizes = self._table.values(symbols)
        made = [self._unplanned(step, sizes) for step in self._nodes]
        steps = [StepMemory(each.scratch_bytes, each.inplace, may_fail=False) for each in made]
        plan = plan_graph(
            self.graph, self.placement, steps, inplace=False, share=self.settings.share,
            nbytes=lambda v: sizes[self._bytes[v]],
        )  # fmt: skip
        writer, builder = Writer(self.part, cast(Any, made), self._position), StepRecorder()
        writer.write(builder, self.part, Planned(plan, 0, {}, {}))
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

    def _plan(self, part: Part, made: Sequence[_native.NodeKernel], sizes: Sequence[int]) -> MemoryPlan:
        """Return the memory plan. Kernels affect it only by their need of working memory and their in-place pairs."""
        # Only the order of updates depends on `may_fail`, and templates have no updates.
        needs = [
            StepMemory(int(made[step].scratch_bytes > 0), made[step].inplace, may_fail=False)
            if isinstance(step, int)
            else StepMemory(0, (), may_fail=False)
            for step in part.steps
        ]
        key = (id(part.graph), tuple([(m.scratch_bytes, *m.inplace) for m in needs]))
        if key not in self._plans:
            self._plans[key] = plan_graph(
                part.graph,
                part.placement,
                [
                    need
                    if isinstance(step, Branching | Repeating)
                    else need._replace(scratch_bytes=made[step].scratch_bytes)
                    for need, step in zip(needs, part.steps, strict=True)
                ],
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
    _require_sized(graph, placement)
    for value in fixed:
        if not value.tensor.is_static:
            raise NotNative(f"{value} may have another size each time")
    for result in placement.results:
        if not result.owned:
            raise NotNative("an output is not the result of a step, or is also another output")
    return placement


def _require_sized(graph: Graph, placement: Placement) -> Placement:
    """Return the placement of a graph or subgraph. Raises NotNative for sizes that are known only in a run."""
    if graph.updates:
        raise NotNative("states are written")
    for value in graph.values:
        if not placement.is_sized(value):
            raise NotNative(f"the size of {value} is not known before the run")
    for node in graph.nodes:
        if node.op.subgraphs() and node.op.domain != DOMAIN and not is_control(node):
            raise NotNative(f"{graph.node_name(node)} contains subgraphs")
    return placement
