"""The limits of a comparison, for each output: those of its type, or those of a lower precision."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from graphkit.checks.lower_precision import Precision, lower_of
from graphkit.checks.sides import Side
from graphkit.ir.graph import Graph
from graphkit.ir.types import FLOATS, HALVES, dtype_of
from graphkit.model import Model
from graphkit.named_tuples import NamedTuple
from graphkit.text import listed


class Limits(NamedTuple):
    """The limits of an output.

    Attributes:
        lower: The lower precision that determines them; None: they are those of the output's type.
        why: Why it is that precision.
        is_measured: An output that is not within the tolerances of its type must be within the measured effect of
            rounding to `lower`. Otherwise, the tolerances of `lower` hold, too.
        exact_is_second: Whether the second model is evaluated in double precision.
        own: The lowest precision that the output depends on in the first model.
    """

    lower: Precision | None = None
    why: str = ""
    is_measured: bool = False
    exact_is_second: bool = False
    own: Precision | None = None


class PartOfModel(NamedTuple):
    """Some outputs of a model, and the nodes that they depend on, for `judged`."""

    graph: Graph
    params: Any
    outputs: tuple[str, ...]

    @classmethod
    def of(cls, model: Model, names: Sequence[str]) -> PartOfModel:
        """Return the part of a model with the outputs of these names. All inputs stay, so that they keep their names.

        The effect of rounding is measured with the element types of this part, not with those of the whole model.
        """
        values = dict(zip(model.outputs, model.graph.outputs, strict=True))
        graph = Graph(model.graph.inputs, [values[name] for name in names], output_names=names)
        return cls(graph, model.params, tuple(names))


def limits_by_output(
    first: Side, second: Side, pairs: Sequence[tuple[str, str]], results: Mapping[str, Any]
) -> dict[Limits, list[tuple[str, str]]]:
    """Return the pairs of output names by their limits.

    results: the results of the first side by name.
    """
    found: dict[Limits, list[tuple[str, str]]] = {}
    for own, other in pairs:
        found.setdefault(_limits(first, second, own, other, results[own]), []).append((own, other))
    return found


def _limits(first: Side, second: Side, own: str, other: str, result: Any) -> Limits:
    mine = theirs = first.precisions.get(own)
    if first.given is not second.given:
        theirs = second.precisions.get(other)
        if (lower := lower_of(mine, theirs)) is not None:
            # The more precise of two models is evaluated in double precision.
            return Limits(lower, "the precisions differ", exact_is_second=lower == mine, own=mine)
    halves = [each for each in (mine, theirs) if each is not None and each.name in map(str, HALVES)]
    if not halves:
        return Limits(own=mine)
    why = f"the model computes in {halves[0].name}"
    if not isinstance(result, np.ndarray):  # the effect of rounding on sequences and maps is not measured
        return Limits(halves[0], why, own=mine)
    # Files of `gk.reduce_precision` have outputs with the errors of float16, in the type float32.
    is_wider = dtype_of(result.dtype) in FLOATS - HALVES
    return Limits(halves[0], why, is_measured=True, own=mine) if is_wider else Limits(own=mine)


def notes_on_limits(groups: Mapping[Limits, Sequence[tuple[str, str]]]) -> Iterator[str]:
    """Yield a note for each lower precision that determines limits. It names the outputs, unless it determines all."""
    by_text: dict[str, list[str]] = {}
    for limits, pairs in groups.items():
        if limits.lower is not None:
            text = f"{limits.why}: the limits are those of {limits.lower.name}"
            by_text.setdefault(text, []).extend(own for own, _ in pairs)
    count = sum(map(len, groups.values()))
    for text, names in by_text.items():
        yield text if len(names) == count else f"{listed(names, len(names), 5)}: {text}"
