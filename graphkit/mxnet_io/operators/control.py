"""Control flow: _foreach, _while_loop and _cond, whose bodies are subgraphs of the node."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphkit.errors import InvalidModel
from graphkit.frontend.control import cond, foreach, while_loop
from graphkit.ir.graph import Value
from graphkit.mxnet_io.call import Call, converter, scalar
from graphkit.ops import F, constant
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


def _is_true(call: Call, operands: Sequence[Value]) -> Value:
    """Evaluate the first subgraph, which returns one element."""
    (chosen,) = call.body(0, operands)
    result: Value = F.squeeze(F.not_(F.equal(F.reshape(chosen, i64(-1)), scalar(0.0, chosen))), i64(0))
    return result


@converter("_while_loop")
def while_loop_(call: Call) -> list[Value]:
    """Repeat the second subgraph while the first one returns true, at most max_iterations times.

    The outputs of the iterations are stacked to max_iterations rows. MXNet leaves the rows of iterations that did not
    run undefined; here they are 0. `func_input_locs` has the inputs of the node that the function's variables stand
    for; `func_var_locs` has the positions of the loop variables among the function's variables.
    """
    attributes = call.attributes
    condition_places, function_places = (attributes.integers(f"{name}_input_locs") for name in ("cond", "func"))
    slots = [function_places[position] for position in attributes.integers("func_var_locs")]
    count, most = attributes.integer("num_out_data", 0), attributes.integer("max_iterations", 0)
    attributes.ignore("num_outputs", "num_args")
    inputs = call.operands()

    def operands(places: Sequence[int], variables: Sequence[Value]) -> list[Value]:
        held = dict(zip(slots, variables, strict=True))
        return [held.get(place, inputs[place]) for place in places]

    def step(state: list[list[Value]]) -> list[list[Value]]:
        (done,), variables, stacks = state
        results = call.body(1, operands(function_places, variables))
        rows = [F.unsqueeze(value, i64(0)) for value in results[:count]]
        place = F.reshape(done, i64(1, 1))
        filled = [F.scatter_nd(stack, place, row) for stack, row in zip(stacks, rows, strict=True)]
        return [[F.add(done, np.int64(1))], results[count:], filled]

    start = [inputs[slot] for slot in slots]
    # The shapes of one iteration's outputs. These nodes are used for the shapes only.
    rows = call.body(1, operands(function_places, start))[:count]
    empty = [
        F.constant_of_shape(F.concat(i64(most), F.shape(row), axis=0), value=np.zeros(1, row.dtype.numpy))
        for row in rows
    ]
    _, variables, stacks = while_loop(
        lambda state: _is_true(call, operands(condition_places, state[1])), step,
        [[constant(np.int64(0))], start, empty],
        maximum_iterations=most, name=call.name,
    )  # fmt: skip
    return [*stacks, *variables]


@converter("_cond")
def cond_(call: Call) -> list[Value]:
    """The condition's subgraph is evaluated first; then one of the two branches. Each has its positions of inputs."""
    attributes = call.attributes
    inputs = call.operands()
    attributes.ignore("num_outputs", "num_args")
    places = [attributes.integers(name) for name in ("cond_input_locs", "then_input_locs", "else_input_locs")]
    condition, then, otherwise = ([inputs[i] for i in positions] for positions in places)
    results = cond(
        _is_true(call, condition), lambda: call.body(1, then), lambda: call.body(2, otherwise), name=call.name
    )
    return list(results)
