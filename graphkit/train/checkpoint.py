"""Checkpoints: a JSON manifest and a weights file with all arrays that are needed to resume.

The name of the weights file contains its hash. `checkpoint.json`, which refers to it, is renamed into place last. So
the folder always contains a complete checkpoint.
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
from graphkit.text import listed
from graphkit.train import manifest as manifests

MANIFEST = "checkpoint.json"
_FORMAT = "graphkit-checkpoint"
_VERSION = 3
ADVICE = (
    "To resume it, use the model, the optimizer and the moving average (ema) of that run. "
    "Otherwise start a new run in another folder"
)


@dataclass
class Checkpoint:
    """The content of a checkpoint, without the graph.

    Attributes:
        arrays: All parameters and states of all ranks, by name.
        rng: (seed, step) of random numbers.
        parts: States of an incomplete epoch (recurrent states, metrics), by rank.
        residuals: Residuals of gradient compression, by rank.
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


_OF_RANKS = {"parts": "rank {}/", "residuals": "left out by rank {}/"}

_DESCRIBED = tuple(f.name for f in fields(Checkpoint) if f.name not in ("arrays", *_OF_RANKS))


def exists(folder: str | Path) -> bool:
    return (Path(folder) / MANIFEST).exists()


def save(folder: str | Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint. The previous one stays valid until the new one is complete.

    Raises RuntimeFailure if a file cannot be written or removed. The folder then contains the complete previous
    checkpoint, if there was one, or the complete new one. Raises UsageError if a note is not JSON.
    """
    folder = Path(folder)
    _check_notes(checkpoint.notes)
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
            written = write_weights(weights, {n: stored(a, d) for n, (a, d) in tensors.items()})
            file_name = f"state.{written.digest[:16]}.safetensors"
            weights.commit(folder / file_name)
        manifest = {
            "format": _FORMAT,
            "version": _VERSION,
            "weights": written.reference(file_name),
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


def _check_notes(notes: Mapping[str, Any]) -> None:
    if not isinstance(notes, dict):
        raise UsageError(f"notes must be a dict of JSON values by name, not {notes!r}")
    for name, note in notes.items():
        try:
            json.dumps({name: note})
        except (TypeError, ValueError) as error:
            raise UsageError(f"notes[{name!r}] cannot be written as JSON: {error}") from None


def _weights_file(folder: Path) -> str | None:
    try:
        return str(read_manifest(folder)["weights"]["file"])
    except (UsageError, InvalidModel, KeyError, TypeError):
        return None


def _remove_states(folder: Path, keep: str) -> None:
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
    return str(read_manifest(folder).get("run", ""))


def notes_of(folder: str | Path) -> dict[str, Any]:
    return dict(read_manifest(folder).get("notes", {}))


def load(folder: str | Path) -> Checkpoint:
    """Read the checkpoint in a folder. Raises UsageError if there is none, and InvalidModel if it is damaged."""
    folder = Path(folder)
    path, manifest = folder / MANIFEST, read_manifest(folder)
    try:
        types = {n: (dtype_of(t["dtype"]), tuple(t["shape"])) for n, t in manifest["arrays"].items()}
        reference = manifest["weights"]
        if Path(reference["file"]).name != reference["file"] or reference["file"] in ("", ".", ".."):
            raise InvalidModel(f"{path}: the weights file {reference['file']!r} is outside the folder")
        raw = read_weights(folder / reference["file"], reference, _expected(types))
        arrays = {n: restored(np.asarray(raw[n]), *types[n]) for n in types}
        if manifest["version"] == 1:
            return _from_version_1(manifest, arrays)
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


def read_manifest(folder: str | Path) -> dict[str, Any]:
    """Return the checked manifest of a checkpoint."""
    path = Path(folder) / MANIFEST
    try:
        manifest = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise UsageError(f"{folder} contains no checkpoint ({MANIFEST} is missing)") from None
    except OSError as error:
        raise InvalidModel(f"{path} cannot be read: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise InvalidModel(
            f"{path} is damaged: it is not valid JSON ({error}). To train again from the beginning, use another folder "
            "or --overwrite"
        ) from None
    if not isinstance(manifest, dict) or manifest.get("format") != _FORMAT:
        raise InvalidModel(f"{path} is not a checkpoint of graphkit")
    if not isinstance(manifest.get("version"), int):
        raise InvalidModel(f"{path} is damaged: it has no version")
    if manifest["version"] > _VERSION:
        raise InvalidModel(
            f"{path} has version {manifest['version']}; this graphkit reads up to {_VERSION}: upgrade graphkit"
        )
    manifests.check(manifest, str(path))
    return manifest


def check_names(stored: set[str], expected: set[str], folder: str | Path) -> None:
    missing, surplus = sorted(expected - stored), sorted(stored - expected)
    parts = [f"the checkpoint lacks {listed(missing, len(missing), 5)}"] if missing else []
    parts += (
        [f"it contains {listed(surplus, len(surplus), 5)}, which the model and optimizer do not have"]
        if surplus
        else []
    )
    if parts:
        raise InvalidModel(
            f"the checkpoint in {folder} does not fit this model and optimizer: {'; '.join(parts)}. {ADVICE}"
        )


def _expected(types: Mapping[str, tuple[DType, tuple[int, ...]]]) -> dict[str, tuple[str, Any]]:
    return {n: (CODES[d], s) if d in CODES else ("U8", None) for n, (d, s) in types.items()}


def _from_version_1(manifest: Mapping[str, Any], arrays: dict[str, np.ndarray]) -> Checkpoint:
    """Convert a checkpoint of format version 1.

    It lacks the length of the run and states of metrics.
    """
    carried = {name: arrays.pop(name) for name in [n for n in arrays if n.endswith("/carried")]}
    epoch, batch = int(manifest["epoch"]), int(manifest["batch"])
    known = {name: manifest[name] for name in _DESCRIBED if name in manifest}
    known["rng"] = tuple(known["rng"])
    known["position"] = {"epoch": epoch, "batch": batch, "until": epoch + bool(batch)}
    return Checkpoint(arrays=arrays, parts=[carried], **known)
