"""Residuals of gradient compression in checkpoints.

A residual is the part of the gradients that compression has not sent yet. Only the sum of all residuals matters: they
can be distributed anew if, after a restart, different ranks compress.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from graphkit.errors import InvalidModel

ByRank = Sequence[Mapping[str, np.ndarray]]
NONE: ByRank = ()


def gather_residuals(
    names: Sequence[str],
    mine: Mapping[str, np.ndarray],
    gather: Callable[[dict[str, np.ndarray]], ByRank],
    keep: bool,
) -> list[dict[str, np.ndarray]]:
    """Collective: gather the residuals of all ranks, one parameter after the other.

    Args:
        keep: Whether this rank needs the result. Otherwise it is empty.
    """
    found: list[dict[str, np.ndarray]] = []
    for name in names:
        parts = gather({name: mine[name]} if name in mine else {})
        for rank, part in enumerate(parts if keep else ()):
            if rank == len(found):
                found.append({})
            found[rank].update(part)
    return found


def residuals_of_rank(saved: ByRank, rank: int, compressing: Sequence[int]) -> dict[str, np.ndarray]:
    """Return the residuals that a rank restores from a checkpoint.

    If the same ranks compress as before, each restores its own. Otherwise, the sum is divided equally among the ranks
    `compressing`.
    """
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
    """Raise InvalidModel unless residuals are float32, and have the sizes of their parameters.

    sizes: number of elements by parameter. where: the beginning of the message.
    """
    for part in saved:
        for name, array in part.items():
            if sizes.get(name) != array.size or array.dtype != np.float32:
                raise InvalidModel(
                    f"{where} does not fit this model: it contains a residual of {array.size} {array.dtype} elements "
                    f"for the gradient of {name!r}, which has {sizes.get(name, 'none')}"
                )
