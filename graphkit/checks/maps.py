"""Convert maps to arrays, so that they can be compared and stored: an array of keys, and one of values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from graphkit.named_tuples import NamedTuple


class Table(NamedTuple):
    """A map, or n maps with the same k keys: `keys` [k], ascending, and `values` [k], or [n, k] for n maps."""

    keys: np.ndarray
    values: np.ndarray


def as_table(value: Any) -> Table | None:
    """The arrays of a map, or of a list of maps with the same keys; None for anything else."""
    maps = value if isinstance(value, (list, tuple)) else [value]
    if not maps or not all(isinstance(item, Mapping) for item in maps):
        return None
    keys = sorted(maps[0])
    if any(item.keys() != maps[0].keys() for item in maps):
        return None
    values = _array([[item[key] for key in keys] for item in maps])
    return Table(_array(keys), values if maps is value else values[0])


def _array(items: list[Any]) -> np.ndarray:
    """An array of the items; strings become objects. Python floats become float32 if float32 can represent them."""
    array = np.array(items)
    if array.dtype.kind in "US":
        return np.array(items, object)
    if array.dtype == np.float64:
        with np.errstate(over="ignore"):
            single = array.astype(np.float32)
        return single if np.array_equal(single.astype(np.float64), array, equal_nan=True) else array
    return array


def flattened(results: Mapping[str, Any]) -> dict[str, Any]:
    """Replace each map, or list of maps with the same keys, with the arrays `name.keys` and `name.values`."""
    flat: dict[str, Any] = {}
    for name, value in results.items():
        table = as_table(value)
        if table is not None:
            flat |= {f"{name}.keys": table.keys, f"{name}.values": table.values}
        elif isinstance(value, (list, tuple)) and any(isinstance(item, Mapping) for item in value):
            flat |= flattened({f"{name}[{i}]": item for i, item in enumerate(value)})
        else:
            flat[name] = value
    return flat
