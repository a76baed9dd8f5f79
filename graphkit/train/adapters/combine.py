from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from graphkit.errors import UsageError
from graphkit.ir.names import Names
from graphkit.model import Model
from graphkit.train.adapters.adapter import A, Adapter, B
from graphkit.train.adapters.folder import SavedAdapter, check_layers, read_folder
from graphkit.train.adapters.layers import Layer, find_layers, leaves_of
from graphkit.train.adapters.lora import check_without_adapters
from graphkit.train.adapters.settings import Lora


def read_adapter(
    model: Model,
    folder: str | Path | Sequence[str | Path],
    weights: Sequence[float] | None,
    owner: str,
    layers: Mapping[str, Layer] | None = None,
) -> SavedAdapter:
    """Return the adapters of one folder, or the weighted sum of the adapters of several folders.

    Args:
        weights: A factor for each folder (default: 1).

    Raises:
        UsageError: A folder has no adapters, they do not belong to the model, or they cannot be added.
        InvalidModel: A file is damaged, or a tensor has another shape or type than the layer needs.
    """
    for name, given in (("folder", folder), ("weights", weights)):
        if given is not None and not isinstance(given, (Path, Sequence)):
            raise UsageError(
                f"{owner}: {name}= must be a list or tuple, because its order matters, not {type(given).__name__}"
            )
    folders = [Path(folder)] if isinstance(folder, (str, Path)) else [Path(each) for each in folder]
    factors = [1.0] * len(folders) if weights is None else [float(weight) for weight in weights]
    if not folders or len(factors) != len(folders) or not all(map(math.isfinite, factors)):
        raise UsageError(
            f"{owner}: give at least one folder, and one finite weight for each of them, not {len(folders)} folders "
            f"with the weights {factors}"
        )
    check_without_adapters(model, owner)
    saved = [read_folder(each) for each in folders]
    if layers is None:
        layers = {layer.name: layer for layer in find_layers(model.graph)[0]}
    for each in saved:
        check_layers(model, layers, each, owner)
    return saved[0] if factors == [1.0] else combined(model, layers, saved, factors, owner)


def combined(
    model: Model, layers: Mapping[str, Layer], saved: Sequence[SavedAdapter], factors: Sequence[float], owner: str
) -> SavedAdapter:
    """Return the sum of factor * scaling * B A over `saved`, as an adapter of scaling 1.

    The matrices A are stacked, and so are the matrices B. Other arguments: as for `check_layers`.

    Raises UsageError for DoRA, and for other parameters that cannot be added.
    """
    names = dict.fromkeys(name for each in saved for name in each.settings.layers)
    for each in saved:
        if each.settings.dora:
            raise UsageError(
                f"{owner}: {each.folder} contains DoRA adapters, which also change the length of the rows of a weight. "
                "They can neither be added nor multiplied by a weight nor switched; load this folder alone"
            )
    others = _others(model, {name: layers[name] for name in names}, saved, factors, owner)
    rank, arrays = sum(each.settings.rank for each in saved), dict(others)
    for name in names:
        parts = [_parts(each, layers[name], factor) for each, factor in zip(saved, factors, strict=True)]
        arrays[f"{name}.{A}"] = np.concatenate([a for a, _ in parts], axis=0)
        arrays[f"{name}.{B}"] = np.concatenate([b for _, b in parts], axis=1)
    settings = Lora(rank=rank, alpha=float(rank), layers=tuple(names), dropout=saved[0].settings.dropout)
    return SavedAdapter(saved[0].folder, settings, arrays, tuple(others))


def _parts(saved: SavedAdapter, layer: Layer, factor: float) -> tuple[np.ndarray, np.ndarray]:
    """Return A, and B times factor and scaling. Both are 0 if the layer has no adapter."""
    a, b = (value.tensor for value in Adapter.of(layer, saved.settings, Names()).parameters)
    if layer.name not in saved.settings.layers:
        return np.zeros(a.static_shape, a.dtype.numpy), np.zeros(b.static_shape, b.dtype.numpy)
    scaled = saved.fitted(f"{layer.name}.{B}", b) * b.dtype.numpy.type(factor * saved.settings.scaling)
    return saved.fitted(f"{layer.name}.{A}", a), scaled


def _others(
    model: Model, layers: Mapping[str, Layer], saved: Sequence[SavedAdapter], factors: Sequence[float], owner: str
) -> dict[str, np.ndarray]:
    """Return the trained parameters that belong to no adapter.

    Raises UsageError for such a parameter if two folders contain it, if its folder has a factor other than 1, or if a
    layer with adapters uses it.
    """
    found: dict[str, np.ndarray] = {}
    origin: dict[str, Path] = {}
    adapted = {model.graph.name_of(v): name for name, layer in layers.items() for v in leaves_of(layer.weight)}
    for each, factor in zip(saved, factors, strict=True):
        for name in each.others:
            start = f"{owner}: {each.folder} contains new values of the parameter {name!r}"
            if factor != 1.0:
                raise UsageError(
                    f"{start}. They cannot be multiplied by the weight {factor:g}: give this folder the weight 1"
                )
            if name in found:
                raise UsageError(f"{start}, and so does {origin[name]}. Give only one of these folders")
            if name in adapted:
                raise UsageError(
                    f"{start}, but there are also adapters of the layer {adapted[name]!r}, which uses this parameter. "
                    "Give only folders with adapters of the layer, or only folders with new values"
                )
            origin[name] = each.folder
            found[name] = each.fitted(name, model.params.type_of(name))
    return found
