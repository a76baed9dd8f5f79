"""Node, Value, Graph: an immutable, typed, acyclic graph that is independent of the operators.

A Node infers its types when it is made, and never changes; a pass builds a new graph. Names are hints on nodes and
values; a Graph gives every one of its values and nodes a unique name, in topological order, so that the same
construction always prints the same text.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from graphkit.collector import without_gc
from graphkit.errors import BAD_VALUE, GraphkitError, InvalidModel, TypeMismatch, UsageError, did_you_mean
from graphkit.ir import context
from graphkit.ir.names import Names, origins, snake_case
from graphkit.ir.types import DType, TensorType, Type, same_type
from graphkit.signatures import check_argument, check_values
from graphkit.text import quantity, short_repr

if TYPE_CHECKING:
    from graphkit.ir.sweeps import NativeSweeps

T = TypeVar("T")
N = TypeVar("N", "Node", "Value")

_serial = itertools.count()
_NO_ATTRS: Mapping[str, Any] = {}
# Native versions of sweeps over graphs, once the native extension is imported.
_native: NativeSweeps | None = None


class Operator(Protocol):
    """Protocol of an operator, as the graph uses it (graphkit.ops.Op is the implementation)."""

    @property
    def name(self) -> str: ...
    @property
    def domain(self) -> str: ...
    def infer_types(self, inputs: Sequence[Type | None]) -> tuple[Type, ...]: ...
    def subgraphs(self) -> Mapping[str, Graph]: ...
    def attributes(self) -> Mapping[str, Any]: ...


class Value:
    """One typed value in a graph: output `index` of `node`, or a graph input if `node` is None.

    `role` says what an input is: "data", "parameter", "state" (running statistics, optimizer state) or "rng". `attrs`
    holds user attributes and, for parameters, the initialiser.
    """

    __slots__ = ("node", "index", "type", "name", "role", "attrs", "serial", "__weakref__")

    def __init__(
        self,
        type: Type,
        name: str = "",
        node: Node | None = None,
        index: int = 0,
        *,
        role: str = "data",
        attrs: Mapping[str, Any] | None = None,
    ):
        self.node: Final = node
        self.index: Final = index
        self.type: Final = type
        self.name: Final = name
        self.role: Final = role
        self.attrs: Final = attrs or _NO_ATTRS
        self.serial: Final = next(_serial)

    def __copy__(self) -> Value:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Value:
        return self  # it never changes

    def __reduce__(self) -> Any:
        raise UsageError("a value is pickled with the graph that it belongs to: pickle the Model, or the Graph")

    @property
    def is_input(self) -> bool:
        """Whether the value is a graph input."""
        return self.node is None

    @property
    def tensor(self) -> TensorType:
        """The type as a TensorType; raises TypeMismatch for sequences and optionals."""
        if not isinstance(self.type, TensorType):
            raise TypeMismatch(f"{self} is not a tensor")
        return self.type

    @property
    def dtype(self) -> DType:
        """The element type; raises TypeMismatch for sequences and optionals."""
        kind = self.type
        return (kind if isinstance(kind, TensorType) else self.tensor).dtype

    @property
    def shape(self) -> tuple[Any, ...] | None:
        """The dimensions; None if the rank is unknown. Raises TypeMismatch for sequences and optionals."""
        kind = self.type
        return (kind if isinstance(kind, TensorType) else self.tensor).shape

    @property
    def rank(self) -> int | None:
        """The number of axes; None if it is unknown. Raises TypeMismatch for sequences and optionals."""
        kind = self.type
        shape = (kind if isinstance(kind, TensorType) else self.tensor).shape
        return None if shape is None else len(shape)

    def like(self, **changes: Any) -> Value:
        """Return a new graph input with the type, name, role and attributes of this value, except for `changes`."""
        fields = {"type": self.type, "name": self.name, "role": self.role, "attrs": self.attrs} | changes
        return Value(fields.pop("type"), fields.pop("name"), **fields)

    if TYPE_CHECKING:
        # Python's operators make nodes: graphkit.ops, which knows the operators, installs them.
        def __add__(self, other: Any) -> Value: ...
        def __radd__(self, other: Any) -> Value: ...
        def __sub__(self, other: Any) -> Value: ...
        def __rsub__(self, other: Any) -> Value: ...
        def __mul__(self, other: Any) -> Value: ...
        def __rmul__(self, other: Any) -> Value: ...
        def __truediv__(self, other: Any) -> Value: ...
        def __rtruediv__(self, other: Any) -> Value: ...
        def __floordiv__(self, other: Any) -> Value: ...
        def __rfloordiv__(self, other: Any) -> Value: ...
        def __pow__(self, other: Any) -> Value: ...
        def __rpow__(self, other: Any) -> Value: ...
        def __matmul__(self, other: Any) -> Value: ...
        def __rmatmul__(self, other: Any) -> Value: ...
        def __mod__(self, other: Any) -> Value: ...
        def __rmod__(self, other: Any) -> Value: ...
        def __and__(self, other: Any) -> Value: ...
        def __rand__(self, other: Any) -> Value: ...
        def __or__(self, other: Any) -> Value: ...
        def __ror__(self, other: Any) -> Value: ...
        def __xor__(self, other: Any) -> Value: ...
        def __rxor__(self, other: Any) -> Value: ...
        def __lt__(self, other: Any) -> Value: ...
        def __le__(self, other: Any) -> Value: ...
        def __gt__(self, other: Any) -> Value: ...
        def __ge__(self, other: Any) -> Value: ...
        def __neg__(self) -> Value: ...
        def __abs__(self) -> Value: ...
        def __pos__(self) -> Value: ...
        def __invert__(self) -> Value: ...
        def __getitem__(self, key: Any) -> Value: ...

    def __str__(self) -> str:
        if self.node is None:
            return f"{self.name or 'input'}: {self.type}"
        suffix = f".{self.index}" if len(self.node.outputs) > 1 else ""
        return f"{self.name or (self.node.name or self.node.op.name) + suffix}: {self.type}"

    describe = __str__  # for messages: that of an array of `graphkit.nd` needs no elements

    def __repr__(self) -> str:
        return short_repr(self, lambda: [str(self)])


def give_name(value: Value, name: str) -> None:
    """Name a value that was just made and is not used yet, for code that cannot name it when it is made."""
    value.name = name  # type: ignore[misc]


class Node:
    """One application of an operator to values. Raises TypeMismatch, which names the node, if the operands do not fit.

    If `types` is given, the output types are not inferred; it must contain the types that inference would return.
    `meta` contains attributes of the user: texts by key. They are kept when a pass rewrites the graph. `scope` contains
    the settings of `gk.name_scope` and `gk.attr_scope` under which the node was created.
    """

    # `_state` is for native sweeps: whether the latest one has visited the node.
    __slots__ = ("op", "inputs", "outputs", "name", "meta", "scope", "serial", "_state", "__weakref__")

    def __init__(
        self,
        op: Operator,
        inputs: Iterable[Value | None],
        name: str = "",
        meta: Mapping[str, str] | None = None,
        *,
        output_names: Sequence[str] = (),
        types: Sequence[Type] | None = None,
    ):
        self.op = op
        self.inputs: tuple[Value | None, ...] = tuple(inputs)
        scope = context.current()
        if scope.made is not None:
            scope.admit()
        self.scope = scope
        self.name = scope.prefix + name if name else ""
        self.meta: Mapping[str, str] = scope.merge(meta) if scope.attrs else meta or _NO_ATTRS
        self.serial = next(_serial)
        if types is None:
            try:
                types = op.infer_types([None if v is None else v.type for v in self.inputs])
            except GraphkitError as error:
                raise type(error)(f"{origins().unfinished(self, output_names)}: {error}") from None
            except (*BAD_VALUE, AttributeError) as error:
                where = origins().unfinished(self, output_names)
                raise TypeMismatch(f"{where}: operands and attributes do not fit: {error}") from error
        named = len(output_names)
        if len(types) == 1:
            self.outputs: tuple[Value, ...] = (Value(types[0], output_names[0] if named else "", self),)
        else:
            self.outputs = tuple([Value(t, output_names[i] if i < named else "", self, i) for i, t in enumerate(types)])

    @property
    def output(self) -> Value:
        """The output of a node that has exactly one."""
        (value,) = self.outputs
        return value

    @property
    def operands(self) -> tuple[Value, ...]:
        """The inputs that are present (not None)."""
        given = self.inputs
        return tuple([v for v in given if v is not None]) if None in given else given  # type: ignore[return-value]

    def __copy__(self) -> Node:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Node:
        return self  # it never changes

    def __reduce__(self) -> Any:
        raise UsageError("a node is pickled with the graph that it belongs to: pickle the Model, or the Graph")

    def describe(self) -> str:
        """Return one line for errors: name, operator and operand types; without a name, also the user's code."""
        return str(origins().described(self))

    def rebuilt(self, inputs: Sequence[Value | None], op: Operator | None = None) -> Node:
        """Return this node with other operands, or itself if nothing changes. Infers types only if necessary."""
        if op is None:
            found = self.with_operands(inputs)
            if found is not None:
                return found
        with context.detached():
            names = [v.name for v in self.outputs]
            node = Node(op or self.op, inputs, self.name, self.meta, output_names=names)
        node.scope = self.scope
        return node

    def with_operands(self, inputs: Sequence[Value | None]) -> Node | None:
        """Return this node with other operands of the same types, or itself if nothing changes.

        Returns None if operands have other types, so that the types of the outputs must be inferred.
        """
        given = tuple(inputs)
        # Values compare by identity.
        if given is self.inputs or given == self.inputs:
            return self
        native = _native
        if native is not None:
            copy: Node | None = native.copied(self, given)
            return copy
        return self.with_types(given, [v.type for v in self.outputs]) if _same_types(given, self.inputs) else None

    def with_types(
        self, inputs: Iterable[Value | None], types: Sequence[Type], op: Operator | None = None, *, scope: Any = None
    ) -> Node:
        """Return this node with other operands. `types` must be what inference would return for the outputs.

        Args:
            inputs: The operands.
            types: The types of the outputs.
            op: The operator. None: that of this node.
            scope: The settings under which the node is created (see `Node`). None: those of this node.
        """
        native, scope = _native, self.scope if scope is None else scope
        if native is not None:
            made: Node = native.remade(self, self.op if op is None else op, tuple(inputs), scope, tuple(types))
            return made
        node = Node.__new__(Node)
        node.op, node.inputs, node.name, node.meta, node.scope = (
            self.op if op is None else op,
            tuple(inputs),
            self.name,
            self.meta,
            scope,
        )
        node.serial = next(_serial)
        node.outputs = tuple([Value(t, v.name, node, v.index) for v, t in zip(self.outputs, types, strict=True)])
        return node

    def __str__(self) -> str:
        attributes = ", ".join(f"{k}={v}" for k, v in self.op.attributes().items())
        return f"{self.describe()}" + (f" [{attributes}]" if attributes else "")

    def __repr__(self) -> str:
        return short_repr(self, lambda: [str(self)])


def _same_types(given: Sequence[Value | None], before: Sequence[Value | None]) -> bool:
    """Whether new operands have the same types as the old ones."""
    for new, old in zip(given, before, strict=True):
        if new is not old and (new is None or old is None or not same_type(new.type, old.type)):
            return False
    return True


def _by_name(given: Iterable[N]) -> tuple[list[N], list[N]]:
    """Return the nodes or values that have a name, and those that have none."""
    named: list[N] = []
    unnamed: list[N] = []
    for each in given:
        (named if each.name else unnamed).append(each)
    return named, unnamed


def accelerate(make_sweeps: Callable[..., NativeSweeps]) -> None:
    """Use the class `GraphSweeps` of the native extension from now on."""
    global _native
    _native = make_sweeps(Node, Value, _serial, same_type, _NO_ATTRS, TensorType)


def native_sweeps() -> NativeSweeps | None:
    """Return native versions of sweeps, or None if the extension is not imported."""
    return _native


def next_serial() -> int:
    """Return a serial number above those of all existing nodes and values, and below those of later ones."""
    return next(_serial)


@without_gc
def topological(values: Iterable[Value | None], stop: Iterable[Value] = ()) -> list[Node]:
    """Return the nodes that `values` depend on, each after its operands, in a deterministic order.

    A node is left out if all its needed outputs are in `stop`. Not recursive, so the depth of a graph has no limit.
    """
    stopped = set(stop)
    native = _native
    if native is not None:
        return native.topological(list(values), stopped)
    order: list[Node] = []
    # False: entered, its operands are above it on the stack; True: in `order`.
    state: dict[Node, bool] = {}
    for root in values:
        if root is None or root.node is None or root in stopped:
            continue
        stack = [root.node]
        while stack:
            node = stack[-1]
            if node not in state:
                state[node] = False
                height = len(stack)
                for operand in reversed(node.inputs):
                    producer = None if operand is None else operand.node
                    if producer is not None and producer not in state and operand not in stopped:
                        stack.append(producer)
                if len(stack) > height:
                    continue
            stack.pop()
            if not state[node]:
                state[node] = True
                order.append(node)
    return order


class Graph:
    """A graph: inputs, outputs, updates, and the nodes that compute the outputs and updates.

    A graph never changes after its creation. `nodes` contains its nodes in topological order.

    Args:
        inputs: The inputs, parameters and states included.
        outputs: The values that a run returns.
        updates: Pairs (state input, new value). All updates take effect together after a run.
        name: Name of the graph.
        output_names: One name per output (default: the names of the values).
        meta: Metadata: strings by name.

    Raises:
        InvalidModel: A node needs an input that `inputs` lacks, an input occurs twice, or a new value does not have the
            type of its state input.
    """

    __slots__ = (
        "inputs",
        "outputs",
        "updates",
        "name",
        "meta",
        "nodes",
        "_operators",
        "_spent",
        "_output_names",
        "_facts",
        "_names",
        "_input_names",
        "_by_name",
        "_node_names",
    )

    def __init__(
        self,
        inputs: Iterable[Value],
        outputs: Iterable[Value],
        updates: Iterable[tuple[Value, Value]] = (),
        name: str = "",
        *,
        output_names: Iterable[str] | None = None,
        meta: Mapping[str, str] | None = None,
    ):
        self.inputs: tuple[Value, ...] = tuple(inputs)
        self.outputs: tuple[Value, ...] = tuple(outputs)
        self.updates: tuple[tuple[Value, Value], ...] = tuple(updates)
        native = _native
        # None if something is wrong: then an error says what.
        nodes = None if native is None else native.sound_nodes(self.inputs, self.outputs, self.updates)
        if nodes is None:
            given = itertools.chain(self.inputs, self.outputs, *self.updates)
            check_values(f"inputs and outputs of graph {name!r}", given)
        self.name = name
        self.meta: Mapping[str, str] = dict(meta or {})
        self.nodes: tuple[Node, ...] = tuple(self._sorted() if nodes is None else nodes)
        self._operators: frozenset[str] | None = None
        self._spent: tuple[tuple[Value, ...], ...] | None = None
        self._output_names = None if output_names is None else tuple(output_names)
        self._facts: dict[Any, Any] = {}
        self._names: dict[Value, str] | None = None
        self._input_names: dict[Value, str] | None = None
        self._node_names: dict[Node, str] | None = None
        self._by_name: dict[str, Value] | None = None
        if nodes is None:
            self._check()
        if self._output_names is not None and len(self._output_names) != len(self.outputs):
            raise InvalidModel(
                f"{origins().titled(self)} has {quantity(len(self.outputs), 'output')}, but "
                f"{quantity(len(self._output_names), 'output name')}: give one name per output"
            )

    def _sorted(self) -> list[Node]:
        return topological([*self.outputs, *(new for _, new in self.updates)])

    def _check(self) -> None:
        known = set(self.inputs)
        if len(known) != len(self.inputs):
            raise InvalidModel(f"{origins().titled(self)}: an input is listed twice")
        operands = [node.inputs for node in self.nodes]
        read = itertools.chain(self.outputs, [new for _, new in self.updates], *operands)
        missing = {v: None for v in read if v is not None and v.node is None and v not in known}
        if missing:
            listed = ", ".join(str(v) for v in missing)
            raise InvalidModel(f"{origins().titled(self)} depends on values that are not among its inputs: {listed}")
        updated: dict[Value, Value] = {}
        for state, new in self.updates:
            if state in updated:
                nodes = " and ".join("an input" if v.node is None else v.node.describe() for v in (updated[state], new))
                raise InvalidModel(f"{origins().titled(self)}: {state} is updated twice, by {nodes}")
            updated[state] = new
            if state not in known:
                raise InvalidModel(f"{origins().titled(self)}: update of {state}, which is not an input")
            if state.type is not new.type and state.type != new.type:
                raise InvalidModel(f"{origins().titled(self)}: update of {state} with another type, {new.type}")

    @property
    def values(self) -> Iterator[Value]:
        """All values: inputs, then node outputs in topological order."""
        return itertools.chain(self.inputs, (v for node in self.nodes for v in node.outputs))

    @property
    def operators(self) -> frozenset[str]:
        """The names of all operators in the graph, without domains. Operators in subgraphs are not included."""
        if self._operators is None:
            native, nodes = _native, self.nodes
            self._operators = frozenset([n.op.name for n in nodes]) if native is None else native.operators(nodes)
        return self._operators

    def cached(self, compute: Callable[[Graph], T]) -> T:
        """Return `compute(graph)`, which is called once. It may depend on the nodes, inputs, outputs and updates only.

        Do not change the result: later callers get the same object.
        """
        if compute not in self._facts:
            self._facts[compute] = compute(self)
        found: T = self._facts[compute]
        return found

    def note(self, fact: str) -> None:
        """Note a fact about the nodes, which never changes."""
        self._facts[fact] = True

    def is_noted(self, fact: str) -> bool:
        """Return whether the fact was noted."""
        return fact in self._facts

    @property
    def spent(self) -> tuple[tuple[Value, ...], ...]:
        """For each node, those of its operands and results that nothing reads later. No value occurs twice."""
        if self._spent is None:
            read = {*self.outputs, *(new for _, new in self.updates)}
            spent = []
            for node in reversed(self.nodes):
                last = {v: None for v in (*node.inputs, *node.outputs) if v is not None and v not in read}
                spent.append(tuple(last))
                read.update(last)
            self._spent = tuple(reversed(spent))
        return self._spent

    def __copy__(self) -> Graph:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Graph:
        return self  # it never changes

    # --- names ---------------------------------------------------------------------------------

    def name_of(self, value: Value) -> str:
        """The unique name of one of this graph's values."""
        if self._names is None:
            if value.node is None and (names := self._names_of_inputs()):
                return names[value]
            self._assign_names()
        assert self._names is not None
        return self._names[value]

    def _names_of_inputs(self) -> dict[Value, str]:
        """Return the names of the inputs if they do not depend on other values, else an empty dictionary.

        Inputs take the names that they were given before all other values do.
        """
        if self._input_names is None:
            given = [v.name for v in self.inputs]
            names = Names().take_all(given) if all(given) else ()
            self._input_names = dict(zip(self.inputs, names, strict=True)) if names else {}
        return self._input_names

    def node_name(self, node: Node) -> str:
        """The unique name of one of this graph's nodes."""
        return self.node_names[node]

    @property
    def node_names(self) -> Mapping[Node, str]:
        """The unique names of this graph's nodes."""
        if self._node_names is None:
            self._node_names = self._names_of_nodes()
        return self._node_names

    @property
    def output_names(self) -> tuple[str, ...]:
        """One unique name per output: the given one, else the value's name."""
        if self._output_names is not None:
            return self._output_names
        return tuple(Names().take_all([self.name_of(v) for v in self.outputs]))

    @property
    def input_names(self) -> tuple[str, ...]:
        """The unique names of the inputs, in order."""
        names = self._names_of_inputs() if self._names is None else None
        return tuple(names.values()) if names else tuple([self.name_of(v) for v in self.inputs])

    def find(self, name: str, *, inputs_first: bool = False) -> Value:
        """Return the output called `name`, else the input, parameter or intermediate value of that name.

        Output names are a separate namespace: an output may have the name of another value.

        Args:
            name: A name of `output_names`, or one that `name_of` returns for a value.
            inputs_first: Look for inputs, parameters and intermediate values first, then for outputs.

        Raises:
            UsageError: Nothing has this name. The message shows the closest name.
        """
        check_argument(origins().titled(self), "the name of a value", "str", name)
        if self._by_name is None:
            self._by_name = {self.name_of(v): v for v in self.values}
        outputs = dict(zip(self.output_names, self.outputs, strict=True))
        tables = (self._by_name, outputs) if inputs_first else (outputs, self._by_name)
        found = next((table[name] for table in tables if name in table), None)
        if found is None:
            hint = did_you_mean(name, [*outputs, *self._by_name])
            raise UsageError(f"{origins().titled(self)} has no value {name!r}{hint}")
        return found

    # Explicit hints take their names before generated ones, so that adding an unnamed node renames nothing.

    @without_gc
    def _names_of_nodes(self) -> dict[Node, str]:
        unique = Names()
        named, unnamed = _by_name(self.nodes)
        names = dict(zip(named, unique.take_all([n.name for n in named]), strict=True))
        names |= zip(unnamed, unique.take_all([snake_case(n.op.name) for n in unnamed]), strict=True)
        return names

    @without_gc
    def _assign_names(self) -> None:
        nodes, unique = self.node_names, Names()
        given, others = _by_name(self.values)
        values = dict(zip(given, unique.take_all([v.name for v in given]), strict=True))
        hints = [
            v.role if v.node is None else nodes[v.node] + (f"_{v.index}" if len(v.node.outputs) > 1 else "")
            for v in others
        ]
        values |= zip(others, unique.take_all(hints), strict=True)
        self._names = values

    # --- rebuilding ----------------------------------------------------------------------------

    def replace(self, **changes: Any) -> Graph:
        """Return a graph that differs in the given fields (inputs, outputs, updates, name, output_names, meta)."""
        if not changes.keys() - {"name", "meta"}:
            return self._relabelled(**changes)
        fields: dict[str, Any] = {
            "inputs": self.inputs,
            "outputs": self.outputs,
            "updates": self.updates,
            "name": self.name,
            "output_names": self._output_names if "outputs" not in changes else None,
            "meta": self.meta,
        } | changes
        return Graph(
            fields["inputs"],
            fields["outputs"],
            fields["updates"],
            fields["name"],
            output_names=fields["output_names"],
            meta=fields["meta"],
        )

    def _relabelled(self, *, name: str | None = None, meta: Mapping[str, str] | None = None) -> Graph:
        """Return this graph with another name or metadata. Cached facts about its nodes are kept."""
        graph = Graph.__new__(Graph)
        for slot in Graph.__slots__:
            setattr(graph, slot, getattr(self, slot))
        if name is not None:
            graph.name = name
        if meta is not None:
            graph.meta = dict(meta)
        return graph

    def __str__(self) -> str:
        from graphkit.ir.printing import to_text

        return to_text(self)

    def __repr__(self) -> str:
        return short_repr(self, lambda: origins().graph_facts(self))
