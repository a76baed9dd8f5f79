"""Read folders of adapters in peft's format, and check that they fit a model."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from graphkit.errors import InputError, InvalidModel, UsageError, did_you_mean
from graphkit.executor.run.state_dict import fitting
from graphkit.ir.json_file import read_json
from graphkit.ir.names import Names
from graphkit.ir.origin import titled
from graphkit.ir.types import TensorType
from graphkit.ir.weights import read_arrays
from graphkit.model import Model
from graphkit.named_tuples import NamedTuple
from graphkit.train.adapter_marks import CONFIG, WEIGHTS
from graphkit.train.adapters.adapter import MAGNITUDE, A, Adapter, B
from graphkit.train.adapters.layers import Layer
from graphkit.train.adapters.settings import Lora

PREFIX = "base_model.model."
_PART = re.compile(r"(?P<layer>.+)\.(?P<part>lora_A\.weight|lora_B\.weight|lora_magnitude_vector)(\.weight)?")
# Settings of peft that are not supported, each with the values that are accepted because they change nothing.
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
# Settings of peft that must be lists of names. Each may also have one of the types given here.
_OF_NAMES: Mapping[str, tuple[type, ...]] = {"target_modules": (str,), "modules_to_save": ()}


class SavedAdapter(NamedTuple):
    """The adapters of a folder.

    Attributes:
        settings: `settings.layers` are the names of the layers.
        arrays: The arrays, by the parameter names of `gk.lora`.
    """

    folder: Path
    settings: Lora
    arrays: dict[str, np.ndarray]
    others: tuple[str, ...]

    def fitted(self, name: str, kind: TensorType) -> np.ndarray:
        """Return the array of a parameter in its type."""
        file = self.folder / WEIGHTS
        if name not in self.arrays:
            raise InvalidModel(f"{file} lacks {PREFIX}{name}")
        array = self.arrays[name]
        if array.shape != kind.static_shape:
            raise InvalidModel(
                f"{file}: {PREFIX}{name} has shape {list(array.shape)}, but the layer needs {list(kind.static_shape)}"
            )
        try:
            return fitting(f"{PREFIX}{name}", array, kind)
        except InputError as error:
            raise InvalidModel(f"{file}: {error}") from None


def read_folder(folder: Path) -> SavedAdapter:
    """Read a folder. Raises UsageError without adapter files, and InvalidModel for damaged or unsupported files."""
    if folder.is_file():
        raise UsageError(f"{folder} is a file; give the folder that contains {CONFIG} and {WEIGHTS}")
    for name in (CONFIG, WEIGHTS):
        if not (folder / name).exists():
            raise UsageError(f"{folder} contains no adapter: {name} is missing")
    config = _read_config(folder / CONFIG)
    arrays: dict[str, np.ndarray] = {}
    layers: dict[str, None] = {}
    others = []
    for key, array in sorted(read_arrays(folder / WEIGHTS).items()):
        name = key.removeprefix(PREFIX)
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
            raise InvalidModel(f"{folder / WEIGHTS} lacks {PREFIX}{name}")
        if (shape := arrays[name].shape)[:1] != (settings.rank,):
            raise InvalidModel(
                f"{folder / CONFIG}: r is {settings.rank}, but {PREFIX}{name} in {WEIGHTS} has shape {list(shape)}; "
                "its first size must be r"
            )
    return SavedAdapter(folder, settings, arrays, tuple(others))


def _read_config(path: Path) -> dict[str, Any]:
    config = read_json(path, "an adapter configuration")
    if not isinstance(config, dict) or config.get("peft_type") != "LORA":
        kind = config.get("peft_type") if isinstance(config, dict) else None
        raise InvalidModel(f"{path}: peft_type must be 'LORA', not {kind!r}")
    for name, allowed in _WITHOUT_EFFECT.items():
        if (value := config.get(name)) is not None and value not in allowed:
            raise InvalidModel(f"{path}: {name}={value!r} is not supported; it must be {allowed[0]!r}")
    for name, kinds in _OF_NAMES.items():
        value = config.get(name)
        is_list = isinstance(value, list) and all(isinstance(each, str) for each in value)
        if value is not None and not is_list and not isinstance(value, kinds):
            raise InvalidModel(f"{path}: {name} must be a list of names, not {value!r}")
    return config


def check_layers(model: Model, layers: Mapping[str, Layer], saved: SavedAdapter, owner: str) -> None:
    """Check that adapters fit a model.

    Raises:
        UsageError: The model lacks a layer or a parameter of the adapters.
        InvalidModel: A tensor is missing, surplus, or of the wrong shape or type.
    """
    known = set(saved.others)
    for name in saved.settings.layers:
        if name not in layers:
            raise UsageError(
                f"{owner}: {saved.folder} contains an adapter of layer {name!r}, but {titled(model.graph, 'model')} "
                f"has no such layer{did_you_mean(name, layers)}"
            )
        # A damaged file may give any rank: check the shape before `Adapter.of` makes parameters.
        shape, given = (saved.settings.rank, *layers[name].input_shape), saved.arrays[f"{name}.{A}"].shape
        if given != shape:
            raise InvalidModel(
                f"{saved.folder / WEIGHTS}: {PREFIX}{name}.{A} has shape {list(given)}, but the layer needs "
                f"{list(shape)}"
            )
        for value in Adapter.of(layers[name], saved.settings, Names()).parameters:
            saved.fitted(value.name, value.tensor)
            known.add(value.name)
    for name in saved.others:
        if name not in model.params:
            raise UsageError(
                f"{owner}: {saved.folder} contains a parameter {name!r}, but {titled(model.graph, 'model')} has no "
                f"such parameter{did_you_mean(name, model.params)}"
            )
        saved.fitted(name, model.params.type_of(name))
    if unknown := sorted(saved.arrays.keys() - known):
        raise InvalidModel(
            f"{saved.folder / WEIGHTS}: {PREFIX}{unknown[0]} belongs to no adapter ({A}, {B}, {MAGNITUDE})"
        )
