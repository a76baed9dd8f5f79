"""The state of L-BFGS between two steps, and its arrays in a checkpoint."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from graphkit.errors import InvalidModel

# Pairs with a curvature up to this are left out.
_LEAST_CURVATURE = 1e-10
_PREFIX = "L-BFGS/"
_VECTORS = ("direction", "gradient")
_NUMBERS = {"factors": np.float64, "scale and length": np.float64, "iterations and evaluations": np.int64}


@dataclass
class History:
    """The state of L-BFGS after an iteration: its history of pairs, and the last move.

    Attributes:
        direction: The last move is `length` times this; empty before the first move.
        pairs: For each pair: the change of the gradient, the move of the parameters, and 1 / (change . move).
        scale: The initial inverse Hessian is this number times the identity: the inverse curvature of the last pair.
    """

    size: int
    direction: np.ndarray
    gradient: np.ndarray
    length: float = 0.0
    pairs: list[tuple[np.ndarray, np.ndarray, float]] = field(default_factory=list)
    scale: float = 1.0
    iterations: int = 0
    evaluations: int = 0

    def store_pair(self, change: np.ndarray, move: np.ndarray) -> None:
        curvature = float(change @ move)
        if _LEAST_CURVATURE < curvature < math.inf:
            if len(self.pairs) == self.size:
                del self.pairs[0]
            self.pairs.append((change, move, 1.0 / curvature))
            self.scale = curvature / float(change @ change)

    def approximate_newton_step(self, gradient: np.ndarray) -> np.ndarray:
        """Return the direction of Nocedal and Wright, algorithm 7.4."""
        r: np.ndarray = -gradient
        factors = []
        for change, move, factor in reversed(self.pairs):
            factors.append(float(move @ r) * factor)
            r = r - change * r.dtype.type(factors[-1])
        r = r * r.dtype.type(self.scale)
        for (change, move, factor), earlier in zip(self.pairs, reversed(factors), strict=True):
            r = r + move * r.dtype.type(earlier - float(change @ r) * factor)
        return r

    # --- checkpoints --------------------------------------------------------------------------------

    def arrays(self) -> dict[str, np.ndarray]:
        found = {
            "direction": self.direction,
            "gradient": self.gradient,
            "factors": np.array([factor for *_, factor in self.pairs], np.float64),
            "scale and length": np.array([self.scale, self.length], np.float64),
            "iterations and evaluations": np.array([self.iterations, self.evaluations], np.int64),
        }
        for index, (change, move, _) in enumerate(self.pairs):
            found |= {f"change/{index}": change, f"move/{index}": move}
        return {f"{_PREFIX}{name}": array for name, array in found.items()}

    def restored(self, arrays: Mapping[str, np.ndarray], elements: int, where: str) -> History:
        """Return the history of a checkpoint, at most its last `size` pairs.

        Args:
            elements: Number of elements of all trained parameters.

        Raises:
            InvalidModel: An array has a wrong shape, dtype or number.
        """
        vectors = (elements,) if arrays[f"{_PREFIX}direction"].size else (0,)
        count = len(arrays[f"{_PREFIX}factors"].reshape(-1))
        shapes = {"factors": (count,), "scale and length": (2,), "iterations and evaluations": (2,)}
        found = {}
        for key in names_in(arrays):
            name, array = key.removeprefix(_PREFIX), arrays[key]
            shape = shapes.get(name, vectors if name in _VECTORS else (elements,))
            dtype = np.dtype(_NUMBERS.get(name, self.direction.dtype))
            if array.shape != shape or array.dtype != dtype:
                raise InvalidModel(
                    f"{where} does not fit: {key!r} is {array.dtype}{list(array.shape)}, not {dtype}{list(shape)}"
                )
            if not np.isfinite(array).all():
                raise InvalidModel(f"{where} is damaged: {key!r} contains NaN or infinity")
            # Copy: the alignment of an array can change how sums are rounded.
            found[name] = np.array(array)
        pairs = [(found[f"change/{i}"], found[f"move/{i}"], float(found["factors"][i])) for i in range(count)]
        scale, length = map(float, found["scale and length"])
        iterations, evaluations = map(int, found["iterations and evaluations"])
        if iterations < 0 or evaluations < 0:
            raise InvalidModel(
                f"{where} is damaged: it has {iterations} iterations and {evaluations} evaluations of the loss"
            )
        if (elements and (iterations > 0) != (vectors == (elements,))) or (count and not iterations):
            raise InvalidModel(
                f"{where} is damaged: after {iterations} iterations, it has a direction of {vectors[0]} elements, and "
                f"{count} pairs"
            )
        return History(
            self.size, found["direction"], found["gradient"], length, pairs[-self.size :], scale, iterations,
            evaluations,
        )  # fmt: skip


def names_in(arrays: Mapping[str, np.ndarray]) -> set[str]:
    factors = arrays.get(f"{_PREFIX}factors")
    count = 0 if factors is None else factors.size
    of_pairs = {f"{kind}/{index}" for kind in ("change", "move") for index in range(count)}
    return {f"{_PREFIX}{name}" for name in (*_VECTORS, *_NUMBERS, *of_pairs)}
