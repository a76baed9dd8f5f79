"""Einsum, and its expansion into transpositions, reductions and matrix products."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from graphkit.errors import TypeMismatch, UnsupportedError, UsageError
from graphkit.ir import dims
from graphkit.ir.dims import Dim
from graphkit.ir.types import FLOATS, NUMERIC, SIGNED, DType, TensorType
from graphkit.named_tuples import NamedTuple
from graphkit.ops._base import F, Onnx, Op, Sample, op
from graphkit.ops.axes import fresh_shape, i64
from graphkit.ops.pointwise import scalar_like
from graphkit.text import quantity

_PRODUCTS = FLOATS | {DType.INT32, DType.INT64, DType.UINT32, DType.UINT64}
_ELLIPSIS = "..."


class _Equation(NamedTuple):
    """The terms of the operands and of the result: tuples of letters and at most one ellipsis each."""

    terms: tuple[tuple[str, ...], ...]
    result: tuple[str, ...]


def _term(text: str, equation: str) -> tuple[str, ...]:
    before, ellipsis, after = text.partition(_ELLIPSIS)
    letters = before + after
    if letters and not (letters.isascii() and letters.isalpha()):
        raise UsageError(f"the equation {equation!r} has a term {text!r} that is not made of letters and one '...'")
    return (*before, *((_ELLIPSIS,) if ellipsis else ()), *after)


def _parsed(equation: str) -> _Equation:
    text = equation.replace(" ", "")
    left, arrow, right = text.partition("->")
    terms = tuple(_term(t, equation) for t in left.split(","))
    letters = [c for t in terms for c in t if c != _ELLIPSIS]
    broadcast = any(_ELLIPSIS in t for t in terms)
    if not arrow:
        once = sorted(c for c in set(letters) if letters.count(c) == 1)
        return _Equation(terms, ((_ELLIPSIS,) if broadcast else ()) + tuple(once))
    result = _term(right, equation)
    unknown = [c for c in result if c != _ELLIPSIS and c not in letters]
    twice = [c for c in dict.fromkeys(result) if result.count(c) > 1]
    if unknown:
        raise UsageError(f"equation {equation!r}: {unknown[0]!r} in the result is not in any operand")
    if twice:
        raise UsageError(f"equation {equation!r}: {twice[0]!r} is in the result twice; write it once")
    if (_ELLIPSIS in result) is not broadcast:
        there, missing = ("an operand", "the result") if broadcast else ("the result", "an operand")
        raise UsageError(f"equation {equation!r}: '...' is in {there}, but not in {missing}")
    return _Equation(terms, result)


def _axes(term: Sequence[str], rank: int) -> tuple[str, ...]:
    """Return one label per axis. Axes of an ellipsis are numbered from its end, where they align."""
    named = len(term) - (_ELLIPSIS in term)
    if rank < named or (rank > named and _ELLIPSIS not in term):
        raise TypeMismatch(f"an operand of rank {rank} does not fit the term {''.join(term)!r}")
    extra = tuple(f".{i}" for i in range(rank - named, 0, -1))
    return tuple(label for c in term for label in (extra if c == _ELLIPSIS else (c,)))


class _Factor(NamedTuple):
    """A value whose axes have labels."""

    value: Any
    labels: tuple[str, ...]


@op
class Einsum(Op):
    """Sum of products in Einstein notation, such as "ij,jk->ik": one letter for each axis of each operand.

    Letters that the result lacks are summed over; a letter repeated in one term takes the diagonal. An axis of size 1
    broadcasts against axes with the same letter in other operands. "..." means any number of axes that broadcast.
    Without "->", the result has the axes of "...", then the letters that occur once, in alphabetical order. If a
    product or sum of integers is too large for the element type, it wraps around.
    """

    equation: str
    inputs = ("xs*",)
    types = {"xs": NUMERIC}
    onnx = Onnx("Einsum", since=28)
    composite = True
    samples = lambda: (
        Sample((2, 3), (3, 4), equation="ij,jk->ik"),
        Sample((2, 3), (3, 4), equation="ij, jk", dtypes=FLOATS | {DType.INT32}),
        Sample((5, 2, 3), (5, 3, 4), equation="bij,bjk->bik", dtypes=FLOATS),
        Sample((5, 2, 3), (1, 3, 4), equation="...ij,...jk->...ik", dtypes=FLOATS),
        Sample((2, 3), equation="ij->ji", dtypes=FLOATS | {DType.INT64}),
        Sample((2, 3), equation="ij->i", dtypes=FLOATS),
        Sample((2, 3), equation="ij->", dtypes=FLOATS),
        Sample((3, 3), equation="ii->i", dtypes=FLOATS),
        Sample((3, 3), equation="ii", dtypes=FLOATS),
        Sample((2, 3, 3), equation="...ii->...i", dtypes=FLOATS),
        Sample((2,), (3,), equation="i,j->ji", dtypes=FLOATS),
        Sample((2, 3), (2, 3), equation="ij,ij->ij", dtypes=FLOATS),
        Sample((3,), (3,), equation="i,i", dtypes=FLOATS | {DType.INT8, DType.UINT8}),
        Sample((2, 3, 4, 5), (2, 4, 6, 5), equation="bchw,bhkw->bckw", dtypes=FLOATS),
        Sample((2, 3, 4), (3, 4, 5), equation="abc,bcd->ad", dtypes=FLOATS),
        Sample((2, 3), (3, 4), (4, 2), equation="ij,jk,kl->li", dtypes=FLOATS),
        Sample((2, 3, 4), (5, 4), equation="bij,kj->bk", dtypes=FLOATS),
        Sample((), (2,), equation=",i->i", dtypes=FLOATS),
        Sample((0, 3), (3, 2), equation="ij,jk->ik", dtypes=FLOATS),
        Sample((2, 0), (0, 3), equation="ij,jk->ik", dtypes=FLOATS),
        Sample((2, 5, 3, 3), equation="...ii->...i", dtypes=FLOATS),
        Sample((2, 1), (3, 4), equation="ij,jk->ik", dtypes=FLOATS),
        Sample((1, 2, 3), (5, 1, 4), equation="bij,bjk->bik", dtypes=FLOATS),
        Sample((1, 3), (2, 1), (1, 4), equation="ij,ij,jk->ik", dtypes=FLOATS),
    )

    def multiply_adds(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> Dim | None:
        sizes = self._sizes(inputs)
        return None if sizes is None else dims.product(sizes.values())

    def infer(self, *xs: TensorType) -> TensorType:
        sizes = self._sizes(xs)
        if sizes is None:
            return TensorType(xs[0].dtype)
        _, result = _parsed(self.equation)
        extra = sum(label.startswith(".") for label in sizes)
        rank = len(result) + (extra - 1 if _ELLIPSIS in result else 0)
        return TensorType(xs[0].dtype, [sizes[label] for label in _axes(result, rank)])

    def broadcasts(self, xs: Sequence[TensorType]) -> bool:
        """Return whether some letter may broadcast: its axis has size 1 in one operand, and perhaps more in another."""
        sizes, (terms, _) = self._sizes(xs), _parsed(self.equation)
        if sizes is None or any(x.shape is None for x in xs):
            return False
        labelled = zip(terms, xs, strict=True)
        pairs = (p for term, x in labelled for p in zip(_axes(term, len(x.known_shape)), x.known_shape, strict=True))
        return any(size == 1 and sizes[label] != 1 for label, size in pairs if not label.startswith("."))

    def has_uneven_ellipsis(self, xs: Sequence[TensorType]) -> bool:
        """Return whether "..." is known to stand for different numbers of axes in two operands."""
        terms, _ = _parsed(self.equation)
        labels = [
            _axes(t, len(x.known_shape))
            for t, x in zip(terms, xs, strict=True)
            if _ELLIPSIS in t and x.shape is not None
        ]
        return len({sum(label.startswith(".") for label in of_term) for of_term in labels}) > 1

    def _sizes(self, xs: Sequence[TensorType]) -> dict[str, Dim] | None:
        """Return the size of each label; None if the rank of an operand with "..." is unknown. Raises TypeMismatch."""
        terms, _ = _parsed(self.equation)
        if len(terms) != len(xs):
            raise TypeMismatch(
                f"{self.equation!r} has {quantity(len(terms), 'term')} for {quantity(len(xs), 'operand')}"
            )
        if any(x.dtype is not xs[0].dtype for x in xs):
            raise TypeMismatch(f"the operands must have one element type, not {', '.join(map(str, xs))}")
        sizes: dict[str, Dim] = {}
        for term, x in zip(terms, xs, strict=True):
            if x.shape is None:
                if _ELLIPSIS in term:
                    return None
                x = TensorType(x.dtype, fresh_shape(len(term)))
            own: dict[str, Dim] = {}
            for label, size in zip(_axes(term, len(x.known_shape)), x.known_shape, strict=True):
                own[label] = self._same(label, own[label], size) if label in own else size
            for label, size in own.items():
                sizes[label] = self._broadcast(label, sizes.get(label, 1), size)
        return sizes

    def _broadcast(self, label: str, a: Dim, b: Dim) -> Dim:
        """Return the broadcast size of a label of two operands. Raises TypeMismatch."""
        try:
            return dims.broadcast(a, b)
        except TypeMismatch:
            raise TypeMismatch(f"the axes {label!r} of {self.equation!r} have {a} and {b} elements") from None

    def _same(self, label: str, a: Dim, b: Dim) -> Dim:
        """Return the size of two axes of one operand with the same letter. Raises TypeMismatch if they differ."""
        if not dims.may_equal(a, b):
            raise TypeMismatch(f"the axes {label!r} of {self.equation!r} have {a} and {b} elements")
        return b if dims.is_static(b) else a

    def reference(self, xp: Any, *xs: Any) -> Any:
        return xp.einsum(self.equation.replace(" ", ""), *xs)

    def expand(self, *xs: Any) -> Any:
        dtype = xs[0].dtype
        if any(x.rank is None for x in xs):
            raise UnsupportedError(f"Einsum {self.equation!r} in matrix products needs operands of known rank")
        # Sums modulo 2**32 are also right modulo 2**8 and 2**16, so narrow integers are summed as 32-bit ones.
        work = dtype if dtype in _PRODUCTS else DType.INT32 if dtype in SIGNED else DType.UINT32
        terms, result = _parsed(self.equation)
        factors = [
            _diagonal(_Factor(x if work is dtype else F.cast(x, to=work), _axes(term, x.rank)))
            for term, x in zip(terms, xs, strict=True)
        ]
        broadcast = max((sum(label.startswith(".") for label in f.labels) for f in factors), default=0)
        wanted = _axes(result, len(result) + (broadcast - 1 if _ELLIPSIS in result else 0))
        total = factors[0]
        for position, factor in enumerate(factors[1:], 1):
            kept = {*wanted, *(label for later in factors[position + 1 :] for label in later.labels)}
            total, factor = _without_ones(total, factor, kept), _without_ones(factor, total, kept)
            total = _product(_summed(total, {*kept, *factor.labels}), _summed(factor, {*kept, *total.labels}), kept)
        value = _ordered(_summed(total, set(wanted)), wanted)
        return F.identity(value) if work is dtype else F.cast(value, to=dtype)


def _summed(x: _Factor, kept: set[str]) -> _Factor:
    """Sum x over the axes whose labels are not in `kept`."""
    axes = [i for i, label in enumerate(x.labels) if label not in kept]
    if not axes:
        return x
    return _Factor(
        F.reduce_sum(x.value, i64(*axes), keepdims=False), tuple(label for label in x.labels if label in kept)
    )


def _without_ones(x: _Factor, other: _Factor, kept: set[str]) -> _Factor:
    """Remove axes of size 1 that broadcast against axes of `other`, if the product sums over them."""
    sizes, others = (dict(zip(f.labels, f.value.shape, strict=True)) for f in (x, other))
    ones = {label for label in sizes if label not in kept and sizes[label] == 1 and others.get(label, 1) != 1}
    return _summed(x, set(x.labels) - ones)


def _fitted(x: _Factor, other: _Factor, contracted: Sequence[str]) -> _Factor:
    """Broadcast the summed axes of x to those of `other`; return x if the sizes are known to be equal.

    A run whose sizes do not broadcast fails here. Later, merged axes could have equal sizes by chance.
    """
    sizes, others = (dict(zip(f.labels, f.value.shape, strict=True)) for f in (x, other))
    open_ = [label for label in contracted if sizes[label] != others[label]]
    if not open_:
        return x
    shape = F.shape(other.value)
    axes = {label: other.labels.index(label) for label in open_}
    wanted = [shape[axes[label] : axes[label] + 1] if label in axes else i64(1) for label in x.labels]
    return _Factor(F.expand(x.value, F.concat(*wanted, axis=0)), x.labels)


def _ordered(x: _Factor, labels: Sequence[str]) -> Any:
    """Return the value with its axes in the order of `labels`."""
    perm = [x.labels.index(label) for label in labels]
    return x.value if perm == list(range(len(perm))) else F.transpose(x.value, perm=perm)


def _diagonal(x: _Factor) -> _Factor:
    """Replace axes with the same label by one axis: the diagonal."""
    while (repeated := next((label for label in x.labels if x.labels.count(label) > 1), None)) is not None:
        first = x.labels.index(repeated)
        second = x.labels.index(repeated, first + 1)
        size, other = x.value.shape[first], x.value.shape[second]
        if dims.is_static(size) and size == other:
            x = _known_diagonal(x, first, second, int(size))
        else:
            x = _masked_diagonal(x, first, second)
    return x


def _known_diagonal(x: _Factor, first: int, second: int, size: int) -> _Factor:
    """Take the diagonal of two axes of known size: merge them, and take a slice with step size + 1."""
    apart = [label for i, label in enumerate(x.labels) if i not in (first, second)]
    labels = [*apart[:first], x.labels[first], *apart[first:]]
    value = x.value
    if second != first + 1:
        between = [i for i in range(first + 1, len(x.labels)) if i != second]
        value = F.transpose(value, perm=[*range(first + 1), second, *between])
    sizes = F.shape(value)
    value = F.reshape(value, F.concat(sizes[:first], i64(size * size), sizes[first + 2 :], axis=0), allowzero=True)
    step = (slice(None),) * first + (slice(None, None, size + 1),)
    return _Factor(value[step], tuple(labels))


def _masked_diagonal(x: _Factor, first: int, second: int) -> _Factor:
    """Take the diagonal of two axes of unknown size: set all other elements to 0, and sum over one axis."""
    size = F.squeeze(F.shape(x.value)[first : first + 1])
    if x.value.shape[first] != x.value.shape[second]:
        # If the sizes differ in a run, it fails in this Reshape. Below, an axis of size 1 would broadcast.
        sizes = F.shape(x.value)
        square = F.concat(sizes[:second], sizes[first : first + 1], sizes[second + 1 :], axis=0)
        x = _Factor(F.reshape(x.value, square, allowzero=True), x.labels)
    index = F.range(np.int64(0), size, np.int64(1))
    column, row = (F.unsqueeze(index, i64(*_others(len(x.labels), axis))) for axis in (first, second))
    chosen = F.where(F.equal(column, row), x.value, scalar_like(0, x.value))
    labels = (*x.labels[:second], *x.labels[second + 1 :])
    return _Factor(F.reduce_sum(chosen, i64(second), keepdims=False), labels)


def _others(rank: int, axis: int) -> list[int]:
    return [i for i in range(rank) if i != axis]


def _product(a: _Factor, b: _Factor, kept: set[str]) -> _Factor:
    """Multiply two factors, and sum over the common labels that are not in `kept`."""
    contracted = [label for label in a.labels if label in b.labels and label not in kept]
    batch = [label for label in a.labels if label in b.labels and label in kept]
    rows = [label for label in a.labels if label not in b.labels]
    columns = [label for label in b.labels if label not in a.labels]
    joint = (*batch, *rows, *columns)
    if not contracted:
        left, right = _ordered(a, [*batch, *rows]), _ordered(b, [*batch, *columns])
        if columns:
            left = F.unsqueeze(left, i64(*range(len(batch) + len(rows), len(joint))))
        if rows:
            right = F.unsqueeze(right, i64(*range(len(batch), len(batch) + len(rows))))
        return _Factor(F.mul(left, right), joint)
    a, b = _fitted(a, b, contracted), _fitted(b, a, contracted)
    left, row_sizes, _ = _matrices(_ordered(a, [*batch, *rows, *contracted]), len(batch), len(rows))
    right, _, column_sizes = _matrices(_ordered(b, [*batch, *contracted, *columns]), len(batch), len(contracted))
    y = F.mat_mul(left, right)
    if len(rows) != 1 or len(columns) != 1:
        y = F.reshape(y, F.concat(F.shape(y)[: len(batch)], row_sizes, column_sizes, axis=0), allowzero=True)
    return _Factor(y, joint)


def _matrices(x: Any, batch: int, rows: int) -> tuple[Any, Any, Any]:
    """Merge axes to batched matrices: rows from the `rows` axes after the batch, columns from the rest.

    Return the matrices, and the sizes of both groups.
    """
    sizes = F.shape(x)
    row_sizes, column_sizes = sizes[batch : batch + rows], sizes[batch + rows :]
    if rows != 1 or x.rank - batch - rows != 1:
        merged = (F.reduce_prod(s, i64(0), keepdims=True) for s in (row_sizes, column_sizes))
        x = F.reshape(x, F.concat(sizes[:batch], *merged, axis=0), allowzero=True)
    return x, row_sizes, column_sizes
