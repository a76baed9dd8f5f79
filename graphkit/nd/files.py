"""Files of arrays: `save` and `load`, in the format of MXNet."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import numpy as np

from graphkit.errors import UsageError
from graphkit.nd.ndarray import NDArray, own
from graphkit.signatures import shown


def save(path: str | os.PathLike[str], data: NDArray | Sequence[NDArray] | Mapping[str, NDArray]) -> None:
    """Write arrays to a file, which `load` and `mx.nd.load` read. A file of this name is replaced.

    Args:
        path: Name of the file.
        data: An array, a list of arrays, or arrays by name.

    Raises:
        UsageError: `data` contains something else than arrays.
        UnsupportedError: An element type that MXNet does not have.
        RuntimeFailure: The file cannot be written.
    """
    from graphkit.mxnet_io.arrays import write_arrays

    named = isinstance(data, Mapping)
    given = [data] if isinstance(data, NDArray) else data
    if not isinstance(given, (Mapping, list, tuple)):
        raise UsageError(f"save takes an NDArray, or a list or dict of them, not {shown(data)}")
    arrays = dict(given) if isinstance(given, Mapping) else {str(i): x for i, x in enumerate(given)}
    for name, x in arrays.items():
        if not isinstance(name, str):
            raise UsageError(f"save: the name of an array must be a string, not {shown(name)}")
        if not isinstance(x, NDArray):
            raise UsageError(f"save: {name!r} must be an NDArray, not {shown(x)}")
    write_arrays(path, {name: x.asnumpy() for name, x in arrays.items()}, named)


def load(path: str | os.PathLike[str]) -> list[NDArray] | dict[str, NDArray]:
    """Read a file of arrays: a dict if the file has names, or else a list.

    Raises:
        UsageError: There is no such file.
        InvalidModel: The file is damaged or truncated.
    """
    from graphkit.mxnet_io.arrays import read_array_file

    found, named = read_array_file(path)
    arrays = {name: own(np.array(data, order="C")) for name, data in found.items()}
    return arrays if named else list(arrays.values())
