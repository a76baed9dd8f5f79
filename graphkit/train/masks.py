from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from graphkit.dist.kvstore import KVStore
from graphkit.errors import UsageError, did_you_mean
from graphkit.executor.run.interruption import uninterrupted
from graphkit.executor.run.params import ParamStore
from graphkit.model import Model
from graphkit.signatures import typed
from graphkit.text import listed
from graphkit.train.average import AVERAGE
from graphkit.train.selection import MASK, TrainedParameter, mask_array, matching

_PRUNED = 0.3


@typed("gk.zero_masks")
def zero_masks(model: Model, patterns: str | Sequence[str] = "*") -> dict[str, np.ndarray]:
    """Return masks with which the zeros of a pruned model stay 0: `gk.Trainer(net, masks=gk.zero_masks(net))`.

    Args:
        model: A model with zeros among its weights, such as a file that `graphkit prune` has written.
        patterns: Names or glob patterns of parameters. Parameters with fewer than two axes (biases, scales of
            normalisations) are selected only by their exact names.

    Returns:
        Booleans by name of the selected parameters that contain zeros: False where they are 0.

    Raises:
        UsageError: A pattern matches no parameter, or no selected parameter contains a zero.
    """
    given = [patterns] if isinstance(patterns, str) else list(patterns)
    types = {model.graph.name_of(v): v.tensor for v in model.graph.inputs if v.role == "parameter" and v.dtype.is_float}
    for pattern in given:
        if not matching([pattern], types):
            raise UsageError(
                f"zero_masks (--keep-zeros): pattern {pattern!r} matches no parameter{did_you_mean(pattern, types)}"
            )
    chosen = {n for n in matching(given, types) if (types[n].rank or 0) > 1 or n in given}
    arrays = {name: np.asarray(model.params[name]) for name in types if name in chosen}
    found = {name: array != 0 for name, array in arrays.items() if array.size and not array.all()}
    if not found:
        raise UsageError(
            f"zero_masks (--keep-zeros): no parameter that fits {', '.join(given)} contains a zero. Prune the model "
            "first (graphkit prune)"
        )
    return found


def note_on_zeros(model: Model, trained: Collection[str], masked: Collection[str], advice: str) -> str | None:
    """Return a note that training will change the zeros of pruned weights, or None.

    A weight counts as pruned if it has at least two axes, and at least 30%, but not all, of its elements are 0.

    Args:
        advice: How to keep the zeros.
    """
    shares = {}
    for name in trained:
        if model.params.holds(name) and name not in masked and len(model.params.type_of(name).static_shape) > 1:
            array = np.asarray(model.params[name])
            shares[name] = 1 - np.count_nonzero(array) / max(array.size, 1)
    pruned = [f"{name} ({share:.0%} zeros)" for name, share in shares.items() if _PRUNED <= share < 1]
    if not pruned:
        return None
    return f"{listed(pruned, len(pruned))}: training changes these zeros. To keep them: {advice}"


def check(trained: Sequence[TrainedParameter], params: ParamStore, store: KVStore | None) -> tuple[str, ...]:
    """Return the names of the parameters with masks.

    Raises UsageError if an element is not 0 where its mask is False, or if the store has parameter servers.
    """
    masks = {t.name: t.mask for t in trained if t.mask is not None}
    if masks and store is not None and store.is_remote:
        raise UsageError("masks= does not work with parameter servers; use one process, or several with dist_sync")
    for name, mask in masks.items():
        if np.any(np.asarray(params[name])[~mask.array]):
            raise UsageError(
                f"masks: parameter {name!r} is not 0 everywhere where its mask is False. Set these elements to 0, as "
                "gk.prune does"
            )
    return tuple(masks)


def replace_masks(masks: Mapping[str, Any], known: Collection[str], params: ParamStore, slots: ParamStore) -> None:
    arrays = {}
    for name, mask in masks.items():
        if name not in known:
            raise UsageError(
                f"set_masks: the Trainer has no mask for {name!r}{did_you_mean(name, known)}. Create it with masks="
            )
        arrays[name] = mask_array("set_masks", name, mask, params.type_of(name).static_shape)
    with uninterrupted:
        for name, kept in arrays.items():
            slots[f"{name}/{MASK}"] = kept
            for store, key in ((params, name), (slots, f"{name}/{AVERAGE}")):
                if key in store:
                    store[key] = np.where(kept, store[key], np.asarray(store[key]).dtype.type(0))
