"""Shapes that a file declares for its tensors: checked against inferred shapes, never a source of types."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence

from graphkit.errors import DeclarationWarning
from graphkit.ir import dims
from graphkit.ir.dims import Dim
from graphkit.ir.graph import Value
from graphkit.ir.types import TensorType


class Declarations:
    """Shapes that a file declares and that type inference can neither confirm nor reject, by tensor name.

    If such a shape turns out to be wrong, a DeclarationWarning is issued once. `label` is the name of the file. Runs in
    several threads may warn twice.
    """

    def __init__(self, label: str):
        self._label = label
        self._claims: dict[str, tuple[Dim, ...]] = {}
        self._dropped: set[str] = set()

    def __bool__(self) -> bool:
        return bool(self._claims)

    def shape(self, name: str) -> tuple[Dim, ...] | None:
        """Return the declared shape of a tensor, if inference can neither confirm nor reject it; otherwise None."""
        return self._claims.get(name)

    def __contains__(self, name: str) -> bool:
        return name in self._claims

    def may_contradict(self, name: str, inferred: TensorType) -> bool:
        """Whether a run can show that the declared shape of a tensor is wrong.

        It cannot if each declared size is a symbol or the inferred size. inferred: The type of the tensor.
        """
        declared = self._claims.get(name)
        if declared is None or inferred.shape is None or len(inferred.shape) != len(declared):
            return declared is not None
        return any(dims.is_static(d) and d != known for d, known in zip(declared, inferred.shape, strict=True))

    def claim(self, name: str, declared: TensorType, inferred: TensorType) -> None:
        """Compare a declaration with the inferred type. Keep it if only a run can show whether it is right."""
        if declared.shape is None or name in self._dropped:
            return
        if self._claims.get(name, declared.shape) != declared.shape:
            # Tensors of two subgraphs have this name. A run could not decide which one the declaration means.
            self._dropped.add(name)
            del self._claims[name]
            return
        if inferred.shape is None or declared.shape != inferred.shape:
            self._claims[name] = declared.shape
            self.check(name, inferred.shape, {})
            if inferred.is_static:
                self._claims.pop(name, None)

    def found(self, values: Iterable[Value], shapes: Iterable[Sequence[int] | None]) -> None:
        """Compare declarations with the shapes of a run.

        The order of axes is ignored, because a rewritten graph may have transposed the tensor of this name.
        """
        for value, shape in zip(values, shapes, strict=True):
            if value.name in self._claims:
                self.check(value.name, shape, {}, any_order=True)

    def check(
        self, name: str, shape: Sequence[Dim] | None, bindings: Mapping[str, Dim], *, any_order: bool = False
    ) -> None:
        """If a tensor's declared shape contradicts this one, warn, and drop the declaration.

        bindings: dimensions that replace symbols of the declared shape. any_order: ignore the order of the axes.
        """
        if shape is None or name not in self._claims:
            return
        declared = self._claims[name]
        claimed = [dims.substitute(d, bindings) for d in declared] if bindings else declared
        if len(claimed) == len(shape) and not (_exclude_in_any_order if any_order else _exclude)(claimed, shape):
            return
        del self._claims[name]
        self._dropped.add(name)
        warnings.warn(
            f"{self._label}: tensor {name!r} is declared as {_text(declared)}, but is {_text(shape)}; the declaration "
            "is ignored",
            DeclarationWarning,
            stacklevel=2,
        )


def _exclude(a: Sequence[Dim], b: Sequence[Dim]) -> bool:
    """Whether two shapes of the same rank have different sizes at a position."""
    return any(m != n for m, n in zip(a, b, strict=True) if dims.is_static(m) and dims.is_static(n))


def _exclude_in_any_order(a: Sequence[Dim], b: Sequence[Dim]) -> bool:
    """Whether two shapes have different sizes. An unknown size has an unknown position, and so may equal any other."""
    known, others = [d for d in a if dims.is_static(d)], [d for d in b if dims.is_static(d)]
    return len(known) == len(a) and len(others) == len(b) and sorted(known) != sorted(others)


def _text(shape: Sequence[Dim]) -> str:
    return f"[{', '.join('?' if str(d).startswith('?') else str(d) for d in shape)}]"
