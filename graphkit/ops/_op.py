"""Op: the base class of operators, and what its subclasses declare.

The annotated fields of a subclass are its attributes; `infer`, `reference` and `grad` define what it computes.
Everything else (gk functions, JSON, ONNX, the test suite) is derived from the class.
"""

from __future__ import annotations

import inspect
import keyword
from collections.abc import Hashable, Iterator, Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import Any, ClassVar, Self, TypeVar

from graphkit.errors import TypeMismatch, UsageError, did_you_mean
from graphkit.former_names import share_former_names
from graphkit.ir import dims
from graphkit.ir.dims import Dim
from graphkit.ir.graph import Graph, Node
from graphkit.ir.names import snake_case
from graphkit.ir.numbering import Numbering, attributes_key, remember, unique_number
from graphkit.ir.types import DType, TensorType, Type
from graphkit.named_tuples import NamedTuple
from graphkit.ops._fields import COERCE, REQUIRED, WORDS, Field, same_zeros
from graphkit.text import quantity

DOMAIN = "ai.graphkit"

_numbering = Numbering()
# The types of the results of nodes, by the numbers of their operator and of the types of their operands.
_inferred: dict[tuple[int | None, ...], tuple[Type, ...]] = {}
# When the table has this many entries, it starts again.
_MOST_INFERRED = 1 << 14


class Onnx(NamedTuple):
    """The ONNX operator that a graphkit operator corresponds to.

    Attributes:
        name: Name of the ONNX operator.
        since: Opset version of the ONNX definition that graphkit's operator follows.
        domain: Domain of the ONNX operator; "" is the standard domain.
        renames: Dict from attribute names in graphkit to the names in ONNX, where they differ.
        hidden: Inputs and attributes that ONNX does not have.
    """

    name: str
    since: int
    domain: str = ""
    renames: Mapping[str, str] = {}
    hidden: tuple[str, ...] = ()


class Formal(NamedTuple):
    """A declared operand: `x`, optional `b?`, variadic `xs*`."""

    name: str
    optional: bool
    variadic: bool

    @staticmethod
    def parse(text: str) -> Formal:
        return Formal(text.rstrip("?*"), text.endswith("?"), text.endswith("*"))


def with_default(formals: Sequence[Formal]) -> list[bool]:
    """Return, for each operand, whether a call may leave it out: it is optional, and no required operand follows."""
    last = max((i for i, f in enumerate(formals) if not f.optional and not f.variadic), default=-1)
    return [f.optional and i > last for i, f in enumerate(formals)]


def examples_align(inputs: Sequence[TensorType | None], batched: Sequence[bool]) -> bool:
    """Return whether the operands with examples have the full rank, and all others broadcast along the first axis."""
    rank = max(len(t.known_shape) for t in inputs if t is not None)
    return all(
        t is None or (len(t.known_shape) == rank if examples else len(t.known_shape) < rank or t.known_shape[0] == 1)
        for t, examples in zip(inputs, batched, strict=True)
    )


_NO_GRAPHS: Mapping[str, Graph] = MappingProxyType({})
# Former -> present names of class attributes and methods. Operators of users may still define the former ones.
_FORMER = {
    "refusal": "value_check",
    "refuses_values": "checks_values",
    "substitutes": "symbolic_inference",
    "widens": "reference_in_float32",
}
_SHARED_NAMES = frozenset({*_FORMER, *_FORMER.values()})

# The most entries of `Op._accepted`.
_MOST_ACCEPTED = 64
# Operators with a longer list or text have numbers of their own, because the numbering keeps what it has numbered.
_LONGEST_NUMBERED = 256

# Operands that are lists of integers. One integer is accepted as a list of one element.
INTEGER_LISTS = frozenset({"axes", "ends", "shape", "starts", "steps"})


class Op:
    """An operator with its attribute values. Immutable; equal operators have one class and the same bits in attributes.

    A subclass sets these class attributes:

    - `inputs`, `outputs`: names of operands and results. `"b?"` is optional, `"xs*"` variadic.
    - `types`: maps an input's name to the set of allowed dtypes, or to the name of an earlier input with the same
      dtype.
    - `onnx`: the ONNX form of the operator, see `Onnx`.
    - `inplace`: pairs (input, output) that may share memory.
    - `views`: pairs (input, output) where the output is the input's bytes with another shape.
    - `shape_only`: inputs whose shape is read, but not their elements.
    - `contiguous`: the results lie one after another in planned memory, each at the next aligned offset.
    - `random`: the operator draws random numbers; nodes are never merged.
    - `collective`: every rank takes part exactly once; nodes are never recomputed.
    - `pointwise`: the operands broadcast, and an element of the output depends only on operand elements at its
      position.
    - `per_example`: operands that may have the examples of a batch along their first axis, see `is_batchwise`.
    - `symbolic_inference`: `infer` compares sizes only with `may_equal` and `broadcast` of `graphkit.ir.dims`, which
      record sizes that must be equal. For new sizes, graphkit then replaces the names in the types, and does not call
      `infer` again. `infer` may assume that sizes are not negative.
    - `reference_in_float32`: the reference computes float16 and bfloat16 in float32. Set it to False for operators that
      read bits or only move elements.
    - `on_host`: the reference works only with numpy. On a GPU, operands are copied to host memory for it, and results
      are copied back.
    - `composite`: the executor does not run the operator itself, but the nodes that `composed` or `expand` returns.
    - `checks_values`: some operand values make a run fail, such as an index out of range; see `value_check`.
    - `samples`: a tuple of `Sample`, or a function that returns one. Operators of graphkit use functions, so that a
      process that only runs a network does not make the samples of each operator that it imports.

    It defines the methods `infer` and `reference`, and optionally:

    - `grad(self, node, *output_gradients)`: builds the gradient of each input; None for an input without a gradient.
    - `expand(self, *inputs)`: builds the result from standard operators, for export, and for gradients without `grad`.
    - `composed(self, *inputs)`: builds the result from operators that have kernels, if these differ from `expand`'s.
    """

    __slots__ = ("_number", "_replacements")
    _number: int
    # The operators that `replace` has returned, by the key of the changes.
    _replacements: dict[tuple[Any, ...], Any]

    domain: ClassVar[str] = ""
    name: ClassVar[str] = ""
    # Former names, which files and callers may still use.
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
    symbolic_inference: ClassVar[bool] = False
    reference_in_float32: ClassVar[bool] = True
    on_host: ClassVar[bool] = False
    composite: ClassVar[bool] = False
    checks_values: ClassVar[bool] = False
    samples: ClassVar[Any] = ()
    formals: ClassVar[tuple[Formal, ...]] = ()
    # The fields that hold subgraphs.
    _graphs: ClassVar[tuple[str, ...]] = ()
    # The fields that hold floats.
    _floats: ClassVar[tuple[str, ...]] = ()
    # Whether equal operators have the same number (see `number_of`), and result types are kept by this number.
    _is_numbered: ClassVar[bool] = False
    # Types of operands that `_check_operands` accepted: a dtype for a tensor, else a class.
    _accepted: ClassVar[set[tuple[Any, ...]]]
    # The operators that `shared` returns, by the key of their attributes.
    _shared: ClassVar[dict[tuple[Any, ...], Any]]

    def __init_subclass__(cls, **options: Any):
        super().__init_subclass__(**options)
        cls._accepted = set()
        cls._shared = {}
        cls._is_numbered = False  # until the decorator finds what a subclass defines
        if not _SHARED_NAMES.isdisjoint(cls.__dict__):
            share_former_names(cls, _FORMER)

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
    def shared(cls, /, **attrs: Any) -> Self:
        """Return the operator with these attributes. If all are numbers or short texts, equal calls share it."""
        key = attributes_key(attrs)
        if key is None:
            return cls(**attrs)
        known = cls._shared
        found: Self | None = known.get(key)
        if found is None:
            found = cls(**attrs)
            remember(known, key, found)
        return found

    @classmethod
    def _coerced(cls, key: str, given: Any) -> Any:
        """Return a value converted to the kind of the attribute `key`. Raises UsageError if that is not possible."""
        kind, default = cls.fields[key]
        if given is None and default is None:
            return None
        try:
            return COERCE[kind](given)
        except (TypeError, ValueError, OverflowError) as error:
            raise UsageError(f"{cls.name}: attribute {key}={given!r} must be {WORDS[kind]}: {error}") from None
        except UsageError as error:
            raise UsageError(f"{cls.name}: attribute {key}: {error}") from None

    @classmethod
    def _unknown(cls, key: str) -> UsageError:
        return UsageError(f"{cls.name} has no attribute {key!r}{did_you_mean(key, cls.fields)}")

    def __setattr__(self, key: str, value: Any) -> None:
        raise AttributeError(f"{self.name} is immutable")

    def __eq__(self, other: object) -> bool:
        return self is other or (
            type(self) is type(other)
            and self.__dict__ == other.__dict__
            and (not self._floats or self._has_zeros_of(other))  # 0.0 == -0.0, but they are not the same attribute
        )

    def _has_zeros_of(self, other: Op) -> bool:
        """Return whether the zeros among the floats have the same signs as those of an operator with equal values."""
        for key in self._floats:
            value, given = self.__dict__[key], other.__dict__[key]
            if value is not given and (not value or value.__class__ is tuple) and not same_zeros(value, given):
                return False
        return True

    def __hash__(self) -> int:
        return hash((type(self), *self.__dict__.values()))

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__.copy()

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__dict__.update({key: self._coerced(key, value) for key, value in state.items()})

    def __repr__(self) -> str:
        return f"{self.name}({', '.join(f'{k}={v}' for k, v in self.__dict__.items())})"

    def attributes(self) -> Mapping[str, Any]:
        """Return the attribute values that are set (not None), in the order of declaration."""
        return {k: v for k, v in self.__dict__.items() if v is not None}

    def subgraphs(self) -> Mapping[str, Graph]:
        """Return the attributes that are graphs, by name."""
        if not self._graphs:
            return _NO_GRAPHS
        values = self.__dict__
        return {key: values[key] for key in self._graphs if values[key] is not None}

    def replace(self, **changes: Any) -> Self:
        """Return the same operator with some attributes changed. Equal calls share the result, as in `shared`."""
        key = attributes_key(changes)
        if key is None:
            return self._replaced(changes)
        try:
            known = self._replacements
        except AttributeError:
            known = {}
            object.__setattr__(self, "_replacements", known)
        found: Self | None = known.get(key)
        if found is None:
            found = self._replaced(changes)
            remember(known, key, found)
        return found

    def _replaced(self, changes: Mapping[str, Any]) -> Self:
        made = object.__new__(type(self))
        values = made.__dict__
        values.update(self.__dict__)
        for key, given in changes.items():
            if key not in self.fields:
                raise self._unknown(key)
            values[key] = self._coerced(key, given)
        return made

    def _content(self) -> Hashable | None:
        """Return what determines the operator's number (see `number_of`); None if no other operator has this number."""
        values = self.__dict__.values()
        is_long = any(isinstance(value, (tuple, str)) and len(value) > _LONGEST_NUMBERED for value in values)
        return None if is_long else self

    # --- what a family file defines ---------------------------------------------------------------

    def infer(self, *inputs: Any) -> Any:
        """Return the type of the output (or a tuple of types) from the types of the inputs. An absent input is None.

        Raises TypeMismatch if the inputs do not fit.
        """
        raise NotImplementedError(f"{self.name}.infer")

    def reference(self, xp: Any, *inputs: Any) -> Any:
        """Compute the output array, or a tuple of arrays. This is the operator's definition; xp is numpy or CuPy."""
        raise NotImplementedError(f"{self.name}.reference")

    def multiply_adds(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> Dim | None:
        """Return the number of multiply-adds for inputs and outputs of these types; None if it is not defined."""
        return None

    def value_check(self, inputs: Sequence[Any]) -> tuple[Any, ...] | None:
        """Return a key for the check that may reject operand values in a run; None if every value is accepted.

        An example is the check that indices are within range. If several nodes have equal keys, only the first one of
        them can fail. The gradient of an operator has the key of the operator.

        Args:
            inputs: The operands, as graph values.

        Returns:
            A hashable tuple of everything that the check depends on. Put a graph value into it if the check depends on
            its elements; if it also depends on the value's shape, add the type. By default there is a key if
            `checks_values` is True, or if the operator is defined outside of graphkit.
        """
        if any(value_check(node) is not None for body in self.subgraphs().values() for node in body.nodes):
            return (object(),)
        is_own = type(self).__module__.startswith("graphkit.")
        return self._check_of_all(inputs) if self.checks_values or not is_own else None

    def _check_of_all(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        """Return the key of a check that depends on all operands' elements and types."""
        return (self, *inputs, *(None if v is None else v.type for v in inputs))

    def operand_ranks(self, *inputs: Any) -> Sequence[int | None]:
        """Return the rank that each operand must have, as far as the operator and the other operands determine it."""
        return ()

    def is_batchwise(self, inputs: Sequence[Any], batched: Sequence[bool]) -> bool:
        """Return whether the examples of a batch are independent, so that a batch can be computed in parts.

        `batched` says, for each operand, whether its first axis counts the examples; at least one does. The first axis
        of every result counts them, too. If the method returns True, example i of the results depends only on example i
        of these operands. `inputs` are types of known rank; None for an absent input.
        """
        if self.pointwise:
            return examples_align(inputs, batched)
        # Views have the same elements in the same order, so they are batchwise in the operand x.
        examples = self.per_example or ("x",) * bool(self.views)
        return bool(examples) and self._has_examples(examples, inputs, batched)

    def _has_examples(self, names: Sequence[str], inputs: Sequence[Any], batched: Sequence[bool]) -> bool:
        """Return whether exactly the operands with these names have examples; absent operands do not count."""
        last = len(self.formals) - 1
        expected = [self.formals[min(i, last)].name in names for i in range(len(inputs))]
        return all(t is None or b == e for t, b, e in zip(inputs, batched, expected, strict=True))

    # `grad(self, node, *output_gradients)` builds the gradient of each input (None: not differentiable in it);
    # `expand(self, *inputs)` builds the same result from standard operators, for files, gradients and the executor.
    # `composed(self, *inputs)` is only for the executor: it builds the result from operators that have kernels. All
    # three are optional.
    grad: ClassVar[Any] = None
    expand: ClassVar[Any] = None
    composed: ClassVar[Any] = None

    # --- derived ------------------------------------------------------------------------------------

    def infer_types(self, inputs: Sequence[Type | None]) -> tuple[Type, ...]:
        """Check the number and dtypes of the inputs, then return the types of the outputs. Raises TypeMismatch."""
        key = self._inference_key(inputs)
        known = None if key is None else _inferred.get(key)
        if known is not None:
            return known
        # The check depends on the dtypes alone. Most nodes have those of an earlier node.
        kinds = tuple([t.dtype if isinstance(t, TensorType) else type(t) for t in inputs])
        accepted = self._accepted
        if kinds not in accepted:
            self._check_operands(inputs)
            if len(accepted) < _MOST_ACCEPTED:
                accepted.add(kinds)
        result = self.infer(*inputs)
        types = result if isinstance(result, tuple) else (result,)
        if key is not None and _is_repeatable(inputs, types):
            if len(_inferred) >= _MOST_INFERRED:
                _inferred.clear()
            _inferred[key] = types
        return types

    def _inference_key(self, inputs: Sequence[Any]) -> tuple[int | None, ...] | None:
        """Return the key of the result types in `_inferred`; None if they must be inferred."""
        if not inputs or not self._is_numbered or dims.is_assuming():
            return None
        try:
            return (self._number, *[None if kind is None else kind._number for kind in inputs])
        except AttributeError:  # some are not numbered yet
            key: list[int | None] = [number_of(self)]
            for kind in inputs:
                if kind is not None and not isinstance(kind, TensorType):
                    return None
                key.append(None if kind is None else kind.number)
            return tuple(key)

    def _check_operands(self, inputs: Sequence[Type | None]) -> None:
        formals, given = self.formals, len(inputs)
        if given > len(formals) and not (formals and formals[-1].variadic):
            raise TypeMismatch(f"takes at most {quantity(len(formals), 'operand')}, but {given} are given")
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
                if not fits and isinstance(allowed, str):
                    raise TypeMismatch(
                        f"operand {name!r} is {dtype}, but operand {allowed!r} is {same_as}: both must have the same "
                        "element type; use gk.cast"
                    )
                if not fits:
                    wanted = ("one of " if len(allowed) > 1 else "") + ", ".join(sorted(map(str, allowed)))
                    raise TypeMismatch(f"operand {name!r} is {dtype}; expected {wanted}")
                seen.setdefault(name, dtype)

    def named_inputs(self, operands: Sequence[Any]) -> dict[str, Any]:
        """Map declared names to operands; a variadic operand is a tuple, an absent one None."""
        table: dict[str, Any] = {}
        for position, formal in enumerate(self.formals):
            if formal.variadic:
                table[formal.name] = tuple(operands[position:])
            else:
                table[formal.name] = operands[position] if position < len(operands) else None
        return table


def number_of(op: Op) -> int:
    """Return a number that other operators have only if they compute and infer the same (see `Numbering`)."""
    try:
        return op._number
    except AttributeError:
        content = op._content() if op._is_numbered else None
        number = unique_number() if content is None else _numbering.number(content)
        object.__setattr__(op, "_number", number)
        return number


def _is_repeatable(inputs: Sequence[Any], results: Sequence[Type]) -> bool:
    """Return whether results are tensors without dimensions that inference has added.

    Each inference adds new ones, which differ from all others.
    """
    known = {symbol for kind in inputs if kind is not None for symbol in kind.symbols}
    return all(isinstance(kind, TensorType) and known.issuperset(kind.symbols) for kind in results)


OpT = TypeVar("OpT", bound=Op)
T = TypeVar("T")


share_former_names(Op, _FORMER)


def operator(node: Node, kind: type[T]) -> T:
    """Return the node's operator, typed as `kind`: its class, or a base class. Raises TypeError for another class."""
    op = node.op
    if not isinstance(op, kind):
        raise TypeError(f"{node.describe()}: its operator is not {kind.__name__}")
    return op


def declared(cls: type[OpT]) -> type[OpT]:
    """Set up an operator class as `op` does, but do not register it.

    For operators that are used only within a running job, are not stored in files and have no gk function.
    """
    fields: dict[str, Field] = {}
    # Annotations of Op itself are class attributes, not fields.
    for base in reversed(cls.__mro__):
        annotations = None if base is Op or base is object else _annotations(base)
        if annotations:
            fields.update(_own_fields(cls, base, annotations))
    cls.name = cls.__dict__.get("name") or cls.__name__
    cls.formals = _formals(tuple(cls.inputs))
    kinds = {field.kind for field in fields.values()}
    if fields:
        cls.fields = fields
        cls._graphs = tuple(key for key, field in fields.items() if field.kind == "Graph") if "Graph" in kinds else ()
        cls._floats = tuple(key for key, field in fields.items() if "float" in field.kind)
    # The inference of operators that are defined elsewhere may depend on more than types.
    has_content = kinds.isdisjoint(("Graph", "Tensor", "Type")) or cls._content is not Op._content
    cls._is_numbered = has_content and cls.__module__.startswith("graphkit.")
    return cls


def _own_fields(cls: type, base: type, annotations: Mapping[str, Any]) -> Iterator[tuple[str, Field]]:
    """Yield the fields that the body of `base` declares. cls: The operator class, for errors."""
    for key, annotation in annotations.items():
        text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))
        if text.startswith("ClassVar"):
            continue
        kind = text.removesuffix(" | None")
        if kind not in COERCE:
            raise UsageError(f"{cls.__name__}.{key}: attributes must be one of {', '.join(COERCE)}, not {text!r}")
        default = base.__dict__.get(key, None if kind != text else REQUIRED)
        yield key, Field(kind, default if default is REQUIRED or default is None else COERCE[kind](default))


@cache
def _formals(inputs: tuple[str, ...]) -> tuple[Formal, ...]:
    """Return the operands with these declarations. Many operators have the same ones."""
    return tuple(Formal.parse(text) for text in inputs)


def function_name(cls: Any) -> str:
    """Return the name of the operator's function: snake case, with `_` after a Python keyword (`and_`, `if_`)."""
    name = snake_case(cls.name)
    return name + "_" if keyword.iskeyword(name) else name


def _annotations(cls: type) -> Mapping[str, Any]:
    """Return the annotations in the body of a class. `inspect.get_annotations` takes ten times as long."""
    found: Mapping[str, Any] | None = vars(cls).get("__annotations__")
    return inspect.get_annotations(cls) if found is None and hasattr(cls, "__annotate__") else found or {}


def value_check(node: Node) -> tuple[Any, ...] | None:
    """See Op.value_check."""
    return node.op.value_check(node.inputs) if isinstance(node.op, Op) else (object(),)
