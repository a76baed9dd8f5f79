"""The bytes of record files, against files written out by hand from the published layout."""

from __future__ import annotations

import itertools
import pickle
import struct

import numpy as np
import pytest
from combinations import in_one_item

from graphkit.data.records import IRHeader, RecordFile, RecordStream, RecordWriter, pack, reading, unpack
from graphkit.errors import FileChanged, InputError, RuntimeFailure, UsageError

MAGIC = struct.pack("<I", 0xCED7230A)


def part(kind: int, data: bytes) -> bytes:
    return MAGIC + struct.pack("<I", kind << 29 | len(data)) + data + bytes(-len(data) % 4)


def written(path, records, keys=None):
    with RecordWriter(path) as writer:
        for number, data in enumerate(records):
            writer.write(data, None if keys is None else keys[number])
    return path.read_bytes()


# Each record, and the parts that it stands in.
CASES = [
    (b"", [(0, b"")]),
    (b"a", [(0, b"a")]),
    (b"abcd", [(0, b"abcd")]),
    (b"abcde", [(0, b"abcde")]),
    (MAGIC, [(1, b""), (3, b"")]),
    (MAGIC + b"xy", [(1, b""), (3, b"xy")]),
    (b"abcd" + MAGIC, [(1, b"abcd"), (3, b"")]),
    (b"abcd" + MAGIC + b"efgh" + MAGIC + b"i", [(1, b"abcd"), (2, b"efgh"), (3, b"i")]),
    (MAGIC + MAGIC + MAGIC, [(1, b""), (2, b""), (2, b""), (3, b"")]),
    # At no multiple of 4 the number is data like any other.
    (b"a" + MAGIC + b"bcd", [(0, b"a" + MAGIC + b"bcd")]),
    (b"a" + MAGIC + b"bcd" + MAGIC, [(1, b"a" + MAGIC + b"bcd"), (3, b"")]),
    (MAGIC[:3], [(0, MAGIC[:3])]),
    (b"wxyz" + MAGIC[:3], [(0, b"wxyz" + MAGIC[:3])]),
]


@in_one_item()
@pytest.mark.parametrize(("data", "parts"), CASES)
def test_bytes_of_a_record(tmp_path, data, parts):
    path = tmp_path / "a.rec"
    expected = b"".join(part(kind, content) for kind, content in parts)
    assert written(path, [data, b"behind"]) == expected + part(0, b"behind")
    assert (tmp_path / "a.idx").read_text() == f"0\t0\n1\t{len(expected)}\n"
    assert [bytes(r) for r in RecordStream(path)] == [data, b"behind"]
    assert [bytes(RecordFile(path)[i]) for i in (1, 0)] == [b"behind", data]


@in_one_item()
@pytest.mark.parametrize("block", [8, 12, 64, 1 << 20])
def test_records_across_blocks(tmp_path, monkeypatch, block):
    monkeypatch.setattr(reading, "BLOCK", block)
    rng = np.random.default_rng(0)
    # Many magic numbers, at multiples of 4 and elsewhere.
    records = [b"".join(rng.choice([MAGIC, b"\0", b"abcd", MAGIC[:2]], size)) for size in rng.integers(0, 40, 200)]
    path = tmp_path / "a.rec"
    written(path, records)
    assert [bytes(r) for r in RecordStream(path)] == records
    (tmp_path / "a.idx").unlink()
    assert [bytes(r) for r in map(RecordFile(path).__getitem__, range(200))] == records
    stream = RecordStream(path)
    first = [bytes(r) for r in itertools.islice(stream, 77)]
    again = RecordStream(path)
    again.position = stream.position
    assert first + [bytes(r) for r in again] == records


def test_records_by_key_and_in_the_order_of_the_index(tmp_path):
    path = tmp_path / "a.rec"
    written(path, [b"one", b"two", b"three"], keys=[30, 10, 20])
    lines = (tmp_path / "a.idx").read_text().splitlines()
    assert lines == ["30\t0", "10\t12", "20\t24"]
    (tmp_path / "a.idx").write_text("\n".join(sorted(lines)) + "\n")
    found = RecordFile(path)
    assert found.keys.tolist() == [10, 20, 30]
    assert [bytes(found[i]) for i in range(3)] == [b"two", b"three", b"one"]
    copy = pickle.loads(pickle.dumps(found))
    assert bytes(copy[2]) == b"one"
    path.write_bytes(path.read_bytes() + part(0, b"four"))
    with pytest.raises(InputError, match="and had 40 when it was opened"):
        pickle.loads(pickle.dumps(copy))
    with pytest.raises(FileChanged):
        found[0]


def test_no_records(tmp_path):
    path = tmp_path / "a.rec"
    assert written(path, []) == b""
    assert list(RecordStream(path)) == []
    assert len(RecordFile(path)) == 0


# --- damage -----------------------------------------------------------------------------------------


def damaged(path, change):
    written(path, [b"first", b"secondsecond", b"third"])
    (path.parent / "a.idx").unlink()
    content = bytearray(path.read_bytes())
    change(content)
    path.write_bytes(bytes(content))


def overwrite(place, data):
    def change(content):
        content[place : place + len(data)] = data

    return change


def cut(count):
    def change(content):
        del content[-count:]

    return change


@in_one_item()
@pytest.mark.parametrize(
    ("change", "position", "reason", "left"),
    [
        (overwrite(16, b"junk"), 16, "found 0x6b6e756a where a record must begin", [b"first", b"third"]),
        (overwrite(20, struct.pack("<I", 2 << 29 | 12)), 16, "found a part of kind 2 where a record must begin",
         [b"first", b"third"]),
        (overwrite(20, struct.pack("<I", 1 << 29 | 12)), 36, "found a part of kind 0 where a record must continue",
         [b"first"]),
        (overwrite(20, struct.pack("<I", 8)), 32, "0x6f636573 stands", None),
        (overwrite(20, struct.pack("<I", 1 << 28)), 16, "ends within a record", [b"first", b"third"]),
        (cut(6), 36, "ends within a record", [b"first", b"secondsecond"]),
        (cut(15), 36, "ends within a record", [b"first", b"secondsecond"]),
    ],
)  # fmt: skip
def test_damaged_files(tmp_path, change, position, reason, left):
    path = tmp_path / "a.rec"
    damaged(path, change)
    if reason == "0x6f636573 stands":
        reason = "where a record must begin"
        left = [b"first", b"secondse", b"third"]
    with pytest.raises(InputError, match=rf"a\.rec: damaged at byte {position}: .*{reason}"):
        list(RecordStream(path))
    with pytest.raises(InputError, match="damaged at byte"):
        RecordFile(path)
    stream = RecordStream(path, on_damaged="skip")
    assert [bytes(r) for r in stream] == left
    assert stream.damaged[0].position == position


def test_many_places_of_damage_take_linear_time(tmp_path, monkeypatch):
    path = tmp_path / "a.rec"
    path.write_bytes(part(0, b"x") + (MAGIC + struct.pack("<I", 2 << 29)) * 40000 + part(0, b"y"))
    seen = []
    search = reading.next_record
    monkeypatch.setattr(reading, "next_record", lambda data, place: seen.append(place) or search(data, place))
    stream = RecordStream(path, on_damaged="skip")
    assert [bytes(r) for r in stream] == [b"x", b"y"]
    # One look finds the next record, however many parts without a beginning lie before it.
    assert len(seen) == 1


def test_other_files(tmp_path):
    path = tmp_path / "a.rec"
    for content in (b"text, not records", b"\x0a", b"PK\x03\x04"):
        path.write_bytes(content)
        with pytest.raises(InputError, match=r"not a record file|ends within"):
            list(RecordStream(path))
    with pytest.raises(InputError, match=r"none\.rec cannot be read"):
        RecordStream(tmp_path / "none.rec")
    with pytest.raises(InputError, match="cannot be read"):
        RecordFile(tmp_path)
    with pytest.raises(UsageError, match="on_damaged"):
        RecordStream(path, on_damaged="ignore")


@in_one_item()
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0\t0\nx\t12\n", r"a\.idx:2: expected a key, a tab and a position"),
        ("0 0\n", r"a\.idx:1: expected a key"),
        ("0\t0\n1\t400\n", r"a\.idx:2: position 400 is not valid in a record file of 32 bytes"),
        ("0\t-4\n", "position -4 is not valid"),
        ("0\t2\n", "position 2 is not valid"),
        ("0\t0\n0\t12\n", "key 0 occurs twice"),
        (f"{2**63}\t0\n", "more than 64 bits"),
    ],
)
def test_bad_indexes(tmp_path, text, message):
    path = tmp_path / "a.rec"
    written(path, [b"one", b"twelve bytes"])
    (tmp_path / "a.idx").write_text(text)
    with pytest.raises(InputError, match=message):
        RecordFile(path)


def test_an_index_of_another_file(tmp_path):
    path = tmp_path / "a.rec"
    written(path, [b"one", b"twelve bytes"])
    (tmp_path / "a.idx").write_text("5\t0\n9\t16\n")
    found = RecordFile(path)
    with pytest.raises(InputError, match=r"a\.rec: record 1 \(key 9, at byte 16\): damaged at byte 16"):
        found[1]


# --- writing ----------------------------------------------------------------------------------------


def test_an_error_leaves_what_was_there(tmp_path):
    path = tmp_path / "a.rec"
    before = written(path, [b"old"])
    with pytest.raises(TypeError), RecordWriter(path) as writer:
        writer.write(None if writer.write(b"new") == 0 else b"")
    assert path.read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.idx", "a.rec"]
    with RecordWriter(path) as writer:
        writer.write(b"new", 4)
        with pytest.raises(InputError, match="key 4 occurs twice"):
            writer.write(b"newer", 4)
    assert [bytes(r) for r in RecordStream(path)] == [b"new"]
    with pytest.raises(UsageError, match="inside of"):
        writer.write(b"late")
    with pytest.raises(RuntimeFailure, match="cannot be written"), RecordWriter(tmp_path / "none" / "a.rec"):
        pass
    with pytest.raises(UsageError, match="suffix of indexes"):
        RecordWriter(tmp_path / "a.idx")


def test_the_old_index_never_stands_beside_new_records(tmp_path, monkeypatch):
    path = tmp_path / "a.rec"
    written(path, [b"old", b"older"])

    def killed(self, target):
        raise KeyboardInterrupt

    from graphkit.data.records import writing

    for survives, left in ((0, []), (1, [b"new"])):
        calls = itertools.count()
        commit = writing.PendingFile.commit
        monkeypatch.setattr(
            writing.PendingFile, "commit",
            lambda self, target, c=calls, s=survives, f=commit: (killed if next(c) >= s else f)(self, target),
        )  # fmt: skip
        with pytest.raises(KeyboardInterrupt):
            written(path, [b"new"])
        monkeypatch.undo()
        assert not (tmp_path / "a.idx").exists()
        found = RecordFile(path)
        assert [bytes(found[i]) for i in range(len(found))] == (left or [b"old", b"older"])


def test_a_record_that_no_part_can_hold(monkeypatch):
    from graphkit.data.records import framing

    monkeypatch.setattr(framing, "LONGEST", 15)
    with pytest.raises(InputError, match="fewer than 2"):
        framing.framed(bytes(16))
    framing.framed(bytes(15))


# --- headers ----------------------------------------------------------------------------------------


def test_headers():
    one = pack((7, 3.0, 42, 0), b"jpeg")
    assert one == b"\0\0\0\0" + struct.pack("<f", 3.0) + struct.pack("<QQ", 42, 0) + b"jpeg"
    assert len(one) == 28
    header, data = unpack(one)
    assert header == IRHeader(0, 3.0, 42, 0)
    assert bytes(data) == b"jpeg"
    several = pack(IRHeader(0, [1.0, 2.0, 3.5], 2**64 - 1, 1), b"png")
    assert several[:24] == struct.pack("<IfQQ", 3, 0.0, 2**64 - 1, 1)
    assert several[24:36] == np.array([1, 2, 3.5], "<f4").tobytes()
    header, data = unpack(several)
    assert header.label.tolist() == [1.0, 2.0, 3.5]
    assert header.label.dtype == np.float32
    assert (header.flag, header.id, header.id2, bytes(data)) == (3, 2**64 - 1, 1, b"png")


def test_bad_headers():
    with pytest.raises(InputError, match="23 bytes is too short for its header"):
        unpack(bytes(23))
    with pytest.raises(InputError, match="too short for the 4,294,967,295 labels"):
        unpack(b"\xff\xff\xff\xff" + bytes(24))
    with pytest.raises(InputError, match="not a valid header of a record"):
        pack((0, "cat", 1, 0), b"")
    with pytest.raises(InputError, match="not a valid header of a record"):
        pack((0, 1.0, -1, 0), b"")
