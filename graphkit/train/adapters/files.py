"""Adapters in files: peft's folders, with `adapter_config.json` and `adapter_model.safetensors`."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from graphkit.errors import InvalidModel, UsageError
from graphkit.ir.atomic import write_whole, writing_of
from graphkit.ir.origin import titled
from graphkit.ir.weights import write_arrays
from graphkit.model import Model
from graphkit.signatures import typed
from graphkit.text import listed, quantity
from graphkit.train.adapter_marks import CONFIG, WEIGHTS
from graphkit.train.adapters.combine import read_adapter
from graphkit.train.adapters.folder import PREFIX, SavedAdapter, read_folder
from graphkit.train.adapters.lora import adapted
from graphkit.train.adapters.merge import adapters_of, settings_of
from graphkit.train.adapters.settings import Lora


@typed("gk.save_adapter")
def save_adapter(model: Model, path: str | Path) -> None:
    """Write the adapters of a model without the frozen weights, to a folder or to an `.onnx_adapter` file.

    A folder gets `adapter_config.json` and `adapter_model.safetensors`, with the names and shapes of Hugging Face's
    peft. Each file is replaced as a whole. The files also contain the parameters that are trained besides the adapters
    (`train=` of `gk.lora`).

    An `.onnx_adapter` file is for ONNX Runtime. Its arrays replace the default values of inputs in a model file. Write
    the model file with the argument `as_inputs=gk.adapter_parameters(model)` of `model.save`.

    Args:
        model: A model with adapters, from `gk.lora`, `gk.load_adapter` or `trainer.net`.
        path: The folder, which is created if there is none; or a file whose name ends in `.onnx_adapter`.

    Raises:
        UsageError: The model has no adapters.
        RuntimeFailure: A file cannot be written.
        MissingDependency: An `.onnx_adapter` file is asked for, and onnxruntime is not installed.
    """
    settings = settings_of(model, "gk.save_adapter")
    names, others = parameters_of(model, settings)
    path = Path(path)
    if path.suffix == ".onnx_adapter":
        from graphkit.onnx_io.runtime_adapter import write_adapter

        write_adapter(path, {name: model.params[name] for name in (*names, *others)})
        return
    with writing_of(path):
        path.mkdir(parents=True, exist_ok=True)
    write_arrays(path / WEIGHTS, {f"{PREFIX}{name}": model.params[name] for name in (*names, *others)})
    layers = [adapter.layer.name for adapter in adapters_of(model.graph, settings).values()]
    write_whole(path / CONFIG, [json.dumps(_config(settings, layers, others), indent=2).encode()])


@typed("gk.adapter_parameters")
def adapter_parameters(model: Model) -> tuple[str, ...]:
    """Return the names of the parameters that `gk.save_adapter` writes: those of adapters, and other trained ones.

    Raises UsageError if the model has no adapters.
    """
    names, others = parameters_of(model, settings_of(model, "gk.adapter_parameters"))
    return (*names, *others)


def parameters_of(model: Model, settings: Lora) -> tuple[list[str], list[str]]:
    found = adapters_of(model.graph, settings).values()
    names = list(dict.fromkeys(model.graph.name_of(v) for adapter in found for v in adapter.parameters))
    known = set(names)
    return names, [name for name in model.trainable if name not in known]


def described(model: Model) -> str:
    settings = settings_of(model, "gk.lora")
    names, others = parameters_of(model, settings)
    layers = {adapter.layer.name: None for adapter in adapters_of(model.graph, settings).values()}
    size = sum(math.prod(model.params.type_of(name).static_shape) for name in names)
    kind = "DoRA" if settings.dora else "LoRA"
    line = (
        f"{kind} of rank {settings.rank}, scaling {settings.scaling:g}: {size:,} parameters in "
        f"{quantity(len(layers), 'layer')} ({listed(layers, len(layers))})"
    )
    return f"{line}; also trained: {listed(others, len(others))}" if others else line


def _config(settings: Lora, layers: Sequence[str], others: Sequence[str]) -> dict[str, Any]:
    alpha = settings.alpha
    return {
        "peft_type": "LORA",
        "r": settings.rank,
        "lora_alpha": int(alpha) if alpha.is_integer() else alpha,
        "lora_dropout": settings.dropout,
        "use_dora": settings.dora,
        "use_rslora": settings.rslora,
        "target_modules": list(dict.fromkeys(layers)),
        "modules_to_save": list(dict.fromkeys(name.rpartition(".")[0] or name for name in others)) or None,
        "bias": "none",
        "fan_in_fan_out": False,
        "init_lora_weights": True,
        "inference_mode": True,
        "task_type": None,
        "base_model_name_or_path": None,
    }


@typed("gk.load_adapter")
def load_adapter(
    model: Model, folder: str | Path | Sequence[str | Path], *, weights: Sequence[float] | None = None
) -> Model:
    """Return a model with the adapters of a folder, which `gk.save_adapter`, a Trainer or peft wrote.

    The new model shares the frozen weights with `model`, so several adapters of one model need little memory. Dropout
    and the frozen parameters are as after `gk.lora`: the result can be trained further.

    Several folders: the model computes W x + sum of weight * scaling * B A x. The rank of the result is the sum of the
    ranks, as with `add_weighted_adapter(combination_type="cat")` of peft.

    Args:
        model: The model without adapters, with the layers that the files name.
        folder: The folder with `adapter_config.json` and `adapter_model.safetensors`, or the folder of a run; or
            several folders, whose adapters are added.
        weights: A factor for each folder (default: 1).

    Raises:
        UsageError: The files do not exist; the model already has adapters, or lacks a layer of the files; or the
            adapters cannot be added: one is a DoRA adapter, for example, or two folders replace the same parameter.
        InvalidModel: A file is damaged, or a tensor has another shape or type than the layer needs.
    """
    return loaded(model, folder, weights, "gk.load_adapter")


def loaded(
    model: Model, folder: str | Path | Sequence[str | Path], weights: Sequence[float] | None, owner: str
) -> Model:
    whole = read_adapter(model, folder, weights, owner)
    new = adapted(model, whole.settings, whole.others, seed=0, owner=owner)
    _assign(new, whole)
    return new


@typed("gk.set_adapter")
def set_adapter(model: Model, folder: str | Path) -> None:
    """Replace the adapters of a model by those of a folder, in place. Compiled programs of the model stay valid.

    Args:
        model: A model with adapters.
        folder: A folder as for `gk.load_adapter`.

    Raises:
        UsageError: The model has no adapters; or the files have another rank, scaling or other layers: load them with
            `gk.load_adapter` instead.
        InvalidModel: A file is damaged, or a tensor has another shape or type than the layer needs.
    """
    path = Path(folder)
    saved, settings = read_folder(path), settings_of(model, "gk.set_adapter")
    names, others = parameters_of(model, settings)
    differing = [
        f"{what} {given!r} instead of {own!r}"
        for what, given, own in (
            ("rank", saved.settings.rank, settings.rank),
            ("scaling", saved.settings.scaling, settings.scaling),
            ("dora", saved.settings.dora, settings.dora),
        )
        if given != own
    ]
    if missing := sorted({*names, *others} ^ set(saved.arrays)):
        differing.append(f"other parameters: {listed(missing, len(missing))}")
    if differing:
        raise UsageError(
            f"gk.set_adapter: the adapters in {path} do not fit those of {titled(model.graph, 'model')}: "
            f"{'; '.join(differing)}. Use gk.load_adapter with the model without adapters"
        )
    _assign(model, saved)


def _assign(model: Model, saved: SavedAdapter) -> None:
    """Store the arrays in the model. Raises InvalidModel, and stores none, if one does not fit."""
    arrays = {}
    for name in saved.arrays:
        if name not in model.params:
            raise InvalidModel(
                f"{saved.folder / WEIGHTS} contains an adapter of the layer {name.partition('.lora_')[0]!r} and other "
                "values of its weight; it must contain one of them"
            )
        arrays[name] = saved.fitted(name, model.params.type_of(name))
    for name, array in arrays.items():
        model.params[name] = array
