"""Write ONNX files: the arrays of larger initialisers go from memory to the file without a copy."""

from __future__ import annotations

import contextlib
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf.message import EncodeError, Message
from onnx import AttributeProto, GraphProto, ModelProto, TensorProto

from graphkit.errors import UsageError
from graphkit.ir.atomic import PendingFile, write_whole, writing_of
from graphkit.ir.hashing import BLAKE2B8, hash_of
from graphkit.ir.stored import StoredArray
from graphkit.ir.types import dtype_of
from graphkit.named_tuples import NamedTuple
from graphkit.onnx_io.tensors import packed_nbytes, to_buffer
from graphkit.onnx_io.wire import GRAPH_INITIALIZER, MODEL_GRAPH, TENSOR_RAW_DATA, encoded_varint, field_tag
from graphkit.text import human

# Data of external tensors begin at multiples of this page size, so that they can be mapped. Smaller tensors stay in the
# model.
ALIGNMENT = 4096
# Larger models are written with external data, because a protobuf message is limited to 2 GiB.
EXTERNAL_ABOVE = 1 << 30

# The largest message of protobuf.
_MAX_MESSAGE = (1 << 31) - 1


class Initialiser(NamedTuple):
    """An initialiser whose data may be separate from the message.

    Attributes:
        header: Name, type and shape; also the data, if they are not separate.
        nbytes: Number of bytes of separate data.
        data: Function that yields the separate data as they are stored in a file; None if there are none. A chunk of
            them may change when the second one after it is requested.
    """

    header: TensorProto
    nbytes: int = 0
    data: Callable[[], Iterable[memoryview]] | None = None

    @staticmethod
    def of(array: np.ndarray | StoredArray, header: TensorProto) -> Initialiser:
        """Return the initialiser of an array. The array is not copied, or read from its file, before it is written."""
        nbytes = packed_nbytes(dtype_of(array.dtype), math.prod(array.shape))
        if isinstance(array, StoredArray) and array.nbytes == nbytes:
            return Initialiser(header, nbytes, array.blocks)
        return Initialiser(header, nbytes, lambda: (to_buffer(np.asarray(array)),))


@dataclass
class UnwrittenModel:
    """A model whose larger initialisers have no data in `proto`.

    So neither the data nor the file are in memory twice, and messages stay below the 2 GiB of protobuf. is_attached:
    whether the headers of initialisers are in `proto`. Otherwise the list has all initialisers of its graph, in order.
    """

    proto: ModelProto
    initialisers: Sequence[Initialiser]
    is_attached: bool = False

    @staticmethod
    def of(model: ModelProto) -> UnwrittenModel:
        """Copy a model without the data of larger initialisers, which stay in the given model until they are written.

        Protobuf copies a message by serialising it, which it limits to 2 GiB. So the model is copied field by field.
        """
        copy = ModelProto()
        _copy_fields(model, copy, without="graph")
        return UnwrittenModel(copy, _copy_graph(model.graph, copy.graph), is_attached=True)

    @property
    def data_bytes(self) -> int:
        """Bytes of the initialisers in a file."""
        return sum(tensor.nbytes for tensor in self.initialisers)

    def embedded(self, path: Path) -> Iterator[bytes | memoryview]:
        """Return the content of a file that contains all data. path: the file, for messages.

        In protobuf, fields of a message may come in any order, and a repeated field may be interrupted. So the
        initialisers follow the other fields of the graph.

        Raises UsageError if the file is larger than protobuf allows.
        """
        assert not self.is_attached, "the headers are written with their data"
        graph = _serialised(self.proto.graph, path)
        heads = [_head(tensor) for tensor in self.initialisers]
        rest = ModelProto()
        _copy_fields(self.proto, rest, without="graph")
        graph_bytes = len(graph) + sum(map(len, heads)) + self.data_bytes
        start = _serialised(rest, path) + _field(MODEL_GRAPH, graph_bytes)
        if (size := len(start) + graph_bytes) > _MAX_MESSAGE:
            raise _too_large(path, human(size), "write the weights to a data file (external=True)")
        return self._chunks([start, graph], heads)

    def _chunks(self, first: Iterable[bytes], heads: Iterable[bytes]) -> Iterator[bytes | memoryview]:
        yield from first
        for head, tensor in zip(heads, self.initialisers, strict=True):
            yield head
            if tensor.data is not None:
                yield from tensor.data()

    def offsets(self) -> list[int]:
        """Return where the data of each initialiser begin in a data file."""
        found, position = [], 0
        for tensor in self.initialisers:
            position = -(-position // ALIGNMENT) * ALIGNMENT
            found.append(position)
            position += tensor.nbytes
        return found

    def refer_to(self, location: str) -> None:
        """Let `proto` refer to a data file, by its path from the model."""
        for tensor, offset in zip(self.initialisers, self.offsets(), strict=True):
            header = tensor.header if self.is_attached else self.proto.graph.initializer.add()
            if not self.is_attached:
                header.CopyFrom(tensor.header)
            if tensor.data is None:
                continue
            header.data_location = TensorProto.EXTERNAL
            for key, value in (("location", location), ("offset", str(offset)), ("length", str(tensor.nbytes))):
                header.external_data.add(key=key, value=value)

    def data_file(self) -> Iterator[bytes | memoryview]:
        """Yield the content of the data file."""
        written = 0
        for tensor, offset in zip(self.initialisers, self.offsets(), strict=True):
            if tensor.data is not None:
                yield b"\0" * (offset - written)
                yield from tensor.data()
                written = offset + tensor.nbytes


def write(model: UnwrittenModel, path: str | os.PathLike[str], *, external: bool | None = None) -> list[Path]:
    """Write a model file; return the files written, the model last.

    Files are written under temporary names and renamed when they are complete. If that fails, for example because the
    disk is full, RuntimeFailure is raised, and the files that were there before remain.

    Args:
        model: The model. It must not be written again with external data.
        path: The model file.
        external: Write larger initialisers into `<stem>-<digest>.data` beside it (default: only above 1 GiB).
    """
    path = Path(path)
    if path.is_dir():
        raise UsageError(f"{path}: is a directory")
    if external is None:
        external = model.data_bytes > EXTERNAL_ABOVE
    if not external:
        content = model.embedded(path)
        stale = previous_data_files(path)
        write_whole(path, content)
        _remove(stale)
        return [path]
    before = previous_data_files(path)
    data = _write_data(model, path)
    try:
        write_whole(path, [_serialised(model.proto, path)])
    except BaseException:
        _remove({*data}.difference(before))
        raise
    _remove([p for p in before if p not in data])
    return [*data, path]


def _write_data(model: UnwrittenModel, path: Path) -> list[Path]:
    """Write the data file of the model file `path`, and let the model refer to it. Return its path, if it has data.

    The name contains a digest of the content, so that a model never reads the weights of another one.
    """
    if not model.data_bytes:
        model.refer_to("")
        return []
    with writing_of(path.parent / f"{path.stem}.data"), PendingFile(path.parent, f"{path.stem}.data") as file:
        digest = hash_of(BLAKE2B8, model.data_file(), file.write, model.data_bytes)
        target = path.parent / f"{path.stem}-{digest[:16]}.data"
        file.commit(target)
    model.refer_to(target.name)
    return [target]


def write_proto(model: ModelProto, path: Path, *, external: bool) -> list[Path]:
    """Write any model to a file; return the files written, the model last. See `write`."""
    if external:
        return write(UnwrittenModel.of(model), path, external=True)
    write_whole(path, [_serialised(model, path)])
    return [path]


def write_together(files: Mapping[Path, ModelProto | bytes]) -> list[Path]:
    """Write files of one folder that belong together; return the files written, data files first.

    All files are complete under temporary names before one of them is replaced. The last one is removed before, and
    replaced after the others. So the folder never contains files that do not belong together. If the disk is full, all
    files stay unchanged. Models above 1 GiB get data files.
    """
    *_, main = files
    earlier = {p for path in files for p in previous_data_files(path)}
    data: list[Path] = []
    try:
        with contextlib.ExitStack() as stack:
            pending = {}
            for path, content in files.items():
                chunk = content if isinstance(content, bytes) else _with_data_file(content, path, data)
                with writing_of(path):
                    pending[path] = stack.enter_context(PendingFile(path.parent, path.name))
                    pending[path].write(chunk)
                    pending[path].finish()
            with writing_of(main):
                main.unlink(missing_ok=True)
            for path, file in pending.items():
                with writing_of(path):
                    file.commit(path)
    except BaseException:
        _remove({*data} - earlier)
        raise
    _remove(earlier.difference(data))
    return [*data, *files]


def _with_data_file(model: ModelProto, path: Path, data: list[Path]) -> bytes:
    """Return the content of a model file. Above 1 GiB, write its data file, and add the path to `data`."""
    if raw_bytes(model) <= EXTERNAL_ABOVE:
        return _serialised(model, path)
    unwritten = UnwrittenModel.of(model)
    data += _write_data(unwritten, path)
    return _serialised(unwritten.proto, path)


def _serialised(message: Message, path: Path) -> bytes:
    try:
        return bytes(message.SerializeToString())
    except EncodeError:
        raise _too_large(path, "more than 2 GiB", "the arrays in it must be initialisers, not attributes") from None


def _too_large(path: Path, size: str, advice: str) -> UsageError:
    return UsageError(f"{path}: the model takes {size}, but an ONNX file holds at most 2 GiB: {advice}")


def _remove(paths: Iterable[Path]) -> None:
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            path.unlink()


def _head(tensor: Initialiser) -> bytes:
    """The bytes of an initialiser before its data."""
    message: bytes = tensor.header.SerializeToString()
    if tensor.data is not None:
        message += _field(TENSOR_RAW_DATA, tensor.nbytes)
    return _field(GRAPH_INITIALIZER, len(message) + tensor.nbytes) + message


def _field(number: int, length: int) -> bytes:
    """The tag and length that begin a field of bytes in protobuf's encoding."""
    return field_tag(number) + encoded_varint(length)


def _copy_graph(graph: GraphProto, copy: GraphProto) -> list[Initialiser]:
    """Copy a graph and its subgraphs without the data of larger initialisers, which are returned."""
    _copy_fields(graph, copy, without="initializer")
    found = [*_copy_tensors(graph, copy)]
    for node, copied in zip(graph.node, copy.node, strict=True):
        for attribute, target in zip(node.attribute, copied.attribute, strict=True):
            subgraphs = [(attribute.g, target.g)] if attribute.type == AttributeProto.GRAPH else []
            for inner, inner_copy in (*subgraphs, *zip(attribute.graphs, target.graphs, strict=True)):
                inner_copy.Clear()
                found += _copy_graph(inner, inner_copy)
    return found


def _copy_tensors(graph: GraphProto, copy: GraphProto) -> Iterator[Initialiser]:
    for tensor in graph.initializer:
        copied = copy.initializer.add()
        nbytes = len(tensor.raw_data) if tensor.HasField("raw_data") else 0
        if nbytes < ALIGNMENT:
            copied.CopyFrom(tensor)
            continue
        _copy_fields(tensor, copied, without="raw_data")
        yield Initialiser(copied, nbytes, partial(_raw_data, tensor))


def _raw_data(tensor: TensorProto) -> tuple[memoryview]:
    return (memoryview(tensor.raw_data),)


def _copy_fields(message: Any, copy: Any, without: str) -> None:
    for field, value in message.ListFields():
        if field.name == without:
            continue
        if hasattr(value, "extend"):
            getattr(copy, field.name).extend(value)
        elif isinstance(value, Message):
            getattr(copy, field.name).CopyFrom(value)
        else:
            setattr(copy, field.name, value)


def tensors_of(graph: GraphProto) -> Iterator[TensorProto]:
    """Yield all initialisers, also of subgraphs. Tensors in attributes of Constant nodes are not initialisers."""
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == AttributeProto.GRAPH:
                yield from tensors_of(attribute.g)
            for subgraph in attribute.graphs:
                yield from tensors_of(subgraph)


def raw_bytes(model: ModelProto) -> int:
    """Return the bytes of raw data of all initialisers."""
    return sum(len(t.raw_data) for t in tensors_of(model.graph) if t.HasField("raw_data"))


def previous_data_files(path: Path) -> list[Path]:
    """Return the data files of earlier saves of the model at `path`."""
    pattern = re.compile(re.escape(path.stem) + r"-[0-9a-f]{16}\.data")
    return [p for p in path.parent.iterdir() if pattern.fullmatch(p.name)] if path.parent.is_dir() else []
