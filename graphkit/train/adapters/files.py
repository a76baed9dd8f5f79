"""Adapters in files: peft's folders, with `adapter_config.json` and `adapter_model.safetensors`."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from graphkit.errors import InputError, InvalidModel, UsageError, did_you_mean
from graphkit.executor.run.state_dict import fitting
from graphkit.ir.atomic import write_whole, writing_of
from graphkit.ir.json_file import read_json
from graphkit.ir.origin import titled
from graphkit.ir.weights import read_arrays, write_arrays
from graphkit.model import Model
from graphkit.named_tuples import NamedTuple
from graphkit.signatures import typed
from graphkit.text import listed, quantity
from graphkit.train.adapter_marks import CONFIG, WEIGHTS, has_adapters
from graphkit.train.adapters.adapter import MAGNITUDE, A, B
from graphkit.train.adapters.layers import find_layers
from graphkit.train.adapters.lora import adapted
from graphkit.train.adapters.merge import adapters_of, settings_of
from graphkit.train.adapters.settings import Lora

# The beginning of each name in peft's files.
_PREFIX = "base_model.model."
_PART = re.compile(r"(?P<layer>.+)\.(?P<part>lora_A\.weight|lora_B\.weight|lora_magnitude_vector)(\.weight)?")
# Settings of peft that change the result, and that graphkit does not have, with the values that have no effect.
_WITHOUT_EFFECT: Mapping[str, tuple[Any, ...]] = {
    "bias": ("none",),
    "lora_bias": (False,),
    "rank_pattern": ({},),
    "alpha_pattern": ({},),
    "layer_replication": ({}, []),
    "trainable_token_indices": ({}, []),
    "target_parameters": ({}, []),
    "use_qalora": (False,),
    "alora_invocation_tokens": ({}, []),
}


@typed("gk.save_adapter")
def save_adapter(model: Model, path: str | Path) -> None:
    """Write the adapters of a model without the frozen weights, to a folder or to an `.onnx_adapter` file.

    A folder gets `adapter_config.json` and `adapter_model.safetensors`, with the names and shapes of Hugging Face's
    peft. Each file is replaced as a whole. The files also contain the parameters that are trained besides the adapters
    (`train=` of `gk.lora`).

    An `.onnx_adapter` file is for ONNX Runtime. It replaces the defaults of the inputs that
    `model.save(file, as_inputs=gk.adapter_parameters(model))` writes.

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
    write_arrays(path / WEIGHTS, {f"{_PREFIX}{name}": model.params[name] for name in (*names, *others)})
    layers = [adapter.layer.name for adapter in adapters_of(model.graph, settings).values()]
    write_whole(path / CONFIG, [json.dumps(_config(settings, layers, others), indent=2).encode()])


@typed("gk.adapter_parameters")
def adapter_parameters(model: Model) -> tuple[str, ...]:
    """Return the names of the parameters that `gk.save_adapter` writes: of adapters, and of others that are trained.

    Raises UsageError if the model has no adapters.
    """
    names, others = parameters_of(model, settings_of(model, "gk.adapter_parameters"))
    return (*names, *others)


def parameters_of(model: Model, settings: Lora) -> tuple[list[str], list[str]]:
    """Return the names of the parameters of adapters, and of the other parameters that are trained with them."""
    found = adapters_of(model.graph, settings).values()
    names = list(dict.fromkeys(model.graph.name_of(v) for adapter in found for v in adapter.parameters))
    known = set(names)
    return names, [name for name in model.trainable if name not in known]


def described(model: Model) -> str:
    """Return a line about the adapters of a model: their kind, and how many layers and parameters they have."""
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
def load_adapter(model: Model, folder: str | Path) -> Model:
    """Return a model with the adapters of a folder, which `gk.save_adapter`, a Trainer or peft wrote.

    The new model shares the frozen weights with `model`, so several adapters of one model need little memory. Dropout
    and the frozen parameters are as after `gk.lora`: the result can be trained further.

    Args:
        model: The model without adapters, with the layers that the files name.
        folder: The folder with `adapter_config.json` and `adapter_model.safetensors`, or the folder of a run.

    Raises:
        UsageError: There are no such files, the model has adapters already, or it lacks a layer of the files.
        InvalidModel: A file is damaged, or a tensor has another shape or type than the layer needs.
    """
    path = Path(folder)
    saved = _read(path)
    _check_layers(model, saved, path)
    new = adapted(model, saved.settings, saved.others, seed=0, owner="gk.load_adapter")
    _assign(new, saved, path)
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
    saved, settings = _read(path), settings_of(model, "gk.set_adapter")
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
    _assign(model, saved, path)


class _Saved(NamedTuple):
    """Adapters of a file: settings, arrays by the names that `gk.lora` gives, and the parameters without adapters."""

    settings: Lora
    arrays: dict[str, np.ndarray]
    others: tuple[str, ...]


def _read(folder: Path) -> _Saved:
    """Read a folder. Raises UsageError, or InvalidModel if a file is damaged or has a setting that is not supported."""
    for name in (CONFIG, WEIGHTS):
        if not (folder / name).exists():
            raise UsageError(f"{folder} contains no adapter: {name} is missing")
    config = _read_config(folder / CONFIG)
    arrays: dict[str, np.ndarray] = {}
    layers: dict[str, None] = {}
    others = []
    for key, array in sorted(read_arrays(folder / WEIGHTS).items()):
        name = key.removeprefix(_PREFIX)
        if "lora_embedding" in name:
            raise InvalidModel(f"{folder / WEIGHTS}: {key}: adapters of embeddings are not supported")
        if match := _PART.fullmatch(name):
            name = f"{match['layer']}.{match['part']}"
            layers[match["layer"]] = None
        else:
            others.append(name)
        if name in arrays:
            raise InvalidModel(f"{folder / WEIGHTS} contains two tensors for {name}; one of them is {key}")
        arrays[name] = array
    if not layers:
        raise InvalidModel(f"{folder / WEIGHTS} contains no tensor with a name such as LAYER.{A}")
    try:
        settings = Lora(
            rank=config["r"], alpha=config["lora_alpha"], layers=tuple(layers), dropout=config.get("lora_dropout", 0.0),
            dora=config.get("use_dora") or False, rslora=config.get("use_rslora") or False,
        )  # fmt: skip
    except KeyError as error:
        raise InvalidModel(f"{folder / CONFIG}: {error} is missing") from None
    except (OverflowError, UsageError) as error:
        raise InvalidModel(f"{folder / CONFIG}: a setting is not valid: {error}") from None
    for layer in layers:
        name = f"{layer}.{A}"
        if name not in arrays:
            raise InvalidModel(f"{folder / WEIGHTS} lacks {_PREFIX}{name}")
        if (shape := arrays[name].shape)[:1] != (settings.rank,):
            raise InvalidModel(
                f"{folder / CONFIG}: r is {settings.rank}, but {_PREFIX}{name} in {WEIGHTS} has shape {list(shape)}; "
                "its first size must be r"
            )
    return _Saved(settings, arrays, tuple(others))


def _read_config(path: Path) -> dict[str, Any]:
    config = read_json(path, "an adapter configuration")
    if not isinstance(config, dict) or config.get("peft_type") != "LORA":
        kind = config.get("peft_type") if isinstance(config, dict) else None
        raise InvalidModel(f"{path}: peft_type must be 'LORA', not {kind!r}")
    for name, allowed in _WITHOUT_EFFECT.items():
        if (value := config.get(name)) is not None and value not in allowed:
            raise InvalidModel(f"{path}: {name}={value!r} is not supported; it must be {allowed[0]!r}")
    return config


def _check_layers(model: Model, saved: _Saved, folder: Path) -> None:
    """Raise UsageError if the model lacks a layer or a parameter of the files, InvalidModel if an A does not fit."""
    if has_adapters(model.graph):
        return  # `adapted` raises the error
    layers = {layer.name: layer for layer in find_layers(model.graph)[0]}
    for name in saved.settings.layers:
        if name not in layers:
            raise UsageError(
                f"gk.load_adapter: {folder} contains an adapter of layer {name!r}, but {titled(model.graph, 'model')} "
                f"has no such layer{did_you_mean(name, layers)}"
            )
        # Before parameters of this rank are made, because files may have any rank.
        shape = (saved.settings.rank, *layers[name].input_shape)
        _check_shape(folder, f"{name}.{A}", saved.arrays[f"{name}.{A}"], shape)
    for name in saved.others:
        if name not in model.params:
            raise UsageError(
                f"gk.load_adapter: {folder} contains a parameter {name!r}, but {titled(model.graph, 'model')} has no "
                f"such parameter{did_you_mean(name, model.params)}"
            )


def _assign(model: Model, saved: _Saved, folder: Path) -> None:
    """Store the arrays in the model. Raises InvalidModel if one is missing or does not fit; then none changes."""
    names, _ = parameters_of(model, settings_of(model, "gk.load_adapter"))
    arrays = {}
    for name in names:
        if name not in saved.arrays:
            raise InvalidModel(f"{folder / WEIGHTS} lacks {_PREFIX}{name}")
    for name, array in saved.arrays.items():
        if name not in model.params:
            raise InvalidModel(f"{folder / WEIGHTS}: {_PREFIX}{name} belongs to no adapter ({A}, {B}, {MAGNITUDE})")
        kind = model.params.type_of(name)
        _check_shape(folder, name, array, kind.static_shape)
        try:
            arrays[name] = fitting(f"{_PREFIX}{name}", array, kind)
        except InputError as error:
            raise InvalidModel(f"{folder / WEIGHTS}: {error}") from None
    for name, array in arrays.items():
        model.params[name] = array


def _check_shape(folder: Path, name: str, array: np.ndarray, shape: tuple[int, ...]) -> None:
    if array.shape != shape:
        raise InvalidModel(
            f"{folder / WEIGHTS}: {_PREFIX}{name} has shape {list(array.shape)}, but the layer needs {list(shape)}"
        )
