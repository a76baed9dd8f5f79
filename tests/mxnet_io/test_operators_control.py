"""_foreach, _while_loop and _cond, whose bodies are subgraphs."""

import numpy as np
import pytest

from graphkit.errors import InvalidModel
from tests.mxnet_io.operator_cases import case, floats, node, symbol, variable
from tests.mxnet_io.operator_checks import check, imported

# next = state + row * weight; out = 2 next. MXNet numbers the variables in the order in which the outputs need them.
FOREACH = symbol(
    [variable("state"), variable("row"), variable("weight"), node("elemwise_mul", "scaled", [1, 2]),
     node("elemwise_add", "next", [0, 3]), node("_mul_scalar", "out", [4], scalar=2.0)],
    [5, 4],
)  # fmt: skip
# The function: out = value * factor, next counter = counter + 1, next value = value + counter.
COUNTS = symbol([variable("counter"), node("_lesser_scalar", "go", [0], scalar=4.0)], [1])
STEP = symbol(
    [variable("value"), variable("factor"), node("broadcast_mul", "out", [0, 1]), variable("counter"),
     node("_plus_scalar", "more", [3], scalar=1.0), node("broadcast_add", "sum", [0, 3])],
    [2, 4, 5],
)  # fmt: skip
ABOVE = symbol([variable("x"), node("_copy", "above", [0])], [1])
THEN = symbol([variable("x"), node("_mul_scalar", "doubled", [0], scalar=2.0)], [1])
OTHERWISE = symbol([variable("x"), variable("y"), node("elemwise_sub", "difference", [0, 1])], [2])

X, STATE, WEIGHT = floats(4, 3), floats(3, seed=1), floats(3, seed=2)
STATES = STATE + np.cumsum(X * WEIGHT, 0)
VALUE, FACTOR = floats(3, seed=3), floats(3, seed=4)
VALUES = [VALUE, VALUE, VALUE + 1, VALUE + 3, VALUE + 6]
LOOP = {
    "cond_input_locs": "[0]", "func_input_locs": "[1, 2, 0]", "func_var_locs": "[2, 0]", "num_args": 5,
         "num_out_data": 1,
    "num_outputs": 3,
}  # fmt: skip
CASES = [
    case("_foreach", X, STATE, WEIGHT, gives=[2 * STATES, STATES[-1]], subgraphs=[FOREACH], in_data_locs="[1]",
         in_state_locs="[0]",
         remain_locs="[2]", num_args=4, num_out_data=1, num_outputs=2),
    case("_while_loop", np.zeros(1, np.float32), VALUE, FACTOR, gives=[np.stack(VALUES[:4]) * FACTOR,
         np.float32([4]), VALUES[4]],
         subgraphs=[COUNTS, STEP], max_iterations=4, **LOOP),
    # The limit ends the loop.
    case("_while_loop", np.zeros(1, np.float32), VALUE, FACTOR, gives=[np.stack(VALUES[:2]) * FACTOR,
         np.float32([2]), VALUES[2]],
         subgraphs=[COUNTS, STEP], max_iterations=2, **LOOP),
    *(
        case("_cond", np.float32([flag]), VALUE, STATE, gives=gives, subgraphs=[ABOVE, THEN, OTHERWISE],
             cond_input_locs="[0]",
             then_input_locs="[1]", else_input_locs="[1, 2]", num_args=6, num_outputs=1)
        for flag, gives in ((1, 2 * VALUE), (0, VALUE - STATE))
    ),
]  # fmt: skip
PADDED = [
    case("_while_loop", np.zeros(1, np.float32), VALUE, FACTOR, subgraphs=[COUNTS, STEP], max_iterations=6, **LOOP,
         gives=[np.concatenate([np.stack(VALUES[:4]) * FACTOR, np.zeros((2, 3))]), np.float32([4]), VALUES[4]]),
    case("_while_loop", np.full(1, 9, np.float32), VALUE, FACTOR, subgraphs=[COUNTS, STEP], max_iterations=2, **LOOP,
         gives=[np.zeros((2, 3), np.float32), np.float32([9]), VALUE]),
]  # fmt: skip


def test_values(tmp_path):
    check(CASES, tmp_path)


def test_rows_of_missing_iterations_are_zero(tmp_path):
    check(PADDED, tmp_path)


def test_wrong_locations_are_refused(tmp_path):
    CASES[0].attributes["remain_locs"] = "[1]"
    try:
        with pytest.raises(InvalidModel, match="_foreach"):
            imported(CASES[:1], tmp_path)
    finally:
        CASES[0].attributes["remain_locs"] = "[2]"
