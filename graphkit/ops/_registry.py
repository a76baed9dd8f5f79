"""The registry of all operators, and the functions that make their nodes."""

from __future__ import annotations

import importlib
import inspect
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np

from graphkit.errors import UnsupportedOperator, UsageError, did_you_mean
from graphkit.ir.arrays import array_of, native_order
from graphkit.ir.graph import Node, Value
from graphkit.ir.names import snake_case
from graphkit.ir.tensor import Tensor
from graphkit.ir.types import TensorType
from graphkit.ops._index import FORMER, OPERATORS
from graphkit.ops._op import INTEGER_LISTS, Op, OpT, declared, function_name, with_default
from graphkit.signatures import shown

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    # Type of the inputs of operator functions: everything that `as_value` converts.
    Operand: TypeAlias = Value | Tensor | ArrayLike


if TYPE_CHECKING:

    class Immediate(Protocol):
        """Runs operators on arrays that exist already. `graphkit.nd` installs it as `registry.immediate`."""

        @property
        def kind(self) -> type[Value]:
            """The class of the arrays, which are values as well."""
            ...

        @property
        def is_tracing(self) -> bool:
            """Whether the current thread traces a function: then operators on arrays make nodes, too."""
            ...

        def constant(self, array: Any) -> Value:
            """Return the graph value for an array that a graph reads."""
            ...

        def apply(self, operator: Op, operands: Sequence[Any]) -> Any:
            """Run an operator and return its result, or a tuple if it has several. No operand is a value of a graph."""
            ...


class Registry:
    """All operators, by (domain, name) and by function name. The only list of operators.

    Operators of graphkit are imported when they are first asked for: `graphkit.ops._index` says where each one is.
    """

    # Runs operators on arrays, if graphkit.nd is imported.
    immediate: Immediate | None = None

    def __init__(self) -> None:
        self._by_key: dict[tuple[str, str], type[Op]] = {}
        self._former: dict[tuple[str, str], type[Op]] = {}
        self._functions: dict[str, OpFunction] = {}
        # Operator of graphkit -> module, and function name -> module. Removed operators are deleted from both.
        self._modules = {key: module for key, (_, module) in OPERATORS.items()}
        self._modules_of_functions = dict(OPERATORS.values())
        # Modules that have been imported completely. Others may be half imported, in another thread.
        self._complete: set[str | None] = {None}

    def add(self, cls: type[Op]) -> None:
        key = (cls.domain, cls.name)
        if _is_built_in(cls) and key in OPERATORS:
            function, _ = OPERATORS[key]
        else:
            function = function_name(cls)
            self._import(self._modules.get(key))
            self._import(self._modules_of_functions.get(function))
        if key in self._by_key or function in self._functions:
            self._replace(cls, function)
        known = self._by_key.get(key)
        # A module of graphkit defines a class again if its import was interrupted before.
        again = known is not None and known is not cls and _is_built_in(cls) and _same_name(known, cls)
        if known is not None and not again:
            raise UsageError(f"operator {cls.domain or 'ai.onnx'}.{cls.name} is registered already")
        if function in self._functions and not again:
            raise UsageError(f"an operator named {function!r} is registered already, in another domain")
        self._by_key[key] = cls
        for former in cls.__dict__.get("former_names", ()):
            self._former[cls.domain, former] = cls
        self._functions[function] = OpFunction(cls, function)

    def _import(self, module: str | None) -> None:
        """Import a module of operators. If another thread is importing it, wait until that is finished."""
        if module not in self._complete:
            loaded = importlib.import_module(f"{__package__}.{module}")
            # If this thread is still importing the module, it is not complete.
            if not getattr(loaded.__spec__, "_initializing", False):
                self._complete.add(module)

    def _replace(self, cls: type[Op], function: str) -> None:
        """Unregister the earlier class if `cls` defines it again, as in a notebook cell or a reloaded module."""
        same_name = self._functions.get(function)
        found = {self._by_key.get((cls.domain, cls.name)), None if same_name is None else same_name.op}
        for old in [other for other in found if other is not None]:
            again = _same_name(old, cls) or old.__module__ == cls.__module__ == "__main__"
            if again and not _is_built_in(old):
                warnings.warn(
                    f"operator {cls.domain or 'ai.onnx'}.{cls.name} is defined again; graphs made before keep the "
                    "operator that they were made with",
                    stacklevel=4,
                )
                self.remove(old)

    def remove(self, cls: type[Op]) -> None:
        """Unregister an operator (for tests of custom operators)."""
        key, function = (cls.domain, cls.name), function_name(cls)
        del self._by_key[key]
        self._former = {key: known for key, known in self._former.items() if known is not cls}
        del self._functions[function]
        self._modules.pop(key, None)
        self._modules_of_functions.pop(function, None)

    def knows(self, domain: str, name: str) -> bool:
        """Return whether an operator has this name or former name, without importing it."""
        key = (domain, name)
        return key in self._modules or key in self._by_key or key in self._former or key in FORMER

    def find(self, domain: str, name: str) -> type[Op] | None:
        """Return the operator with this name or former name; None if there is none."""
        key = (domain, name)
        self._import(self._modules.get(key))
        found = self._by_key.get(key) or self._former.get(key)
        if found is None and key in FORMER:
            found = self.find(*FORMER[key])
        return found

    def get(self, domain: str, name: str) -> type[Op]:
        found = self.find(domain, name)
        if found is None:
            known = [n for d, n in {**self._modules, **self._by_key} if d == domain]
            raise UnsupportedOperator(f"operator {domain or 'ai.onnx'}.{name} is not known{did_you_mean(name, known)}")
        return found

    def function(self, name: str) -> OpFunction | None:
        self._import(self._modules_of_functions.get(name))
        found = self._functions.get(name)
        if found is None:
            old = next((key for key in (*FORMER, *self._former) if snake_case(key[1]) == name), None)
            former = None if old is None else self.find(*old)
            found = None if former is None else self._functions[function_name(former)]
        return found

    def function_of(self, cls: type[Op]) -> OpFunction:
        """The function of a registered operator."""
        return self._functions[function_name(cls)]

    def __iter__(self) -> Iterator[type[Op]]:
        """Iterate over all operators: import and yield those of graphkit, then others in the order of registration."""
        for module in dict.fromkeys(self._modules.values()):
            self._import(module)
        yield from [self._by_key[key] for key in self._modules if key in self._by_key]
        yield from [cls for key, cls in self._by_key.items() if key not in self._modules]

    def registered(self) -> list[type[Op]]:
        """The operators that are registered so far, in the order of their registration. Imports nothing."""
        return list(self._by_key.values())

    def function_names(self) -> list[str]:
        return sorted({*self._functions, *self._modules_of_functions})


def _same_name(first: type[Op], second: type[Op]) -> bool:
    return (first.__module__, first.__qualname__) == (second.__module__, second.__qualname__)


def _is_built_in(cls: type[Op]) -> bool:
    return cls.__module__.startswith("graphkit.")


registry = Registry()


def op(cls: type[OpT]) -> type[OpT]:
    """Register an operator class. Its annotated fields become attributes; `gk.<name>(...)` adds a node."""
    registry.add(declared(cls))
    return cls


# --- making nodes ---------------------------------------------------------------------------------


def constant(value: Any, dtype: Any = None) -> Value:
    """Return a graph value that holds a constant.

    Args:
        value: A number, a string, an array, or nested lists of them.
        dtype: Element type, such as "float32". By default that of `value`, as numpy chooses it: a Python float gives
            float64, an int int64. (In `x + 1.5`, a number takes the dtype of x.) Conversions are numpy's: 1.5 becomes
            1 in an integer type.

    Raises:
        InputError: The rows of a nested list have different lengths, or an integer does not fit `dtype`.
    """
    return F.constant(value=Tensor(value, dtype))


def as_value(operand: Any, like: Value | None = None) -> Value:
    """Convert an array or a Python number to a Value; return a Value as it is. Numbers take the dtype of `like`."""
    if isinstance(operand, Value):
        immediate = registry.immediate
        return immediate.constant(operand) if immediate is not None and type(operand) is immediate.kind else operand
    found = array_operand(operand, like)
    return F.constant(value=found if isinstance(found, Tensor) else Tensor(found))


def array_operand(operand: Any, like: Value | None = None) -> Any:
    """Return an operand that is not a Value as an array or a Tensor. Numbers take the dtype of `like`."""
    if isinstance(operand, (bool, int, float)) and like is not None:
        dtype = like.tensor.dtype
        if isinstance(operand, float) and not dtype.is_float:
            raise UsageError(
                f"a float constant {operand!r} cannot be combined with {like.describe()}: cast one of them"
            )
        try:
            return np.asarray(operand, dtype=dtype.numpy)
        except OverflowError:
            raise UsageError(
                f"the number {operand} does not fit the dtype of {like.describe()}: cast the value"
            ) from None
    if isinstance(operand, (bool, int, float, np.ndarray, np.generic, Tensor, list, tuple)):
        if isinstance(operand, Tensor):
            return operand
        if isinstance(operand, float):
            return np.float32(operand)
        if isinstance(operand, (list, tuple)) and any(isinstance(item, Value) for item in operand):
            items = ", ".join(v.describe() if isinstance(v, Value) else str(v) for v in operand)
            raise UsageError(f"a list of graph values cannot be an operand; use gk.concat: [{items}]")
        return native_order(array_of("an operand", operand, objects=True))
    raise UsageError(f"an operand must be a graph value, an array or a number, not {shown(operand)}")


def apply(operator: Op, *operands: Any, name: str = "", meta: Mapping[str, str] | None = None) -> Any:
    """Make a node; return its output, or a tuple if it has several outputs.

    If operands are arrays of `graphkit.nd`, and none is a value of a graph, run the operator.
    """
    immediate = registry.immediate
    if immediate is not None:
        kind = immediate.kind
        arrays = [type(v) is kind for v in operands]
        if True in arrays:
            if not immediate.is_tracing and not any(isinstance(v, Value) and type(v) is not kind for v in operands):
                return immediate.apply(operator, operands)
            operands = tuple([immediate.constant(v) if type(v) is kind else v for v in operands])
    values = [_operand(operator, i, operands) for i in range(len(operands))]
    while values and values[-1] is None:
        values.pop()
    if not isinstance(name, str):
        raise UsageError(f"the name of a node must be a text, not {shown(name)}")
    outputs = Node(operator, values, name, meta).outputs
    return outputs[0] if len(outputs) == 1 else outputs


def _operand(operator: Op, position: int, operands: Sequence[Any]) -> Value | None:
    operand = operands[position]
    if operand is None or isinstance(operand, Value):
        return operand
    number = isinstance(operand, (bool, int, float))
    return as_value(operand, _number_like(operator, position, operands) if number else None)


def literal_operand(operator: Op, position: int, operands: Sequence[Any]) -> Any:
    """Return the operand at `position`, which is not a Value, as an array or a Tensor."""
    operand = operands[position]
    number = isinstance(operand, (bool, int, float))
    return array_operand(operand, _number_like(operator, position, operands) if number else None)


def _number_like(operator: Op, position: int, operands: Sequence[Any]) -> Value | None:
    """Return the operand whose dtype a number takes: one of the same type variable, else the first if it is allowed."""
    given = [(i, v) for i, v in enumerate(operands) if isinstance(v, Value) and isinstance(v.type, TensorType)]
    variable = _type_variable(operator, position)
    for other, value in given:
        if variable and _type_variable(operator, other) == variable:
            return value
    allowed = operator.types.get(variable, ())
    return next((value for _, value in given[:1] if value.tensor.dtype in allowed), None)


def _type_variable(operator: Op, position: int) -> str:
    """Return the name of the operand that determines the dtype of the operand at `position`."""
    formals = operator.formals
    if not formals:
        return ""
    name = formals[min(position, len(formals) - 1)].name
    while isinstance(constraint := operator.types.get(name), str):
        name = constraint
    return name


def _calls() -> Any:
    """Return the module for calls in the style of other libraries, which is imported with the first such call."""
    from graphkit.ops import _calls as module

    return module


class OpFunction:
    """Function of an operator, such as `gk.softmax(x, axis=1)`, which makes a node.

    Inputs are given by position or keyword, attributes by keyword, and the node's name as `name=`.
    """

    __slots__ = ("op", "__name__", "_arguments", "_signature")

    def __init__(self, cls: type[Op], function: str):
        self.op = cls
        self.__name__ = function
        # Computed when they are first needed, because a module of operators defines many that a file does not have.
        self._arguments: tuple[frozenset[str], tuple[int, ...]] | None = None
        self._signature: inspect.Signature | None = None

    def _read_arguments(self) -> tuple[frozenset[str], tuple[int, ...]]:
        """Return the names of all arguments, and the positions of operands that may be one integer.

        Such an operand becomes a list of one, or leads to an error with the right form.
        """
        formals = self.op.formals
        names = frozenset([*self.op.fields, *(f.name for f in formals)])
        lists = [i for i, f in enumerate(formals) if f.name in INTEGER_LISTS or f.name in ("repeats", "split")]
        self._arguments = names, tuple(lists)
        return self._arguments

    def __call__(self, *operands: Any, name: str = "", meta: Mapping[str, str] | None = None, **keywords: Any) -> Any:
        cls = self.op
        formals = cls.formals
        names, lists = self._arguments or self._read_arguments()
        if formals and formals[0].variadic:
            if len(operands) == 1 and isinstance(operands[0], (list, tuple)):
                operands = tuple(operands[0])
            else:
                _calls().check_combined(cls, operands)
                _calls().check_list(cls, operands)
        elif len(operands) > len(formals) and not (formals and formals[-1].variadic):
            raise _calls().too_many(cls, operands)
        if not keywords.keys() <= names:
            keywords = _calls().attributes(cls, operands, keywords)
        values = list(operands)
        for position, formal in enumerate(formals):
            if formal.name in keywords and formal.name not in cls.fields:
                values.extend([None] * (position + 1 - len(values)))
                values[position] = keywords.pop(formal.name)
        for position in lists:
            if position < len(values) and isinstance(values[position], (int, np.integer)):
                values[position] = _calls().as_list(cls, values, position)
        return apply(cls.shared(**keywords), *values, name=name, meta=meta)

    @property
    def __doc__(self) -> str:  # type: ignore[override]
        return inspect.getdoc(self.op) or ""

    @property
    def __signature__(self) -> inspect.Signature:
        if self._signature is None:
            parameters = [
                inspect.Parameter(
                    f.name,
                    inspect.Parameter.VAR_POSITIONAL if f.variadic else inspect.Parameter.POSITIONAL_OR_KEYWORD,
                    default=None if given else inspect.Parameter.empty,
                )
                for f, given in zip(self.op.formals, with_default(self.op.formals), strict=True)
            ]
            parameters += [
                inspect.Parameter(k, inspect.Parameter.KEYWORD_ONLY, default=f.default, annotation=f.kind)
                for k, f in self.op.fields.items()
            ]
            parameters.append(inspect.Parameter("name", inspect.Parameter.KEYWORD_ONLY, default="", annotation="str"))
            self._signature = inspect.Signature(parameters)
        return self._signature

    def __repr__(self) -> str:
        return f"<operator {self.__name__}>"


class _Functions:
    """`F.relu(x)`: every operator as a function, looked up when called, so that families need not import each other."""

    def __getattr__(self, name: str) -> OpFunction:
        found = registry.function(name)
        if found is None and name.startswith("_"):
            # No operator begins like this. Tools such as pytest ask for many such names, and suggestions take time.
            raise AttributeError(f"no operator {name!r}")
        if found is None:
            raise AttributeError(f"no operator {name!r}{did_you_mean(name, registry.function_names())}")
        return found


if TYPE_CHECKING:
    # A stub made from the registry: see graphkit.checks.stub.
    from graphkit.ops import _functions

    F = _functions
else:
    F = _Functions()
