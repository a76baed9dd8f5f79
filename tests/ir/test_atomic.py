"""Temporary files: those of killed processes are removed, and those of running processes stay."""

import os
import re
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest
from combinations import in_one_item

import graphkit as gk
from graphkit.ir import atomic
from graphkit.ir.atomic import PendingFile, remove_abandoned, scratch_folder, write_whole

WRITER = """
    import sys, time
    from pathlib import Path
    from graphkit.ir.atomic import PendingFile, scratch_folder
    with PendingFile(Path(sys.argv[1]), "other.bin") as file, scratch_folder() as folder:
        (folder / "large").write_text("much")
        file.write(b"half")
        file.finish()
        print(folder, flush=True)
        time.sleep(600)
"""


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """A folder for temporary files of this test alone."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)
    yield folder
    tempfile.tempdir = None


@pytest.fixture
def writer(tmp_path, elsewhere):
    """A process in the middle of writing."""
    child = subprocess.Popen(
        [sys.executable, "-P", "-c", textwrap.dedent(WRITER), str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    child.scratch = Path(child.stdout.readline().strip())
    yield child
    child.kill()
    child.wait()
    child.stdout.close()


def temporary(folder):
    return [p for p in folder.iterdir() if p.name.endswith(".tmp")]


def test_leftovers_go_when_their_writer_is_gone(tmp_path, writer, elsewhere):
    write_whole(tmp_path / "file", [b"whole"])
    with scratch_folder() as mine:
        assert mine.parent == elsewhere
    assert len(temporary(tmp_path)) == 1, "its writer lives"
    assert (writer.scratch / "large").exists()
    writer.send_signal(signal.SIGKILL)
    writer.wait()
    write_whole(tmp_path / "file", [b"whole"])
    with scratch_folder():
        pass
    assert not temporary(tmp_path)
    assert not list(elsewhere.iterdir())


def test_a_file_of_this_process_stays(tmp_path):
    with PendingFile(tmp_path, "a") as first:
        first.write(b"a")
        with PendingFile(tmp_path, "a") as second:
            second.write(b"b")
            second.commit(tmp_path / "a")
        first.finish()
        remove_abandoned(tmp_path)
        first.commit(tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == b"a"
    assert not temporary(tmp_path)


def test_only_files_of_ours_go(tmp_path):
    others = [".x.tmp", "x.0123456789ab.graphkit.tmp", ".x.0123.graphkit.tmp", ".x.0123456789ab.tmp"]
    for name in others:
        (tmp_path / name).touch()
    (tmp_path / ".x.0123456789ab.graphkit.tmp").touch()
    remove_abandoned(tmp_path)
    assert {p.name for p in tmp_path.iterdir()} == set(others)


def test_a_file_that_is_taken_for_abandoned_before_it_is_locked(tmp_path, monkeypatch):
    lock, removed = atomic.try_lock, []

    def late(descriptor):
        if not removed:
            removed.extend(temporary(tmp_path))
            removed[0].unlink()
        return lock(descriptor)

    monkeypatch.setattr(atomic, "try_lock", late)
    write_whole(tmp_path / "file", [b"whole"])
    assert removed
    assert (tmp_path / "file").read_bytes() == b"whole"


def test_without_locks_age_decides(tmp_path, monkeypatch):
    monkeypatch.setattr(atomic, "try_lock", lambda descriptor: None)
    old, young = (tmp_path / f".x.{digit * 12}.graphkit.tmp" for digit in "01")
    for path in (old, young):
        path.touch()
    os.utime(old, (0, time.time() - 2 * 3600))
    write_whole(tmp_path / "file", [b"whole"])
    assert temporary(tmp_path) == [young]


def test_data_of_a_model_that_was_never_finished_go(tmp_path):
    """Killed between the external data of an ONNX file and the file."""
    from graphkit.onnx_io import exporter

    x = gk.input("x", ["N", 64])
    net = gk.Model(gk.nn.linear(x, 64, name="fc"), seed=0)
    for external in (True, False):
        (tmp_path / "net-0123456789abcdef.data").write_text("orphan")
        exporter.save(net.graph, net.params, tmp_path / "net.onnx", external=external)
        found = sorted(p.name for p in tmp_path.iterdir())
        assert len(found) == 1 + external
        assert not external or re.fullmatch(r"net-[0-9a-f]{16}\.data", found[0])
        assert "net-0123456789abcdef.data" not in found


@in_one_item()
@pytest.mark.parametrize("size", [0, 1, atomic._BUFFER, atomic._PIECE, atomic._PIECE + 1, 3 * atomic._PIECE + 5])
def test_content_of_any_size_is_written(tmp_path, size):
    numbers = np.random.default_rng(0).integers(0, 1 << 16, (size, 2), np.uint16)
    chunks = [b"head", numbers.data, numbers.tobytes(), memoryview(b"tail")]
    write_whole(tmp_path / "file", chunks)
    assert (tmp_path / "file").read_bytes() == b"".join(map(bytes, chunks))


def test_writing_to_disk_starts_early(tmp_path, monkeypatch):
    started = []

    def start(descriptor, offset, size, flags):
        assert os.fstat(descriptor).st_size == offset + size  # nothing is left in a buffer of this process
        started.append((offset, size, flags))
        return -1  # as on a file system that cannot do it

    monkeypatch.setattr(atomic, "_sync_file_range", lambda: start)
    piece = atomic._PIECE
    monkeypatch.setattr(atomic, "_EARLY", 2 * piece)
    content = np.random.default_rng(0).bytes(5 * piece + 3)
    write_whole(tmp_path / "file", [content[:10], content[10:]])
    assert (tmp_path / "file").read_bytes() == content
    assert started == [(0, 2 * piece + 10, 2), (2 * piece + 10, 2 * piece, 2)]
    started.clear()
    write_whole(tmp_path / "small", [content[: 2 * piece - 1]])
    assert not started


def test_the_system_accepts_early_writing(tmp_path, monkeypatch):
    monkeypatch.setattr(atomic, "_EARLY", 2 * atomic._PIECE)
    content = np.random.default_rng(0).bytes(5 * atomic._PIECE + 3)
    write_whole(tmp_path / "file", [content])
    assert (tmp_path / "file").read_bytes() == content
    assert (atomic._sync_file_range() is not None) == (sys.platform == "linux")
