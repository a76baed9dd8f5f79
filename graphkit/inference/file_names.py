"""Find the files that arguments name: files, folders, glob patterns and lists."""

from __future__ import annotations

import glob
from collections.abc import Iterable, Iterator
from pathlib import Path

from graphkit.data.images.folders import pictures_below
from graphkit.data.preprocessing.decode import SUFFIXES
from graphkit.data.preprocessing.vocabulary import read_text
from graphkit.errors import InputError

_PATTERN = frozenset("*?[")


def files_of(names: Iterable[str]) -> list[Path]:
    """Return the files that `names` stand for, in their order.

    Args:
        names: A name is a file; a folder, for all images in it and in its subfolders; a glob pattern, for the images
            and folders that match (`**` matches any number of folders); or `@LIST`, a text file with one name per line,
            relative to the folder of the list. Images in folders and matches of a pattern are sorted.

    Raises:
        InputError: A name stands for no file. The message names it.
    """
    found: list[Path] = []
    for name in names:
        # A file or folder whose name begins with @ is meant itself.
        is_list = name.startswith("@") and not Path(name).exists()
        for each in _listed(Path(name[1:])) if is_list else [name]:
            found += _files(each)
    return found


def _files(name: str) -> Iterable[Path]:
    path = Path(name)
    if path.is_dir():
        return _below(path)
    if path.exists() or path.is_symlink():
        return [path]
    if _PATTERN.isdisjoint(name):
        raise InputError(f"{name}: no such file or folder")
    return _matches(name)


def _listed(path: Path) -> list[str]:
    """Return the names in a list, one per line, relative to the folder of the list. Empty lines are skipped."""
    if not path.is_file():
        raise InputError(f"@{path}: there is no file {path}, which should contain one name per line")
    lines = (line.removesuffix("\r") for line in read_text(path).split("\n"))
    names = [str(path.parent / line) for line in lines if line.strip()]
    if not names:
        raise InputError(f"{path}: the list contains no name")
    return names


def _matches(pattern: str) -> Iterator[Path]:
    found = False
    for name in sorted(glob.glob(pattern, recursive=True)):
        path = Path(name)
        if path.suffix.lower() in SUFFIXES and not path.is_dir():
            found = True
            yield path
        elif path.is_dir() and "**" not in pattern:  # `**` itself matches what is in folders
            found = True
            yield from _below(path)
    if not found:
        raise InputError(f"{pattern}: no image and no folder matches this pattern")


def _below(folder: Path) -> list[Path]:
    found = pictures_below(folder)
    if not found:
        raise InputError(
            f"{folder}: neither the folder nor a folder in it contains an image; known suffixes: "
            f"{', '.join(sorted(SUFFIXES))}"
        )
    return found
