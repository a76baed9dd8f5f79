"""Arrays in .npy and .npz files: of numbers and text alone, and no larger than memory."""

from __future__ import annotations

import lzma
import os
import struct
import tokenize
import zipfile
import zlib
from pathlib import Path

import numpy as np

from graphkit.errors import InputError, OutOfMemory, lacks_memory
from graphkit.ir.limits import require_memory

# What numpy and zipfile raise for a file that is damaged, or lies: of its header's text, its shape and type, the
# archive's tables, encryption and methods, and each method's decompressor.
_DAMAGED = (
    OSError, EOFError, IndexError, NotImplementedError, OverflowError, RuntimeError, SyntaxError, TypeError, ValueError,
    struct.error, tokenize.TokenError, zipfile.BadZipFile, zlib.error, lzma.LZMAError,
)  # fmt: skip


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an .npz file by name; that of an .npy file under "".

    Raises InputError, naming the file, for one that is missing, damaged, or holds pickled objects, which are not read;
    OutOfMemory for one that unpacks to more than the limit of memory.
    """
    if path.exists() and not path.is_file():
        raise InputError(f"{path} is not a regular file")
    try:
        # np.load leaves a file open that it opened itself and finds damaged.
        with path.open("rb") as file:
            require_memory(os.fstat(file.fileno()).st_size, f"the arrays of {path}")
            loaded = np.load(file, allow_pickle=False)
            if isinstance(loaded, np.ndarray):
                return {"": loaded}
            with loaded:
                members = zipfile.ZipFile(file).infolist()
                require_memory(sum(member.file_size for member in members), f"the arrays of {path}")
                arrays = {name: loaded[name] for name in loaded.files}
    except OutOfMemory:
        raise
    except (MemoryError, *_DAMAGED) as error:
        if lacks_memory(error):
            raise OutOfMemory(f"the arrays of {path}: {error}") from None
        raise InputError(f"{path}: not a readable .npy or .npz file: {error}") from None
    for name, array in arrays.items():
        if not isinstance(array, np.ndarray):
            raise InputError(f"{path}: its member {name!r} is not an array")
    return arrays
