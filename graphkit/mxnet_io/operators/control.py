"""Control flow: _foreach, _while_loop and _cond, whose bodies are subgraphs of the node."""

from __future__ import annotations

from collections.abc import Sequence

from graphkit.errors import InvalidModel
from graphkit.frontend.control import cond, foreach
from graphkit.ir.graph import Value
from graphkit.mxnet_io.call import Call, converter, scalar
from graphkit.ops import F
from graphkit.ops.axes import i64


def _arranged(call: Call, count: int, places: Sequence[tuple[Sequence[int], Sequence[Value]]]) -> list[Value]:
    """Return the values in the order of a subgraph's variables: `places` has positions and the values for them."""
    found: dict[int, Value] = {}
    for positions, values in places:
        found.update(zip(positions, values, strict=True))
    if sorted(found) != list(range(count)):
        raise InvalidModel(f"the locations of the inputs of its subgraph are {sorted(found)}, not 0 to {count - 1}")
    return [found[i] for i in range(count)]


@converter("_foreach")
def foreach_(call: Call) -> list[Value]:
    """Apply the subgraph to each slice of the data: first its outputs, stacked, then the last states."""
    attributes = call.attributes
    data_places, state_places = attributes.integers("in_data_locs"), attributes.integers("in_state_locs")
    other_places = attributes.integers("remain_locs")
    outputs = attributes.integer("num_out_data", 0)
    attributes.ignore("num_outputs", "num_args")
    operands = call.operands()
    data, states = operands[: len(data_places)], operands[len(data_places) :][: len(state_places)]
    others = operands[len(data_places) + len(state_places) :]

    def body(slices: list[Value], states: list[Value]) -> tuple[list[Value], list[Value]]:
        places = [(data_places, slices), (state_places, states), (other_places, others)]
        results = call.body(0, _arranged(call, len(operands), places))
        return results[:outputs], results[outputs:]

    stacked, last = foreach(body, data, states, name=call.name)
    return [*stacked, *last]


@converter("_cond")
def cond_(call: Call) -> list[Value]:
    """The condition's subgraph is evaluated first; then one of the two branches."""
    attributes = call.attributes
    inputs = call.operands()[1:]
    attributes.ignore("num_outputs", "num_args")
    places = [attributes.integers(name) for name in ("cond_input_locs", "then_input_locs", "else_input_locs")]
    condition, then, otherwise = ([inputs[i] for i in positions] for positions in places)
    (chosen,) = call.body(0, condition)
    is_true = F.squeeze(F.not_(F.equal(F.reshape(chosen, i64(-1)), scalar(0.0, chosen))), i64(0))
    results = cond(is_true, lambda: call.body(1, then), lambda: call.body(2, otherwise), name=call.name)
    return list(results)
