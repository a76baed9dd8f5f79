"""Arrays in .npy and .npz files: of numbers and text alone, and no larger than memory."""

from __future__ import annotations

import tokenize
import zipfile
import zlib
from pathlib import Path

import numpy as np

from graphkit.errors import InputError, OutOfMemory, lacks_memory
from graphkit.ir.limits import require_memory


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
            loaded = np.load(file, allow_pickle=False)
            if isinstance(loaded, np.ndarray):
                return {"": loaded}
            with loaded:
                members = zipfile.ZipFile(file).infolist()
                require_memory(sum(member.file_size for member in members), f"the arrays of {path}")
                return {name: loaded[name] for name in loaded.files}
    except OutOfMemory:
        raise
    except (OSError, EOFError, MemoryError, NotImplementedError, OverflowError, RuntimeError, SyntaxError, TypeError,
            ValueError, tokenize.TokenError, zipfile.BadZipFile, zlib.error) as error:  # fmt: skip
        if lacks_memory(error):
            raise OutOfMemory(f"the arrays of {path}: {error}") from None
        raise InputError(f"{path}: not a readable .npy or .npz file: {error}") from None
