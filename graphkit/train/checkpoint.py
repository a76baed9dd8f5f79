"""Checkpoints: a JSON manifest and a weights file with all arrays that are needed to resume.

`checkpoint.json` names its weights file by content hash, and is renamed into place last. So the folder contains a
complete checkpoint at every moment after the first one was written.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from graphkit.errors import InvalidModel, RuntimeFailure, UsageError
from graphkit.ir.atomic import PendingFile, sync_folder
from graphkit.ir.types import DType, dtype_of
from graphkit.ir.weights import CODES, read_weights, restored, stored, write_weights
from graphkit.train import manifest as manifests

MANIFEST = "checkpoint.json"
_FORMAT = "graphkit-checkpoint"
_VERSION = 2


@dataclass
class Checkpoint:
    """All of a checkpoint except the graph: arrays by name, the optimizer's description, random state, position.

    arrays: those that are equal in all processes. parts: by rank, what only that rank knows within an epoch. residuals:
    by rank, the residuals of gradient compression. position: as `Position.describe` returns it. run: a name that all
    checkpoints of a run share. notes: JSON of the user of the trainer. callbacks: states by the name of the callback.
    """

    arrays: Mapping[str, np.ndarray]
    optimizer: dict[str, Any]
    loss: str
    rng: tuple[int, int]
    position: dict[str, Any] = field(default_factory=dict)
    run: str = ""
    updates: int = 0
    data_seed: int = 0
    settings: dict[str, Any] = field(default_factory=dict)
    notes: dict[str, Any] = field(default_factory=dict)
    callbacks: dict[str, Any] = field(default_factory=dict)
    parts: Sequence[Mapping[str, np.ndarray]] = ({},)
    residuals: Sequence[Mapping[str, np.ndarray]] = ()


# What ranks have of their own, and how the names of these arrays in the weights file begin.
_OF_RANKS = {"parts": "rank {}/", "residuals": "left out by rank {}/"}

_DESCRIBED = tuple(f.name for f in fields(Checkpoint) if f.name not in ("arrays", *_OF_RANKS))


def exists(folder: str | Path) -> bool:
    return (Path(folder) / MANIFEST).exists()


def save(folder: str | Path, checkpoint: Checkpoint) -> None:
    """Write `checkpoint` into `folder`; the previous one stays valid until this one is whole.

    Raises RuntimeFailure when the disk refuses; nothing is then changed, unless it is the removal of the one before.
    """
    folder = Path(folder)
    arrays = dict(checkpoint.arrays)
    for name, start in _OF_RANKS.items():
        for rank, part in enumerate(getattr(checkpoint, name)):
            arrays |= {start.format(rank) + key: array for key, array in part.items()}
    tensors = {name: (array, dtype_of(array.dtype)) for name, array in arrays.items()}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if (current := _weights_file(folder)) is not None:
            _remove_states(folder, current)
        with PendingFile(folder, "state.safetensors") as weights:
            digest, _ = write_weights(weights, {n: stored(a, d) for n, (a, d) in tensors.items()})
            file_name = f"state.{digest[:16]}.safetensors"
            weights.commit(folder / file_name)
        manifest = {
            "format": _FORMAT,
            "version": _VERSION,
            "weights": {"file": file_name, "sha256": digest},
            "arrays": {n: {"dtype": d.value, "shape": list(a.shape)} for n, (a, d) in tensors.items()},
            **{name: [list(part) for part in getattr(checkpoint, name)] for name in _OF_RANKS},
            **{name: getattr(checkpoint, name) for name in _DESCRIBED},
        }
        with PendingFile(folder, MANIFEST) as file:
            file.write(json.dumps(manifest, indent=1).encode())
            file.commit(folder / MANIFEST)
        sync_folder(folder)
    except OSError as error:
        raise RuntimeFailure(f"checkpoint in {folder} cannot be written: {error.strerror or error}") from error
    _remove_states(folder, file_name)


def _weights_file(folder: Path) -> str | None:
    """The name of the weights file of the checkpoint; None without a checkpoint that can be read."""
    try:
        return str(_manifest(folder)["weights"]["file"])
    except (UsageError, InvalidModel, KeyError, TypeError):
        return None


def _remove_states(folder: Path, keep: str) -> None:
    """Remove weights files that no checkpoint needs: of the one before, or of one that was never finished.

    Raises RuntimeFailure when the disk refuses.
    """
    for old in folder.glob("state.*.safetensors"):
        if old.name == keep:
            continue
        try:
            old.unlink(missing_ok=True)
        except OSError as error:
            raise RuntimeFailure(
                f"{old}, which no checkpoint needs, cannot be removed: {error.strerror or error}"
            ) from error


def run_of(folder: str | Path) -> str:
    """The name of the run that a checkpoint belongs to; raises as `load`."""
    return str(_manifest(Path(folder)).get("run", ""))


def notes_of(folder: str | Path) -> dict[str, Any]:
    """The notes of a checkpoint; raises as `load`."""
    return dict(_manifest(Path(folder)).get("notes", {}))


def described(folder: str | Path) -> dict[str, Any]:
    """The manifest of a checkpoint, checked, without a look at its arrays; raises as `load`."""
    return _manifest(Path(folder))


def load(folder: str | Path) -> Checkpoint:
    """Read a folder's checkpoint; raises UsageError when there is none, InvalidModel when it is damaged."""
    folder = Path(folder)
    path, manifest = folder / MANIFEST, _manifest(folder)
    try:
        types = {n: (dtype_of(t["dtype"]), tuple(t["shape"])) for n, t in manifest["arrays"].items()}
        reference = manifest["weights"]
        if Path(reference["file"]).name != reference["file"] or reference["file"] in ("", ".", ".."):
            raise InvalidModel(f"{path}: the weights file {reference['file']!r} is outside the folder")
        raw = read_weights(folder / reference["file"], reference["sha256"], _expected(types))
        arrays = {n: restored(np.asarray(raw[n]), *types[n]) for n in types}
        if manifest["version"] == 1:
            return _first_version(manifest, arrays)
        names = {"parts": manifest["parts"], "residuals": manifest.get("residuals", [])}
        of_ranks: dict[str, Any] = {
            name: [
                {key: arrays.pop(_OF_RANKS[name].format(rank) + key) for key in keys} for rank, keys in enumerate(ranks)
            ]
            for name, ranks in names.items()
        }
        known = {name: manifest[name] for name in _DESCRIBED if name in manifest}
        known["rng"] = tuple(known["rng"])
        return Checkpoint(arrays=arrays, **of_ranks, **known)
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidModel(f"{path} is damaged: {type(error).__name__}: {error}") from None


def _manifest(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    try:
        manifest = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise UsageError(f"{folder} holds no checkpoint ({MANIFEST} is missing)") from None
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidModel(f"{path}: {error}") from None
    if not isinstance(manifest, dict) or manifest.get("format") != _FORMAT:
        raise InvalidModel(f"{path} is not a checkpoint of graphkit")
    if not isinstance(manifest.get("version"), int):
        raise InvalidModel(f"{path} is damaged: it has no version")
    if manifest["version"] > _VERSION:
        raise InvalidModel(f"{path} has version {manifest['version']}; this graphkit reads up to {_VERSION}")
    manifests.check(manifest, str(path))
    return manifest


def _expected(types: Mapping[str, tuple[DType, tuple[int, ...]]]) -> dict[str, tuple[str, Any]]:
    """Type code and shape of every tensor, as the weights file has to have it."""
    return {n: (CODES[d], s) if d in CODES else ("U8", None) for n, (d, s) in types.items()}


def _first_version(manifest: Mapping[str, Any], arrays: dict[str, np.ndarray]) -> Checkpoint:
    """Without the end of the run, and what it had gathered of an epoch; the carried state is among the arrays."""
    carried = {name: arrays.pop(name) for name in [n for n in arrays if n.endswith("/carried")]}
    epoch, batch = int(manifest["epoch"]), int(manifest["batch"])
    known = {name: manifest[name] for name in _DESCRIBED if name in manifest}
    known["rng"] = tuple(known["rng"])
    known["position"] = {"epoch": epoch, "batch": batch, "until": epoch + bool(batch)}
    return Checkpoint(arrays=arrays, parts=[carried], **known)
