"""Base of the simplifier's rules: the state of one round, and queries about nodes and constants."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from graphkit.ir.dims import DimExpr
from graphkit.ir.types import TensorType, Type
from graphkit.onnx_io.editing.document import Document, Node, Scope

# Operators whose results differ from run to run. Dropout is among them, because it may be in training mode.
RANDOM = frozenset(
    {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli", "Dropout"}
)


@dataclass
class Round:
    """One round over a model: the document, types by name, how often names are read, and replaced names.

    `replaced` maps names to the names that their readers read at the end of the pass. `producers` are the nodes of the
    current scope by output. budget: bytes that constants may still add to the file.
    """

    document: Document
    types: Mapping[str, Type]
    budget: int = 0
    uses: Counter[str] = field(default_factory=Counter)
    replaced: dict[str, str] = field(default_factory=dict)
    producers: Mapping[str, Node] = field(default_factory=dict)
    changes: int = 0

    def each_scope(self) -> Iterator[Scope]:
        """Yield the scopes for one pass, and apply its replacements at the end. Uses are counted anew."""
        self.uses = self.document.uses
        self.replaced = {}
        for scope in self.document.scopes:
            self.producers = producers_of(scope)
            yield scope
        self.document.rename(self.replaced)

    def producer(self, name: str, *kinds: str) -> Node | None:
        """Return the node of the current scope that computes a value, if its operator is one of `kinds`."""
        node = self.producers.get(self.name(name))
        return node if node is not None and node.kind in kinds else None

    def is_private(self, scope: Scope, name: str) -> bool:
        """Whether only one operand of one node reads a value."""
        return self.uses[name] == 1 and name not in scope.outputs

    def name(self, name: str) -> str:
        """Return the name that a reader of `name` reads now."""
        while name in self.replaced:
            name = self.replaced[name]
        return name

    def input(self, node: Node, index: int) -> str:
        """Return the current name of an operand; "" if it is absent."""
        return self.name(node.input(index))

    def type(self, name: str) -> TensorType | None:
        """Return the type of a tensor with known rank; None if it is unknown."""
        found = self.types.get(name)
        return found if isinstance(found, TensorType) and found.shape is not None else None

    def array(self, name: str) -> np.ndarray | None:
        """Return the array of an initialiser; None for other values."""
        return self.document.array(name)

    def ints(self, name: str) -> tuple[int, ...] | None:
        """Return the integers of an initialiser or of a value whose elements inference knows; else None."""
        array = self.document.array(name)
        if array is not None:
            return tuple(int(v) for v in array.reshape(-1)) if array.dtype.kind in "iub" else None
        found = self.types.get(name)
        return found.constants if isinstance(found, TensorType) else None

    def same(self, a: str, b: str) -> bool:
        """Whether two tensors have the same element type and shape in every run."""
        first, second = self.type(a), self.type(b)
        return first is not None and first == second

    def spend(self, nbytes: int) -> bool:
        """Take bytes from the budget. False if there are too few."""
        if nbytes > max(self.budget, 0):
            return False
        self.budget -= nbytes
        return True

    def replace(self, scope: Scope, old: str, new: str) -> bool:
        """Let readers of `old`, which `scope` computes, read `new`, if the outputs of the scope keep their names.

        Returns whether this is possible. The caller removes the node.
        """
        new = self.name(new)
        if old not in scope.outputs:
            self.replaced[old] = new
            self.uses[new] += self.uses[old] - 1
            self.changes += 1
            return True
        source = self.producers.get(new)
        if source is None or new in scope.outputs or new not in source.outputs:
            return False
        # The value gets the name of the output.
        source.outputs[source.outputs.index(new)] = old
        self.replaced[new] = old
        self.uses[old] += self.uses[new] - 1
        self.changes += 1
        return True


def producers_of(scope: Scope) -> dict[str, Node]:
    """Return the nodes of a scope by the names of their outputs."""
    return {name: node for node in scope.nodes for name in node.outputs if name}


def loses_other_outputs(node: Node, uses: Mapping[str, int]) -> bool:
    """Whether something reads an output of the node other than the first."""
    return any(uses[name] for name in node.outputs[1:] if name)


def const_all(array: np.ndarray | None, value: float) -> bool:
    """Whether an array is known and all of its elements are `value`."""
    return array is not None and array.dtype.kind in "fiubV" and bool(np.all(array.astype(np.float64) == value))


def reshape_target(data: tuple[int | DimExpr, ...], wanted: Sequence[int | DimExpr]) -> list[int] | None:
    """Return the target of a Reshape from `data` to `wanted` without symbolic sizes; None if there is none."""
    symbolic = [i for i, size in enumerate(wanted) if isinstance(size, DimExpr)]
    if any(not isinstance(size, DimExpr) and size == 0 for size in wanted):
        return None
    found = [0 if isinstance(size, DimExpr) else size for size in wanted]
    if len(symbolic) == 1 and -1 not in wanted:
        found[symbolic[0]] = -1
        return found
    others = [i for i in symbolic if not (i < len(data) and data[i] == wanted[i])]
    if len(others) + wanted.count(-1) > 1:
        return None
    for i in others:
        found[i] = -1
    return found
