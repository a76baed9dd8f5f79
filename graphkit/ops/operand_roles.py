"""Which operands of an operator are settings."""

from __future__ import annotations

from collections.abc import Mapping

# Operator -> positions of the operands that configure it. Training does not change them.
SETTINGS: Mapping[str, frozenset[int]] = {
    "Clip": frozenset({1, 2}),
    "Dropout": frozenset({1}),
    "OneHot": frozenset({2}),
    "Pad": frozenset({2}),
    "QuantizeLinear": frozenset({1}),
    "DequantizeLinear": frozenset({1}),
    "QLinearConv": frozenset({1, 4, 6}),
    "QLinearMatMul": frozenset({1, 4, 6}),
    "Range": frozenset({0, 1, 2}),
    "Resize": frozenset({1, 2}),
    "NonMaxSuppression": frozenset({3, 4}),
    "Upsample": frozenset({1}),
}
