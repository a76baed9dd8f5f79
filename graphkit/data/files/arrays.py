"""Data sets in .npz files: inputs and targets by the names of the arrays."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from graphkit.data.dataset import TARGETS, Axes, Dataset, Splits
from graphkit.data.files.npz import read_arrays
from graphkit.errors import InputError


def load(path: Path, *, axes: Axes | None = None) -> Dataset | Splits:
    """Load `x` and `y` (see TARGETS for its other names), other inputs by name, `classes`; or x_train, x_test and so
    on.
    """
    arrays = read_arrays(path)
    if "" in arrays:
        raise InputError(f"{path}: not a readable .npz file: it contains one array without a name, like a .npy file")
    return of_arrays(arrays, path, axes=axes)


def of_arrays(arrays: dict[str, np.ndarray], path: Path | str, *, axes: Axes | None = None) -> Dataset | Splits:
    """The same for arrays in memory; `path` is their name in errors."""
    axes = axes or {}
    if "x_train" in arrays and "x_test" in arrays:
        return Splits(*(_arrays(_part(arrays, part), path, axes, part) for part in ("train", "test")))
    return _arrays(arrays, path, axes)


def _part(arrays: dict[str, np.ndarray], part: str) -> dict[str, np.ndarray]:
    """The arrays of one part, without its suffix: `x_train` becomes `x`. Both parts share the class names."""
    found = {n.removesuffix(f"_{part}"): a for n, a in arrays.items() if n.endswith(f"_{part}")}
    return {"classes": arrays["classes"], **found} if _are_names(arrays.get("classes")) else found


def _arrays(arrays: dict[str, np.ndarray], path: Path | str, axes: Axes, part: str = "") -> Dataset:
    source = f"{path} ({part})" if part else str(path)
    classes = arrays.pop("classes").tolist() if _are_names(arrays.get("classes")) else None
    target = next((name for name in TARGETS if name in arrays), None)
    inputs = {n: a.astype(np.float32) if a.dtype == np.float64 else a for n, a in arrays.items() if n != target}
    if not inputs:
        raise InputError(
            f"{source}: no input array; give an input the name x (the file contains {', '.join(arrays) or 'nothing'})"
        )
    targets = None if target is None else arrays[target]
    if targets is not None:
        targets = _as_targets(targets, f"{source}: {target}")
    if list(inputs) == ["x"]:
        return Dataset(inputs["x"], targets, classes=classes, name=source, axes=axes)
    return Dataset(inputs, targets, classes=classes, name=source, axes=axes)


def _as_targets(array: np.ndarray, where: str) -> np.ndarray:
    """Integers as int64, floats as float32. Raises InputError, which names `where`, for numbers that do not fit."""
    kind = {"u": np.int64, "i": np.int64, "f": np.float32}.get(array.dtype.kind)
    if kind is None:
        return array
    with np.errstate(over="ignore"):
        found = array.astype(kind)
    lost = np.isfinite(array) & ~np.isfinite(found) if kind is np.float32 else found != array
    if lost.any():
        raise InputError(f"{where} contains {array[lost].flat[0]}, which is too large for {np.dtype(kind)}")
    return found


def _are_names(array: np.ndarray | None) -> bool:
    return array is not None and array.ndim == 1 and array.dtype.kind == "U"
