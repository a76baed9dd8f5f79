"""Unique names, and the names of functions."""

from __future__ import annotations

import pytest
from combinations import in_one_item

from graphkit.ir.names import Names, snake_case


def test_names_taker() -> None:
    names = Names()
    assert [names.take(n) for n in ("a", "a", "a_1", "a", "b")] == ["a", "a_1", "a_1_1", "a_2", "b"]


@in_one_item()
@pytest.mark.parametrize(
    ("name", "expected"),
    [("Relu", "relu"), ("BatchNormalization", "batch_normalization"), ("RMSNormalization", "rms_normalization"),
     ("LRN", "lrn"), ("ReduceL2", "reduce_l2"), ("MatMul", "mat_mul"), ("IsNaN", "is_nan"), ("RMSNorm", "rms_norm"),
     ("Conv2D", "conv2_d"), ("my_Op", "my_op"), ("", "")],
)  # fmt: skip
def test_snake_case(name: str, expected: str) -> None:
    assert snake_case(name) == expected
