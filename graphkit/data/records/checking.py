"""Whether a record file is whole, and its index that of the file."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from graphkit.data.images.decode import opened
from graphkit.data.records.header import unpack
from graphkit.data.records.index import index_of, read_index
from graphkit.data.records.reading import RecordStream
from graphkit.errors import InputError


class Checked(NamedTuple):
    """records and bytes: of those that are whole; problems: what is not as it should be, in the order of the file."""

    records: int
    bytes: int
    problems: list[str]


def check(path: Path, *, decode: bool = False) -> Checked:
    """Read a file from the beginning to the end. decode: each picture as well."""
    stream = RecordStream(path, on_damaged="skip")
    problems: list[str] = []
    begins: list[int] = []
    size = known = 0
    for record in stream:
        problems += [f"{path}: damaged {damage}" for damage in stream.damaged[known:]]
        known = len(stream.damaged)
        begins.append(stream.began)
        size += len(record)
        name = f"{path}: record {len(begins) - 1} (at byte {begins[-1]})"
        problems += _content(record, name, decode)
    problems += [f"{path}: damaged {damage}" for damage in stream.damaged[known:]]
    problems += _index(path, begins)
    return Checked(len(begins), size, problems)


def _content(record: memoryview, name: str, decode: bool) -> list[str]:
    try:
        _, data = unpack(record)
        if decode:
            with opened(bytes(data), name) as picture:
                picture.decoded("RGB")
    except InputError as error:
        text = str(error)
        return [text if text.startswith(name) else f"{name}: {text}"]
    return []


def _index(path: Path, begins: list[int]) -> list[str]:
    index = index_of(path)
    if not index.exists():
        return []
    try:
        _, positions = read_index(index, path.stat().st_size)
    except InputError as error:
        return [str(error)]
    whole, listed = set(begins), set(positions.tolist())
    return [f"{index}: no record begins at {at}" for at in sorted(listed - whole)] + [
        f"{index}: the record at byte {at} is not in it" for at in sorted(whole - listed)
    ]
