"""The types of loop states that iterations keep."""

from __future__ import annotations

import pytest

from graphkit.errors import TypeMismatch
from graphkit.ir import dims
from graphkit.ir.types import DType, OptionalType, SequenceType, TensorType
from graphkit.ops.control.loop_state import StableStates, may_keep, stable_types


def tensor(*shape: object, dtype: DType = DType.FLOAT32) -> TensorType:
    return TensorType(dtype, shape)


def test_types_that_an_iteration_keeps_stay():
    kind = TensorType(DType.INT64, (2,), (3, 4))
    stable = stable_types([kind, tensor("N")], lambda types: types)
    assert stable == (tensor(2, dtype=DType.INT64), tensor("N"))
    assert stable[0].value is None  # its elements change


def test_a_size_that_changes_becomes_unknown_and_others_stay():
    tried = []

    def grow(types):
        tried.append(types[0])
        rows, columns = types[0].shape
        return [tensor(rows + 1, columns)]

    (kind,) = stable_types([tensor(2, 3)], grow)
    assert kind.shape[1] == 3
    assert str(kind.shape[0]).startswith("?")
    assert tried == [tensor(2, 3), kind]


def test_what_one_state_hands_to_the_next_is_found_out_in_turn():
    stable = stable_types([tensor(1)] * 3, lambda types: [tensor(types[0].shape[0] + 1), types[0], types[1]])
    sizes = [t.shape[0] for t in stable]
    assert len(set(sizes)) == 3
    assert all(str(size).startswith("?") for size in sizes)


def test_a_rank_that_changes_becomes_unknown():
    assert stable_types([tensor(2)], lambda types: [tensor(1, 2)]) == (TensorType(DType.FLOAT32),)


def test_after_its_trials_a_state_that_changes_loses_its_rank():
    states, trials = StableStates([tensor(1)] * 9, trials=3), 1
    while not states.hold([tensor(2), *states.types[:-1]]):
        trials += 1
    # The sizes of two are found out one by one; of each of the others it is the rank.
    assert [t.rank for t in states.types] == [1, 1, *[None] * 7]
    assert trials == 10


def test_sequences_and_optionals():
    (grown,) = stable_types([SequenceType(tensor(2))], lambda types: [SequenceType(tensor(3))])
    assert grown.element.rank == 1
    assert stable_types([tensor(2)], lambda types: [OptionalType(tensor(2))]) == (OptionalType(tensor(2)),)


def test_another_element_type_is_refused():
    changed = [tensor(2, dtype=DType.INT64)]
    with pytest.raises(TypeMismatch, match=r"a loop state is float32\[2\] before an iteration, but int64\[2\] after"):
        stable_types([tensor(2)], lambda types: changed)
    states = StableStates([tensor(1), tensor(2)], refusal=lambda i, a, b: ValueError(f"{i}: {a}, {b}"))
    with pytest.raises(ValueError, match=r"1: float32\[2\], int64\[2\]"):
        states.hold([tensor(1), *changed])


def test_which_states_may_keep_their_type():
    n = dims.symbol("N")
    assert may_keep(tensor(n), tensor(2))
    assert may_keep(TensorType(DType.FLOAT32), tensor(2))
    assert not may_keep(tensor(2), tensor(3))
    assert not may_keep(tensor(2), tensor(2, dtype=DType.INT64))
    assert not may_keep(tensor(2), SequenceType(tensor(2)))
