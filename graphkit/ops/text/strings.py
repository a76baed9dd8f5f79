"""Strings joined, split and normalised. A string tensor is an object array of str.

If ONNX Runtime differs from the text of the standard, results are those of ONNX Runtime.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from graphkit.errors import TypeMismatch, UsageError
from graphkit.ir import dims
from graphkit.ir.graph import Node
from graphkit.ir.limits import require_memory
from graphkit.ir.types import DType, TensorType, broadcast_shapes
from graphkit.ops._base import Onnx, Op, Sample, op
from graphkit.ops.held import string_bytes
from graphkit.ops.text.case import changed_case

STRINGS = frozenset({DType.STRING})


def text(*elements: Any) -> np.ndarray:
    """Return a tensor of strings. elements: strings, or lists of strings."""
    return np.array(elements, object)


def no_text(*shape: int) -> np.ndarray:
    """Return an empty tensor of strings of this shape."""
    return np.empty(shape, object)


def padded(lists: Sequence[Sequence[str]], shape: tuple[int, ...], pad: str) -> tuple[np.ndarray, np.ndarray]:
    """Pad lists of strings to one tensor [*shape, width]. Return it, and the length of each list as int64."""
    lengths = np.fromiter(map(len, lists), np.int64, len(lists))
    width = int(lengths.max(initial=0))
    require_memory(8 * width * len(lists), f"{len(lists)} lists, padded to {width} strings")
    table = np.full((len(lists), width), pad, object)
    flat = np.empty(int(lengths.sum()), object)
    flat[:] = list(itertools.chain.from_iterable(lists))
    table[np.arange(width) < lengths[:, None]] = flat
    return table.reshape(*shape, width), lengths.reshape(shape)


class TextOp(Op):
    """Base of operators without gradient, because their results are strings or step functions."""

    types = {"x": STRINGS}

    def grad(self, node: Node, *dys: Any) -> Any:
        return (None,) * len(node.inputs)


@op
class StringConcat(TextOp):
    """x followed by y, elementwise with numpy broadcasting."""

    inputs = ("x", "y")
    outputs = ("z",)
    types = {"x": STRINGS, "y": STRINGS}
    pointwise = True
    onnx = Onnx("StringConcat", since=20)
    samples = lambda: (
        Sample(text("a", "", "ü"), text("b", "c", "")),
        Sample(text(["a", "b"], ["c", "d"]), text("x", "y")),
        Sample(text("a", "b"), np.array("z", object)),
        Sample(np.array("a", object), np.array("b\0", object)),
        Sample(no_text(0, 2), text("a", "b")),
    )

    def infer(self, x: TensorType, y: TensorType) -> TensorType:
        return TensorType(DType.STRING, broadcast_shapes([x.shape, y.shape]))

    def reference(self, xp: Any, x: Any, y: Any) -> Any:
        count = math.prod(np.broadcast_shapes(x.shape, y.shape))
        if count:
            require_memory(sum(count // a.size * string_bytes(a) for a in (x, y)), "its strings")
        # For 0-d operands, numpy returns a str.
        return np.asarray(np.add(x, y), object)


def splitter(delimiter: str, limit: int | None) -> Callable[[str], list[str]]:
    """Return a function that splits a string at most `limit` times. As in ONNX Runtime, an empty one has no parts."""
    if delimiter:
        return lambda word: word.split(delimiter, -1 if limit is None else limit) if word else []
    if limit is None:
        return lambda word: [part for part in word.split(" ") if part]
    blanks = re.compile(" +")

    def parts(word: str) -> list[str]:
        stripped = word.strip(" ")
        if not stripped:
            return []
        return blanks.split(stripped, limit) if limit else [stripped]

    return parts


@op
class StringSplit(TextOp):
    """Split each string at a delimiter; return the parts, padded with empty strings to one length, and their number.

    Without a delimiter, or with an empty one, strings are split at blanks, and blanks at the ends are dropped. As in
    ONNX Runtime, only spaces are blanks, not tabs or line breaks. After `maxsplit` splits, the rest of a string stays
    whole. An empty string has no parts. Outputs: y, of x's shape and one more axis; z, int64 of x's shape.
    """

    delimiter: str | None = None
    maxsplit: int | None = None
    inputs = ("x",)
    outputs = ("y", "z")
    onnx = Onnx("StringSplit", since=20)
    samples = lambda: (
        Sample(text("a b c", " d  e ", "f")),
        Sample(text(["a,b", "c,d,e"], [",", "x"]), delimiter=","),
        Sample(text("hello world", "def.net"), delimiter=".", maxsplit=1),
        Sample(text("aXXbXXXc", "XX"), delimiter="XX"),
        Sample(text(" a  b   c ", "d"), maxsplit=1),
        Sample(text("a b", " c "), maxsplit=0),
        Sample(text("", "a b", " ")),
        Sample(text("", "a,b"), delimiter=","),
        Sample(np.array("a b", object)),
        Sample(no_text(0)),
        Sample(no_text(2, 0), delimiter=","),
    )

    def infer(self, x: TensorType) -> tuple[TensorType, TensorType]:
        shape = None if x.shape is None else (*x.shape, dims.fresh())
        return TensorType(DType.STRING, shape), TensorType(DType.INT64, x.shape)

    def reference(self, xp: Any, x: Any) -> tuple[Any, Any]:
        limit = None if self.maxsplit is None or self.maxsplit < 0 else self.maxsplit
        return padded(list(map(splitter(self.delimiter or "", limit), x.reshape(-1).tolist())), x.shape, "")


_ACTIONS = ("NONE", "LOWER", "UPPER")


@op
class StringNormalizer(TextOp):
    """Remove stop words from x, and change the other strings to lower or upper case. x: [C] or [1, C], as the result.

    A string is removed if the whole of it is a stop word; case matters only with `is_case_sensitive`. If no string is
    left, the result is one empty string. Each character becomes one character (Unicode's simple case mapping, as in C).
    Only the language of `locale` matters: Turkish and Azerbaijani have a dotted and a dotless i; C and POSIX change
    only ASCII. Locales need not be installed.
    """

    case_change_action: str = "NONE"
    is_case_sensitive: bool = False
    locale: str | None = None
    stopwords: tuple[str, ...] | None = None
    inputs = ("x",)
    onnx = Onnx("StringNormalizer", since=10)
    samples = lambda: (
        Sample(text("monday", "tuesday", "wednesday")),
        Sample(text("monday", "Tuesday"), case_change_action="UPPER", is_case_sensitive=True, stopwords=["monday"]),
        Sample(text(["Monday", "Tuesday"]), case_change_action="LOWER", stopwords=["monday"]),
        Sample(text("monday", "monday"), is_case_sensitive=True, stopwords=["monday"]),
        Sample(text("Monday", "ab"), stopwords=["MONDAY"], locale="C.UTF-8"),
        Sample(text("stra\u00dfe", "a b", "", "\u1fb3"), case_change_action="UPPER", stopwords=["a"], locale="C.UTF-8"),
        # onnx's evaluator wants a locale that is installed.
        Sample(text("IRI", "iri"), case_change_action="LOWER", locale="tr_TR.UTF-8", onnx=False),
        # ONNX Runtime refuses tensors without elements.
        Sample(no_text(0), onnx=False),
        Sample(no_text(1, 0), onnx=False),
    )

    def infer(self, x: TensorType) -> TensorType:
        if self.case_change_action not in _ACTIONS:
            raise UsageError(
                f"case_change_action must be one of {', '.join(_ACTIONS)}, not {self.case_change_action!r}"
            )
        if x.shape is None:
            return TensorType(DType.STRING, None)
        if len(x.shape) not in (1, 2) or not (len(x.shape) == 1 or dims.may_equal(x.shape[0], 1)):
            raise TypeMismatch(f"StringNormalizer takes [C] or [1, C], not {x}")
        size = x.shape[-1]
        kept = max(size, 1) if dims.is_static(size) and not self.stopwords else dims.fresh()
        return TensorType(DType.STRING, (*(1,) * (len(x.shape) - 1), kept))

    def reference(self, xp: Any, x: Any) -> Any:
        if x.ndim not in (1, 2) or x.shape[:-1] not in ((), (1,)):
            raise TypeMismatch(f"StringNormalizer takes [C] or [1, C], not {list(x.shape)}")
        words = x.reshape(-1).tolist()
        change = self.case_change_action
        if self.stopwords:
            compared = "NONE" if self.is_case_sensitive else "UPPER" if change == "UPPER" else "LOWER"
            stop = set(changed_case(self.stopwords, compared, self.locale))
            shown = changed_case(words, compared, self.locale)
            words = [word for word, key in zip(words, shown, strict=True) if key not in stop]
        words = changed_case(words, change, self.locale) or [""]
        return text(*words).reshape(*x.shape[:-1], len(words))
