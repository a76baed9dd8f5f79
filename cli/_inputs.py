"""Inputs on the command line: NAME:SHAPE (filled) or NAME=FILE (.npy, .npz, or a picture)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from graphkit.checks.inputs import Feeds, concrete_shapes, make_feeds
from graphkit.cli._images import SUFFIXES, Images
from graphkit.cli._output import log
from graphkit.cli._values import empty, from_arrays, is_named
from graphkit.data.files.npz import read_arrays
from graphkit.errors import InputError, UsageError, did_you_mean
from graphkit.ir.types import TensorType, Type
from graphkit.model import Model

# Any tensor's: the element type is checked where it is fed.
_TENSOR = TensorType("float32")


def feeds_for(model: Model, texts: tuple[str, ...], fill: str, seed: int, images: Images) -> Feeds:
    """Arrays for every input of `model`; guessed dimensions are announced on stderr."""
    given, shapes = parse_inputs(model.input_types, texts, images)
    feeds = make_feeds(model, fill, given=given, shapes=shapes, seed=seed)
    if feeds.announcement:
        log(feeds.announcement)
    return feeds


@dataclass(frozen=True)
class Batch:
    """What the command line says about the arrays of one batch: texts and images as for `parse_inputs`, the size of
    symbolic leading dimensions, and how the rest is filled."""

    texts: tuple[str, ...]
    images: Images
    size: int | None
    fill: str
    seed: int

    def arrays(self, subject: Any, names: Sequence[str]) -> dict[str, Any]:
        """Arrays for the inputs `names` of a Model or Trainer; guessed dimensions are announced on stderr."""
        types = {subject.graph.name_of(v): v.type for v in subject.graph.inputs}
        given, known = parse_inputs({name: types[name] for name in names}, self.texts, self.images)
        for name in (*given, *known):
            if name not in names:
                raise InputError(f"no input {name!r}{did_you_mean(name, names)}")
        known |= {name: np.shape(array) for name, array in given.items()}
        shapes, guesses = concrete_shapes(subject, known, self.size)
        if guesses:
            log("guessed dimensions: " + ", ".join(f"{k}={v}" for k, v in guesses.items()))
        shapes = {name: shape for name, shape in shapes.items() if name not in given}
        feeds = make_feeds(subject, self.fill, given=given, shapes=shapes, seed=self.seed).arrays
        return {name: feeds[name] for name in names}


def parse_inputs(
    inputs: Mapping[str, Type], texts: tuple[str, ...], images: Images
) -> tuple[dict[str, Any], dict[str, tuple[int, ...]]]:
    """Arrays and shapes by input name. `NAME=FILE.npz` takes the array of that name, or the only one in the file;
    `FILE.npz` alone takes every array whose name is an input's; `NAME=FILE.png` decodes a picture as `images` says. A
    sequence is `NAME=FILE,FILE,...`, or an .npz file of its elements; `NAME=` an empty sequence or optional."""
    given: dict[str, Any] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    first: dict[str, str] = {}

    def once(name: str, text: str) -> None:
        if name in first:
            raise UsageError(f"input {name!r} is given twice: {first[name]} and {text}")
        first[name] = text

    for text in texts:
        name, separator, path = text.partition("=")
        if separator:
            once(name, text)
            if name not in inputs:
                raise InputError(f"no input {name!r}{did_you_mean(name, inputs)}")
            if not isinstance(inputs[name], TensorType):
                given[name] = _nested(name, inputs[name], path)
            elif Path(path).suffix.lower() in SUFFIXES:
                given[name] = images.read(Path(path), name, inputs[name])
            else:
                given[name] = _array(Path(path), name)
        elif text.endswith(".npz"):
            arrays = _read(Path(text))
            found = [n for n in inputs if is_named(n, arrays)]
            for n in found:
                once(n, text)
                given[n] = _from_file(n, inputs[n], arrays, text)
            if not found:
                raise InputError(f"{text} holds {', '.join(arrays) or 'nothing'}; the inputs are {', '.join(inputs)}")
        else:
            name, shape = _shape(text)
            once(name, text)
            shapes[name] = shape
    return given, shapes


def parse_shapes(texts: tuple[str, ...]) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {}
    for name, shape in map(_shape, texts):
        if name in shapes:
            raise UsageError(f"two shapes for input {name!r}")
        shapes[name] = shape
    return shapes


def _shape(text: str) -> tuple[str, tuple[int, ...]]:
    name, separator, sizes = text.rpartition(":")
    if not separator or not name:
        raise UsageError(f"input {text!r}: expected NAME:SHAPE (x:1,3,224,224), NAME=FILE, or FILE.npz")
    try:
        shape = tuple(int(part) for part in sizes.strip("[]() ").replace("x", ",").split(",") if part.strip())
    except ValueError:
        shape = (-1,)
    if any(size < 0 for size in shape):
        raise UsageError(f"input {text!r}: {sizes!r} is not a shape such as 1,3,224,224")
    return name, shape


def _array(path: Path, name: str) -> np.ndarray:
    array: np.ndarray = _from_file(name, _TENSOR, _read(path), path)
    return array


def _nested(name: str, kind: Type, paths: str) -> Any:
    """A sequence or an optional of what the files hold, which commas separate."""
    files = [_read(Path(path)) for path in paths.split(",") if path]
    if not files:
        return empty(name, kind)
    if len(files) > 1:
        files = [{f"{name}[{i}]": _from_file(name, _TENSOR, arrays, paths) for i, arrays in enumerate(files)}]
    return _from_file(name, kind, files[0], paths)


def _from_file(name: str, kind: Type, arrays: Mapping[str, np.ndarray], path: Path | str) -> Any:
    try:
        return from_arrays(name, kind, arrays)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def _read(path: Path) -> dict[str, np.ndarray]:
    try:
        return read_arrays(path)
    except InputError as error:
        raise InputError(f"{error} (nor is it a picture by its name)") from None
