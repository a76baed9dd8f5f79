"""Memory that arrays are handed out on: seen as long as one of them, or anything made of it, is alive."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from combinations import in_one_item

from graphkit.executor.memory.shared import SharedMemory
from graphkit.executor.run.params import ParamStore
from graphkit.ir.types import TensorType


@in_one_item()
@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=np.float32).reshape(2, 3), np.array(5), np.zeros((0, 3)), np.array([True, False]),
        np.arange(3).astype(ml_dtypes.bfloat16), np.zeros((2, 0), ml_dtypes.bfloat16),
    ],
    ids=lambda a: f"{a.dtype}{list(a.shape)}",
)  # fmt: skip
def test_arrays_are_those_elements(array: np.ndarray) -> None:
    memory = SharedMemory(array)
    assert not memory.is_referenced
    view = memory.array(array.shape, array.dtype, writable=False)
    assert view.shape == array.shape
    assert view.dtype == array.dtype
    assert not view.flags.writeable
    np.testing.assert_array_equal(view, array)
    assert memory.is_referenced
    del view
    assert not memory.is_referenced


@in_one_item()
@pytest.mark.parametrize(
    "derive",
    [
        lambda a: a[1:], lambda a: a.T[::2], lambda a: a.reshape(-1).view(np.uint8), memoryview, lambda a: [a],
        np.from_dlpack, lambda a: np.broadcast_to(a, (4, *a.shape)), lambda a: memoryview(a)[1:],
    ],
    ids=["slice", "transpose", "bytes", "memoryview", "list", "dlpack", "broadcast", "part of a memoryview"],
)  # fmt: skip
def test_whatever_is_made_of_an_array_keeps_the_memory(derive: Any) -> None:
    memory = SharedMemory(np.arange(6.0).reshape(2, 3))
    derived = derive(memory.array((2, 3), np.dtype(float), writable=True))
    again = memory.array((6,), np.dtype(float), writable=True)
    assert memory.is_referenced
    del again
    assert memory.is_referenced
    del derived
    assert not memory.is_referenced


def test_a_store_gives_away_what_nobody_sees() -> None:
    store = ParamStore({"w": TensorType("float32", (3,))}, {"w": np.ones(3, np.float32)})
    mine = store.donate("w")
    assert mine is not None
    part = store["w"][1:]
    assert not part.flags.writeable
    assert store.donate("w") is None
    assert store.commit("w", np.zeros(3, np.float32)) is None, "the old value is still seen"
    np.testing.assert_array_equal(part, [1, 1])
    del part
    free = store.commit("w", np.full(3, 2, np.float32))
    assert free is not None
    np.testing.assert_array_equal(free, [0, 0, 0])


def test_a_store_never_gives_away_what_others_made() -> None:
    given = np.ones(3, np.float32)
    given.flags.writeable = False
    store = ParamStore({"w": TensorType("float32", (3,))}, {"w": given})
    assert store["w"] is given
    assert store.donate("w") is None
    base = np.zeros(6, np.float32)
    store.commit("w", base[:3])
    assert store.donate("w") is None, "a view of somebody's array"
