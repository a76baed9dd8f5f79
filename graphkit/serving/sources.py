"""Find models and their versions: files, run folders, folders with versions, folders of models."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from graphkit.errors import UsageError
from graphkit.named_tuples import NamedTuple

# Model name -> version -> its file or run folder.
Found: TypeAlias = dict[str, dict[int, Path]]
# Paths, pairs of a name and a path, or a dict of paths by name.
Models: TypeAlias = Sequence[str | Path | tuple[str, str | Path]] | Mapping[str, str | Path]
# The number of a version, and its file or run folder.
_Version: TypeAlias = tuple[int, Path]

# Names that paths of the protocol use: /v2/models/stats.
_RESERVED = frozenset({"stats"})
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


class Problem(NamedTuple):
    """Why a model cannot be loaded. name: of the model; None if a source cannot be read at all.

    text: for the log. reason: for clients, without paths.
    """

    name: str | None
    text: str
    reason: str


class Scan(NamedTuple):
    """The models of all sources, without those that have problems."""

    found: Found
    problems: list[Problem]


def find_models(sources: Sequence[tuple[str | None, Path]]) -> Found:
    """Return the models of all sources.

    A source is a file, a run folder, a folder of versions (`1/model.onnx`, `2/model.onnx`), or a folder that contains
    any of these.

    Raises:
        UsageError: Two models have the same name, or a model two folders for one version; a name cannot be used; a
            source contains no model. The message names the paths.
    """
    found, problems = scan_models(sources)
    if problems:
        raise UsageError(problems[0].text)
    return found


def scan_models(sources: Sequence[tuple[str | None, Path]]) -> Scan:
    """Return the models of all sources, and the problems of those that cannot be loaded. See `find_models`."""
    candidates: dict[str, list[list[_Version]]] = {}
    problems: list[Problem] = []
    for given, source in sources:
        try:
            named = _models_of(source, given)
        except (UsageError, OSError) as error:
            problems.append(Problem(None, str(error), "a source of models cannot be read"))
            continue
        for name, versions in named:
            candidates.setdefault(name, []).append(versions)
    found: Found = {}
    for name, several in candidates.items():
        if problem := _problem(name, several):
            problems.append(problem)
        else:
            found[name] = dict(several[0])
    return Scan(found, problems)


def _models_of(source: Path, given: str | None) -> list[tuple[str, list[_Version]]]:
    """Return the models of a source with their names. given: the name of its only model. Raises UsageError, OSError."""
    if not source.exists():
        raise UsageError(f"{source}: no such file or folder")
    named = list(_models(source))
    if not named:
        raise UsageError(f"{source}: it contains no model; expected NAME.onnx, a run folder, or NAME/1/model.onnx")
    if given is None:
        return named
    if len(named) > 1:
        raise UsageError(f"{source}: it contains {len(named)} models, which cannot all be called {given!r}")
    return [(given, named[0][1])]


def _problem(name: str, several: Sequence[list[_Version]]) -> Problem | None:
    """Return why the models of a name cannot be loaded; None if they can."""
    if name in _RESERVED:
        text = (
            f"{several[0][0][1]}: a model cannot be called {name!r}, because /v2/models/{name} has another meaning. "
            "Give it another name: NAME=PATH"
        )
        return Problem(name, text, "a model cannot have this name")
    if not _is_utf8(name):
        text = f"{str(several[0][0][1])!a}: the name is not UTF-8, so no request can contain it; rename the file"
        return Problem(name, text, "the name is not UTF-8")
    if len(several) > 1:
        text = (
            f"two models are called {name!r}: {several[0][0][1]} and {several[1][0][1]}. Give one of them another "
            "name: NAME=PATH"
        )
        return Problem(name, text, "two models have this name")
    seen: dict[int, Path] = {}
    for number, path in several[0]:
        if number in seen:
            text = f"two folders contain version {number} of model {name!r}: {seen[number]} and {path}; remove one"
            return Problem(name, text, f"version {number} exists twice")
        seen[number] = path
    return None


def _is_utf8(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:  # bytes that are not UTF-8 are surrogates
        return False
    return True


def _models(source: Path) -> Iterator[tuple[str, list[_Version]]]:
    one = _one(source)
    if one:
        yield source.absolute().name if source.is_dir() else source.stem, one
    elif source.is_dir():
        for entry in sorted(source.iterdir()):
            if (entry.is_dir() or entry.suffix == ".onnx") and (versions := _one(entry)):
                yield entry.name if entry.is_dir() else entry.stem, versions


def _one(path: Path) -> list[_Version]:
    """Return the versions of a path that is one model, the oldest first; none if it is a folder of something else."""
    if not path.is_dir() or (path / "model.json").is_file():
        return [(1, path)]
    folders = [entry for entry in path.iterdir() if entry.name.isascii() and entry.name.isdecimal()]
    pairs = [(int(folder.name), _file(folder)) for folder in sorted(folders)]
    return sorted((number, file) for number, file in pairs if number and file is not None)


def _file(folder: Path) -> Path | None:
    for name in _FILES:
        if (folder / name).is_file():
            return folder if name == "model.json" else folder / name
    return None
