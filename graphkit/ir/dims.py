"""Symbolic dimensions: integers, or polynomials over names with floordiv, ceildiv, mod, min, max, broadcast.

An expression is kept in one normal form (a sorted sum of coefficient * product of atoms), so that equal
expressions compare equal: `N + N == 2*N`, `(4*N)//2 == 2*N`. A name is a symbol: an
integer >= 0 that is known when inputs are bound.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import keyword
import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias, Union

from graphkit.errors import TypeMismatch
from graphkit.ir.names import AnonymousNames

if TYPE_CHECKING:
    from typing_extensions import TypeIs

Atom: TypeAlias = tuple[Any, ...]  # ("sym", name) or (function, operand, operand, ...)
Monomial: TypeAlias = tuple[Atom, ...]  # sorted by their text
Dim: TypeAlias = Union[int, "DimExpr"]

# An expression with more atoms, or with a larger factor, is replaced by a name, so that every operation here takes
# bounded time. Some shapes double their expression in each layer, such as the causal mask of a decoder with past keys.
# Nothing needs to be proved about such a shape. `definition` returns the expression of a name.
MAX_ATOMS = 64
_MAX_FACTOR = 1 << 64

_anonymous: AnonymousNames[DimExpr] = AnonymousNames()
# Replaces the '?' of anonymous names while an expression is parsed as Python.
_ANONYMOUS = "__anonymous_"


class DimExpr:
    """A dimension that is not a plain integer. Immutable; arithmetic with ints and other expressions."""

    __slots__ = ("terms", "_hash", "_text", "_symbols", "_atoms")

    def __init__(self, terms: tuple[tuple[Monomial, int], ...]):
        self.terms = terms
        self._hash = hash(terms)
        self._text: str | None = None
        self._symbols: frozenset[str] | None = None
        self._atoms = 0

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, DimExpr) and self.terms == other.terms)

    def __hash__(self) -> int:
        return self._hash

    def __str__(self) -> str:
        if self._text is None:
            self._text = _sum_text(self.terms)
        return self._text

    __repr__ = __str__

    def __add__(self, other: Dim) -> Dim:
        return _combine(self, other, 1)

    __radd__ = __add__

    def __sub__(self, other: Dim) -> Dim:
        return _combine(self, other, -1)

    def __rsub__(self, other: Dim) -> Dim:
        return _combine(_scale(self, -1), other, 1)

    def __neg__(self) -> Dim:
        return _scale(self, -1)

    def __mul__(self, other: Dim) -> Dim:
        return _product(self, other) if isinstance(other, DimExpr) else _scale(self, int(other))

    __rmul__ = __mul__

    def __floordiv__(self, other: Dim) -> Dim:
        return floordiv(self, other)

    def __rfloordiv__(self, other: Dim) -> Dim:
        return floordiv(other, self)

    def __mod__(self, other: Dim) -> Dim:
        return mod(self, other)

    @property
    def symbols(self) -> frozenset[str]:
        """The symbols in the expression."""
        # Expressions share their parts: each part is walked once.
        if self._symbols is None:
            self._symbols = frozenset(_symbols(self.terms))
        return self._symbols

    @property
    def atoms(self) -> int:
        """Number of symbols and calls in the expression, each counted as often as it occurs."""
        if not self._atoms:
            parts = (operand for monomial, _ in self.terms for atom in monomial for operand in atom[1:])
            self._atoms = sum(len(m) for m, _ in self.terms) + sum(p.atoms for p in parts if isinstance(p, DimExpr))
        return self._atoms


def symbol(name: str) -> DimExpr:
    """Return the dimension called `name`."""
    return DimExpr((((("sym", name),), 1),))


def fresh(_hint: str = "") -> DimExpr:
    """Return a dimension that equals no other: the size of a data-dependent result. Its name starts with '?'."""
    return symbol(_anonymous.fresh())


def is_static(dim: Dim) -> TypeIs[int]:
    """Whether a dimension is an integer."""
    return not isinstance(dim, DimExpr)


def _terms(dim: Dim) -> tuple[tuple[Monomial, int], ...]:
    if isinstance(dim, DimExpr):
        return dim.terms
    return (((), int(dim)),) if dim else ()


def _from_terms(table: Mapping[Monomial, int]) -> Dim:
    kept = [(m, c) for m, c in table.items() if c]
    if not kept:
        return 0
    if len(kept) == 1 and kept[0][0] == ():
        return kept[0][1]
    # Higher degree first, the constant last: 2*N + 1.
    kept.sort(key=lambda item: (-len(item[0]), [_atom_text(a) for a in item[0]]))
    return _bounded(DimExpr(tuple(kept)))


def _bounded(made: DimExpr) -> DimExpr:
    """Return the expression, or a name that replaces it if it is too large."""
    fits = made.atoms <= MAX_ATOMS and all(-_MAX_FACTOR < c < _MAX_FACTOR for _, c in made.terms)
    return made if fits else _named(made)


def _combine(a: Dim, b: Dim, sign: int) -> Dim:
    table = dict(_terms(a))
    for monomial, coefficient in _terms(b):
        table[monomial] = table.get(monomial, 0) + sign * coefficient
    return _from_terms(table)


def _scale(a: Dim, factor: int) -> Dim:
    if not isinstance(a, DimExpr):
        return a * factor
    if factor in (0, 1):
        return a if factor else 0
    return _bounded(DimExpr(tuple([(m, c * factor) for m, c in a.terms])))


def _product(a: Dim, b: Dim) -> Dim:
    left, right = _terms(a), _terms(b)
    if len(left) * len(right) > MAX_ATOMS:
        # Multiplied out, the product would have up to this many terms.
        return _named(DimExpr(((tuple(("factor", part) for part in sorted((a, b), key=str)), 1),)))
    table: dict[Monomial, int] = {}
    for ma, ca in left:
        for mb, cb in right:
            key = tuple(sorted(ma + mb, key=_atom_text))
            table[key] = table.get(key, 0) + ca * cb
    return _from_terms(table)


def _call(function: str, *operands: Dim) -> DimExpr:
    return _bounded(DimExpr(((((function, *operands),), 1),)))


def _named(expression: DimExpr) -> DimExpr:
    """Return the anonymous symbol that replaces a large expression."""
    return symbol(_anonymous.of(expression))


def definition(name: str) -> DimExpr | None:
    """Return the large expression that this name replaces; None for other names, and for names that were used long ago.

    Besides the usual atoms, the expression may contain ("factor", dim): a factor that is not multiplied out.
    """
    return _anonymous.definitions.get(name)


def _exact_quotient(a: Dim, b: Dim) -> Dim | None:
    """Return q with q * b == a when b is one term that divides every term of a."""
    divisor = _terms(b)
    if len(divisor) != 1:
        return None
    ((mono, coeff),) = divisor
    table: dict[Monomial, int] = {}
    for m, c in _terms(a):
        if c % coeff:
            return None
        rest = list(m)
        for atom in mono:
            if atom not in rest:
                return None
            rest.remove(atom)
        table[tuple(rest)] = c // coeff
    return _from_terms(table)


def _split_divisible(a: Dim, divisor: int) -> tuple[Dim, Dim]:
    """Split a into (multiple of divisor) / divisor and the remaining terms."""
    whole: dict[Monomial, int] = {}
    rest: dict[Monomial, int] = {}
    for m, c in _terms(a):
        if c % divisor == 0:
            whole[m] = c // divisor
        elif m == ():
            whole[m], rest[m] = c // divisor, c % divisor
        else:
            rest[m] = c
    return _from_terms(whole), _from_terms(rest)


def floordiv(a: Dim, b: Dim) -> Dim:
    """floor(a / b) as Python defines it."""
    if not isinstance(a, DimExpr) and not isinstance(b, DimExpr):
        if b == 0:
            raise TypeMismatch("division of a dimension by zero")
        return a // b
    if a == b:
        return 1
    quotient = _exact_quotient(a, b)
    if quotient is not None:
        return quotient
    if not isinstance(b, DimExpr) and b > 0:
        whole, rest = _split_divisible(a, b)
        if not isinstance(rest, DimExpr):
            return whole + rest // b
        if whole != 0:
            return whole + _call("floordiv", rest, b)
    return _call("floordiv", a, b)


def ceildiv(a: Dim, b: Dim) -> Dim:
    """ceil(a / b)."""
    if not isinstance(a, DimExpr) and not isinstance(b, DimExpr):
        return -floordiv(-a, b)
    quotient = 1 if a == b else _exact_quotient(a, b)
    return _call("ceildiv", a, b) if quotient is None else quotient


def mod(a: Dim, b: Dim) -> Dim:
    """a - b * floor(a / b)."""
    if not isinstance(a, DimExpr) and not isinstance(b, DimExpr):
        if b == 0:
            raise TypeMismatch("remainder of a dimension by zero")
        return a % b
    if a == b or _exact_quotient(a, b) is not None:
        return 0
    if not isinstance(b, DimExpr) and b > 0:
        _, rest = _split_divisible(a, b)
        return rest % b if not isinstance(rest, DimExpr) else _call("mod", rest, b)
    return _call("mod", a, b)


def _extreme(function: str, choose: Callable[[int, int], int], dims: Iterable[Dim]) -> Dim:
    operands: set[Dim] = set()
    constant: int | None = None
    for dim in dims:
        if not isinstance(dim, DimExpr):
            constant = dim if constant is None else choose(constant, dim)
            continue
        call = _single_call(dim, function)
        for part in call[1:] if call else (dim,):
            if isinstance(part, DimExpr):
                operands.add(part)
            else:
                constant = part if constant is None else choose(constant, part)
    if not operands:
        assert constant is not None, f"{function} needs at least one dimension"
        return constant
    parts: list[Dim] = sorted(operands, key=str)
    if constant is not None:
        parts.append(constant)
    if len(parts) == 1:
        return parts[0]
    if len(parts) == 2:
        difference = parts[0] - parts[1]
        if not isinstance(difference, DimExpr):
            return parts[0] if (difference > 0) == (function == "max") else parts[1]
    return _call(function, *parts)


def dim_min(*dims: Dim) -> Dim:
    return _extreme("min", min, dims)


def dim_max(*dims: Dim) -> Dim:
    return _extreme("max", max, dims)


def broadcast(*dims: Dim) -> Dim:
    """Return the size to which dimensions broadcast. Raises TypeMismatch for two different integers other than 1.

    If one is an integer other than 1, it is the result. Whether symbols fit it is checked when they are bound.
    """
    if dims and dims.count(dims[0]) == len(dims):
        return dims[0]
    operands: set[DimExpr] = set()
    constant = 1
    for dim in dims:
        if not isinstance(dim, DimExpr):
            if dim != 1 and constant not in (1, dim):
                raise TypeMismatch(f"dimensions {constant} and {dim} do not broadcast")
            constant = dim if dim != 1 else constant
            continue
        call = _single_call(dim, "broadcast")
        operands.update(call[1:] if call else (dim,))
    if constant != 1 and operands:
        _assume(_call("broadcast", *sorted(operands, key=str), constant), constant)
    if constant != 1 or not operands:
        return constant
    parts = sorted(operands, key=str)
    return parts[0] if len(parts) == 1 else _call("broadcast", *parts)


def product(dims: Iterable[Dim]) -> Dim:
    result: Dim = 1
    for dim in dims:
        result = result * dim
    return result


def may_equal(a: Dim, b: Dim) -> bool:
    """Return False only if a and b differ for all values of their names."""
    difference = a - b
    if isinstance(difference, DimExpr):
        _assume(difference, 0)
        return True
    return difference == 0


def may_reach(dim: Dim, least: int) -> bool:
    """Return False only if `dim` is less than `least` for all values of its names."""
    if isinstance(dim, DimExpr):
        _assume(dim_min(dim, least), least)
        return True
    return dim >= least


# --- assumptions --------------------------------------------------------------------------------


class _Assuming(threading.local):
    pairs: list[tuple[Dim, Dim]] | None = None


_assuming = _Assuming()


def is_assuming() -> bool:
    """Return whether the assumptions of this thread are collected."""
    return _assuming.pairs is not None


@contextlib.contextmanager
def assumptions() -> Iterator[list[tuple[Dim, Dim]]]:
    """Context that collects the pairs of dimensions that are assumed equal, in this thread.

    `may_equal`, `may_reach` and `broadcast` make these assumptions.
    """
    before, _assuming.pairs = _assuming.pairs, []
    try:
        yield _assuming.pairs
    finally:
        _assuming.pairs = before


def _assume(a: Dim, b: Dim) -> None:
    if _assuming.pairs is not None:
        _assuming.pairs.append((a, b))


def _single_call(dim: DimExpr, function: str) -> Atom | None:
    if len(dim.terms) == 1:
        (monomial, coefficient) = dim.terms[0]
        if coefficient == 1 and len(monomial) == 1 and monomial[0][0] == function:
            return monomial[0]
    return None


_FUNCTIONS: dict[str, Callable[..., Dim]] = {
    "floordiv": floordiv,
    "ceildiv": ceildiv,
    "mod": mod,
    "min": dim_min,
    "max": dim_max,
    "broadcast": broadcast,
}


def substitute(dim: Dim, bindings: Mapping[str, Dim]) -> Dim:
    """Replace names by integers or expressions; names that `bindings` lacks stay."""
    if not isinstance(dim, DimExpr):
        return dim
    total: Dim = 0
    for monomial, coefficient in dim.terms:
        term: Dim = coefficient
        for atom in monomial:
            if atom[0] == "sym":
                bound = bindings.get(atom[1])
                value: Dim = symbol(atom[1]) if bound is None else bound
            else:
                value = _FUNCTIONS[atom[0]](*(substitute(operand, bindings) for operand in atom[1:]))
            term = term * value
        total = total + term
    return total


def evaluate(dim: Dim, bindings: Mapping[str, int]) -> int:
    """Return the value of `dim` as an integer; raises TypeMismatch if a name is not bound."""
    value = substitute(dim, bindings)
    if isinstance(value, DimExpr):
        raise TypeMismatch(f"dimension {dim} is not known: {', '.join(sorted(value.symbols))} not bound")
    return value


def _symbols(terms: tuple[tuple[Monomial, int], ...]) -> Iterator[str]:
    for monomial, _ in terms:
        for atom in monomial:
            if atom[0] == "sym":
                yield atom[1]
            else:
                for operand in atom[1:]:
                    if isinstance(operand, DimExpr):
                        yield from operand.symbols


# --- text ---------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=1 << 14)
def _atom_text(atom: Atom) -> str:
    if atom[0] == "sym":
        return atom[1] if _is_plain(atom[1]) else repr(atom[1])
    if atom[0] == "floordiv":
        return f"({_operand_text(atom[1])}//{_operand_text(atom[2])})"
    return f"{atom[0]}({', '.join(str(operand) for operand in atom[1:])})"


def _is_plain(name: str) -> bool:
    """Whether `parse` reads this name, without quotes inside an expression, as the same name."""
    if name[:1] == "?" and name[1:].isdigit():
        return True
    return name.isidentifier() and name.isascii() and not keyword.iskeyword(name) and not name.startswith(_ANONYMOUS)


def _operand_text(dim: Dim) -> str:
    text = str(dim)
    return text if text.isidentifier() or text.isdigit() else f"({text})"


def _sum_text(terms: tuple[tuple[Monomial, int], ...]) -> str:
    text = ""
    for monomial, coefficient in terms:
        factors = [_atom_text(a) for a in monomial]
        if abs(coefficient) != 1 or not factors:
            factors.insert(0, str(abs(coefficient)))
        body = "*".join(factors)
        if len(factors) == 1 and body[:1] == "(" and (text or coefficient > 0):
            body = body[1:-1]  # a quotient needs no parentheses in a sum
        if not text:
            text = body if coefficient > 0 else f"-{body}"
        else:
            text += f" {'+' if coefficient > 0 else '-'} {body}"
    return text


def parse(text: str | int | DimExpr) -> Dim:
    """Read a dimension: an int, a name, or an expression such as `2*N + 1` or `ceildiv(N, 2)`.

    Any other text is taken whole as a name (ONNX allows any string).
    """
    if isinstance(text, DimExpr):
        return text
    if not isinstance(text, str):
        return int(text)
    if "?" in text:
        text = _anonymous.reserve(text)
    if text.isidentifier() or _is_plain(text):
        return symbol(text)
    try:
        return _from_ast(ast.parse(text.replace("?", _ANONYMOUS), mode="eval").body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return symbol(text)


def _from_ast(node: ast.expr) -> Dim:
    match node:
        case ast.Constant(value=bool()):
            raise ValueError("not a dimension")
        case ast.Constant(value=int(value)):
            return value
        case ast.Constant(value=str(name)):
            return symbol(name.replace(_ANONYMOUS, "?"))
        case ast.Name(id=name):
            return symbol(name.replace(_ANONYMOUS, "?"))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return 0 - _from_ast(operand)
        case ast.BinOp(left=left, op=op, right=right):
            a, b = _from_ast(left), _from_ast(right)
            match op:
                case ast.Add():
                    return a + b
                case ast.Sub():
                    return a - b
                case ast.Mult():
                    return a * b
                case ast.FloorDiv():
                    return floordiv(a, b)
                case ast.Mod():
                    return mod(a, b)
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in _FUNCTIONS and args:
            if name in ("floordiv", "ceildiv", "mod") and len(args) != 2:
                raise ValueError(f"{name} takes two dimensions")
            return _FUNCTIONS[name](*(_from_ast(a) for a in args))
    raise ValueError("not a dimension")


def size_bytes(dims: Iterable[int], itemsize: int) -> int:
    return math.prod(dims) * itemsize
