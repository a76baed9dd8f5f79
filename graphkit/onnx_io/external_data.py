"""Find tensors that are stored outside the model file."""

from __future__ import annotations

import os
import re
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING

from graphkit.errors import InvalidModel, UnsafeModel
from graphkit.ir.stored import StoredFile
from graphkit.onnx_io.validate import require_text
from graphkit.onnx_io.wire import Place

if TYPE_CHECKING:
    from pathlib import Path

    from onnx import TensorProto

_KEYS = frozenset({"location", "offset", "length", "checksum", "basepath"})


class ExternalData:
    """Finds external tensors of one model. Tensors of the same file share one open file.

    After symbolic links are resolved, a file must be inside one of the model's `folders` or inside `external_root`.
    Otherwise UnsafeModel is raised. A location is relative to the first of `folders` that contains such a file. If the
    model is a symbolic link, as in the cache of the Hugging Face hub, its folders are those of the link and of its
    target. A model that was given as bytes has none, and its locations are relative to `external_root`.
    """

    def __init__(
        self, folders: Sequence[str | os.PathLike[str]] = (), external_root: str | os.PathLike[str] | None = None
    ):
        roots = [*folders, *([] if external_root is None else [external_root])]
        self._bases = folders or roots
        self._roots = [os.path.realpath(p) for p in roots]
        self._files: weakref.WeakValueDictionary[Path, StoredFile] = weakref.WeakValueDictionary()
        self._latest: StoredFile | None = None

    def place(self, proto: TensorProto, nbytes: int) -> Place:
        """The place of the tensor's data, which must have `nbytes` bytes. Raises InvalidModel or UnsafeModel."""
        where = f"tensor {proto.name!r}"
        require_text(where, proto.name, *(text for e in proto.external_data for text in (e.key, e.value)))
        entries = {entry.key: entry.value for entry in proto.external_data}
        location = entries.get("location", "")
        if not location:
            raise InvalidModel(f"{where}: external data without a location")
        offset = _number(entries.get("offset", "0"), "offset", where)
        length = _number(entries["length"], "length", where) if "length" in entries else nbytes
        if length != nbytes:
            raise InvalidModel(f"{where}: its type needs {nbytes} bytes, but its external data have {length}")
        file = self._open(location, where)
        if offset + length > file.size:
            raise InvalidModel(
                f"{where}: its data are bytes {offset} to {offset + length} of {location!r}, which has only "
                f"{file.size} bytes. The file may be truncated"
            )
        return Place(file, offset, length)

    def _open(self, location: str, where: str) -> StoredFile:
        if not self._bases:
            raise InvalidModel(f"{where}: its data are in {location!r}, but the model was given without a folder")
        if "\0" in location:
            raise UnsafeModel(f"{where}: external data location {location!r} is not a path")
        from pathlib import Path  # most files have no external data

        bases = [Path(base) for base in self._bases]
        try:
            base = next((b for b in bases if (b / location).exists()), bases[0])
            path = Path(os.path.realpath(base / location))
            self._check_inside(path, location, where)
            file = self._files.get(path)
            if file is None:
                if not path.is_file():
                    raise InvalidModel(f"{where}: external data file {location!r} is missing or is not a regular file")
                file = StoredFile(path)
                # Links may have changed since the check of the path, so check the file that was actually opened.
                self._check_inside(file.place or path, location, where)
                self._files[path] = file
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise InvalidModel(f"{where}: external data file {location!r} cannot be read: {reason}") from None
        self._latest = file
        return file

    def _check_inside(self, path: Path, location: str, where: str) -> None:
        if not any(path.is_relative_to(root) for root in self._roots):
            raise UnsafeModel(
                f"{where}: external data {location!r} are outside the model's folder; "
                "pass external_root (--allow-external-root) to allow the folder they are in"
            )


def _number(text: str, key: str, where: str) -> int:
    if not re.fullmatch(r"[0-9]{1,18}", text):
        raise InvalidModel(f"{where}: external data {key} {text!r} is not a size")
    return int(text)
