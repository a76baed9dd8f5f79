"""Groups of nodes that backends compute: compile them, keep what is compiled, call it, and check its results."""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import ml_dtypes
import numpy as np

from graphkit.errors import BackendError, BackendWarning, error_text
from graphkit.executor.devices.kernel import VersionedArray
from graphkit.executor.run.params import ParamStore
from graphkit.ir.graph import Graph, Node, Value
from graphkit.ir.types import DType, TensorType, dtype_of
from graphkit.named_tuples import NamedTuple
from graphkit.ops._base import operator
from graphkit.ops.internal.backend_group import BackendGroup
from graphkit.passes.core.bind import rebind
from graphkit.passes.distribution.backends import Decision, Partitioner

# Number of compiled forms of one group that are kept: those that were used last.
_KEPT = 16
# After this many changes of parameters, a group is compiled with its parameters as operands.
_CHANGES = 2
# How many nodes an error lists.
_MOST_NODES = 6

# Computes the results of a group from its operands.
Computation: TypeAlias = Callable[..., Any]


class Source(NamedTuple):
    """A subgraph that a backend compiles.

    Attributes:
        name: The name of the group, such as "onnxruntime/0".
        graph: Its nodes. Inputs with the role parameter have their arrays in `params`; the others are operands.
        params: Arrays that are compiled in, by name of the input.
        threads: Number of CPU threads.
    """

    name: str
    graph: Graph
    params: Mapping[str, np.ndarray]
    threads: int


class GroupBackend(Partitioner, Protocol):
    """A backend, as the executor uses it. `graphkit.backend.Backend` describes the attributes."""

    @property
    def concurrent(self) -> bool: ...
    @property
    def fallback(self) -> bool: ...
    @property
    def check(self) -> bool: ...

    def compile_group(self, source: Source) -> Computation:
        """Return a function that takes the operands and returns the results.

        The function may have a method `write_into(operands, results)`, which writes to given arrays (None: not used).
        """
        ...


class BackendCalls:
    """Calls the backends of one executor.

    Args:
        backends: The backends.
        threads: Number of CPU threads.
        make_executor: Makes an executor of a graph and its parameters, to compute a group in graphkit.
    """

    def __init__(self, backends: Sequence[GroupBackend], threads: int, make_executor: Callable[..., Any]):
        self._backends = {backend.name: backend for backend in backends}
        self._threads, self._make_executor = threads, make_executor
        self._lock = threading.Lock()
        self._kept: dict[str, OrderedDict[Hashable, _Compiled]] = {}
        self._outcomes: dict[str, _Outcome] = {}

    def call(self, node: Node, constants: Mapping[int, VersionedArray]) -> _Call:
        """Compile a BackendGroup for the types of its operands, or return the call that was compiled before.

        constants: The operands that are parameters or constants, by position.
        """
        op = operator(node, BackendGroup)
        backend = self._backends[op.backend]
        sizes = () if backend.dynamic else tuple((v.type, v.tensor.value) for v in node.operands)
        key = sizes, tuple((i, id(a)) for i, a in sorted(constants.items()))
        with self._lock:
            kept = self._kept.setdefault(op.group, OrderedDict())
            compiled = kept.get(key)
            if compiled is None:
                body = op.body
                if not backend.dynamic:
                    body = rebind(body, {v: x.type for v, x in zip(body.inputs, node.operands, strict=True)})
                outcome = self._outcomes.setdefault(op.group, _Outcome())
                compiled = kept[key] = _Compiled(
                    op, backend, body, constants, self._threads, self._make_executor, outcome
                )
            kept.move_to_end(key)
            while len(kept) > _KEPT:
                kept.popitem(last=False)
        call = _Call(node, compiled)
        if not call.is_empty:
            compiled.current()
        return call

    def decided(self, decisions: Sequence[Decision]) -> Sequence[Decision]:
        """Return the decisions of the pass, changed for groups that graphkit computes because `compile` failed."""
        return [self._decided(each) for each in decisions]

    def _decided(self, decision: Decision) -> Decision:
        outcome = self._outcomes.get(decision.group)
        if outcome is None or not outcome.failure:
            return decision
        backend, failure = decision.group.rpartition("/")[0], " ".join(outcome.failure.split())
        if outcome.compiled:
            reason = f"{backend}: for some input shapes, it cannot compile the group ({failure})."
            return decision._replace(reason=reason)
        reason = f"{backend}: it cannot compile group {decision.group} ({failure})."
        return decision._replace(group="", reason=reason)


class _Outcome:
    """Whether a backend could compile a group.

    Attributes:
        compiled: Whether it compiled the group, for some input shapes.
        failure: The error of the first compilation that failed, if graphkit computes the group instead; "" if none did.
    """

    def __init__(self) -> None:
        self.compiled, self.failure = False, ""
        self._lock = threading.Lock()

    def is_first_failure(self, failure: str) -> bool:
        """Record a compilation that failed; return whether it is the first one of the group."""
        with self._lock:
            is_first = not self.failure
            self.failure = self.failure or failure
        return is_first


class _Form(NamedTuple):
    """A compiled form of a group.

    Attributes:
        run: The function of the backend, or of graphkit if the backend failed and may be replaced.
        operands: Positions of the operands that it takes.
        versions: Versions of the arrays that are compiled in; None if there are none.
    """

    run: Computation
    operands: Sequence[int]
    versions: tuple[int, ...] | None


class _Compiled:
    """A group for certain types of operands. It is compiled again if a parameter that is compiled in changes."""

    def __init__(
        self,
        op: BackendGroup,
        backend: GroupBackend,
        body: Graph,
        constants: Mapping[int, VersionedArray],
        threads: int,
        make_executor: Callable[..., Any],
        outcome: _Outcome,
    ):
        self.backend, self.body = backend, body
        self._op, self._constants, self._threads = op, dict(constants), threads
        self._make_executor, self._outcome = make_executor, outcome
        self.quantised = _quantised_values(body) if backend.check else set()
        self._lock = threading.RLock()
        self._form: _Form | None = None
        self._changes = 0
        # Computes the group in graphkit.
        self._executor: Callable[..., Sequence[np.ndarray]] | None = None
        self.running: contextlib.AbstractContextManager[Any] = (
            contextlib.nullcontext() if backend.concurrent else threading.Lock()
        )

    def current(self) -> _Form:
        """Return the form for the present values of parameters; compile it if necessary."""
        form = self._form
        if form is not None and (form.versions is None or form.versions == self._versions()):
            return form
        with self._lock:
            form, versions = self._form, self._versions()
            if form is not None and form.versions == versions:
                return form
            self._changes += form is not None
            self._form = form = self._compile(versions if self._constants and self._changes < _CHANGES else None)
            return form

    def in_graphkit(self, *inputs: Any) -> Sequence[np.ndarray]:
        """Return graphkit's results."""
        with self._lock:
            if self._executor is None:
                self._executor = self._make_executor(self.body, ParamStore({}))
        return self._executor(*inputs)

    def error(self, what: str) -> BackendError:
        """Return an error that names the backend, the group and its nodes."""
        return BackendError(f"{self.named()}: {what}")

    def named(self) -> str:
        """Return `backend 'x', group 'x/0' (nodes 'conv', 'relu')`."""
        names = [repr(self.body.node_name(node)) for node in self.body.nodes if node.op.name != "Constant"]
        listed = ", ".join(names[:_MOST_NODES])
        more = f" and {len(names) - _MOST_NODES} more" if len(names) > _MOST_NODES else ""
        return f"backend {self._op.backend!r}, group {self._op.group!r} (nodes {listed}{more})"

    def _versions(self) -> tuple[int, ...]:
        return tuple([array.version for array in self._constants.values()])

    def _compile(self, versions: tuple[int, ...] | None) -> _Form:
        """Compile the group. Arrays are compiled in if `versions` are given; otherwise all are operands."""
        fixed = {} if versions is None else self._constants
        inputs = self.body.inputs
        params = {self.body.name_of(inputs[i]): array.array for i, array in fixed.items()}
        graph = _with_parameters(self.body, [inputs[i] for i in fixed]) if fixed else self.body
        operands = [i for i in range(len(inputs)) if i not in fixed]
        try:
            run = self.backend.compile_group(Source(self._op.group, graph, params, self._threads))
            if not callable(run):
                raise self.error(f"compile must return a function, not {run!r}")
        except Exception as error:
            if not self.backend.fallback:
                if isinstance(error, BackendError):
                    raise
                raise self.error(
                    f"it cannot compile the group: {error_text(error)}; fallback=True lets graphkit compute such groups"
                ) from error
            self._warn(error_text(error))
            return _Form(self.in_graphkit, range(len(inputs)), None)
        self._outcome.compiled = True
        return _Form(run, operands, versions)

    def _warn(self, failure: str) -> None:
        """Record that the backend cannot compile the group, and warn if it is the first time."""
        if self._outcome.is_first_failure(failure):
            warnings.warn(
                f"{self.named()}: it cannot compile the group, so graphkit computes it: {failure}",
                BackendWarning,
                stacklevel=2,
            )


class _Call:
    """A kernel that calls a compiled group. If all results are empty, as for an empty batch, it does nothing.

    Sizes that depend on data are not known before the call. Then the backend may get empty arrays.
    """

    inplace = ()

    def __init__(self, node: Node, compiled: _Compiled):
        self._compiled = compiled
        self._types = [v.tensor for v in node.outputs]
        self.is_empty = all(kind.is_static and kind.size == 0 for kind in self._types)

    def __call__(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        if self.is_empty:
            return
        form = self._compiled.current()
        write_into = getattr(form.run, "write_into", None)
        if write_into is None:
            for output, result in zip(outputs, self._computed(form, inputs), strict=True):
                if output is not None:
                    np.copyto(output, result)
            return
        with self._compiled.running:
            try:
                write_into([inputs[i] for i in form.operands], outputs)
            except Exception as error:
                raise self._failed(error) from error
        if self._compiled.backend.check:
            self._check(inputs, outputs)

    def results(self, inputs: Sequence[Any]) -> Sequence[np.ndarray]:
        """Return the results of the backend, which may share memory with operands."""
        return self._computed(self._compiled.current(), inputs)

    def _computed(self, form: _Form, inputs: Sequence[Any]) -> Sequence[np.ndarray]:
        with self._compiled.running:
            try:
                made = form.run(*(inputs[i] for i in form.operands))
            except Exception as error:
                raise self._failed(error) from error
        results = list(made) if isinstance(made, (tuple, list)) else [made]
        if len(results) != len(self._types):
            raise self._compiled.error(f"it returned {len(results)} results; the group has {len(self._types)}")
        for position, (result, kind) in enumerate(zip(results, self._types, strict=True)):
            if (why := _mismatch(result, kind)) is not None:
                raise self._compiled.error(f"result {self._name(position)} is {why}; {kind} is expected")
        if self._compiled.backend.check:
            self._check(inputs, results)
        return results

    def _check(self, inputs: Sequence[Any], results: Sequence[Any]) -> None:
        """Raise BackendError if a result differs from graphkit's."""
        for position, (found, wanted) in enumerate(zip(results, self._compiled.in_graphkit(*inputs), strict=True)):
            value = self._compiled.body.outputs[position]
            if found is not None and (why := _difference(found, wanted, value in self._compiled.quantised)):
                raise self._compiled.error(f"check=True: result {self._name(position)} differs from graphkit's: {why}")

    def _failed(self, error: Exception) -> BackendError:
        return self._compiled.error(f"it failed in a run: {error_text(error)}")

    def _name(self, position: int) -> str:
        return repr(self._compiled.body.output_names[position])


def _with_parameters(graph: Graph, fixed: Sequence[Value]) -> Graph:
    """Return the graph with the role parameter for some of its inputs."""
    table: dict[Value, Value] = {v: v.like(name=graph.name_of(v), role="parameter") for v in fixed}
    for node in graph.nodes:
        made = node.rebuilt([table.get(v, v) if v is not None else None for v in node.inputs])
        table.update(zip(node.outputs, made.outputs, strict=True))
    return graph.replace(
        inputs=[table.get(v, v) for v in graph.inputs],
        outputs=[table.get(v, v) for v in graph.outputs],
        output_names=graph.output_names,
    )


def _mismatch(result: Any, kind: TensorType) -> str | None:
    """Return what a result is, if it is not an array of this type; None if it is."""
    if not isinstance(result, (np.ndarray, np.generic)):
        return f"of type {type(result).__name__}"
    fits = kind.shape is not None and len(result.shape) == len(kind.shape)
    fits = fits and all(not isinstance(d, int) or d == n for d, n in zip(kind.known_shape, result.shape, strict=True))
    if result.dtype != kind.dtype.numpy or not (fits or kind.shape is None):
        return f"{result.dtype}{list(result.shape)}"
    return None


# Largest difference, relative to the largest magnitude of graphkit's result, by bytes of an element.
_TOLERANCES = {2: 2e-2, 4: 1e-3, 8: 1e-6, 16: 1e-6}
# Operators whose integer results are rounded numbers. QLinearConv, QLinearMatMul and others begin with the last one.
_QUANTISING = ("QuantizeLinear", "DynamicQuantizeLinear", "QLinear")


def _quantised_values(graph: Graph) -> set[Value]:
    """Return the integer results of quantising operators, and values of the same type that are computed from them."""
    found: set[Value] = set()
    for node in graph.nodes:
        for value in node.outputs:
            if not isinstance(value.type, TensorType) or not value.type.dtype.is_integer:
                continue
            dtype = value.type.dtype
            read = (v for v in node.operands if v in found)
            if node.op.name.startswith(_QUANTISING) or any(v.tensor.dtype is dtype for v in read):
                found.add(value)
    return found


def _difference(found: np.ndarray, wanted: np.ndarray, is_quantised: bool = False) -> str:
    """Return how a result differs from graphkit's by more than rounding; "" if it does not.

    Integers must be equal, but quantised ones may differ by one step. Numbers that are not normal may become zero.
    """
    if wanted.size == 0:
        return ""
    wide = np.complex128 if wanted.dtype.kind == "c" else np.float64
    a, b = found.astype(wide), wanted.astype(wide)
    dtype = dtype_of(wanted.dtype)
    is_exact = dtype.is_integer or dtype is DType.BOOL
    if is_exact:
        allowed = 1.0 if is_quantised else 0.0
    else:
        largest = float(np.abs(b[np.isfinite(b)]).max(initial=0.0))
        smallest_normal = float(ml_dtypes.finfo(wanted.dtype).smallest_normal)
        allowed = max(_TOLERANCES.get(wanted.dtype.itemsize, 0.1) * largest, smallest_normal)
    same = (found == wanted) | (np.isnan(a) & np.isnan(b))
    with np.errstate(invalid="ignore"):
        apart = np.where(same, 0.0, np.abs(a - b))
    apart[np.isnan(apart)] = np.inf
    if is_exact:
        # Large 64-bit integers may be equal as float64.
        apart[~same] = np.maximum(apart[~same], 1.0)
    if apart.max() <= allowed:
        return ""
    at = np.unravel_index(int(apart.argmax()), apart.shape)
    return f"{found[at]} instead of {wanted[at]} at {list(map(int, at))}, by more than {allowed:.3g}"
