"""FLOPs and bytes by operator, for `ops` and `inspect`."""

from __future__ import annotations

from typing import Any, NamedTuple

from graphkit.checks.inputs import concrete_shapes
from graphkit.cli._inputs import parse_shapes
from graphkit.cli._output import log
from graphkit.errors import InputError
from graphkit.ir import dims
from graphkit.ir.dims import Dim
from graphkit.model import Model
from graphkit.ops.cost import Cost, Costs, costs
from graphkit.passes.control.specialise import specialise_subgraphs
from graphkit.passes.core.bind import bind
from graphkit.text import human, si


class Sized(NamedTuple):
    """The costs of a model, and the shapes of inputs that they are for."""

    costs: Costs
    shapes: dict[str, tuple[int, ...]]


def model_costs(net: Model, texts: tuple[str, ...]) -> Sized:
    """Costs for the shapes that NAME:SHAPE texts tell; guessed dimensions are announced on stderr.

    Where no guess fits, and no shape was given, costs are expressions in the names of dimensions.
    """
    given = parse_shapes(texts)
    try:
        shapes, guesses = concrete_shapes(net, given)
    except InputError as error:
        if given:
            raise
        log(f"costs are told in names of dimensions: {error}")
        return Sized(costs(net.graph), {})
    if guesses:
        log("guessed dimensions: " + ", ".join(f"{k}={v}" for k, v in guesses.items()))
    sized, _ = specialise_subgraphs(bind(net.graph, shapes))
    return Sized(costs(sized), shapes)


def label(domain: str, name: str) -> str:
    """An operator as tables call it."""
    return f"{domain}.{name}" if domain else name


def cost_cells(cost: Cost) -> list[str]:
    """FLOPs and bytes of one row; nothing where none of its nodes has sizes that are known."""
    if cost.nodes and cost.unknown == cost.nodes:
        return ["?", "?"]
    return [_text(cost.flops, si) if cost.flops != 0 else "", _text(cost.bytes, human) if cost.bytes != 0 else ""]


def notes(sized: Sized) -> list[str]:
    """What the sums leave out."""
    unknown = sized.costs.total.unknown
    left_out = [f"{unknown} nodes whose sizes only a run tells are not counted"] if unknown else []
    return [*left_out, *(f"of loop {name!r} one iteration is counted" for name in sized.costs.open_loops)]


def as_json(cost: Cost) -> dict[str, Any]:
    """Numbers; of costs in names of dimensions the text."""
    return {"flops": _plain(cost.flops), "bytes": _plain(cost.bytes), "unknown_nodes": cost.unknown}


def _plain(amount: Dim) -> int | str:
    return amount if dims.is_static(amount) else str(amount)


def _text(amount: Dim, shown: Any) -> str:
    return str(shown(amount) if dims.is_static(amount) else amount)
