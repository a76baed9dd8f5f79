"""Read Parquet files with pyarrow."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from graphkit.data.preprocessing.column import Column, Numbers, Texts
from graphkit.distribution import how_to_install
from graphkit.errors import InputError, MissingDependency, OutOfMemory
from graphkit.ir.limits import require_memory
from graphkit.text import listed

if TYPE_CHECKING:
    import pyarrow


def read_parquet(path: Path, choose: Callable[[pyarrow.Schema], Sequence[str]]) -> pyarrow.Table:
    """Read columns of a Parquet file.

    Args:
        path: The file.
        choose: Returns the names of the columns that are read.

    Raises:
        MissingDependency: pyarrow is not installed.
        InputError: The file cannot be read, or has no rows.
        OutOfMemory: The columns need more memory than is allowed.
    """
    with _reading(path) as opened:
        file = opened()
        chosen = list(choose(file.schema_arrow))
        require_memory(file.metadata.num_rows * len(chosen) * 8, str(path))
        table = file.read(columns=chosen, use_threads=False)
    if not table.num_rows:
        raise InputError(f"{path}: the table has no rows")
    return table


class ParquetColumns(Mapping[str, list[Any]]):
    """The columns of a file as lists of texts or numbers, with None for missing values. Each is read when it is used.

    To read a column that contains neither texts nor numbers is an InputError. So is a file without rows, or with two
    columns of one name.
    """

    def __init__(self, path: Path):
        self._path = path
        with _reading(path) as opened:
            file = opened()
            names = file.schema_arrow.names
            if not file.metadata.num_rows:
                raise InputError(f"{path}: the file contains no row")
        if len(set(names)) != len(names):
            raise InputError(f"{path}: two columns have one name; the columns are {listed(names, len(names), 8)}")
        self._kinds: dict[str, Any] = dict(zip(names, file.schema_arrow.types, strict=True))

    def __getitem__(self, name: str) -> list[Any]:
        kind = _kind_of_cells(self._kinds[name])
        if not (_is_text(kind) or _is_numeric(kind)):
            raise InputError(f"{self._path}: column {name!r} contains {kind}, neither numbers nor text")
        # Equal texts are stored once in the file, and in memory.
        options = {"read_dictionary": [name]} if _is_text(kind) else {}
        with _reading(self._path) as opened:
            file = opened(**options)
            require_memory(file.metadata.num_rows * 8 + _stored_bytes(file, name), str(self._path))
            chunks = file.read(columns=[name], use_threads=False).column(name)
            if not _is_text(kind):
                return list(_without_decimals(chunks).to_pylist())
            return [text for chunk in chunks.chunks for text in _texts_of(self._path, name, chunk)]

    def __iter__(self) -> Iterator[str]:
        return iter(self._kinds)

    def __len__(self) -> int:
        return len(self._kinds)


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[Callable[..., pyarrow.parquet.ParquetFile]]:
    """Yield a function that opens the file. Errors of pyarrow inside of the block become those of `read_parquet`."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise MissingDependency(f"{path}: Parquet needs pyarrow; install it with: {how_to_install('tables')}") from None
    try:
        yield lambda **options: pyarrow.parquet.ParquetFile(path, **options)
    except pyarrow.ArrowMemoryError as error:
        raise OutOfMemory(f"{path}: {error}") from None
    except (pyarrow.ArrowException, OSError) as error:
        raise InputError(f"{path}: cannot be read as Parquet: {error}") from None


def _stored_bytes(file: pyarrow.parquet.ParquetFile, name: str) -> int:
    """The size of a column without compression, but with each text of a dictionary once."""
    # Nested columns are several columns of the file, so the positions of the others differ from those in the schema.
    columns = (
        group.column(number)
        for group in map(file.metadata.row_group, range(file.metadata.num_row_groups))
        for number in range(group.num_columns)
    )
    return sum(column.total_uncompressed_size for column in columns if column.path_in_schema == name)


def _texts_of(path: Path, name: str, chunk: pyarrow.Array) -> Iterator[str | None]:
    found = chunk if hasattr(chunk, "dictionary") else chunk.dictionary_encode()
    texts = _decoded(path, name, found.dictionary)
    return (None if code is None else texts[code] for code in found.indices.to_pylist())


def _decoded(path: Path, name: str, texts: pyarrow.Array) -> list[str]:
    try:
        return list(texts.to_pylist())
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: column {name!r} contains a text that is not UTF-8: {error}") from None


def _kind_of_cells(kind: pyarrow.DataType) -> pyarrow.DataType:
    from pyarrow import types

    return kind.value_type if types.is_dictionary(kind) else kind


def _is_text(kind: pyarrow.DataType) -> bool:
    from pyarrow import types

    # Older versions of pyarrow have no views.
    return bool(types.is_string(kind) or types.is_large_string(kind) or str(kind) == "string_view")


def _is_numeric(kind: pyarrow.DataType) -> bool:
    from pyarrow import types

    found = types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind) or types.is_decimal(kind)
    return bool(found)


def _without_decimals(chunks: pyarrow.ChunkedArray) -> pyarrow.ChunkedArray:
    import pyarrow

    kind = _kind_of_cells(chunks.type)
    if kind is not chunks.type:
        chunks = chunks.cast(kind)
    return chunks.cast(pyarrow.float64(), safe=False) if pyarrow.types.is_decimal(kind) else chunks


def column_of(path: Path, name: str, chunks: pyarrow.ChunkedArray, categorical: bool) -> Column:
    """Return a column of numbers, or of texts if its cells are texts or `categorical`. Raises InputError for others."""
    import pyarrow
    import pyarrow.compute

    kind = _kind_of_cells(chunks.type)
    if kind is not chunks.type:
        chunks = chunks.cast(kind)
    if _is_numeric(kind) and not categorical:
        source = chunks.cast(pyarrow.float64(), safe=False)
        return Numbers(name, source.to_numpy().astype(np.float64))
    if not (_is_numeric(kind) or _is_text(kind)):
        raise InputError(
            f"{path}: column {name!r} contains {kind}, neither numbers nor text; drop={name} (--data-option "
            f"drop={name}) leaves it out"
        )
    encoded = pyarrow.compute.dictionary_encode(chunks.cast(pyarrow.string())).combine_chunks()
    if isinstance(encoded, pyarrow.ChunkedArray):
        encoded = encoded.chunk(0)
    codes = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    return Texts(name, codes, tuple(_decoded(path, name, encoded.dictionary)))
