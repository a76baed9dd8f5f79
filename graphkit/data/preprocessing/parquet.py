"""Read Parquet files with pyarrow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from graphkit.data.preprocessing.column import Column, Numbers, Texts
from graphkit.distribution import how_to_install
from graphkit.errors import InputError, MissingDependency
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
        LimitExceeded: The columns need more memory than is allowed.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise MissingDependency(f"{path}: Parquet needs pyarrow; install it with: {how_to_install('tables')}") from None
    try:
        file = pyarrow.parquet.ParquetFile(path)
        chosen = list(choose(file.schema_arrow))
        require_memory(file.metadata.num_rows * len(chosen) * 8, str(path))
        table = file.read(columns=chosen, use_threads=False)
    except (pyarrow.ArrowException, OSError) as error:
        raise InputError(f"{path}: cannot be read as Parquet: {error}") from None
    if not table.num_rows:
        raise InputError(f"{path}: the table has no rows")
    return table


def columns_of_cells(path: Path, schema: pyarrow.Schema) -> list[str]:
    """Return the names of the columns that contain texts or numbers, and not for example images or lists.

    Raises InputError if there is none, or if two columns have one name.
    """
    from pyarrow import types

    names = schema.names
    if len(set(names)) != len(names):
        raise InputError(f"{path}: two columns have one name; the columns are {listed(names, len(names), 8)}")
    wanted = (types.is_string, types.is_large_string, types.is_integer, types.is_floating, types.is_boolean)
    kinds = {field.name: field.type.value_type if types.is_dictionary(field.type) else field.type for field in schema}
    if found := [name for name, kind in kinds.items() if any(is_wanted(kind) for is_wanted in wanted)]:
        return found
    raise InputError(f"{path}: no column contains texts or numbers; the columns are {listed(names, len(names), 8)}")


def column_of(path: Path, name: str, chunks: pyarrow.ChunkedArray, categorical: bool) -> Column:
    """Return a column of numbers, or of texts if its cells are texts or `categorical`. Raises InputError for others."""
    import pyarrow
    import pyarrow.compute

    kind = chunks.type
    if pyarrow.types.is_dictionary(kind):
        kind = kind.value_type
        chunks = chunks.cast(kind)
    numeric = pyarrow.types.is_integer(kind) or pyarrow.types.is_floating(kind) or pyarrow.types.is_boolean(kind)
    numeric = numeric or pyarrow.types.is_decimal(kind)
    if numeric and not categorical:
        source = chunks.cast(pyarrow.float64(), safe=False)
        return Numbers(name, source.to_numpy().astype(np.float64))
    if not (numeric or pyarrow.types.is_string(kind) or pyarrow.types.is_large_string(kind)):
        raise InputError(
            f"{path}: column {name!r} contains {kind}, neither numbers nor text; drop={name} (--data-option "
            f"drop={name}) leaves it out"
        )
    encoded = pyarrow.compute.dictionary_encode(chunks.cast(pyarrow.string())).combine_chunks()
    if isinstance(encoded, pyarrow.ChunkedArray):
        encoded = encoded.chunk(0)
    codes = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    return Texts(name, codes, tuple(encoded.dictionary.to_pylist()))
