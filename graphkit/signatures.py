"""Check the arguments of public functions against their annotations; a wrong argument is an error that names it.

Annotations of a few forms are checked: numbers, strings, paths, functions, sequences, mappings and the classes of
`_CLASSES`, joined by `|`. An annotation of any other form allows everything.
"""

from __future__ import annotations

import functools
import inspect
import numbers
import operator
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from graphkit.errors import UsageError, did_you_mean
from graphkit.named_tuples import NamedTuple
from graphkit.text import quantity

Function = TypeVar("Function", bound=Callable[..., Any])
Class = TypeVar("Class")

# Classes by name, so that nothing is imported for a check, and what an error calls their objects.
_CLASSES = {
    "Value": "a graph value",
    "Model": "a Model",
    "Graph": "a Graph",
    "Executor": "an Executor, such as the result of net.compile()",
    "Backend": "a gk.backend.Backend",
    "KVStore": "a KVStore",
    "Trainer": "a Trainer",
    "StepNetwork": "a network of gk.StepBuilder",
    "TrainingStep": "a gk.TrainingStep",
    "GroupDevices": "",  # internal: messages do not offer it
    "Workers": "gk.data.Workers",
    "Dataset": "a Dataset",
    "Vocabulary": "a Vocabulary",
    "Preprocess": "a Preprocess",
    "EMA": "an EMA",
    "Optimizer": "an optimizer of gk.optim",
    "TensorType": "a TensorType",
    "SequenceType": "a SequenceType",
    "OptionalType": "an OptionalType",
    "MapType": "a MapType",
    "Loss": "a loss of gk.losses.get",
    "Lora": "a gk.settings.Lora(rank=..., ...)",
    "Schedule": "a schedule of gk.optim",
    "DType": "a gk.DType",
    "DimExpr": "a dimension",
    "dtype": "a dtype of numpy",
    "type": "a class",
}
# End of the message for something that is not a graph value.
_CONSTANT = "; gk.constant(array) makes a graph value from an array, gk.input(name, shape) creates an input"
# Names of unions in annotations.
_ALIASES = {
    "AnyDevice": "str | Mapping[str | None, str] | GroupDevices",
    "Axes": "Mapping[str, int | None]",
    "Block": "str | int",
    "Rate": "float | Schedule | Callable[[int], float]",
    "Type": "TensorType | SequenceType | OptionalType | MapType",
}


class _Kind(NamedTuple):
    """One alternative of an annotation: its name, and the alternatives of what it contains."""

    name: str
    inner: tuple[_Kinds, ...] = ()


_Kinds = tuple[_Kind, ...] | None


def typed(owner: str, hint: Callable[[str, Mapping[str, Any]], str] | None = None) -> Callable[[Function], Function]:
    """Decorate a public function or method: a wrong type, an unknown or a missing argument raises UsageError.

    Args:
        owner: Name of the function in messages, such as `gk.grad`.
        hint: Function of an unknown argument's name and of all arguments by name. Returns the end of the message, or ""
            for a list of similar names.
    """

    def decorate(function: Function) -> Function:
        @functools.cache  # at the first call, because it takes longer than the definition of the function
        def parameters() -> _Parameters:
            return _parameters(function)

        @functools.wraps(function)
        def call(*args: Any, **options: Any) -> Any:
            names, positional, annotations, rest = parameters()
            named = options.get("name")
            where = f"{owner} {named!r}" if isinstance(named, str) else owner
            for name, value in zip(positional, args, strict=False):
                _check(where, name, _parsed(annotations.get(name)), value)
            for name, value in options.items():
                if name in names and name != rest:
                    _check(where, name, _parsed(annotations.get(name)), value)
                elif rest is None:
                    known = [n for n in names if n != "self"]
                    more = "" if hint is None else hint(name, dict(zip(positional, args, strict=False)) | options)
                    raise UsageError(f"{where} has no argument {name!r}{more or did_you_mean(name, known)}")
                else:
                    _check(where, name, _parsed(annotations.get(rest)), value)
            try:
                return function(*args, **options)
            except TypeError:
                _check_complete(where, function, args, options)
                raise

        return call  # type: ignore[return-value]

    return decorate


class _Parameters(NamedTuple):
    """The parameters of a function.

    Attributes:
        names: The names of all parameters.
        positional: The names of those that may be given by position.
        annotations: The annotations by name.
        rest: The name of the parameter that takes all other arguments by name; None if there is none.
    """

    names: Sequence[str]
    positional: Sequence[str]
    annotations: Mapping[str, Any]
    rest: str | None


def _parameters(function: Callable[..., Any]) -> _Parameters:
    """Read the parameters from the code of a function. `inspect.signature` takes ten times as long."""
    plain = inspect.unwrap(function)
    code = plain.__code__
    further = iter(code.co_varnames[code.co_argcount + code.co_kwonlyargcount :])
    variadic = [next(further)] if code.co_flags & inspect.CO_VARARGS else []
    rest = next(further) if code.co_flags & inspect.CO_VARKEYWORDS else None
    positional = [*code.co_varnames[: code.co_argcount], *variadic]
    by_name = code.co_varnames[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]
    names = [*positional, *by_name, *([] if rest is None else [rest])]
    return _Parameters(names, positional, plain.__annotations__, rest)


def typed_constructor(package: str) -> Callable[[type[Class]], type[Class]]:
    """Decorate a public class, so that its constructor is `typed`. package: prefix of its name in messages."""

    def decorate(cls: type[Class]) -> type[Class]:
        setattr(cls, "__init__", typed(f"{package}.{cls.__name__}")(cls.__init__))  # noqa: B010 - mypy refuses a method
        return cls

    return decorate


def _check_complete(owner: str, function: Callable[..., Any], args: Any, options: Any) -> None:
    signature = inspect.signature(function)
    try:
        signature.bind(*args, **options)
    except TypeError as error:
        raise UsageError(f"{owner}: {error}; it takes {signature_text(signature)}") from None


def operands_by_name(
    owner: str, names: Sequence[str], operands: Sequence[Any], named: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the operands of a call by name.

    Args:
        owner: The called object, for errors: "model 'lenet'".
        names: Names of all operands.
        operands: Operands that are given by position, in the order of `names`.
        named: Operands that are given by name.

    Raises:
        UsageError: A name is unknown, given twice or missing, or there are too many operands.
    """
    if len(operands) > len(names):
        listing = f" ({', '.join(names)})" if names else ""
        given = "1 was" if len(operands) == 1 else f"{len(operands)} were"
        raise UsageError(f"{owner} takes {quantity(len(names), 'input')}{listing}, but {given} given")
    table = dict(zip(names, operands, strict=False))
    for name in named:
        if name not in names:
            raise UsageError(f"{owner} has no input {name!r}{did_you_mean(name, names)}")
        if name in table:
            raise UsageError(f"{owner}: input {name!r} is given twice, by position and by name")
    table |= named
    if missing := [repr(name) for name in names if name not in table]:
        raise UsageError(f"{owner}: no value is given for input{'s' * (len(missing) > 1)} {', '.join(missing)}")
    return table


def signature_text(signature: inspect.Signature) -> str:
    """Return the names of a function's arguments; those with a default are in brackets."""
    shown = [
        name if parameter.default is parameter.empty else f"[{name}]"
        for name, parameter in signature.parameters.items()
        if name not in ("self", "cls")
    ]
    return "(" + ", ".join(shown) + ")"


def check_argument(owner: str, name: str, annotation: str, value: Any) -> None:
    """Raise UsageError if the annotation, such as `int | None`, does not allow the value of an argument."""
    _check(owner, name, _parsed(annotation), value)


def check_values(what: str, given: Iterable[Any]) -> None:
    """Raise UsageError if something is not a value of a graph. An array of `graphkit.nd` is none, though a subclass."""
    values = list(given)
    if {kind.__name__ for kind in set(map(type, values))} <= {"Value"}:
        return
    wrong = next(value for value in values if type(value).__name__ != "Value")
    raise UsageError(f"{what} must be graph values, not {shown(wrong)}{_CONSTANT}")


def _check(owner: str, name: str, kinds: _Kinds, value: Any) -> None:
    if kinds is None or any(_fits(kind, value) for kind in kinds):
        return
    described = map(_described, sorted(kinds, key=lambda kind: kind.name == "None"))
    wanted = " or ".join(filter(None, dict.fromkeys(described)))
    hint = ""
    if any(kind.name == "Value" for kind in kinds) and (
        hasattr(value, "__array__") or isinstance(value, (list, float))
    ):
        hint = _CONSTANT
    if (odd := _odd(kinds, value)) is None:
        raise UsageError(f"{owner}: {name} must be {wanted}, not {shown(value)}{hint}")
    place, item = f"{name}[{odd[0]!r}]", odd[1]
    if isinstance(item, tuple) and any(type(part).__name__ == "Value" for part in item):
        hint = f"; choose one of its values, such as {place}[0]"
    raise UsageError(f"{owner}: {place} is {shown(item)}, but {name} must be {wanted}{hint}")


def _odd(kinds: tuple[_Kind, ...], value: Any) -> tuple[Any, Any] | None:
    """Return key (or index) and value of the first element of the wrong type in a list or dict; None if all fit."""
    for kind in kinds:
        if kind.name in _LISTS and kind.inner and isinstance(value, (list, tuple)):
            return next(((i, item) for i, item in enumerate(value) if not _any_fits(kind.inner[0], item)), None)
        if kind.name in ("Mapping", "dict") and len(kind.inner) == 2 and isinstance(value, dict):
            key, content = kind.inner
            return next(((k, v) for k, v in value.items() if not (_any_fits(key, k) and _any_fits(content, v))), None)
    return None


def shown(value: Any) -> str:
    """Describe a value for a message: `an array of float32[8, 4]`, `'text'`, `None`, `a function`."""
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return f"{type(value).__name__} of {value.dtype}{list(value.shape)}"
    if value is None or isinstance(value, (bool, int, float, complex, str, bytes)):
        text = repr(value)
        return text if len(text) <= 60 else f"{text[:60]}..."
    if inspect.isroutine(value):
        return "a function"
    if isinstance(value, (list, tuple)) and len(value) <= 8 and all(isinstance(v, (int, float, str)) for v in value):
        return repr(value)
    kind = type(value).__name__
    return f"a class, {value.__name__}" if isinstance(value, type) else f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"


# --- annotations ----------------------------------------------------------------------------------


@functools.cache
def _parsed(annotation: Any) -> _Kinds:
    """Return the alternatives of an annotation, given as a string; None if it allows everything."""
    if not isinstance(annotation, str) or not annotation:
        return None
    found: list[_Kind] = []
    for part in _divided(annotation, "|"):
        name, _, arguments = part.partition("[")
        name = name.rpartition(".")[2]
        if name in _ALIASES:
            found += _parsed(_ALIASES[name]) or ()
            continue
        if name not in _TESTS and name not in _CLASSES:
            return None
        found.append(_Kind(name, tuple(map(_parsed, _divided(arguments.removesuffix("]"), ",")))))
    return tuple(found)


def _divided(text: str, separator: str) -> list[str]:
    """Split a text at separators that are outside of brackets."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter == "[") - (letter == "]")
        if letter == separator and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts if part.strip()]


def _fits(kind: _Kind, value: Any) -> bool:
    if kind.name in _CLASSES:
        return any(base.__name__ == kind.name for base in type(value).__mro__)
    return _TESTS[kind.name](value) and _contents_fit(kind, value)


def _contents_fit(kind: _Kind, value: Any) -> bool:
    if kind.name in _LISTS and kind.inner:
        if hasattr(value, "dtype") and _fits_dtype(kind.inner[0], value.dtype):
            return True
        items = value if type(value) in (list, tuple) else value.tolist() if hasattr(value, "tolist") else ()
        return all(_any_fits(kind.inner[0], item) for item in items)
    if kind.name == "tuple" and kind.inner and (kind.inner[-1] is None or len(set(kind.inner)) == 1):
        return all(_any_fits(kind.inner[0], item) for item in value)  # tuple[X, ...], tuple[X, X]
    if kind.name in ("Mapping", "dict") and type(value) is dict and len(kind.inner) == 2:
        key, content = kind.inner
        return all(_any_fits(key, k) and _any_fits(content, v) for k, v in value.items())
    return True


def _fits_dtype(kinds: _Kinds, dtype: Any) -> bool:
    """Return whether each element of an array of this dtype is of one of these kinds."""
    letter = getattr(dtype, "kind", "")
    return kinds is None or any(letter and letter in _ELEMENTS.get(kind.name, "") for kind in kinds)


def _any_fits(kinds: _Kinds, value: Any) -> bool:
    return kinds is None or any(_fits(kind, value) for kind in kinds)


def _is_boolean(value: Any) -> bool:
    return isinstance(value, bool) or type(value).__name__ == "bool"


def _is_integer(value: Any) -> bool:
    if type(value) is int:
        return True
    if isinstance(value, numbers.Integral):
        return not _is_boolean(value)
    try:
        operator.index(value)
    except TypeError:
        return False
    return not _is_boolean(value)


def _is_number(value: Any) -> bool:
    if isinstance(value, numbers.Real) or _is_integer(value):
        return not _is_boolean(value)
    return getattr(value, "ndim", None) == 0 and getattr(getattr(value, "dtype", None), "kind", "") in "iuf"


def _is_sequence(value: Any) -> bool:
    return hasattr(value, "__len__") and _is_iterable(value) and getattr(value, "ndim", 1) > 0


def _is_iterable(value: Any) -> bool:
    return isinstance(value, Iterable) and not isinstance(value, (str, bytes, Mapping)) and not _is_value(value)


def _is_value(value: Any) -> bool:
    """Return whether this is a graph value, which supports `[]` but is not a sequence."""
    return type(value).__name__ == "Value"


_TESTS: dict[str, Callable[[Any], bool]] = {
    "None": lambda value: value is None,
    "bool": _is_boolean,
    "int": _is_integer,
    "float": _is_number,
    "str": lambda value: isinstance(value, str),
    "bytes": lambda value: isinstance(value, bytes),
    "Path": lambda value: isinstance(value, os.PathLike),
    "PathLike": lambda value: isinstance(value, os.PathLike),
    "Callable": callable,
    "Sequence": _is_sequence,
    "tuple": lambda value: isinstance(value, (tuple, list)),
    "list": _is_sequence,
    "Iterable": _is_iterable,
    "Collection": _is_sequence,
    "Mapping": lambda value: isinstance(value, Mapping),
    "dict": lambda value: isinstance(value, Mapping),
}
# Kind of elements -> letters of numpy's dtype kinds.
_ELEMENTS = {"bool": "b", "int": "iu", "float": "iuf", "str": "U"}
_LISTS = ("Sequence", "Iterable", "Collection", "list")
_MANY = {
    "int": "integers",
    "float": "numbers",
    "str": "strings",
    "bool": "switches",
    "Value": "graph values",
    "DimExpr": "dimensions",
}
_WORDS = {
    "None": "None",
    "bool": "True or False",
    "int": "an integer",
    "float": "a number",
    "str": "a string",
    "bytes": "bytes",
    "Path": "a path",
    "PathLike": "a path",
    "Callable": "a function",
}


def _described(kind: _Kind) -> str:
    if kind.name in _CLASSES:
        return _CLASSES[kind.name]
    if kind.name in _WORDS:
        return _WORDS[kind.name]
    several = [" or ".join(_MANY.get(k.name, _described(k)) for k in kinds) if kinds else "" for kinds in kind.inner]
    if kind.name in ("Mapping", "dict"):
        keys, contents = several if len(several) == 2 else ("", "")
        if contents.startswith("a list"):
            return f"a dict with {contents} as values"
        return "a dict" + (f" of {contents}" if contents else f" with {keys} as keys" if keys else "")
    return f"a list of {several[-1]}" if several and several[-1] else "a list"
