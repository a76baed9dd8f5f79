"""Batches of any size in saved programs (.gkp files): which inputs have rows, and the proof that rows are independent.

executor/native/c_interface/batch_programs.cpp runs such a batch in parts.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from graphkit.errors import GraphkitError, InputError, UnsupportedError, UsageError
from graphkit.executor.lower.independence import why_rows_mix
from graphkit.ir.dims import DimExpr, symbol
from graphkit.ir.graph import Graph
from graphkit.ir.types import TensorType, Type
from graphkit.named_tuples import NamedTuple
from graphkit.passes.cleanup import CLEANUP
from graphkit.passes.core.bind import bind
from graphkit.passes.core.sweep import run_passes

# Rows of the programs of a file, if the caller chooses none.
DEFAULT_SIZES = (1, 8, 32)
# Stands for the number of rows during type inference. It contains spaces, so no file can use it.
_ROWS = "rows of a batch"
# Each symbolic first axis needs a proof of its own. Graphs may have any number of them.
_MOST_TRIED = 4

# Shapes of inputs, by name.
Shapes: TypeAlias = Mapping[str, Sequence[int]]


class SavedShapes(NamedTuple):
    """The programs that are saved.

    Args:
        shapes: Shapes of inputs, by name, for each program.
        batched: Names of the inputs whose first axis has the rows of a batch. Empty if rows may depend on each other.
    """

    shapes: Sequence[Shapes]
    batched: frozenset[str]


def find_shapes(graph: Graph, shapes: Sequence[Shapes], sizes: Sequence[int] | None) -> SavedShapes:
    """Return the programs that are saved, and whether batches of other sizes can be computed by these programs.

    Args:
        graph: The graph, whose first axes may be symbolic.
        shapes: Shapes of inputs, by name, for each program.
        sizes: Numbers of rows. Each entry of `shapes` then gives a program for each of them. Default: those of
            `shapes`, or DEFAULT_SIZES if no shape is given, and the inputs have a symbolic first axis.

    Raises:
        InputError: A shape is not known, or does not fit.
        UnsupportedError: Programs for `sizes` are asked for, but rows may depend on each other. The message says why.
        UsageError: `sizes` are not different numbers from 1 on.
    """
    if sizes is not None and (not sizes or min(sizes) < 1 or len(set(sizes)) < len(sizes)):
        raise UsageError(f"the batch sizes must be different numbers from 1 on, got {list(sizes)}")
    batched, why = find_batch(graph, shapes)
    if sizes is None and not any(shapes) and has_batch_axis(graph):
        sizes = DEFAULT_SIZES
    if sizes is None:
        return SavedShapes(shapes, batched)
    if not batched:
        raise UnsupportedError(
            f"the graph cannot run batches of any size in C: {why}. Give shapes for programs of certain sizes, such as "
            "shapes=[{'x': (1, 64)}, {'x': (8, 64)}] or --also"
        )
    kinds = _kinds(graph)
    return SavedShapes([_with_rows(kinds, batched, each, rows) for each in shapes for rows in sizes], batched)


def describe_sizes(graph: Graph, saved: SavedShapes, any_size: bool) -> tuple[str, ...]:
    """Return the shapes of the inputs that a file runs, as texts such as `x [N, 64]`. A name is a size that is free.

    any_size: Whether the file has a program for any sizes of symbolic axes.
    """
    kinds = {name: kind for name, kind in _kinds(graph).items() if isinstance(kind, TensorType)}
    found = []
    for each in saved.shapes:
        sizes = {name: each.get(name, kind.shape) for name, kind in kinds.items()}
        for name, kind in kinds.items():
            if any_size and kind.shape is not None:
                sizes[name] = kind.shape
            elif name in saved.batched and kind.shape is not None:
                sizes[name] = (kind.shape[0], *(sizes[name] or ())[1:])
        found.append(", ".join(f"{name} [{', '.join(map(str, size or ()))}]" for name, size in sizes.items()))
    return tuple(dict.fromkeys(found))


def has_batch_axis(graph: Graph) -> bool:
    """Return whether the first axis of an input is symbolic."""
    return any(map(_batch_symbol, _kinds(graph).values()))


def find_batch(graph: Graph, shapes: Sequence[Shapes]) -> tuple[frozenset[str], str]:
    """Return the names of the inputs that have the rows of a batch; none, and why, if rows may depend on each other.

    If inputs have different symbolic first axes, the rows are the first of these axes with a proof. The reason is that
    of the first axis.

    shapes: Shapes of inputs, by name, for each program. The proof uses the sizes of all axes but the rows.
    """
    kinds = _kinds(graph)
    reasons = []
    for rows in itertools.islice(dict.fromkeys(filter(None, map(_batch_symbol, kinds.values()))), _MOST_TRIED):
        batched = frozenset(name for name, kind in kinds.items() if _batch_symbol(kind) == rows)
        why = _why_dependent(graph, shapes, kinds, batched, rows)
        if why is None:
            return batched, ""
        reasons.append(why)
    return frozenset(), reasons[0] if reasons else "no input has a symbolic first axis"


def _why_dependent(
    graph: Graph, shapes: Sequence[Shapes], kinds: Mapping[str, Type], batched: frozenset[str], rows: str
) -> str | None:
    """Return why the rows of these inputs may depend on each other; None if they are independent. See `find_batch`."""
    why = _other_axis(kinds, batched, rows)
    for each in shapes if why is None else ():
        try:
            bound = bind(graph, _with_first(kinds, batched, each, symbol(_ROWS)))
        except GraphkitError as error:
            why = f"the inputs do not share one batch axis: {error}"
        else:
            why = why_rows_mix(run_passes(bound, CLEANUP), _ROWS)
        if why is not None:
            break
    return why


def _kinds(graph: Graph) -> dict[str, Type]:
    """Return the types of the inputs that callers feed, by name."""
    return {graph.name_of(value): value.type for value in graph.inputs if value.role == "data"}


def _batch_symbol(kind: object) -> str | None:
    """Return the name of the first axis; None if it is not a name."""
    first = kind.shape[0] if isinstance(kind, TensorType) and kind.shape else None
    if not isinstance(first, DimExpr) or len(first.symbols) != 1:
        return None
    (name,) = first.symbols
    return name if first == symbol(name) else None


def _other_axis(kinds: Mapping[str, Any], batched: frozenset[str], rows: str) -> str | None:
    """Return which input has the number of rows elsewhere, or is not a tensor; None if all fit."""
    for name, kind in kinds.items():
        shape = kind.shape if isinstance(kind, TensorType) else None
        if shape is None:
            return f"input {name!r} is {kind}"
        others = shape[1:] if name in batched else shape
        if any(isinstance(size, DimExpr) and rows in size.symbols for size in others):
            return f"input {name!r} is {kind}: {rows!r} is the batch axis of an input, too"
    return None


def _with_first(
    kinds: Mapping[str, Any], batched: frozenset[str], given: Shapes, first: Any
) -> dict[str, tuple[Any, ...]]:
    """Return shapes with this first axis of the batched inputs. Other axes may be symbolic."""
    found = {name: tuple(shape) for name, shape in given.items()}
    for name in batched:
        rest = found[name][1:] if name in found else kinds[name].shape[1:]
        found[name] = (first, *rest)
    return found


def _with_rows(kinds: Mapping[str, Any], batched: frozenset[str], given: Shapes, rows: int) -> Shapes:
    """Return the shapes of a program for this number of rows. Raises InputError if another axis is symbolic."""
    found = _with_first(kinds, batched, given, rows)
    for name in batched:
        if not all(isinstance(size, int | np.integer) for size in found[name]):
            raise InputError(f"input {name!r} is {kinds[name]}: give its shape, with any number of rows")
    return found


# Computes outputs by name from inputs by name.
Run: TypeAlias = Callable[[Mapping[str, Any]], Mapping[str, Any]]


def run_in_parts(parts: Sequence[tuple[int, int, Run]], feeds: Mapping[str, Any], batched: frozenset[str]) -> Any:
    """Compute a batch as libgraphkit.so does, and return its outputs by name.

    Args:
        parts: Rows of a program, number of its runs, and a function that runs it; those with most rows first.
        feeds: Arrays of all inputs. The runs have at least as many rows together as they have.
        batched: Names of the inputs that have the rows.
    """
    rows = len(feeds[min(batched)])
    made: list[Mapping[str, Any]] = []
    for places, run in _places(parts, rows):
        found = run({name: np.take(x, places, axis=0) if name in batched else x for name, x in feeds.items()})
        made.append({name: np.asarray(y) for name, y in found.items()})
    return {name: np.concatenate([each[name] for each in made])[:rows] for name in made[0]}


def _places(parts: Sequence[tuple[int, int, Run]], rows: int) -> Iterator[tuple[np.ndarray, Run]]:
    """Yield the rows of each run. The last row is repeated after the end."""
    first = 0
    for size, number, run in parts:
        for _ in range(number):
            yield np.minimum(np.arange(first, first + size), rows - 1), run
            first += size
