"""Many dimensions at once: what they are for certain sizes, at the cost of plain arithmetic on integers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from graphkit.errors import TypeMismatch
from graphkit.ir.dims import Dim, DimExpr, broadcast, ceildiv, definition


class SizeTable:
    """Dimensions over `symbols`, each with a position: `values` has the integers of all of them.

    Names that large expressions of the symbols got are taken for these. Dimensions are added before the first use.
    """

    def __init__(self, symbols: Sequence[str]):
        self.symbols = tuple(symbols)
        # Names of dimensions are anybody's text: only their places come into the source.
        self._places = {name: f"s[{place}]" for place, name in enumerate(self.symbols)}
        self._position: dict[Dim, int] = {}
        self._compute: Callable[[Sequence[int]], tuple[int, ...]] | None = None

    def add(self, dim: Dim) -> int:
        """The position of a dimension, whose names are those of the table."""
        assert self._compute is None, "dimensions are added before the first use"
        return self._position.setdefault(dim, len(self._position))

    def add_all(self, dims: Iterable[Dim]) -> tuple[int, ...]:
        return tuple(self.add(d) for d in dims)

    def values(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """Every dimension by its position, for these sizes of the symbols. Raises TypeMismatch as `dims` do."""
        if self._compute is None:
            self._compute = self._compiled()
        return self._compute([sizes[name] for name in self.symbols])

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


def defined_names(names: Iterable[str], symbols: Iterable[str]) -> dict[str, DimExpr]:
    """Those of the names, and of names in what they stand for, that large expressions of the symbols got.

    Each is behind those that it mentions.
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
    # They are numbered as they were made.
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
