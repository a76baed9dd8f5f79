"""Functions of arrays as one program: traced to a graph for each combination of argument types."""

from __future__ import annotations

import functools
import operator
import sys
from collections.abc import Callable, Sequence
from typing import Any

from graphkit.autodiff.reverse_mode import gradient
from graphkit.errors import MissingGradient, UsageError
from graphkit.frontend import tree
from graphkit.ir.graph import Graph, Value, topological
from graphkit.ir.subgraph import inline
from graphkit.ir.types import TensorType
from graphkit.nd import elements
from graphkit.nd.calls import Call, compiled, exact, next_number, random_state, remember
from graphkit.nd.ndarray import NDArray, Signature, signature
from graphkit.nd.runtime import Memory, settings
from graphkit.nd.tape import Deferred, record, trace
from graphkit.ops._registry import as_value
from graphkit.passes.training.randomness import bind_rng

# Programs that are kept for one function.
_MOST = 256


def hybridize(function: Callable[..., Any]) -> Hybrid:
    """Return a function that runs as one program, instead of one program for each operator. Also a decorator.

    The first call with arguments of certain shapes and dtypes calls `function` with values of a graph, and compiles
    the graph. Later calls run the program. So the code of the function must not depend on elements of arrays.

    Arguments are arrays, and tuples, lists and dicts of them; the program is compiled again for other values of all
    other arguments. Arrays that the function reads from elsewhere are read in each call, so write new elements to
    them (`w -= ...`, `w[:] = ...`). If you assign another array to the variable, the function does not see it.

    Within `record`, the call is recorded like that of an operator.
    """
    return Hybrid(function)


class Hybrid:
    """A function that `hybridize` compiles. Attributes: function: the function itself."""

    __name__: str

    def __init__(self, function: Callable[..., Any]):
        if not callable(function):
            raise UsageError(f"hybridize takes a function, not {type(function).__name__}")
        self.__name__ = type(function).__name__  # unless the function has a name
        functools.update_wrapper(self, function)
        self.function = function
        # Name of the bound method in its object. Overridden methods have another one, so that `super()` finds both.
        self._key = f"{getattr(self, '__qualname__', self.__name__)} (hybridized)"
        self._traces: dict[Any, _Trace] = {}

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        if settings.capture is not None:
            return self.function(*arguments, **options)
        if not options and all(type(x) is NDArray for x in arguments):
            leaves: Sequence[Any] = arguments
            key: Any = tuple([x._signature for x in arguments])
        else:
            given = (arguments, options)
            leaves = list(tree.leaves(given))
            kinds = [x._signature if type(x) is NDArray else exact(x) for x in leaves]
            key = (_hashable(tree.skeleton(given)), *kinds)
        try:
            trace = self._traces.get(key)
        except TypeError:
            raise UsageError(f"{self.__name__}: arguments other than arrays must be hashable") from None
        if trace is None:
            trace = _Trace(self.function, arguments, options, self.__name__)
            remember(self._traces, key, trace, _MOST)
        return trace.run([x for x in leaves if type(x) is NDArray])

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        """Return the method bound to its object. Each object has its own programs."""
        if instance is None:
            return self
        if not hasattr(instance, "__dict__"):
            raise UsageError(
                f"{self.__name__}: a hybridized method stores its programs in the object, so its class "
                f"{type(instance).__name__} cannot have __slots__ without '__dict__'"
            )
        bound = instance.__dict__.get(self._key)
        # A copy of an object begins with the programs of the original, which read the arrays of the original.
        if bound is None or bound.instance is not instance or bound.method is not self:
            bound = _Bound(self, instance)
            if isinstance(instance, type):  # a method of the class itself, by `classmethod`
                setattr(instance, self._key, bound)
            else:
                instance.__dict__[self._key] = bound
        return bound

    def __reduce__(self) -> Any:
        # Copies have no programs. As functions, a decorated one is copied and pickled by its name.
        name = getattr(self, "__qualname__", "")
        try:
            found = operator.attrgetter(name)(sys.modules[self.__module__])
        except (AttributeError, KeyError):
            found = None
        return name if found is self else (Hybrid, (self.function,))


class _Bound(Hybrid):
    """A method of one object. Attributes: method: the method of the class. instance: the object."""

    def __init__(self, method: Hybrid, instance: Any):
        super().__init__(functools.partial(method.function, instance))
        functools.update_wrapper(self, method.function)
        self.method, self.instance = method, instance

    def __reduce__(self) -> Any:
        return _Bound, (self.method, self.instance)


def _hashable(skeleton: Any) -> Any:
    if isinstance(skeleton, dict):
        return ("dict", *[(key, _hashable(item)) for key, item in sorted(skeleton.items(), key=str)])
    if isinstance(skeleton, (tuple, list)):
        return (type(skeleton), *map(_hashable, skeleton))
    return None if skeleton is None else type(skeleton)


class _Trace:
    """The graph of a function for certain argument types, and its programs."""

    def __init__(self, function: Callable[..., Any], arguments: Any, options: Any, name: str):
        self.name = name
        self._captured: list[NDArray] = []
        self._inputs: list[Value] = []
        graph, self._skeleton = self._traced(function, arguments, options)
        self.graph = bind_rng(graph)
        self._draws = len(self.graph.inputs) > len(graph.inputs)
        self.number = next_number()
        # Signatures of the results; None if their shapes depend on elements.
        self.outputs: list[Signature] | None = None
        if all(isinstance(v.type, TensorType) and v.type.is_static for v in self.graph.outputs):
            self.outputs = [signature(v.tensor.dtype.numpy, v.tensor.static_shape) for v in self.graph.outputs]
        self._plain: Call | None = None
        self._recorded: dict[tuple[bool, ...], Call] = {}

    def _traced(self, function: Callable[..., Any], arguments: Any, options: Any) -> tuple[Graph, Any]:
        known: dict[int, Value] = {}

        def capture(x: NDArray) -> Value:
            if id(x) not in known:
                # By the role, functions of `gk.cond` and loops know that the value is not their own.
                known[id(x)] = Value(x.type, f"captured{len(self._captured)}", role="captured")
                self._captured.append(x)
            return known[id(x)]

        def argument(x: Any) -> Any:
            if type(x) is not NDArray:
                return x
            self._inputs.append(Value(x.type, f"x{len(self._inputs)}"))
            return self._inputs[-1]

        # In the order of `tree.leaves` of the pair.
        symbolic = tree.map_leaves(argument, (arguments, options))
        before, settings.capture = settings.capture, capture
        try:
            result = function(*symbolic[0], **symbolic[1])
            outputs = [as_value(leaf) for leaf in tree.leaves(result)]
        finally:
            settings.capture = before
        if not outputs:
            raise UsageError(f"{self.name}: a hybridized function must return arrays")
        self._inputs += known.values()
        made = {v for node in topological(outputs) for v in node.operands} | set(outputs)
        foreign = [v for v in made if v.node is None and v not in set(self._inputs)]
        if foreign:
            raise UsageError(
                f"{self.name}: the result depends on {foreign[0]}, which is not an array; pass the parameters of "
                "layers as arrays, as in gk.nn.linear(x, units, weight=w)"
            )
        if known:
            plain = [v.like(role="data") for v in self._inputs]
            outputs, self._inputs = inline(Graph(self._inputs, outputs), plain), plain
        return Graph(self._inputs, outputs, name=self.name), tree.skeleton(result)

    def run(self, arguments: Sequence[NDArray]) -> Any:
        """Run the program, and return the arrays as the function nests them."""
        operands = [*arguments, *self._captured]
        if self._draws:
            operands.append(random_state())
        # As `is_tracked`: a call for each operand would take longer.
        tracked: tuple[bool, ...] = ()
        if settings.recording:
            tracked = tuple([x._origin is not None or x._grad_req != "" for x in operands])
        if True in tracked and self.outputs is not None:
            made = [NDArray(elements.empty(k.shape, k.dtype), Memory(), k) for k in self.outputs]
            for x in operands:
                if x._memory.maker is not None:
                    x._memory.readable()
            node = trace(self, operands, made)
            Deferred(node, lambda: self._recorded_call(tracked), operands, made)
        else:
            if self._plain is None:
                self._plain = compiled(self.graph, self.name)
            made = self._plain.run(operands)
            if True in tracked:
                record(self._plain, operands, made)
        return made[0] if self._skeleton is tree.LEAF else tree.unflatten(self._skeleton, made)

    def _recorded_call(self, tracked: tuple[bool, ...]) -> Call:
        """Return the program that also returns the values that the gradient reads."""
        found = self._recorded.get(tracked)
        if found is None:
            graph = self.graph
            wanted = [v for v, t in zip(graph.inputs, tracked, strict=True) if t]
            try:
                read = _read_by_gradient(graph, wanted)
            except MissingGradient:
                read = []  # the results can be read; `backward` raises the error
            found = compiled(graph.replace(outputs=[*graph.outputs, *read]), self.name)
            self._recorded[tracked] = found
        return found


def _read_by_gradient(graph: Graph, wanted: Sequence[Value]) -> list[Value]:
    """Return the intermediate values that the gradient of the outputs with respect to `wanted` reads."""
    outputs = [v for v in dict.fromkeys(graph.outputs) if v.tensor.dtype.is_float]
    if not outputs:
        return []
    seeds = [Value(v.type, "seed") for v in outputs]
    results = gradient(outputs, wanted, seeds, allow_unused=True)
    forward = {v for node in graph.nodes for v in node.outputs}
    varying = _varying(graph)
    read: dict[Value, None] = {}
    for node in topological(results, stop=forward):
        read.update(dict.fromkeys(v for v in node.operands if v in forward))
    read.update(dict.fromkeys(v for v in results if v in forward))
    done = set(graph.outputs)
    return [v for v in read if v in varying and v not in done and isinstance(v.type, TensorType) and v.type.is_static]


def _varying(graph: Graph) -> set[Value]:
    """Return the values that depend on elements of inputs."""
    found = set(graph.inputs)
    for node in graph.nodes:
        if node.op.name not in ("Shape", "Size") and any(v in found for v in node.operands):
            found.update(node.outputs)
    return found
