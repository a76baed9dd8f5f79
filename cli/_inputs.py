"""Inputs on the command line: NAME:SHAPE (filled), NAME=FILE (.npy, .npz or an image), or an image or table alone."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from graphkit.checks.differences.ports import Ports
from graphkit.checks.inputs import Feeds, concrete_shapes, fixed_sizes, make_feeds
from graphkit.cli._output import log
from graphkit.cli._values import empty, from_arrays, is_named
from graphkit.data.description import encoding_of, preprocessing_of
from graphkit.data.files.npz import read_arrays
from graphkit.data.images.feeding import Said, picture_input, reading
from graphkit.data.images.folders import pictures_in
from graphkit.data.preprocessing.decode import SUFFIXES
from graphkit.data.preprocessing.table_reading import TABLES
from graphkit.errors import InputError, UsageError, did_you_mean
from graphkit.ir.types import TensorType, Type
from graphkit.model import Model

# Sizes that are separated by commas, or by "x" as in 8x8.
_SIZES = re.compile(r"(\d+\s*([,x]\s*\d+\s*)*,?)?", re.ASCII)

# A placeholder for any tensor type: the element type is checked when the model runs.
_TENSOR = TensorType("float32")


def feeds_for(
    model: Model, texts: tuple[str, ...], fill: str, seed: int, images: Said, other: Model | None = None
) -> Feeds:
    """Return arrays for every input of `model`. Inputs and dimensions that are not given are generated, and logged.

    other: a model that runs on the same arrays. Its fixed sizes are used for dimensions that are not given.
    """
    given, shapes = parse_inputs(model.input_types, texts, images, model.meta)
    pairs = () if other is None else Ports.of_models(model, other).value_pairs
    fixed = fixed_sizes((one.type, another.type) for one, another in pairs)
    feeds = make_feeds(model, fill, given=given, shapes=shapes, fixed=fixed, seed=seed)
    if feeds.announcement:
        log(feeds.announcement)
    return feeds


@dataclass(frozen=True)
class Batch:
    """The options of the command line that determine the arrays of one batch.

    texts, images: see `parse_inputs`. size: value of symbolic leading dimensions. fill, seed: how other inputs are
    filled.
    """

    texts: tuple[str, ...]
    images: Said
    size: int | None
    fill: str
    seed: int

    def arrays(self, subject: Any, names: Sequence[str], *, zero_or_one: Sequence[str] = ()) -> dict[str, Any]:
        """Return arrays for the inputs `names` of a Model or Trainer. Guessed dimensions are logged.

        zero_or_one: inputs that only get 0 and 1, depending on the signs of the numbers that `fill` makes.
        """
        types = {subject.graph.name_of(v): v.type for v in subject.graph.inputs}
        kinds = {name: types[name] for name in names}
        given, known = parse_inputs(kinds, self.texts, self.images, subject.graph.meta)
        for name in (*given, *known):
            if name not in names:
                raise InputError(f"no input {name!r}{did_you_mean(name, names)}")
        known |= {name: np.shape(array) for name, array in given.items()}
        shapes, guesses = concrete_shapes(subject, known, self.size)
        if guesses:
            log("guessed dimensions: " + ", ".join(f"{k}={v}" for k, v in guesses.items()))
        shapes = {name: shape for name, shape in shapes.items() if name not in given}
        feeds = make_feeds(subject, self.fill, given=given, shapes=shapes, seed=self.seed).arrays
        feeds |= {name: (feeds[name] > 0).astype(feeds[name].dtype) for name in zero_or_one if name not in given}
        return {name: feeds[name] for name in names}


def parse_inputs(
    inputs: Mapping[str, Type], texts: tuple[str, ...], images: Said, meta: Mapping[str, str]
) -> tuple[dict[str, Any], dict[str, tuple[int, ...]]]:
    """Return arrays, and shapes, by input name.

    - `NAME:SHAPE`: only a shape.
    - `NAME=FILE.npy`: the array in the file.
    - `NAME=FILE.npz`: the array of that name, or the only one in the file.
    - `FILE.npz`: every array in the file whose name is an input's.
    - `FILE.csv`, `.tsv`, `.parquet`: the columns of a table.
    - Images: see `picture_files`. `images` says how they are decoded, otherwise the model's metadata.
    - `NAME=FILE,FILE,...`, or an .npz file of its elements: a sequence. `NAME=`: an empty sequence or optional.
    """
    given: dict[str, Any] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    first: dict[str, str] = {}

    def once(name: str, text: str) -> None:
        if name in first:
            raise UsageError(f"input {name!r} is given twice, by {first[name]} and by {text}; give it once")
        first[name] = text

    for name, paths in picture_files(inputs, texts).items():
        first[name] = str(paths[0])
        read = reading(paths, name, inputs[name], preprocessing_of(meta), images)
        log(f"read {read}")
        given[name] = read.arrays()
    for text in texts:
        if _pictures(inputs, text) is not None:
            continue
        name, separator, path = text.partition("=")
        if separator:
            once(name, text)
            if name not in inputs:
                raise InputError(f"no input {name!r}{did_you_mean(name, inputs)}")
            if not isinstance(inputs[name], TensorType):
                given[name] = _nested(name, inputs[name], path)
            else:
                given[name] = _array(Path(path), name)
        elif text.endswith((".npz", *TABLES)):
            arrays = _rows(Path(text), meta) if text.endswith(TABLES) else _read(Path(text))
            found = [n for n in inputs if is_named(n, arrays)]
            for n in found:
                once(n, text)
                given[n] = _from_file(n, inputs[n], arrays, text)
            if not found:
                raise InputError(
                    f"{text}: no array has the name of an input. Its arrays are {', '.join(arrays) or 'none'}; the "
                    f"inputs of the model are {', '.join(inputs)}. To choose the input: NAME={text}"
                )
        else:
            name, shape = _shape(text)
            _check_name(text, name, inputs)
            once(name, text)
            shapes[name] = shape
    for name, array in given.items():
        _check_rank(first[name], name, inputs[name], array)
    return given, shapes


def _check_rank(text: str, name: str, kind: Type, array: Any) -> None:
    """Raise InputError if the array of an argument has another rank than its input."""
    if isinstance(kind, TensorType) and kind.rank not in (None, np.ndim(array)):
        shape = list(np.shape(array))
        raise InputError(f"{text}: the array for input {name!r} has shape {shape}, but the model needs {kind}")


def picture_files(inputs: Mapping[str, Type], texts: tuple[str, ...]) -> dict[str, list[Path]]:
    """Return the image files among texts, by input.

    `NAME=FILE.png` is one image, `NAME=FOLDER` all images in a folder. Files and folders without a name together are
    the batch of the only input that takes images.
    """
    found: dict[str, list[Path]] = {}
    for text in texts:
        if (named := _pictures(inputs, text)) is None:
            continue
        name, path = named
        if name is not None and name in found:
            raise UsageError(f"input {name!r} is given twice, by {found[name][0]} and by {path}; give it once")
        name = picture_input(inputs) if name is None else name
        if not path.exists():
            raise InputError(f"{path}: no such file")
        found.setdefault(name, []).extend(_below(path) if path.is_dir() else [path])
    return found


def _pictures(inputs: Mapping[str, Type], text: str) -> tuple[str | None, Path] | None:
    """Return (input or None, file or folder) if a text names images, else None."""
    name, separator, path = text.partition("=")
    if separator and name in inputs:
        fits = isinstance(inputs[name], TensorType) and _names_pictures(path)
        return (name, Path(path)) if fits else None
    return (None, Path(text)) if _names_pictures(text) and (not separator or Path(text).exists()) else None


def _names_pictures(path: str) -> bool:
    return bool(path) and (Path(path).suffix.lower() in SUFFIXES or Path(path).is_dir())


def _below(folder: Path) -> list[Path]:
    found = pictures_in(folder)
    if not found:
        raise InputError(
            f"{folder}: the folder itself contains no image (folders inside it are not read); known suffixes: "
            f"{', '.join(sorted(SUFFIXES))}"
        )
    return found


def _rows(path: Path, meta: Mapping[str, str]) -> dict[str, np.ndarray]:
    """Return the inputs that the rows of a table become, as described in the model's metadata."""
    encoding = encoding_of(meta)
    if encoding is None:
        raise InputError(
            f"{path}: the model's metadata do not describe how columns of a table become inputs, because it was not "
            "trained on a table. Give arrays: NAME=FILE.npy"
        )
    return encoding.read(path)


def parse_shapes(texts: tuple[str, ...]) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {}
    for name, shape in map(_shape, texts):
        if name in shapes:
            raise UsageError(f"input {name!r} has two shapes; give one")
        shapes[name] = shape
    return shapes


def _shape(text: str) -> tuple[str, tuple[int, ...]]:
    name, separator, sizes = text.rpartition(":")
    if not separator or not name:
        raise UsageError(
            f"input {text!r}: expected NAME:SHAPE (x:1,3,224,224), NAME=FILE, FILE.npz, a table or an image"
        )
    if not _SIZES.fullmatch(inner := sizes.strip("[]() ")):
        raise _not_a_shape(text, sizes)
    return name, tuple(map(int, re.findall(r"\d+", inner)))


def _not_a_shape(text: str, sizes: str) -> UsageError:
    return UsageError(
        f"input {text!r}: {sizes!r} is not a shape; give integers of at least 0, separated by "
        "commas, such as 1,3,224,224"
    )


def _check_name(text: str, name: str, inputs: Iterable[str]) -> None:
    """Raise an error if the name in `text`, which gives a shape, is not an input. Names may contain colons."""
    if name in inputs:
        return
    known, _, sizes = text.partition(":")
    if known in inputs:
        raise _not_a_shape(text, sizes)
    raise InputError(f"no input {name!r}{did_you_mean(name, inputs)}")


def _array(path: Path, name: str) -> np.ndarray:
    array: np.ndarray = _from_file(name, _TENSOR, _read(path), path)
    return array


def _nested(name: str, kind: Type, paths: str) -> Any:
    """Return a sequence or an optional of the arrays in files, which are separated by commas."""
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
        if not path.exists() or path.suffix in (".npy", ".npz"):
            raise
        if path.suffix in TABLES:
            raise InputError(
                f"{path}: to give a table, leave out the name of the input and write only {path}"
            ) from None
        images = ", ".join(sorted(SUFFIXES))
        raise InputError(f"{error}. An input file must be .npy, .npz or an image ({images})") from None
