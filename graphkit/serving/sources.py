"""Find models and their versions: files, run folders, folders with versions, folders of models."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from graphkit.errors import UsageError

# Model name -> version -> its file or run folder.
Found: TypeAlias = dict[str, dict[int, Path]]
# Paths, pairs of a name and a path, or a dict of paths by name.
Models: TypeAlias = Sequence[str | Path | tuple[str, str | Path]] | Mapping[str, str | Path]

_FILES = ("model.onnx", "model.json")


def named_sources(models: Models) -> list[tuple[str | None, Path]]:
    """Return the given paths with their names; None for a name that follows from the path.

    Raises UsageError if nothing is given, or a path does not exist.
    """
    given = models.items() if isinstance(models, Mapping) else models
    pairs: list[tuple[str | None, Path]] = [
        (item[0], Path(item[1])) if isinstance(item, tuple) else (None, Path(item)) for item in given
    ]
    if not pairs:
        raise UsageError("give at least one model: a file, a run folder, or a folder of models")
    for name, path in pairs:
        if not path.exists():
            raise UsageError(f"{path}: no such file or folder")
        if name is not None and (not name or "/" in name):
            raise UsageError(f"{name!r} is not a name of a model: it must not be empty or contain a slash")
    return pairs


def find_models(sources: Sequence[tuple[str | None, Path]]) -> Found:
    """Return the models of all sources.

    A source is a file, a run folder, a folder of versions (`1/model.onnx`, `2/model.onnx`), or a folder that contains
    any of these.

    Raises:
        UsageError: Two sources have the same name, or a source contains no model. The message names both.
    """
    found: Found = {}
    for given, source in sources:
        named = list(_models(source))
        if not named:
            raise UsageError(f"{source}: it contains no model; expected NAME.onnx, a run folder, or NAME/1/model.onnx")
        if given is not None:
            if len(named) > 1:
                raise UsageError(f"{source}: it contains {len(named)} models, which cannot all be called {given!r}")
            named = [(given, named[0][1])]
        for name, versions in named:
            if name in found:
                before = next(iter(found[name].values()))
                raise UsageError(
                    f"two models are called {name!r}: {before} and {next(iter(versions.values()))}. Give one of them "
                    "another name: NAME=PATH"
                )
            found[name] = versions
    return found


def _models(source: Path) -> Iterator[tuple[str, dict[int, Path]]]:
    one = _one(source)
    if one is not None:
        yield source.absolute().name if source.is_dir() else source.stem, one
    elif source.is_dir():
        for entry in sorted(source.iterdir()):
            if (entry.is_dir() or entry.suffix == ".onnx") and (versions := _one(entry)) is not None:
                yield entry.name if entry.is_dir() else entry.stem, versions


def _one(path: Path) -> dict[int, Path] | None:
    """Return the versions of a path that is one model; None if it is a folder of something else."""
    if not path.is_dir():
        return {1: path}
    if (path / "model.json").is_file():
        return {1: path}
    versions = {int(entry.name): entry for entry in path.iterdir() if entry.name.isdecimal() and int(entry.name)}
    files = {number: _file(folder) for number, folder in sorted(versions.items())}
    return {number: file for number, file in files.items() if file is not None} or None


def _file(folder: Path) -> Path | None:
    for name in _FILES:
        if (folder / name).is_file():
            return folder if name == "model.json" else folder / name
    return None
