from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from graphkit.data import Dataset, IterableDataset, LazyDataset
from graphkit.errors import InputError, UsageError, did_you_mean
from graphkit.train.targets import Targets, checked_weights

AnyData = Dataset | IterableDataset


def with_sample_weights(data: AnyData, given: Any, targets: Targets, argument: str) -> AnyData:
    """Return the data with weights among their targets. Raises UsageError or InputError if that is not possible.

    Args:
        given: The weights, float [N]; or the name of an array or of an entry in the targets of each sample.
    """
    if isinstance(data, (LazyDataset, IterableDataset)):
        if not isinstance(given, str):
            raise UsageError(
                f"{argument}: the samples of {data.name} are made on request, so their weights cannot be an array. "
                "Make the targets of a sample a dict that also contains the weight, and pass its name: "
                f"{argument}='weight'"
            )
        return data
    found = copy.copy(data)
    own = {} if data.targets is None else data.targets
    own = dict(own) if isinstance(own, dict) else {targets.names[0]: own}
    if isinstance(given, str):
        found.arrays = dict(data.arrays)
        weights = _named(found.arrays, own, given, data, argument)
        found.axes = {name: axis for name, axis in data.axes.items() if name != given}
        # If a file or table has only the array "x", it is fed to the only input of a model, whatever that input's name.
        found._single = data._single or (list(found.arrays) == ["x"] and given not in own)
    else:
        weights = given
        if targets.weight_name in own:
            raise InputError(f"{argument}: {data.name} already has a target {targets.weight_name!r}")
    weights = checked_weights(weights, len(found), argument)
    if not weights.any():
        raise InputError(f"{argument}: all weights of {data.name} are 0, so no sample counts")
    found.targets, found.weight_name = {**own, targets.weight_name: weights}, targets.weight_name
    return found


def is_sample(item: Any) -> bool:
    return isinstance(item, Mapping) or (isinstance(item, tuple) and len(item) == 2)


def _named(arrays: dict[str, Any], targets: dict[str, Any], name: str, data: Dataset, argument: str) -> Any:
    if name in targets and len(targets) > 1:
        return targets.pop(name)
    if name in arrays and len(arrays) > 1:
        return arrays.pop(name)
    if name in arrays or name in targets:
        raise InputError(f"{argument}: {name!r} is the only {'input' if name in arrays else 'target'} of {data.name}")
    known = [*arrays, *targets]
    raise InputError(f"{argument}: {data.name} has no array {name!r}{did_you_mean(name, known)}")
