"""Recurrent cells and their gradients as CUDA C++, generated from the functions that define the operators.

A cell is called with symbolic values of one element, which creates a graph. Matrix products are cut out of it: their
factors become results of the graph, and their results become operands. So everything that remains is elementwise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from graphkit.executor.devices.cuda.text.expressions import statements
from graphkit.executor.devices.pointwise.instructions import Instructions, PointwiseProgram
from graphkit.executor.devices.pointwise.programs import terms_of
from graphkit.ir.graph import Value, topological
from graphkit.ir.types import DType, TensorType
from graphkit.named_tuples import NamedTuple
from graphkit.ops.pointwise import scalar_like
from graphkit.ops.rnn.gates import GraphMath
from graphkit.ops.rnn.recurrence import Recurrence, Weights


class Rows(NamedTuple):
    """Adjacent parts of the recurrence weights r. A part has H rows."""

    first: int
    parts: int

    @property
    def numbers(self) -> range:
        return range(self.first, self.first + self.parts)


class CellProduct(NamedTuple):
    """A product with rows of r.

    In a forward cell, a factor [N, H] is multiplied by the transpose of the rows. In a gradient, a factor
    [N, parts * H] is multiplied by the rows.

    Attributes:
        left: Names of the results of the cell that are the left factor. If empty, it is the state h.
        rows: The rows of r.
        results: Names of the operands of the cell that contain the product.
    """

    left: tuple[str, ...]
    rows: Rows
    results: tuple[str, ...]


@dataclass(frozen=True)
class Cell:
    """A step of one direction. Operands and results, by name, have one element each. Products are in their order."""

    operands: Mapping[str, Value]
    results: Mapping[str, Value]
    products: tuple[CellProduct, ...]

    def program(self, wanted: Sequence[str]) -> PointwiseProgram:
        """Return the program that computes the results with these names."""
        sources, results = [*self.operands.values()], [self.results[name] for name in wanted]
        code = Instructions([v.tensor for v in sources])
        terms = terms_of(code, sources, results)
        assert terms is not None, "cells consist of operators that have rules"
        return code.code("cell", terms).at([v.tensor.static_shape for v in sources], ())


# --- the graph of a cell ----------------------------------------------------------------------------


@dataclass(frozen=True)
class _Wide:
    """A value that consists of several parts of H columns, one after another."""

    parts: tuple[Value, ...]

    def __add__(self, other: _Wide) -> _Wide:
        return _Wide(tuple(a + b for a, b in zip(self.parts, other.parts, strict=True)))


def _wide(parts: Sequence[Value]) -> Value | _Wide:
    return parts[0] if len(parts) == 1 else _Wide(tuple(parts))


def _parts(*given: Value | _Wide) -> tuple[Value, ...]:
    return tuple(part for one in given for part in (one.parts if isinstance(one, _Wide) else (one,)))


class _Multiplied(NamedTuple):
    left: tuple[Value, ...]
    rows: Rows
    results: tuple[str, ...]


class _Cut:
    """GraphMath on values of one element. It records products instead of computing them; r is Rows."""

    keep = staticmethod(GraphMath.keep)
    drop = staticmethod(GraphMath.drop)
    clip = staticmethod(GraphMath.clip)
    apply = staticmethod(GraphMath.apply)

    def __init__(self, kind: DType):
        self._type = TensorType(kind, ())
        self.operands: dict[str, Value] = {}
        self.multiplied: list[_Multiplied] = []

    def operand(self, name: str) -> Value:
        return self.operands.setdefault(name, Value(self._type))

    def named(self, name: str, count: int) -> Value | _Wide:
        return _wide([self.operand(f"{name}{k}") for k in range(count)])

    def product(self, h: Any, r: Rows) -> Value | _Wide:
        return _wide(self._product(h, r, [f"r{k}" for k in r.numbers]))

    def matmul(self, a: Value | _Wide, r: Rows) -> Value:
        (result,) = self._product(a, r, [f"m{r.first}"])
        return result

    def _product(self, left: Value | _Wide, rows: Rows, names: Sequence[str]) -> list[Value]:
        self.multiplied.append(_Multiplied(_parts(left), rows, tuple(names)))
        return [self.operand(name) for name in names]

    def split(self, x: Value | _Wide | Rows, parts: int, axis: int = -1) -> Sequence[Any]:
        if isinstance(x, Rows):
            each = x.parts // parts
            return [Rows(x.first + i * each, each) for i in range(parts)]
        found = _parts(x)
        assert len(found) == parts
        return found

    def join(self, *parts: Value | _Wide) -> Value | _Wide:
        return _wide(_parts(*parts))

    def zeros(self, x: Value) -> Any:
        return scalar_like(0.0, x)


def _joined(products: Sequence[_Multiplied]) -> _Multiplied:
    """Return several products, whose rows of r are adjacent, as one product."""
    products = sorted(products, key=lambda p: p.rows.first)
    numbers = [k for p in products for k in p.rows.numbers]
    rows = Rows(numbers[0], len(numbers))
    assert numbers == [*rows.numbers]
    results = tuple(name for p in products for name in p.results)
    return _Multiplied(tuple(v for p in products for v in p.left), rows, results)


def forward_cell(layer: Recurrence, direction: int, kind: DType, *, biased: bool, peepholes: bool) -> Cell:
    """Return a step of a layer. The left factor of the first product is the state h.

    Operands: x0, x1, ... (the input times w, with its bias); h, c (states); b0, b1, ... (bias of r, if any); p0, p1, p2
    (peepholes, if any); r0, r1, ... (products with parts of r). Results: h, c; gates0, gates1, ... (saved gates).
    """
    math = _Cut(kind)
    state = tuple(math.operand(name) for name in ("h", "c")[: layer.states])
    bias = math.named("b", layer.gates) if biased else None
    weights = Weights(
        Rows(0, layer.gates), bias, math.named("p", 3) if peepholes else None, layer.functions_of(direction)
    )
    after, gates = layer.cell(math, weights, math.named("x", layer.gates), state)
    by_state = _joined([p for p in math.multiplied if p.left == state[:1]])
    others = [p for p in math.multiplied if p.left != state[:1]]
    results = dict(zip(("h", "c"), after, strict=False))
    results |= {f"gates{k}": v for k, v in enumerate(_parts(*gates))}
    first = CellProduct((), by_state.rows, by_state.results)
    return Cell(math.operands, *_with_products(results, others, first))


def gradient_cell(layer: Recurrence, direction: int, kind: DType, *, peepholes: bool) -> Cell:
    """Return the gradient of a step. The last product is only added to dh, the gradient of the state before the step.

    Operands: g0, g1, ... (saved gates); h, c (states before the step, if the gradient needs them); dh, dc; p0, p1, p2
    (peepholes); m0, m1, ... (products). Results: dh, without the last product; dc; gates0, gates1, ... (gradients of
    gates); and, if CellGradient has them, other0, or peepholes0, peepholes1, peepholes2.
    """
    math = _Cut(kind)
    before = tuple(math.operand("hc"[i]) for i in layer.read_back)
    d_state = tuple(math.operand(name) for name in ("dh", "dc")[: layer.states])
    weights = Weights(
        Rows(0, layer.gates), None, math.named("p", 3) if peepholes else None, layer.functions_of(direction)
    )
    step = layer.cell_gradient(math, weights, math.named("g", layer.saved_gates), before, d_state)
    results = dict(zip(("dh", "dc"), step.state, strict=False))
    results |= {f"gates{k}": v for k, v in enumerate(_parts(step.gates))}
    if step.other is not None:
        results["other0"] = step.other
    if step.peepholes is not None:
        results |= {f"peepholes{k}": v for k, v in enumerate(_parts(step.peepholes))}
    more = [v for name, v in results.items() if name != "dh"]
    read = _read_by([*more, *(v for p in math.multiplied for v in p.left)])
    early = [p for p in math.multiplied if any(math.operands[name] in read for name in p.results)]
    last = _joined([p for p in math.multiplied if p not in early])
    return Cell(math.operands, *_with_products(results, [*early, last]))


def _with_products(
    results: dict[str, Value], products: Sequence[_Multiplied], first: CellProduct | None = None
) -> tuple[dict[str, Value], tuple[CellProduct, ...]]:
    """Return the results, including the left factors of products, and the products with names instead of values."""
    named = [] if first is None else [first]
    for number, (left, rows, given) in enumerate(products):
        names = tuple(f"left{number}_{k}" for k in range(len(left)))
        results |= dict(zip(names, left, strict=True))
        named.append(CellProduct(names, rows, given))
    return results, tuple(named)


def _read_by(values: Sequence[Value]) -> set[Value | None]:
    return {*values, *(v for node in topological(values) for v in node.inputs)}


# --- the code of a cell -----------------------------------------------------------------------------


def computed(
    cells: Sequence[Cell], wanted: Sequence[str], load: Callable[[str], str], also: Sequence[str] = ()
) -> list[str]:
    """Return lines that compute results of a cell.

    They declare operands by their names, and results by their names with the prefix `to_`.

    Args:
        cells: The cell of each direction. The variable `d` of the kernel is the number of the direction.
        wanted: Names of the results.
        load: Returns the expression that reads an operand from memory.
        also: Names of operands to declare even if no result needs them.
    """
    programs = [cell.program(wanted) for cell in cells]
    names = [*cells[0].operands]
    read = [name for i, name in enumerate(names) if name in also or any(i in p.read for p in programs)]
    lines = [f"const A {name} = {load(name)};" for name in read]
    lines += [f"A to_{name};" for name in wanted]
    blocks = list(dict.fromkeys(tuple(_block(program, names, wanted)) for program in programs))
    for number, block in enumerate(blocks):
        head = "{" if len(blocks) == 1 else "if (d == 0) {" if number == 0 else "} else {"
        lines += [head, *("    " + line for line in block)]
    return [*lines, "}"]


def _block(program: PointwiseProgram, names: Sequence[str], wanted: Sequence[str]) -> list[str]:
    lines, results = statements(program, names)
    return [*lines, *(f"to_{name} = {result};" for name, result in zip(wanted, results, strict=True))]
