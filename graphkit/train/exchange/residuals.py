"""Residuals of gradient compression in checkpoints: stored by rank, and given back to ranks.

The ranks that compress need not be the same ones, or equally many. A residual is the difference between the sum of all
gradients and the sum that has arrived. Only the total matters, not which rank sends it later.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from graphkit.errors import InvalidModel

# By rank, vectors by the name of a parameter.
ByRank = Sequence[Mapping[str, np.ndarray]]
NONE: ByRank = ()


def of_ranks(
    names: Sequence[str],
    mine: Mapping[str, np.ndarray],
    gather: Callable[[dict[str, np.ndarray]], ByRank],
    keep: bool,
) -> list[dict[str, np.ndarray]]:
    """What all ranks have of these parameters, by rank; nothing where not `keep`.

    One parameter after the other goes through `gather`, which every process calls.
    """
    found: list[dict[str, np.ndarray]] = []
    for name in names:
        parts = gather({name: mine[name]} if name in mine else {})
        for rank, part in enumerate(parts if keep else ()):
            if rank == len(found):
                found.append({})
            found[rank].update(part)
    return found


def of_rank(saved: ByRank, rank: int, compressing: Sequence[int]) -> dict[str, np.ndarray]:
    """What a rank takes over of a checkpoint: its own, if the same ranks compress; else they share the sum alike."""
    before = [other for other, part in enumerate(saved) if part]
    if rank not in compressing:
        return {}
    if before == sorted(compressing):
        return dict(saved[rank])
    sums: dict[str, np.ndarray] = {}
    for part in saved:
        for name, array in part.items():
            sums[name] = sums[name] + array if name in sums else array.astype(np.float64)
    return {name: (array / len(compressing)).astype(np.float32) for name, array in sums.items()}


def check(saved: ByRank, sizes: Mapping[str, int], where: str) -> None:
    """Raise InvalidModel, which begins with `where`, for other than float32 vectors of these parameters' sizes."""
    for part in saved:
        for name, array in part.items():
            if sizes.get(name) != array.size or array.dtype != np.float32:
                raise InvalidModel(
                    f"{where} does not fit this model: it contains a residual of {array.size} {array.dtype} elements "
                    f"for the gradient of {name!r}, which has {sizes.get(name, 'none')}"
                )
