"""Evaluates many symbolic dimensions at once, by code that is compiled to integer arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from graphkit.errors import TypeMismatch
from graphkit.ir.dims import Dim, DimExpr, broadcast, ceildiv, definition


class SizeTable:
    """A list of dimensions over `symbols`. `values` returns the integers of all of them.

    A name that replaces a large expression of the symbols is evaluated as this expression. All dimensions must be added
    before the first call of `values`.
    """

    def __init__(self, symbols: Sequence[str]):
        self.symbols = tuple(symbols)
        # Symbols may have any text as name, so the generated code contains only their positions.
        self._places = {name: f"s[{place}]" for place, name in enumerate(self.symbols)}
        self._position: dict[Dim, int] = {}
        self._compute: Callable[[Sequence[int]], tuple[int, ...]] | None = None

    def add(self, dim: Dim) -> int:
        """Add a dimension over the symbols of the table, and return its position in `values`."""
        assert self._compute is None, "dimensions are added before the first use"
        return self._position.setdefault(dim, len(self._position))

    def add_all(self, dims: Iterable[Dim]) -> tuple[int, ...]:
        return tuple(self.add(d) for d in dims)

    def values(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """Return the value of every dimension, by position, for these sizes of the symbols.

        Raises TypeMismatch as `dims` does.
        """
        if self._compute is None:
            self._compute = self._compiled()
        return self._compute([sizes[name] for name in self.symbols])

    def instructions(self) -> SizeInstructions:
        """Return instructions that compute the same values, for the native engine.

        Raises KeyError for a symbol that the table lacks, and TypeMismatch for a number that does not fit in 64 bits.
        """
        return SizeInstructions(self.symbols, self._position)

    def _compiled(self) -> Callable[[Sequence[int]], tuple[int, ...]]:
        mentioned = {name for dim in self._position if isinstance(dim, DimExpr) for name in dim.symbols}
        lines = []
        for place, (name, dim) in enumerate(defined_names(mentioned, self.symbols).items()):
            lines.append(f" t{place} = {self._source(dim)}")
            self._places[name] = f"t{place}"
        results = "".join(f"{self._source(d)}, " for d in self._position)
        scope: dict[str, Any] = dict(_FUNCTIONS)
        exec("\n".join(["def compute(s):", *lines, f" return ({results})"]), scope)
        compute: Callable[[Sequence[int]], tuple[int, ...]] = scope["compute"]
        return compute

    def _source(self, dim: Dim) -> str:
        if not isinstance(dim, DimExpr):
            return f"({int(dim)})"
        terms = []
        for monomial, coefficient in dim.terms:
            factors = [f"({coefficient})"] if coefficient != 1 or not monomial else []
            for name, *operands in monomial:
                if name == "sym":
                    factors.append(self._places[operands[0]])
                else:
                    factors.append(f"{name}({', '.join(map(self._source, operands))})")
            terms.append("*".join(factors))
        return f"({'+'.join(terms)})"


class SizeInstructions:
    """Instructions that compute dimensions from symbols. Each instruction occurs once.

    Attributes:
        steps: (operation, operand, operand). Operands are numbers of earlier instructions. That of a "constant" is its
            value; that of a "symbol" is its position among the symbols.
        results: The instruction of each dimension.
    """

    def __init__(self, symbols: Sequence[str], dims: Iterable[Dim]):
        dims = list(dims)
        self._number: dict[tuple[str, int, int], int] = {}
        self._names = {name: self._add("symbol", place) for place, name in enumerate(symbols)}
        self._known: dict[Dim, int] = {}
        mentioned = {name for dim in dims if isinstance(dim, DimExpr) for name in dim.symbols}
        for name, dim in defined_names(mentioned, symbols).items():
            self._names[name] = self._value(dim)
        self.results = [self._value(dim) for dim in dims]
        self.steps = list(self._number)

    def _add(self, operation: str, a: int, b: int = 0) -> int:
        return self._number.setdefault((operation, a, b), len(self._number))

    def _value(self, dim: Dim) -> int:
        """Return the number of the instruction that computes `dim`."""
        if not isinstance(dim, DimExpr):
            if not -(1 << 63) <= dim < 1 << 63:
                raise TypeMismatch(f"{dim} does not fit in 64 bits")
            return self._add("constant", int(dim))
        if dim not in self._known:
            terms = []
            for monomial, coefficient in dim.terms:
                factors = [self._factor(*atom) for atom in monomial]
                if coefficient != 1 or not factors:
                    factors.append(self._value(coefficient))
                terms.append(self._chain("multiply", factors))
            self._known[dim] = self._chain("add", terms)
        return self._known[dim]

    def _factor(self, function: str, *operands: Any) -> int:
        if function == "sym":
            return self._names[operands[0]]
        return self._chain(function, [self._value(operand) for operand in operands])

    def _chain(self, operation: str, operands: Sequence[int]) -> int:
        """Return the operation over all operands, from left to right; a single operand itself."""
        result, *others = operands
        for operand in others:
            result = self._add(operation, result, operand)
        return result


def defined_names(names: Iterable[str], symbols: Iterable[str]) -> dict[str, DimExpr]:
    """Return the expressions of those names that replace large expressions of the symbols.

    Names inside these expressions are included.

    A name comes after the names in its expression.
    """
    known = set(symbols)
    found: dict[str, DimExpr] = {}
    pending = list(names)
    while pending:
        name = pending.pop()
        if name not in known and name not in found and (dim := definition(name)) is not None:
            found[name] = dim
            pending.extend(dim.symbols)
    kept = {}
    # A name has a higher number than the names in its expression.
    for name in sorted(found, key=lambda name: int(name[1:])):
        if found[name].symbols <= known:
            kept[name] = found[name]
            known.add(name)
    return kept


def _floordiv(a: int, b: int) -> int:
    if b == 0:
        raise TypeMismatch("division of a dimension by zero")
    return a // b


def _mod(a: int, b: int) -> int:
    if b == 0:
        raise TypeMismatch("remainder of a dimension by zero")
    return a % b


# The functions of expressions, by the names of their atoms.
_FUNCTIONS: Mapping[str, Callable[..., Dim]] = {
    "__builtins__": {},  # type: ignore[dict-item]
    "floordiv": _floordiv, "ceildiv": ceildiv, "mod": _mod, "min": min, "max": max,
    "broadcast": broadcast, "factor": int,
}  # fmt: skip
