"""Arrays in .npy and .npz files: only numbers and text, and not larger than memory."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from graphkit.errors import InputError, InvalidModel, OutOfMemory, lacks_memory
from graphkit.ir.limits import require_memory
from graphkit.ir.npz import DAMAGED, array_name, read_npz

# The first bytes of .npy files, and of .npz files with and without members.
_ARRAY, _ARCHIVES = b"\x93NUMPY", (b"PK\x03\x04", b"PK\x05\x06")


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """Read the arrays of an .npz file by name (see `member_name`), or the array of an .npy file under the name "".

    Raises InputError, which names the file, if it is missing, damaged, or contains pickled objects, which are never
    loaded. Raises OutOfMemory if the arrays exceed the memory limit.
    """
    if not path.exists():
        raise InputError(f"{path}: no such file")
    if not path.is_file():
        raise InputError(f"{path} is not a regular file")
    try:
        # If np.load opens a damaged file itself, it does not close it.
        with path.open("rb") as file:
            start = file.read(len(_ARRAY))
            if start == _ARRAY:
                require_memory(os.fstat(file.fileno()).st_size, f"the arrays of {path}")
                file.seek(0)
                return {"": np.load(file, allow_pickle=False)}
        if not start.startswith(_ARCHIVES):
            raise InputError(f"{path}: not a .npy or .npz file: it is empty or has another format")
        return {array_name(name): array for name, array in read_npz(path).items()}
    except (OutOfMemory, InputError):
        raise
    except InvalidModel as error:
        raise InputError(str(error)) from None
    except (MemoryError, *DAMAGED) as error:
        if lacks_memory(error):
            raise OutOfMemory(f"the arrays of {path}: {error}") from None
        raise InputError(f"{path}: the .npy file cannot be read: {error}") from None


def mapped_array(path: Path) -> np.ndarray:
    """Return the array of an .npy file without reading it: parts are read when they are used.

    Raises InputError, which names the file, if it is missing, damaged, or contains pickled objects.
    """
    if not path.is_file():
        raise InputError(f"{path}: {'not a regular file' if path.exists() else 'no such file'}")
    try:
        found = np.load(path, mmap_mode="r", allow_pickle=False)
    except (MemoryError, *DAMAGED) as error:
        raise InputError(f"{path}: the .npy file cannot be read: {error}") from None
    if not isinstance(found, np.ndarray):
        raise InputError(f"{path}: not an .npy file")
    return found
