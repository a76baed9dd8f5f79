"""Arrays that stay in a file: read when they are asked for, from the file that was opened, or not at all."""

from __future__ import annotations

import errno
import gc
import os
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from graphkit.errors import FileChanged
from graphkit.ir import stored as ir_stored
from graphkit.ir.stored import LARGE, Scratch, StoredArray, StoredFile

DATA = np.random.default_rng(0).standard_normal((700, 50)).astype(np.float32)
START = 3  # no multiple of an element's size


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "weights.bin"
    made.write_bytes(b"abc" + DATA.tobytes() + b"xyz")
    return made


def stored(path: Path) -> StoredArray:
    return StoredArray(StoredFile(path), START, DATA.dtype, DATA.shape)


def descriptors(path: Path) -> int:
    found = 0
    for entry in Path("/proc/self/fd").iterdir():
        try:
            found += entry.samefile(path)
        except OSError:  # the descriptor of the listing
            continue
    return found


def test_the_array(path: Path) -> None:
    found = stored(path)
    assert (found.shape, found.dtype, found.nbytes) == (DATA.shape, DATA.dtype, DATA.nbytes)
    np.testing.assert_array_equal(found.array, DATA)
    np.testing.assert_array_equal(np.asarray(found), DATA)
    assert found.array.flags.aligned, "the place in the file is not"
    assert not found.array.flags.writeable
    with pytest.raises(ValueError, match="WRITEABLE"):
        found.array.flags.writeable = True
    copy = np.array(found)
    copy += 1
    np.testing.assert_array_equal(found.array, DATA)


@pytest.mark.parametrize("shape", [(0,), (3, 0), (), (1,), (LARGE // 4,), (LARGE // 4 - 1,)])
def test_small_and_empty_arrays(path: Path, shape: tuple[int, ...]) -> None:
    found = StoredArray(StoredFile(path), START, DATA.dtype, shape).array
    np.testing.assert_array_equal(found, DATA.reshape(-1)[: found.size].reshape(shape))


@pytest.mark.parametrize("block", [1001, DATA.nbytes // 2, DATA.nbytes - 1, DATA.nbytes, 1 << 22])
def test_blocks_are_the_bytes_of_the_array(path: Path, monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    monkeypatch.setattr("graphkit.ir.stored._BLOCK", block)
    found = [bytes(part) for part in stored(path).blocks()]
    assert b"".join(found) == DATA.tobytes()
    assert {len(part) for part in found[:-1]} <= {block}


def test_blocks_of_an_overwritten_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graphkit.ir.stored._BLOCK", 1 << 12)
    blocks = stored(path).blocks()
    next(blocks)
    path.write_bytes(bytes(path.stat().st_size))
    with pytest.raises(FileChanged):
        list(blocks)


def test_it_is_read_once_while_somebody_holds_it_or_a_view(path: Path) -> None:
    found = stored(path)
    first = found.array
    assert np.shares_memory(first, found.array)
    view = first[1:, ::2]
    memory = weakref.ref(first.base if first.base is not None else first)
    del first
    assert np.shares_memory(view, found.array)
    del view
    gc.collect()
    assert memory() is None, "nothing keeps what nobody holds"
    np.testing.assert_array_equal(found.array, DATA)


def test_bytes_of_a_file(path: Path) -> None:
    file = StoredFile(path)
    assert file.read_bytes(1, 5) == path.read_bytes()[1:6]
    path.write_bytes(b"x" * file.size)
    os.utime(path, ns=(0, 0))
    with pytest.raises(FileChanged, match="overwritten"):
        file.read_bytes(1, 5)


def test_borrowed_arrays_share_memory(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    monkeypatch.setattr(ir_stored, "_pages", lambda size, filled: (made.append(size), bytearray(size))[1])
    scratch = Scratch()
    for _ in range(3):
        scratch.clear()
        array, other = stored(path).borrowed(scratch), stored(path).borrowed(scratch)
        np.testing.assert_array_equal(array, DATA)
        np.testing.assert_array_equal(other, DATA)
        assert not np.may_share_memory(array, other)
        assert scratch.overlaps(array)
        assert scratch.overlaps(other)
        assert not array.flags.writeable
    assert len(made) == 2
    assert not scratch.overlaps(DATA)


def test_larger_arrays_get_larger_scratch_memory() -> None:
    scratch = Scratch()
    small = scratch.take(10)
    scratch.clear()
    large = scratch.take(5 << 20)
    assert (len(small), len(large)) == (10, 5 << 20)


def test_an_array_that_somebody_holds_is_not_read_again(path: Path) -> None:
    array, scratch = stored(path), Scratch()
    held = array.array
    assert np.may_share_memory(array.borrowed(scratch), held)
    assert not scratch.overlaps(held)


def test_the_file_is_open_as_long_as_an_array_needs_it(path: Path) -> None:
    one = stored(path)
    two = StoredArray(one._file, START, DATA.dtype, (7,))
    assert descriptors(path) == 1
    held = one.array
    del one
    assert descriptors(path) == 1
    del two
    assert descriptors(path) == 0
    np.testing.assert_array_equal(held, DATA)


def truncated(path: Path) -> None:
    os.truncate(path, 1000)


def truncated_and_written_again(path: Path) -> None:
    path.write_bytes(path.read_bytes())


def changed(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(START + 40)
        file.write(b"\1")


def grown(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"\0")


@pytest.mark.parametrize("write", [truncated, truncated_and_written_again, changed, grown])
def test_a_file_that_is_written_in_place(path: Path, write: Callable[[Path], None]) -> None:
    before = stored(path)
    held = stored(path)
    array = held.array
    write(path)
    with pytest.raises(FileChanged, match=r"weights\.bin was overwritten while it was in use"):
        _ = before.array
    np.testing.assert_array_equal(array, DATA)
    np.testing.assert_array_equal(held.array, DATA)


def test_a_write_just_after_the_file_was_made(path: Path) -> None:
    """Its time of modification is another one, although the clock of files goes in steps."""
    for byte in range(20):
        path.write_bytes(b"abc" + DATA.tobytes())
        found = stored(path)
        with path.open("r+b") as file:
            file.write(bytes([byte]))
        with pytest.raises(FileChanged):
            _ = found.array


def test_a_file_that_is_replaced_or_removed(path: Path) -> None:
    found = stored(path)
    other = path.with_name("other")
    other.write_bytes(b"\0" * path.stat().st_size)
    other.replace(path)
    np.testing.assert_array_equal(found.array, DATA)
    again = stored(path)
    path.unlink()
    np.testing.assert_array_equal(again.array, 0)


def test_what_is_no_write(path: Path) -> None:
    found = stored(path)
    path.chmod(0o600)
    os.link(path, path.with_name("link"))
    path.rename(path.with_name("renamed"))
    np.testing.assert_array_equal(found.array, DATA)


def test_a_file_from_the_future_is_opened_at_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As those of a server whose clock is ahead."""
    own = SimpleNamespace(time_ns=time.time_ns, sleep=lambda _: pytest.fail("waits"))
    monkeypatch.setattr("graphkit.ir.stored.time", own)
    os.utime(path, (2e9, 2e9))
    np.testing.assert_array_equal(stored(path).array, DATA)


def test_many_threads_at_once(path: Path) -> None:
    found, results = stored(path), list[bool]()
    barrier = threading.Barrier(8)

    def read() -> None:
        barrier.wait()
        results.extend(bool((found.array == DATA).all()) for _ in range(50))

    threads = [threading.Thread(target=read) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [True] * 400


def test_a_forked_process_reads_for_itself(path: Path) -> None:
    program = f"""
import os, sys
import numpy as np
from graphkit.ir.stored import StoredArray, StoredFile
from pathlib import Path
found = StoredArray(StoredFile(Path({str(path)!r})), {START}, np.dtype("float32"), {DATA.shape})
children = []
for number in range(4):
    child = os.fork()
    if not child:
        total = sum(float(found.array.sum()) for _ in range(100))
        del found
        os._exit(total != 100 * float(np.fromfile({str(path)!r}, np.float32, {DATA.size}, offset={START}).sum()))
    children.append(child)
assert all(os.waitpid(child, 0)[1] == 0 for child in children)
assert found.array.size == {DATA.size}, "the children have closed their own descriptors"
"""
    subprocess.run([sys.executable, "-P", "-W", "error", "-c", program], check=True, timeout=300)


def test_half_of_the_descriptors_are_for_others(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = StoredFile(path)
    assert file.may_stay_open
    for limit, is_high in ((8, False), (2 * descriptor_of(file) + 2, True), (-1, True)):
        monkeypatch.setattr(os, "sysconf", lambda _, limit=limit: limit)
        assert file.may_stay_open is is_high


def descriptor_of(file: StoredFile) -> int:
    return int(file.descriptor_path.rpartition("/")[2])


def test_more_than_there_is_memory_for(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    monkeypatch.setattr("mmap.mmap", full)
    with pytest.raises(MemoryError, match="140000 bytes: Cannot allocate"):
        _ = stored(path).array
