"""Op, the @op decorator, the registry, and the functions that make nodes.

An operator is one class in one family file. Its annotated fields are its attributes; `infer`, `reference` and
`grad` say what it is. Everything else (gk functions, JSON, ONNX, the test suite) is derived from the class.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self, TypeAlias, TypeVar

import numpy as np

from graphkit.errors import TypeMismatch, UnsupportedOperator, UsageError, did_you_mean
from graphkit.ir.dims import Dim
from graphkit.ir.graph import Graph, Node, Value
from graphkit.ir.names import snake_case
from graphkit.ir.tensor import Tensor
from graphkit.ir.types import DType, TensorType, Type
from graphkit.ops import _calls
from graphkit.ops._calls import function_name
from graphkit.ops._fields import COERCE, REQUIRED, Field

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    # What the function of an operator takes for an input: see `as_value`.
    Operand: TypeAlias = Value | Tensor | ArrayLike

DOMAIN = "ai.graphkit"


class Onnx(NamedTuple):
    """How an operator is written in ONNX: its name there, the version of its canonical form, its domain.

    `renames` maps a field to the ONNX attribute of another name. Inputs in `hidden` have no ONNX counterpart.
    """

    name: str
    since: int
    domain: str = ""
    renames: Mapping[str, str] = {}
    hidden: tuple[str, ...] = ()


class Rand(NamedTuple):
    """A sample input: random values of `shape` in [low, high), of `dtype` (None: the dtype under test).

    `definite`: x x^T + n of such values, symmetric and positive definite matrices.
    """

    shape: tuple[int, ...]
    low: float | None = None  # None: standard normal
    high: float = 1.0
    dtype: str | None = None
    definite: bool = False


class Items:
    """A sample input: a sequence, of tensors that are given as sample inputs are; `dtype` of an empty one."""

    __slots__ = ("items", "dtype")

    def __init__(self, *items: Any, dtype: str | None = None):
        self.items = items
        self.dtype = dtype

    def __repr__(self) -> str:
        return f"Items{self.items}"


class Perhaps(NamedTuple):
    """A sample input: an optional, of what is given as a sample input is, or empty (None)."""

    item: Any


class Sample:
    """One use of an operator, from which the suite derives its tests.

    Positional inputs: a shape (random normal values of the dtype under test), a `Rand`, an array used as it is,
    `Items` for a sequence, `Perhaps` for an optional, or None for an absent operand. Keywords are attributes.
    `grad=False` leaves the gradient check out (state why beside it); `onnx=False` leaves out the comparison with
    onnx's evaluator.
    """

    __slots__ = ("inputs", "attrs", "grad", "onnx", "dtypes")

    def __init__(
        self,
        *inputs: Any,
        grad: bool = True,
        onnx: bool = True,
        dtypes: Iterable[DType] | None = None,
        **attrs: Any,
    ):
        self.inputs = inputs
        self.attrs = attrs
        self.grad = grad
        self.onnx = onnx
        self.dtypes = None if dtypes is None else frozenset(dtypes)

    def __repr__(self) -> str:
        shown = [str(i.shape) if hasattr(i, "shape") else str(i) for i in self.inputs]
        return f"Sample({', '.join(shown + [f'{k}={v}' for k, v in self.attrs.items()])})"


class Formal(NamedTuple):
    """A declared operand: `x`, optional `b?`, variadic `xs*`."""

    name: str
    optional: bool
    variadic: bool

    @staticmethod
    def parse(text: str) -> Formal:
        return Formal(text.rstrip("?*"), text.endswith("?"), text.endswith("*"))


def with_default(formals: Sequence[Formal]) -> list[bool]:
    """Which operands a call may leave out: optional ones with no required one behind them."""
    last = max((i for i, f in enumerate(formals) if not f.optional and not f.variadic), default=-1)
    return [f.optional and i > last for i, f in enumerate(formals)]


def examples_align(inputs: Sequence[TensorType | None], batched: Sequence[bool]) -> bool:
    """Whether operands that broadcast against each other have their examples at the same axis, and others have none."""
    rank = max(len(t.known_shape) for t in inputs if t is not None)
    return all(
        t is None or (len(t.known_shape) == rank if examples else len(t.known_shape) < rank or t.known_shape[0] == 1)
        for t, examples in zip(inputs, batched, strict=True)
    )


_NO_GRAPHS: Mapping[str, Graph] = MappingProxyType({})


class Op:
    """An operator with its attribute values. Immutable; equal when class and attributes are equal.

    Class attributes: `inputs`, `outputs` (names; `"b?"` optional, `"xs*"` variadic), `types` (input name to the set of
    allowed dtypes, or to the name of an earlier input that has the same dtype), `onnx`, `inplace` (pairs (input,
    output) that may share memory), `views` (pairs where the output is the input's bytes, reshaped), `shape_only`
    (inputs of which only the shape is read), `contiguous` (the results lie one behind the other in planned memory, each
    at a multiple of its alignment), `random` (draws from the generator; never merged), `collective` (all processes take
    part in it, each once: it is never computed again), `pointwise` (an element of the output depends on the elements at
    its place of the operands, which broadcast), `per_example` (operands that may have the examples of a batch along
    their first axis, see `is_batchwise`), `substitutes` (the types of results for certain sizes are those for names,
    with the sizes in their place, under the assumptions that `graphkit.ir.dims` records: inference asks no more of a
    size than `may_equal` and `broadcast`, but that none is negative), `widens` (the reference computes half floats in
    float32), `on_host` (the reference is of numpy alone: a device with memory of its own hands it copies, and takes
    copies of what it makes), `composite` (the executor runs the nodes of `expand` in its place), `samples` (a tuple of
    Sample, or a function that returns one).
    """

    domain: ClassVar[str] = ""
    name: ClassVar[str] = ""
    # Names by which files and callers may still know it.
    former_names: ClassVar[tuple[str, ...]] = ()
    fields: ClassVar[Mapping[str, Field]] = {}
    inputs: ClassVar[tuple[str, ...]] = ()
    outputs: ClassVar[tuple[str, ...]] = ("y",)
    types: ClassVar[Mapping[str, Any]] = {}
    onnx: ClassVar[Onnx | None] = None
    inplace: ClassVar[tuple[tuple[int, int], ...]] = ()
    views: ClassVar[tuple[tuple[int, int], ...]] = ()
    shape_only: ClassVar[tuple[str, ...]] = ()
    contiguous: ClassVar[bool] = False
    random: ClassVar[bool] = False
    collective: ClassVar[bool] = False
    pointwise: ClassVar[bool] = False
    per_example: ClassVar[tuple[str, ...]] = ()
    substitutes: ClassVar[bool] = False
    widens: ClassVar[bool] = True
    on_host: ClassVar[bool] = False
    composite: ClassVar[bool] = False
    samples: ClassVar[Any] = ()
    formals: ClassVar[tuple[Formal, ...]] = ()
    # The fields that hold subgraphs.
    _graphs: ClassVar[tuple[str, ...]] = ()

    def __init__(self, **attrs: Any):
        values = self.__dict__
        for key, (_, default) in self.fields.items():
            if key in attrs:
                values[key] = self._coerced(key, attrs.pop(key))
            elif default is REQUIRED:
                raise UsageError(f"{self.name}: attribute {key!r} is required")
            else:
                values[key] = default
        if attrs:
            raise self._unknown(next(iter(attrs)))

    @classmethod
    def _coerced(cls, key: str, given: Any) -> Any:
        """The value of an attribute as its field has it."""
        kind, default = cls.fields[key]
        if given is None and default is None:
            return None
        try:
            return COERCE[kind](given)
        except (TypeError, ValueError) as error:
            raise UsageError(f"{cls.name}: attribute {key}={given!r} does not fit {kind}: {error}") from None

    @classmethod
    def _unknown(cls, key: str) -> UsageError:
        return UsageError(f"{cls.name} has no attribute {key!r}{did_you_mean(key, cls.fields)}")

    def __setattr__(self, key: str, value: Any) -> None:
        raise AttributeError(f"{self.name} is immutable")

    def __eq__(self, other: object) -> bool:
        return self is other or (type(self) is type(other) and self.__dict__ == other.__dict__)

    def __hash__(self) -> int:
        return hash((type(self), *self.__dict__.values()))

    def __repr__(self) -> str:
        return f"{self.name}({', '.join(f'{k}={v}' for k, v in self.__dict__.items())})"

    def attributes(self) -> Mapping[str, Any]:
        """Attribute values that are set (None left out), in declaration order."""
        return {k: v for k, v in self.__dict__.items() if v is not None}

    def subgraphs(self) -> Mapping[str, Graph]:
        if not self._graphs:
            return _NO_GRAPHS
        values = self.__dict__
        return {key: values[key] for key in self._graphs if values[key] is not None}

    def replace(self, **changes: Any) -> Self:
        """The same operator with some attributes changed."""
        made = object.__new__(type(self))
        values = made.__dict__
        values.update(self.__dict__)
        for key, given in changes.items():
            if key not in self.fields:
                raise self._unknown(key)
            values[key] = self._coerced(key, given)
        return made

    # --- what a family file defines ---------------------------------------------------------------

    def infer(self, *inputs: Any) -> Any:
        """Output type(s) from input types (None for an absent optional). Raises TypeMismatch."""
        raise NotImplementedError(f"{self.name}.infer")

    def reference(self, xp: Any, *inputs: Any) -> Any:
        """Output array(s) from input arrays: the definition, on numpy or cupy."""
        raise NotImplementedError(f"{self.name}.reference")

    def multiply_adds(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> Dim | None:
        """How many products are summed up, for types of known rank; None for what is no sum of products."""
        return None

    def operand_ranks(self, *inputs: Any) -> Sequence[int | None]:
        """The rank that each operand must have, as far as the operator and the other operands' types tell it."""
        return ()

    def is_batchwise(self, inputs: Sequence[Any], batched: Sequence[bool]) -> bool:
        """Whether the examples of a batch stay apart, so that parts of it can be computed one after the other.

        Examples lie along the first axis of the `batched` operands, at least one, and of every result: example i of the
        results depends on no others of those than example i. `inputs` are types of known rank, None for an absent one.
        """
        if self.pointwise:
            return examples_align(inputs, batched)
        # Views have the same elements in the same order, and as many examples as before.
        examples = self.per_example or ("x",) * bool(self.views)
        return bool(examples) and self._has_examples(examples, inputs, batched)

    def _has_examples(self, names: Sequence[str], inputs: Sequence[Any], batched: Sequence[bool]) -> bool:
        """Whether the operands with these names have examples, as far as they are there, and no other one has any."""
        last = len(self.formals) - 1
        expected = [self.formals[min(i, last)].name in names for i in range(len(inputs))]
        return all(t is None or b == e for t, b, e in zip(inputs, batched, expected, strict=True))

    # `grad(self, node, *output_gradients)` builds the gradient of each input (None: not differentiable in it);
    # `expand(self, *inputs)` builds the same result from standard operators. Both are optional.
    grad: ClassVar[Any] = None
    expand: ClassVar[Any] = None

    # --- derived ------------------------------------------------------------------------------------

    def infer_types(self, inputs: Sequence[Type | None]) -> tuple[Type, ...]:
        """Check arity and dtypes, then infer; raises TypeMismatch."""
        self._check_operands(inputs)
        result = self.infer(*inputs)
        return result if isinstance(result, tuple) else (result,)

    def _check_operands(self, inputs: Sequence[Type | None]) -> None:
        formals, given = self.formals, len(inputs)
        if given > len(formals) and not (formals and formals[-1].variadic):
            raise TypeMismatch(f"takes at most {len(formals)} operands, {given} given")
        seen: dict[str, DType] = {}
        for position, (name, optional, variadic) in enumerate(formals):
            if not optional and not variadic and (position >= given or inputs[position] is None):
                raise TypeMismatch(f"operand {name!r} is missing")
            if variadic and not optional and None in inputs[position:]:
                raise TypeMismatch(f"operand {inputs.index(None, position)}, one of {name!r}, is missing")
            allowed = self.types.get(name)
            if allowed is None:
                continue
            for operand in inputs[position:] if variadic else inputs[position : position + 1]:
                if operand is None:
                    continue
                if not isinstance(operand, TensorType):
                    raise TypeMismatch(f"operand {name!r} must be a tensor, not {operand}")
                dtype = operand.dtype
                if isinstance(allowed, str):
                    same_as = seen.setdefault(allowed, dtype)
                    fits = dtype is same_as
                else:
                    fits = dtype in allowed
                if not fits:
                    wanted = (
                        f"{same_as}, as {allowed!r}"
                        if isinstance(allowed, str)
                        else "one of " + ", ".join(sorted(map(str, allowed)))
                    )
                    raise TypeMismatch(f"operand {name!r} is {dtype}; expected {wanted}")
                seen.setdefault(name, dtype)

    def named_inputs(self, operands: Sequence[Any]) -> dict[str, Any]:
        """Operands by declared name; a variadic one is a tuple, an absent one None."""
        table: dict[str, Any] = {}
        for position, formal in enumerate(self.formals):
            if formal.variadic:
                table[formal.name] = tuple(operands[position:])
            else:
                table[formal.name] = operands[position] if position < len(operands) else None
        return table


OpT = TypeVar("OpT", bound=Op)
T = TypeVar("T")


def operator(node: Node, kind: type[T]) -> T:
    """The node's operator, which is of class `kind`: an operator's, a base's that several share, or Op."""
    op = node.op
    if not isinstance(op, kind):
        raise TypeError(f"{node.describe()}: its operator is no {kind.__name__}")
    return op


class Registry:
    """All operators, by (domain, name) and by function name. The only list of operators."""

    def __init__(self) -> None:
        self._by_key: dict[tuple[str, str], type[Op]] = {}
        self._former: dict[tuple[str, str], type[Op]] = {}
        self._functions: dict[str, OpFunction] = {}

    def add(self, cls: type[Op]) -> None:
        key = (cls.domain, cls.name)
        function = function_name(cls)
        self._replace(cls, function)
        if key in self._by_key:
            raise UsageError(f"operator {cls.domain or 'ai.onnx'}.{cls.name} is registered already")
        if function in self._functions:
            raise UsageError(f"an operator named {function!r} is registered already, in another domain")
        self._by_key[key] = cls
        self._former.update(((cls.domain, name), cls) for name in cls.__dict__.get("former_names", ()))
        self._functions[function] = OpFunction(cls, function)

    def _replace(self, cls: type[Op], function: str) -> None:
        """Take back what `cls` defines again: in a notebook, or in a module that is loaded once more."""
        same_name = self._functions.get(function)
        found = {self._by_key.get((cls.domain, cls.name)), None if same_name is None else same_name.op}
        for old in [other for other in found if other is not None]:
            again = (old.__module__, old.__qualname__) == (cls.__module__, cls.__qualname__)
            if (again or old.__module__ == cls.__module__ == "__main__") and not _is_built_in(old):
                warnings.warn(
                    f"operator {cls.domain or 'ai.onnx'}.{cls.name} is defined again; graphs made before keep the "
                    "operator that they were made with",
                    stacklevel=4,
                )
                self.remove(old)

    def remove(self, cls: type[Op]) -> None:
        """Take back a registration (for tests of custom operators)."""
        del self._by_key[cls.domain, cls.name]
        self._former = {key: known for key, known in self._former.items() if known is not cls}
        del self._functions[function_name(cls)]

    def find(self, domain: str, name: str) -> type[Op] | None:
        """The operator of this name, or of this former name."""
        return self._by_key.get((domain, name)) or self._former.get((domain, name))

    def get(self, domain: str, name: str) -> type[Op]:
        found = self.find(domain, name)
        if found is None:
            known = [n for d, n in self._by_key if d == domain]
            raise UnsupportedOperator(f"operator {domain or 'ai.onnx'}.{name} is not known{did_you_mean(name, known)}")
        return found

    def function(self, name: str) -> OpFunction | None:
        found = self._functions.get(name)
        if found is None:
            former = next((cls for (_, old), cls in self._former.items() if snake_case(old) == name), None)
            found = None if former is None else self._functions[function_name(former)]
        return found

    def function_of(self, cls: type[Op]) -> OpFunction:
        """The function of a registered operator."""
        return self._functions[function_name(cls)]

    def __iter__(self) -> Iterator[type[Op]]:
        return iter(self._by_key.values())

    def function_names(self) -> list[str]:
        return sorted(self._functions)


def _is_built_in(cls: type[Op]) -> bool:
    return cls.__module__.partition(".")[0] == __name__.partition(".")[0]


registry = Registry()


def op(cls: type[OpT]) -> type[OpT]:
    """Register an operator class: annotated fields become attributes, `formals` are parsed once."""
    registry.add(declared(cls))
    return cls


def declared(cls: type[OpT]) -> type[OpT]:
    """What `op` does but for the registration: of operators that mean something within a running job alone, that files
    do not have and callers do not name."""
    fields: dict[str, Field] = {}
    # What Op itself annotates are class attributes.
    for base in [b for b in reversed(cls.__mro__) if b is not Op]:
        for key, annotation in inspect.get_annotations(base).items():
            text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))
            if text.startswith("ClassVar"):
                continue
            kind = text.removesuffix(" | None")
            if kind not in COERCE:
                raise UsageError(f"{cls.__name__}.{key}: attributes are one of {', '.join(COERCE)}, not {text!r}")
            default = base.__dict__.get(key, None if kind != text else REQUIRED)
            fields[key] = Field(kind, default if default is REQUIRED or default is None else COERCE[kind](default))
    cls.fields = fields
    cls.name = cls.__dict__.get("name") or cls.__name__
    cls.formals = tuple(Formal.parse(text) for text in cls.inputs)
    cls._graphs = tuple(key for key, field in fields.items() if field.kind == "Graph")
    return cls


# --- making nodes ---------------------------------------------------------------------------------


def constant(value: Any, dtype: Any = None) -> Value:
    """A Constant node holding `value`."""
    return F.constant(value=Tensor(value, dtype))


def as_value(operand: Any, like: Value | None = None) -> Value:
    """A Value for a Value, an array or a Python number; numbers take the dtype of `like`."""
    if isinstance(operand, Value):
        return operand
    if isinstance(operand, (bool, int, float)) and like is not None:
        if isinstance(operand, float) and not like.dtype.is_float:
            raise UsageError(f"a float constant {operand!r} beside {like}: cast one of them")
        return constant(np.asarray(operand, dtype=like.dtype.numpy))
    if isinstance(operand, (bool, int, float, np.ndarray, np.generic, Tensor, list, tuple)):
        if isinstance(operand, Tensor):
            return F.constant(value=operand)
        if isinstance(operand, float):
            return constant(np.float32(operand))
        if isinstance(operand, (list, tuple)) and any(isinstance(item, Value) for item in operand):
            raise UsageError(
                f"a list of graph values is no operand: gk.concat joins tensors; [{', '.join(map(str, operand))}]"
            )
        return constant(np.asarray(operand))
    raise UsageError(f"a {type(operand).__name__} is not a graph value")


def apply(operator: Op, *operands: Any, name: str = "", meta: Mapping[str, str] | None = None) -> Any:
    """Make a node; return its output, or the tuple of its outputs when it has several."""
    values = [_operand(operator, i, operands) for i in range(len(operands))]
    while values and values[-1] is None:
        values.pop()
    outputs = Node(operator, values, name, meta).outputs
    return outputs[0] if len(outputs) == 1 else outputs


def _operand(operator: Op, position: int, operands: Sequence[Any]) -> Value | None:
    operand = operands[position]
    if operand is None or isinstance(operand, Value):
        return operand
    number = isinstance(operand, (bool, int, float))
    return as_value(operand, _number_like(operator, position, operands) if number else None)


def _number_like(operator: Op, position: int, operands: Sequence[Any]) -> Value | None:
    """The operand whose dtype a plain number takes: one of the same type variable, else the first if its dtype fits."""
    given = [(i, v) for i, v in enumerate(operands) if isinstance(v, Value) and isinstance(v.type, TensorType)]
    variable = _type_variable(operator, position)
    for other, value in given:
        if variable and _type_variable(operator, other) == variable:
            return value
    allowed = operator.types.get(variable, ())
    return next((value for _, value in given[:1] if value.dtype in allowed), None)


def _type_variable(operator: Op, position: int) -> str:
    """The name of the operand that decides the dtype at `position`."""
    formals = operator.formals
    if not formals:
        return ""
    name = formals[min(position, len(formals) - 1)].name
    while isinstance(constraint := operator.types.get(name), str):
        name = constraint
    return name


class OpFunction:
    """`gk.softmax(x, axis=1)`: inputs by position or keyword, attributes by keyword, `name=` for the node."""

    __slots__ = ("op", "__name__", "_keywords", "_lists", "_signature", "_plain")

    def __init__(self, cls: type[Op], function: str):
        self.op = cls
        self._keywords = frozenset([*cls.fields, *(f.name for f in cls.formals)])
        self._lists = _calls.list_positions([f.name for f in cls.formals])
        self.__name__ = function
        self._signature: inspect.Signature | None = None
        self._plain: Op | None = None  # the operator without attributes given, shared by the nodes that use it

    def __call__(self, *operands: Any, name: str = "", meta: Mapping[str, str] | None = None, **keywords: Any) -> Any:
        cls = self.op
        formals = cls.formals
        if formals and formals[0].variadic:
            if len(operands) == 1 and isinstance(operands[0], (list, tuple)):
                operands = tuple(operands[0])
            else:
                _calls.check_combined(cls, operands)
                _calls.check_list(cls, operands)
        elif len(operands) > len(formals) and not (formals and formals[-1].variadic):
            raise _calls.too_many(cls, operands)
        if not keywords.keys() <= self._keywords:
            keywords = _calls.attributes(cls, operands, keywords)
        values = list(operands)
        for position, formal in enumerate(formals):
            if formal.name in keywords and formal.name not in cls.fields:
                values.extend([None] * (position + 1 - len(values)))
                values[position] = keywords.pop(formal.name)
        for position in self._lists:
            if position < len(values) and isinstance(values[position], (int, np.integer)):
                values[position] = _calls.as_list(cls, values, position)
        if keywords:
            return apply(cls(**keywords), *values, name=name, meta=meta)
        if self._plain is None:
            self._plain = cls()
        return apply(self._plain, *values, name=name, meta=meta)

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
        if found is None:
            raise AttributeError(f"no operator {name!r}{did_you_mean(name, registry.function_names())}")
        return found


if TYPE_CHECKING:
    # A stub made from the registry: see graphkit.checks.stub.
    from graphkit.ops import _functions

    F = _functions
else:
    F = _Functions()
