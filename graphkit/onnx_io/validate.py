"""Read a model file and check its format, versions and limits. Nothing in it is ever executed.

onnx's checker is not used: it rejects files that run elsewhere (unsorted nodes) and can take unbounded time. Other
modules validate the rest where they read the data: names and cycles in `scopes`, tensors in `tensors`.
"""

from __future__ import annotations

import errno
import os
import stat
import warnings
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from graphkit.errors import FileWarning, InvalidModel, UnsupportedError, UsageError
from graphkit.ir.stored import LARGE, StoredFile, plain_path
from graphkit.named_tuples import NamedTuple
from graphkit.onnx_io import messages
from graphkit.onnx_io.codes import NEWEST_OPSET
from graphkit.onnx_io.wire import Malformed, Place, count_messages, cut_out, fields
from graphkit.signatures import shown

if TYPE_CHECKING:
    from onnx import ModelProto, OperatorSetIdProto

OLDEST_OPSET = 1
# Limit of versions: onnx looks schemas up by 32-bit numbers.
_VERSIONS = 1 << 31
# Maximum size of a model file: protobuf limits sizes to 31 bits.
_MAX_PROTO_BYTES = (1 << 31) - 1

# In larger files, messages are counted before parsing: the protobuf library allocates 100 bytes or more for each
# message, even if it has two bytes in the file.
_MANY_BYTES = 1 << 25
_MOST_MESSAGES = 1 << 24

# Field number of ModelProto -> wire type.
_MODEL_FIELDS = {1: 0, 2: 2, 3: 2, 4: 2, 5: 0, 6: 2, 7: 2, 8: 2, 14: 2, 20: 2, 25: 2, 26: 2}

_SIGNATURES: tuple[tuple[bytes, str], ...] = (
    (b"version https://git-lfs", "a git-lfs pointer, not the file itself; fetch it with `git lfs pull`"),
    (b"PK\x03\x04", "a zip archive (a PyTorch checkpoint or a packed folder), not an ONNX model"),
    (b"\x1f\x8b", "gzip-compressed; unpack it first"),
    (b"\x89HDF\r\n", "an HDF5 file (a Keras model?), not an ONNX model"),
    (b"\x89PNG", "a PNG image, not an ONNX model"),
    (b"ORTM", "an ONNX Runtime .ort file, not an ONNX model"),
    (b"\x80\x02", "a Python pickle, not an ONNX model"),
)


class Source(NamedTuple):
    """A parsed model.

    label: its name in messages.
    folders: folders that external data are relative to: that of the path, and, if the path is a symbolic link, that of
        its target. Empty for a model that was given as bytes.
    large: places of initialiser data that are not in `model`, by name.
    """

    model: ModelProto
    label: str
    folders: tuple[str, ...]
    large: Mapping[str, Place] = MappingProxyType({})


def read_model(source: str | os.PathLike[str] | bytes | ModelProto) -> Source:
    """Read a model from a path or from bytes, or accept a ModelProto.

    Raises UsageError if there is no such file, and InvalidModel, which describes the problem.
    """
    if isinstance(source, (bytes, bytearray, memoryview)):
        found = Source(parse(bytes(source), "model"), "model", ())
    elif not isinstance(source, (str, os.PathLike)):
        found = _parsed(source)
    else:
        path = plain_path(source)
        data, large = _read_file(path)
        places = os.path.join(os.getcwd(), path), os.path.realpath(path)
        folders = tuple(dict.fromkeys(map(os.path.dirname, places)))
        found = Source(parse(data, path), path, folders, large)
    check_frame(found.model, found.label)
    return found


def _parsed(source: object) -> Source:
    from onnx import ModelProto

    if not isinstance(source, ModelProto):
        raise UsageError(
            "a model is read from the path of an .onnx or .json file, the bytes of an ONNX file, or a ModelProto, "
            f"not from {shown(source)}"
        )
    return Source(source, source.graph.name or "model", ())


def _mode(path: str) -> int | None:
    """The mode of a file; None if there is no file. Raises OSError."""
    try:
        return os.stat(path).st_mode
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.EBADF, errno.ELOOP):
            raise
    except ValueError:  # not a valid file name
        pass
    return None


def _read_file(path: str) -> tuple[bytes, Mapping[str, Place]]:
    """The bytes to parse, and the places of large tensors that are not in them, by name."""
    mode = _mode(path)
    if mode is None:
        raise UsageError(f"{path}: no such file")
    if stat.S_ISDIR(mode):
        raise InvalidModel(f"{path}: is a directory; name the .onnx file inside it")
    if not stat.S_ISREG(mode):
        raise InvalidModel(f"{path}: is not a regular file")
    try:
        file = StoredFile(path)
        if file.size > _MAX_PROTO_BYTES:
            raise InvalidModel(
                f"{path}: {file.size} bytes; a model file holds at most 2 GiB (larger weights are external data)"
            )
        parts = cut_out(file) if file.size > 2 * LARGE else None
        return parts or (file.read_bytes(0, file.size), {})
    except OSError as error:
        raise InvalidModel(f"{path}: cannot be read: {error.strerror or error}") from None


def parse(data: bytes, label: str) -> ModelProto:
    """Parse the bytes of a model file; `label` begins every message. Raises InvalidModel."""
    if not data:
        raise InvalidModel(f"{label}: the file is empty")
    for signature, meaning in _SIGNATURES:
        if data.startswith(signature):
            raise InvalidModel(f"{label}: the file is {meaning}")
    head = data[:512].lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if head.startswith((b"<!doctype", b"<html", b"<?xml", b"<head")):
        raise InvalidModel(f"{label}: the file is an HTML or XML page (a failed download?), not an ONNX model")
    if head.startswith((b"{", b"[")) and b'"' in head:
        raise InvalidModel(f"{label}: the file is JSON text, not an ONNX model")
    problem = _scan_frame(data)
    if problem:
        raise InvalidModel(f"{label}: {problem}")
    if len(data) > _MANY_BYTES and count_messages(data, _MOST_MESSAGES) == _MOST_MESSAGES:
        raise InvalidModel(f"{label}: the file consists of {_MOST_MESSAGES} messages or more, too many for any model")
    found = messages.read_small(data)
    return _parsed_by_library(data, label) if found is None else found


def _parsed_by_library(data: bytes, label: str) -> ModelProto:
    from google.protobuf.message import DecodeError
    from onnx import ModelProto

    model = ModelProto()
    try:
        model.ParseFromString(data)
    except DecodeError:
        raise InvalidModel(f"{label}: the file begins like an ONNX model, but its content is damaged") from None
    return model


def _scan_frame(data: bytes) -> str | None:
    """Check the top-level fields without parsing them. Returns a problem (truncated, damaged, not a model), or None."""
    found = 0
    try:
        for field in fields(data, 0, len(data)):
            if _MODEL_FIELDS.get(field.number, field.wire) != field.wire:
                return _broken(found)
            found += field.number in _MODEL_FIELDS
    except Malformed as error:
        if error.missing and (found or error.number in _MODEL_FIELDS):
            return f"the file is truncated: {error.missing} bytes are missing at its end"
        return _broken(found)
    return None if found else _broken(0)


def _broken(fields: int) -> str:
    return (
        "the file is damaged"
        if fields > 2
        else "not an ONNX model; graphkit also reads its own .json files and run folders"
    )


def require_text(where: str, *strings: object) -> None:
    """Raise InvalidModel for text that is not UTF-8. The protobuf library returns such text as bytes."""
    for string in strings:
        if not isinstance(string, str):
            raise InvalidModel(f"{where}: {string!r} is not UTF-8 text")


def check_frame(model: ModelProto, label: str) -> None:
    """Check that the model has a graph, and an opset that graphkit knows. Raises InvalidModel or UnsupportedError."""
    if not model.HasField("graph"):
        raise InvalidModel(f"{label}: the model has no graph")
    versions = opsets_of(model.opset_import, label)
    if "" not in versions:
        if any(node.domain in ("", "ai.onnx") for node in model.graph.node):
            raise InvalidModel(f"{label}: the model does not say which opset of ai.onnx it uses")
        return
    check_opset(versions[""], label)


def check_opset(version: int, label: str) -> None:
    """Raises UnsupportedError for an ai.onnx opset outside the known range."""
    if version < OLDEST_OPSET:
        raise UnsupportedError(f"{label}: opset {version} is older than {OLDEST_OPSET}, the oldest that graphkit reads")
    if version > NEWEST_OPSET:
        raise UnsupportedError(f"{label}: opset {version} is newer than {NEWEST_OPSET}, the newest that graphkit knows")


def opsets_of(imports: Iterable[OperatorSetIdProto], label: str, warn: bool = False) -> dict[str, int]:
    """Versions by domain ("" for ai.onnx). If a domain occurs again, the last version counts, as in ONNX Runtime.

    warn: warn about repeated domains. Raises InvalidModel if a domain is not text, or a version is out of range.
    """
    versions: dict[str, int] = {}
    for entry in imports:
        require_text(f"{label}: opset import", entry.domain)
        domain = "" if entry.domain == "ai.onnx" else entry.domain
        if not -_VERSIONS <= entry.version < _VERSIONS:
            raise InvalidModel(
                f"{label}: version {entry.version} of domain {domain or 'ai.onnx'!r} is not a valid version"
            )
        if warn and versions.get(domain, entry.version) != entry.version:
            both = f"{versions[domain]} and {entry.version}"
            tell(f"{label}: domain {domain or 'ai.onnx'!r} is imported in versions {both}; the last one counts")
        versions[domain] = entry.version
    return versions


def version_of(domain: str, opsets: Mapping[str, int]) -> int:
    """The imported version of a domain. If it is not imported: the newest of ai.onnx, or 1 for other domains."""
    return opsets.get(domain, NEWEST_OPSET if domain == "" else 1)


def tell(message: str) -> None:
    """Warn that a file breaks a rule of the format, but was read because it has only one possible meaning."""
    warnings.warn(message, FileWarning, stacklevel=3)


def opset_version(source: str | os.PathLike[str] | bytes | ModelProto) -> int:
    """The version of the standard operator set that a model imports."""
    parsed = read_model(source)
    return opsets_of(parsed.model.opset_import, parsed.label).get("", NEWEST_OPSET)
