"""Many dimensions at once: what they are for certain sizes, at the cost of plain arithmetic on integers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from graphkit.errors import TypeMismatch
from graphkit.ir.dims import Dim, DimExpr, broadcast, ceildiv


class SizeTable:
    """Dimensions over `symbols`, each with a position: `values` has the integers of all of them.

    Dimensions are added before the first use.
    """

    def __init__(self, symbols: Sequence[str]):
        self.symbols = tuple(symbols)
        self._places = {name: f"s[{place}]" for place, name in enumerate(self.symbols)}
        self._position: dict[Dim, int] = {}
        self._compute: Callable[[Sequence[int]], tuple[int, ...]] | None = None

    def add(self, dim: Dim) -> int:
        """The position of a dimension, whose symbols are those of the table."""
        assert self._compute is None, "dimensions are added before the first use"
        return self._position.setdefault(dim, len(self._position))

    def add_all(self, dims: Iterable[Dim]) -> tuple[int, ...]:
        return tuple(self.add(d) for d in dims)

    def values(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """Every dimension by its position, for these sizes of the symbols. Raises TypeMismatch as `dims` do."""
        if self._compute is None:
            # Names of dimensions are anybody's text: only their places come into the source.
            source = ", ".join(self._source(d) for d in self._position)
            self._compute = eval(f"lambda s: ({source},)" if source else "lambda s: ()", dict(_FUNCTIONS))
        return self._compute([sizes[name] for name in self.symbols])

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
    "floordiv": _floordiv, "ceildiv": ceildiv, "mod": _mod, "min": min, "max": max, "broadcast": broadcast,
}  # fmt: skip
