"""Samples to predict: images, rows of tables and arrays, and texts, read in chunks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from graphkit.data.description import encoding_of, preprocessing_of
from graphkit.data.files.npz import mapped_array, read_arrays
from graphkit.data.images.dataset import Files, Store
from graphkit.data.images.feeding import Conversion, Said, conversion, picture_input
from graphkit.data.preprocessing.table_reading import TABLES
from graphkit.data.preprocessing.vocabulary import Vocabulary
from graphkit.data.records.dataset import RecordImages
from graphkit.data.records.reading import RecordFile
from graphkit.data.tables.dataset import flag_of
from graphkit.data.text.rows import SUFFIXES, read_columns, target_column, text_column
from graphkit.errors import InputError, UsageError, did_you_mean
from graphkit.inference.file_names import files_of
from graphkit.inference.table_columns import inputs_of_table
from graphkit.inference.texts import Encoder, encoder_for, lines_of
from graphkit.ir.types import DType, TensorType, Type, dtype_of
from graphkit.model import VOCABULARY, Model
from graphkit.named_tuples import NamedTuple
from graphkit.text import quantity


class Part(NamedTuple):
    """Samples with inputs of one shape: their numbers, and arrays by input whose first axis counts them."""

    numbers: Sequence[int]
    inputs: dict[str, np.ndarray]


class Chunk(NamedTuple):
    """Consecutive samples. errors: messages of those that cannot be read, by number."""

    parts: list[Part]
    errors: dict[int, str]


# Calls a function on every item, perhaps in several threads, and returns the results in order.
Mapper = Callable[[Callable[[int], Any], Iterable[int]], Iterable[Any]]


class Samples(Protocol):
    """Samples with numbers from 0.

    names: File of each sample, or None if samples are rows or lines.
    description: How the samples become inputs, for the user; None if there is nothing to say.
    files: The files that are read.
    is_slow: Whether samples are worth being read by several threads.
    """

    names: Sequence[str] | None
    description: str | None
    files: Sequence[Path]
    is_slow: bool

    def __len__(self) -> int: ...

    def chunk(self, numbers: range, skip_errors: bool, mapped: Mapper) -> Chunk:
        """Read samples. If one is damaged, raise InputError, or with `skip_errors` return the message."""


class ArraySamples:
    """Rows of arrays by input name."""

    names: Sequence[str] | None = None
    is_slow = False

    def __init__(
        self, arrays: Mapping[str, Any], types: Mapping[str, Type], source: str, files: Sequence[Path] = (),
        description: str | None = None,
    ):  # fmt: skip
        self.description, self.files = description, files
        if missing := [name for name in types if name not in arrays]:
            raise InputError(
                f"{source}: there is no array for input {missing[0]!r}; it has {', '.join(arrays) or 'none'}"
            )
        self._arrays = {name: np.asanyarray(arrays[name]) for name in types}
        self._types, self._source = types, source
        sizes = {name: len(array) if array.ndim else None for name, array in self._arrays.items()}
        if None in sizes.values() or len(set(sizes.values())) != 1:
            listed = ", ".join(f"{name} {list(a.shape)}" for name, a in self._arrays.items())
            raise InputError(f"{source}: the first axis must count the samples, in all arrays alike; found {listed}")
        self._count = next(iter(sizes.values())) or 0
        if not self._count:
            raise InputError(f"{source}: there are no samples: the first axis has size 0")

    def __len__(self) -> int:
        return self._count

    def chunk(self, numbers: range, skip_errors: bool, mapped: Mapper) -> Chunk:
        rows = slice(numbers.start, numbers.stop)
        arrays = {n: _converted(self._source, n, self._types[n], a[rows]) for n, a in self._arrays.items()}
        return Chunk([Part(numbers, arrays)], {})


class ImageSamples:
    """Images of a store for one input."""

    is_slow = True

    def __init__(self, store: Store, names: Sequence[str], files: Sequence[Path], converted: Conversion):
        self._store, self._conversion = store, converted
        self.names: Sequence[str] | None = names
        self.files = files
        self.description: str | None = f"{quantity(len(store), 'image')} for input {converted.name!r}: {converted}"

    def __len__(self) -> int:
        return len(self._store)

    def chunk(self, numbers: range, skip_errors: bool, mapped: Mapper) -> Chunk:
        errors: dict[int, str] = {}
        rows: list[tuple[list[int], list[np.ndarray]]] = []
        for number, found in zip(numbers, mapped(self._read, numbers), strict=True):
            if isinstance(found, InputError):
                if not skip_errors:
                    raise found
                errors[number] = str(found)
            elif rows and rows[-1][1][0].shape == found.shape:
                rows[-1][0].append(number)
                rows[-1][1].append(found)
            else:
                rows.append(([number], [found]))
        return Chunk([Part(places, {self._conversion.name: np.stack(made)}) for places, made in rows], errors)

    def _read(self, number: int) -> np.ndarray | InputError:
        try:
            with self._store.open(number) as picture:
                return self._conversion.array(picture)
        except InputError as error:
            return error


class TextSamples:
    """Texts of a file. Empty lines of a text file are samples, too, so that numbers are those of lines."""

    names: Sequence[str] | None = None
    is_slow = False

    def __init__(self, path: Path, texts: Sequence[str], encoder: Encoder):
        self.files: Sequence[Path] = (path,)
        self._texts, self._encoder = texts, encoder
        self.description: str | None = f"{quantity(len(texts), 'text')}: {encoder}"

    def __len__(self) -> int:
        return len(self._texts)

    def chunk(self, numbers: range, skip_errors: bool, mapped: Mapper) -> Chunk:
        return Chunk([Part(numbers, self._encoder.inputs(self._texts[numbers.start : numbers.stop]))], {})


def open_samples(
    inputs: Any, model: Model, images: Said | None = None, tokenizer: Vocabulary | None = None,
    data_options: Mapping[str, Any] | None = None,
) -> Samples:  # fmt: skip
    """Return the samples that `inputs` stands for.

    Args:
        inputs: An array, a dict of arrays by input name, a path, or several names of image files (see `files_of`).
        model: The model. Its metadata describe how images, columns of tables and texts become inputs.
        images: Preprocessing of images, instead of that in the metadata.
        tokenizer: Vocabulary or tokenizer of texts, instead of that in the metadata.
        data_options: Options of a table in a text file: header, delimiter, encoding, decimal.

    Raises:
        InputError: A file cannot be read, or does not match the model.
        UsageError: `inputs` is something else, or a tokenizer or options are given for samples of another kind.
    """
    types, how = model.input_types, _How(model, images, tokenizer, _form(inputs, data_options or {}))
    if tokenizer is not None:
        return _text(_text_file(inputs), how)
    if isinstance(inputs, Mapping):
        return ArraySamples(inputs, types, "the arrays given")
    if isinstance(inputs, np.ndarray):
        return ArraySamples({_only_input(types, "an array"): inputs}, types, "the array given")
    given = [inputs] if isinstance(inputs, (str, Path)) else list(inputs)
    if not given or not all(isinstance(name, (str, Path)) for name in given):
        raise UsageError("gk.predict: give an array, a dict of arrays by input name, or at least one name of a file")
    files = files_of(map(str, given))
    others = [path for path in files if path.suffix.lower() in _READERS]
    if not others:
        return _images(files, model, images)
    if len(files) > 1:
        raise UsageError(
            f"{others[0]}: a table, an array, a text or a record file must be the only input, but there are "
            f"{len(files)} files"
        )
    return _READERS[files[0].suffix.lower()](files[0], how)


class _How(NamedTuple):
    """How samples become inputs. See `open_samples`."""

    model: Model
    images: Said | None
    tokenizer: Vocabulary | None
    form: Mapping[str, Any]


# Options of tables in text files.
_FORM = ("header", "delimiter", "encoding", "decimal")


def _form(inputs: Any, options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return options as keywords of `read_table`. Raises UsageError if one is unknown, or no table is given."""
    names = [inputs] if isinstance(inputs, (str, Path)) else inputs if isinstance(inputs, (list, tuple)) else []
    for name in options:
        if name not in _FORM:
            raise UsageError(f"tables have no option {name!r}{did_you_mean(name, _FORM)}")
        if not any(isinstance(n, (str, Path)) and Path(n).suffix.lower() in (".csv", ".tsv") for n in names):
            raise UsageError(f"the option {name!r} is for tables (.csv, .tsv)")
    return {name: flag_of(name, value) if name == "header" else value for name, value in options.items()}


def _text_file(inputs: Any) -> Path:
    """Return the only file that is given. Raises UsageError if it does not contain texts, or is not alone."""
    names = [inputs] if isinstance(inputs, (str, Path)) else inputs if isinstance(inputs, (list, tuple)) else []
    if len(names) != 1 or not isinstance(names[0], (str, Path)) or Path(names[0]).suffix.lower() not in _OF_TEXTS:
        raise UsageError(
            "a tokenizer (tokenizer=, --tokenizer) is for texts: give one .txt file, with one text per line, or one "
            f"{', '.join(SUFFIXES)} file"
        )
    return Path(names[0])


def _text(path: Path, how: _How) -> Samples:
    if how.form:
        raise UsageError(f"{path}: the option {next(iter(how.form))!r} is for tables, but this file is read as texts")
    encoder = encoder_for(path, how.model, how.tokenizer)
    if path.suffix.lower() == ".txt":
        return TextSamples(path, lines_of(path), encoder)
    columns = read_columns(path)
    target = target_column(columns)
    return TextSamples(path, text_column(path, columns, besides=() if target is None else (target,)), encoder)


def _images(files: Sequence[Path], model: Model, images: Said | None) -> Samples:
    return _pictures(Files(Path(), list(map(str, files))), list(map(str, files)), files, model, images)


def _pictures(
    store: Store, names: Sequence[str], files: Sequence[Path], model: Model, images: Said | None
) -> ImageSamples:
    types = model.input_types
    name = picture_input(types)
    if others := [other for other in types if other != name]:
        raise InputError(f"{files[0]}: images are for input {name!r}, but the model also needs {', '.join(others)}")
    return ImageSamples(
        store, names, files, conversion(files[0], name, types[name], preprocessing_of(model.meta), images)
    )


def _records(path: Path, how: _How) -> Samples:
    records = RecordFile(path)
    if not len(records):
        raise InputError(f"{path}: the file contains no record")
    names = [f"{path}:{key}" for key in records.keys]
    return _pictures(RecordImages(records), names, [path], how.model, how.images)


def _array(path: Path, how: _How) -> Samples:
    types = how.model.input_types
    name = _only_input(types, str(path))
    return ArraySamples({name: mapped_array(path)}, types, str(path), [path])


def _archive(path: Path, how: _How) -> Samples:
    arrays, types = read_arrays(path), how.model.input_types
    if len(arrays) == len(types) == 1 and not arrays.keys() & types.keys():
        arrays = dict(zip(types, arrays.values(), strict=True))
    return ArraySamples(arrays, types, str(path), [path])


def _table(path: Path, how: _How) -> Samples:
    model = how.model
    if path.suffix.lower() in _OF_TEXTS and VOCABULARY in model.meta and encoding_of(model.meta) is None:
        return _text(path, how)
    arrays, description = inputs_of_table(path, encoding_of(model.meta), model.input_types, how.form)
    return ArraySamples(arrays, model.input_types, str(path), [path], description)


# Suffixes of files of texts. A table is one if the model's metadata contain a vocabulary, and no encoding of columns.
_OF_TEXTS = (".txt", *SUFFIXES)

_READERS: dict[str, Callable[[Path, _How], Samples]] = {
    ".npy": _array, ".npz": _archive, ".rec": _records, **dict.fromkeys(_OF_TEXTS, _text),
    **dict.fromkeys(TABLES, _table),
}  # fmt: skip


def _only_input(types: Mapping[str, Type], given: str) -> str:
    if len(types) != 1:
        raise InputError(f"{given}: the model has several inputs ({', '.join(types)}); give an .npz file or a dict")
    return next(iter(types))


def _converted(source: str, name: str, kind: Type, array: np.ndarray) -> np.ndarray:
    """Return rows of an array for input `name`.

    float64 becomes the float type of the input, and integers become its integer type if they fit.
    """
    array = np.ascontiguousarray(array)
    if not isinstance(kind, TensorType) or array.dtype == kind.dtype.numpy or kind.dtype is DType.STRING:
        return array
    try:
        have = dtype_of(array.dtype)
    except UsageError:
        return array  # the engine names types that it does not support
    if have.is_float and kind.dtype.is_float:
        with np.errstate(over="ignore"):
            return array.astype(kind.dtype.numpy)
    if array.dtype.kind in "iu" and np.dtype(kind.dtype.numpy).kind in "iu":
        found = array.astype(kind.dtype.numpy)
        if (odd := array[found != array]).size:
            raise InputError(f"{source}: input {name!r} is {kind}, but the array contains {odd[0]}")
        return found
    return array
