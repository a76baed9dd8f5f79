"""FLOPs and bytes per operator, for `graphkit ops` and `graphkit inspect --costs`."""

from __future__ import annotations

from typing import Any

from graphkit.checks.inputs import concrete_shapes
from graphkit.cli._inputs import parse_shapes
from graphkit.cli._output import log
from graphkit.errors import InputError
from graphkit.ir import dims
from graphkit.ir.dims import Dim
from graphkit.model import Model
from graphkit.named_tuples import NamedTuple
from graphkit.ops.cost import Cost, Costs, costs
from graphkit.passes.control.specialise import specialise_subgraphs
from graphkit.passes.core.bind import bind
from graphkit.text import human, quantity, si


class Sized(NamedTuple):
    """The costs of a model, and the input shapes for which they are computed."""

    costs: Costs
    shapes: dict[str, tuple[int, ...]]


def model_costs(net: Model, texts: tuple[str, ...]) -> Sized:
    """Return the costs for the input shapes of NAME:SHAPE texts. Dimensions that are not given are guessed and logged.

    If no guess fits and no shape is given, costs are expressions in the names of symbolic dimensions.
    """
    given = parse_shapes(texts)
    try:
        shapes, guesses = concrete_shapes(net, given)
    except InputError as error:
        if given:
            raise
        log(f"costs are shown as expressions in the symbolic dimensions, because {error}. Give shapes: NAME:SHAPE")
        return Sized(costs(net.graph), {})
    if guesses:
        log("guessed dimensions: " + ", ".join(f"{k}={v}" for k, v in guesses.items()))
    sized, _ = specialise_subgraphs(bind(net.graph, shapes))
    return Sized(costs(sized), shapes)


def label(domain: str, name: str) -> str:
    """Return the name of an operator for tables: with its domain, if it is not ai.onnx."""
    return f"{domain}.{name}" if domain else name


def cost_cells(cost: Cost) -> list[str]:
    """Return FLOPs and bytes of one row; "?" if the sizes of all its nodes are unknown."""
    if cost.nodes and cost.unknown == cost.nodes:
        return ["?", "?"]
    return [_text(cost.flops, si) if cost.flops != 0 else "", _text(cost.bytes, human) if cost.bytes != 0 else ""]


def notes(sized: Sized) -> list[str]:
    """Return sentences about what the totals leave out."""
    unknown = sized.costs.total.unknown
    left_out = [f"not counted: {quantity(unknown, 'node')} with data-dependent shapes"] if unknown else []
    return [*left_out, *(f"loop {name!r}: only one iteration is counted" for name in sized.costs.open_loops)]


def as_json(cost: Cost) -> dict[str, Any]:
    """Return costs as numbers, or as text if they depend on symbolic dimensions."""
    return {"flops": _plain(cost.flops), "bytes": _plain(cost.bytes), "unknown_nodes": cost.unknown}


def _plain(amount: Dim) -> int | str:
    return amount if dims.is_static(amount) else str(amount)


def _text(amount: Dim, shown: Any) -> str:
    return str(shown(amount) if dims.is_static(amount) else amount)
