"""Check whether a record file is intact, and whether its index matches."""

from __future__ import annotations

from pathlib import Path

from graphkit.data.preprocessing.decode import opened
from graphkit.data.records.header import unpack
from graphkit.data.records.index import index_of, read_index
from graphkit.data.records.reading import RecordStream
from graphkit.errors import InputError
from graphkit.named_tuples import NamedTuple


class Checked(NamedTuple):
    """Result of `check`. records, bytes: of the intact records; problems: what is wrong, in the order of the file."""

    records: int
    bytes: int
    problems: list[str]


def check(path: Path, *, decode: bool = False) -> Checked:
    """Read a file from beginning to end and report its problems. decode: decode each image, too."""
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
    return [f"{index}: the index lists byte {at}, but no record begins there" for at in sorted(listed - whole)] + [
        f"{index}: the index does not list the record at byte {at}" for at in sorted(whole - listed)
    ]
