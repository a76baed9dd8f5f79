"""Operands of single operators: their kinds and shapes as data, from which arrays are drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Operand:
    """An operand: how its elements are drawn, and whether a model has it as a constant.

    kind: normal, positive (at least 0.5), uniform (-0.9 to 0.9), small (normal, divided by the square root of the last
    size), integers (below `high`), divisors (1 to `high`), truths, boxes (two corners in [0, high)), definite
    (symmetric positive definite matrices), or given (`array`).
    """

    kind: str
    shape: tuple[int, ...]
    dtype: str = "float32"
    high: int = 0
    constant: bool = False
    array: Any = None

    def draw(self, rng: np.random.Generator) -> np.ndarray:
        """Return an array of this kind."""
        return np.asarray(self._elements(rng)).astype(self.dtype)

    def _elements(self, rng: np.random.Generator) -> Any:
        shape = self.shape
        if self.kind == "given":
            return self.array
        if self.kind == "integers":
            return rng.integers(0, self.high, shape)
        if self.kind == "divisors":
            return rng.integers(1, self.high + 1, shape)
        if self.kind == "truths":
            return rng.random(shape) > 0.5
        if self.kind == "boxes":
            return np.sort(rng.random((*shape[:-1], 2, 2)) * self.high, axis=-2).reshape(shape)
        values = rng.standard_normal(shape)
        if self.kind == "definite":
            return (values @ np.swapaxes(values, -1, -2) + shape[-1] * np.eye(shape[-1])) / shape[-1]
        if self.kind == "small":
            return values / np.sqrt(shape[-1])
        if self.kind == "positive":
            return np.abs(values) + 0.5
        return np.clip(values * 0.4, -0.9, 0.9) if self.kind == "uniform" else values

    def __str__(self) -> str:
        if self.kind == "given":
            return str(self.array.tolist() if self.array.size <= 8 else list(self.shape))
        short = self.dtype.replace("float", "f").replace("uint", "u").replace("int", "i")
        return f"{short}[{','.join(map(str, self.shape))}]"


def normal(*shape: int, dtype: str = "float32") -> Operand:
    return Operand("normal", shape, dtype)


def positive(*shape: int) -> Operand:
    return Operand("positive", shape)


def uniform(*shape: int) -> Operand:
    return Operand("uniform", shape)


def integers(high: int, *shape: int, dtype: str = "int64") -> Operand:
    return Operand("integers", shape, dtype, high)


def divisors(high: int, *shape: int) -> Operand:
    return Operand("divisors", shape, "int64", high)


def small(*shape: int) -> Operand:
    return Operand("small", shape)


def truths(*shape: int) -> Operand:
    return Operand("truths", shape, "bool")


def boxes(high: int, *shape: int) -> Operand:
    return Operand("boxes", shape, "float32", high)


def definite(*shape: int) -> Operand:
    return Operand("definite", shape)


def given(values: Any, dtype: str = "int64") -> Operand:
    """A constant."""
    array = np.asarray(values, dtype)
    return Operand("given", array.shape, dtype, constant=True, array=array)


def held(*operands: Operand) -> list[Operand]:
    """The same operands as constants of the model: weights."""
    return [replace(operand, constant=True) for operand in operands]


def describe(operands: Sequence[Operand]) -> str:
    """Return the types and shapes of the operands."""
    return ", ".join(map(str, operands))
