"""The C library keeps converted networks in a folder, and converts a network again if anything of it has changed."""

import concurrent.futures
import hashlib
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from converters import MODEL, OUTPUT, opened, write_script
from onnx import TensorProto, helper

from graphkit.executor.devices.cpu import native
from graphkit.executor.run import c_runtime


class Cached:
    """Opens networks with a cache folder, and counts conversions."""

    def __init__(self, folder, mlp_file):
        self.folder, self.log = folder / "kept", folder / "log"
        self.converter = write_script(folder / "copies", f'echo "{MODEL}" >> "{self.log}"; cp "{mlp_file}" "{OUTPUT}"')

    def converts(self, path, **options):
        """Open a network. Return how often it was converted."""
        before = self.count()
        options = {"converter": self.converter, "cache_folder": os.fsencode(self.folder)} | options
        assert opened(path, **options) == ("GK_OK", "", 1)
        assert [path.suffix for path in self.folder.iterdir()] == [".gkp"] * len(list(self.folder.iterdir()))
        return self.count() - before

    def count(self):
        return len(self.log.read_text().splitlines()) if self.log.exists() else 0


@pytest.fixture
def cached(tmp_path, mlp_file):
    return Cached(tmp_path, mlp_file)


@pytest.fixture
def path(tmp_path):
    (tmp_path / "net.onnx").write_bytes(b"a network")
    return tmp_path / "net.onnx"


def test_hash_is_that_of_hashlib():
    data = np.random.default_rng(0).integers(0, 256, 1000, dtype=np.uint8)
    for size in (0, 1, 127, 128, 129, 255, 256, 257, 1000):
        expected = hashlib.blake2b(data[:size].tobytes(), digest_size=32).hexdigest()
        for piece in (1, 64, 100, 128, 1000):
            assert native.blake2b(data[:size], piece) == expected


def hash_in_parts(data):
    """The hash of long contents: eight hashes of hashlib, each of every eighth word."""
    words = np.zeros((data.size // 1024 + 1) * 128, np.uint64)
    words.view(np.uint8)[: data.size] = data
    parts = [hashlib.blake2b(words[i::8].tobytes()).digest() for i in range(8)]
    states = np.frombuffer(b"".join(parts), np.uint64).reshape(8, 8).T
    return hashlib.blake2b(data.size.to_bytes(8, "little") + states.tobytes(), digest_size=32).hexdigest()


@pytest.mark.parametrize("isa", ["baseline", ""])
def test_hash_in_parts_is_that_of_hashlib(isa):
    """Pieces of any size have the same hash, on all processors."""
    data = np.random.default_rng(0).integers(0, 256, 5000, dtype=np.uint8)
    try:
        native.use_isa(isa)
        for size in (0, 1, 1023, 1024, 1025, 2048, 5000):
            expected = hash_in_parts(data[:size])
            for piece in (1, 100, 1023, 1024, 1025, 3000, 5000):
                found = native.Blake2b8()
                for start in range(0, size, piece):
                    found.update(data[start : min(start + piece, size)])
                assert found.hexdigest() == expected
    finally:
        native.use_isa("")


def test_second_opening_needs_no_conversion(cached, path, tmp_path):
    assert cached.converts(path) == 1
    assert cached.converts(path) == 0
    # The name of the file does not matter.
    assert cached.converts(path.rename(tmp_path / "renamed.onnx")) == 0
    (kept,) = cached.folder.iterdir()
    assert (stat.S_IMODE(kept.stat().st_mode), stat.S_IMODE(cached.folder.stat().st_mode)) == (0o600, 0o700)


def test_damaged_entry_is_made_again(cached, path):
    assert cached.converts(path) == 1
    (kept,) = cached.folder.iterdir()
    whole = kept.read_bytes()
    for damaged in (b"", whole[:-1], whole[:-1] + bytes([whole[-1] ^ 1])):
        kept.write_bytes(damaged)
        assert cached.converts(path) == 1
        assert kept.read_bytes() == whole


def test_other_settings_make_other_entries(cached, path, monkeypatch):
    assert cached.converts(path) == 1
    assert cached.converts(path, converter_arguments=[b"x:2,4"]) == 1
    assert cached.converts(path, converter_arguments=[b"x:2", b"4"]) == 1
    assert cached.converts(path, converter_arguments=[b"x:2,4"]) == 0
    monkeypatch.setenv("GRAPHKIT_SEED", "3")
    assert cached.converts(path) == 1
    path.write_bytes(b"another network")
    assert cached.converts(path) == 1


def test_network_that_changes_during_the_conversion_is_not_kept(path, mlp_file, cached, tmp_path):
    changes = write_script(tmp_path / "changes", f'echo more >> "{MODEL}"; cp "{mlp_file}" "{OUTPUT}"')
    cached.converts(path, converter=changes)
    assert list(cached.folder.iterdir()) == []


def test_network_may_be_shortened_while_it_is_read(tmp_path):
    """In a process of its own: a mapped file would end it by SIGBUS."""
    script = f"""
import os, sys, threading
sys.path.insert(0, {str(Path(__file__).parent)!r})
from converters import opened
path, cache, is_over = {str(tmp_path / "net.onnx")!r}, {os.fsencode(tmp_path / "kept")!r}, threading.Event()
def write():
    while not is_over.is_set():
        os.truncate(path, 0)
        os.truncate(path, 1 << 21)
open(path, "wb").close()
writer = threading.Thread(target=write)
writer.start()
found = {{opened(path, converter=b"", cache_folder=cache).status for _ in range(100)}}
is_over.set()
writer.join()
assert found == {{"GK_ERROR_CONVERTER"}}, found
"""
    subprocess.run([sys.executable, "-P", "-c", script], check=True, timeout=100)


def test_location_at_a_boundary_of_pieces_is_found(cached, tmp_path):
    """A network is read in pieces of 256 KiB."""
    external_model(tmp_path / "net.onnx", "net.onnx.data")
    whole, data = (tmp_path / "net.onnx").read_bytes(), tmp_path / "net.onnx.data"
    start = whole.index(b"location")
    for before in (0, 4, 9, 15, 22):
        (tmp_path / "net.onnx").write_bytes(bytes((1 << 18) - start - before) + whole)
        data.write_bytes(b"first")
        assert cached.converts(tmp_path / "net.onnx") == 1
        data.write_bytes(b"other")
        assert cached.converts(tmp_path / "net.onnx") == 1


def test_cache_needs_no_converter(cached, path, monkeypatch):
    found = opened(path, converter=b"", cache_folder=os.fsencode(cached.folder))
    assert found.status == "GK_ERROR_CONVERTER"
    assert cached.converts(path) == 1
    Path(os.fsdecode(cached.converter)).rename(cached.folder.parent / "moved")
    assert cached.converts(path) == 0
    monkeypatch.setenv("GRAPHKIT_CONVERTER", str(cached.folder.parent / "moved"))
    assert cached.converts(path, converter=None) == 1
    assert cached.converts(path, converter=b"") == 0


def test_changed_converter_converts_again(cached, path):
    assert cached.converts(path) == 1
    script = Path(os.fsdecode(cached.converter))
    before = script.read_text()
    script.write_text(before + "# changed\n")
    assert cached.converts(path) == 1
    assert cached.converts(path) == 0
    script.write_text(before)
    assert cached.converts(path) == 0
    assert len(list(cached.folder.iterdir())) == 2


def networks(folder, count):
    """Write networks of different contents."""
    found = [folder / f"net{number}.onnx" for number in range(count)]
    for number, path in enumerate(found):
        path.write_bytes(b"network %d" % number)
    return found


def test_entry_that_was_not_used_for_longest_is_removed(cached, tmp_path, mlp_file):
    first, second, third = networks(tmp_path, 3)
    size = mlp_file.stat().st_size
    assert [cached.converts(path, cache_bytes=2 * size) for path in (first, second)] == [1, 1]
    for age, entry in enumerate(cached.folder.iterdir()):
        os.utime(entry, (1e9 + age, 1e9 + age))
    assert cached.converts(first, cache_bytes=2 * size) == 0
    digits = "0123456789abcdef" * 8  # other programs name files by their hashes, too
    names = ("of users", digits[:64], digits, digits[:64] + "-other", digits[:70] + "-" + digits[:32])
    others = {cached.folder / f"{name}.gkp" for name in names}
    for other in others:
        other.write_bytes(bytes(size))
        os.utime(other, (1, 1))
    assert cached.converts(third, cache_bytes=2 * size) == 1
    assert others <= set(cached.folder.iterdir())
    assert [cached.converts(path, cache_bytes=2 * size) for path in (first, third, second)] == [0, 0, 1]


def test_entry_has_the_time_of_its_conversion(cached, path, tmp_path, mlp_file):
    """Not that of a file that the converter copied: the entry would be removed first."""
    old = Path(shutil.copyfile(mlp_file, tmp_path / "old.gkp"))
    os.utime(old, (1, 1))
    converter = write_script(tmp_path / "copies with times", f'cp -p "{old}" "{OUTPUT}"')
    cached.converts(path, converter=converter)
    (kept,) = cached.folder.iterdir()
    assert kept.stat().st_mtime > 1


def test_a_folder_in_the_place_of_an_entry_is_named_before_the_conversion(cached, path):
    assert cached.converts(path) == 1
    (kept,) = cached.folder.iterdir()
    kept.unlink()
    kept.mkdir()
    status, message, _ = opened(path, converter=cached.converter, cache_folder=os.fsencode(cached.folder))
    assert status == "GK_ERROR_FILE"
    assert f"{kept} is a folder" in message
    assert cached.count() == 1


def test_program_above_the_bound_is_not_kept(cached, path, mlp_file):
    for bound, kept in ((mlp_file.stat().st_size - 1, 0), (mlp_file.stat().st_size, 1), (-1, 1), (0, 1)):
        assert cached.converts(path, cache_bytes=bound) == 1
        assert len(list(cached.folder.iterdir())) == kept
        shutil.rmtree(cached.folder)
    found = opened(path, converter=cached.converter, cache_bytes=-2)
    assert found.status == "GK_ERROR_ARGUMENT"
    assert "cache_bytes must not be below -1" in found.text


def test_programs_compiled_before_the_bound_can_use_the_cache(cached, path):
    older = c_runtime._Options.cache_bytes.offset
    assert cached.converts(path, size=older) == 1
    assert cached.converts(path, size=older, cache_bytes=-2) == 0


def test_several_callers_keep_to_the_bound(cached, tmp_path, mlp_file):
    bound = 3 * mlp_file.stat().st_size
    options = {"converter": cached.converter, "cache_folder": os.fsencode(cached.folder), "cache_bytes": bound}
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda path: opened(path, **options), networks(tmp_path, 6) * 2))
    assert {each.status for each in found} == {"GK_OK"}
    entries = list(cached.folder.iterdir())
    assert 1 <= len(entries) <= 3
    assert {entry.read_bytes() for entry in entries} == {mlp_file.read_bytes()}


def external_model(path, location):
    """An ONNX file with a tensor in another file."""
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[2], data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value=location)
    node = helper.make_node("Constant", [], ["y"], value=tensor)
    graph = helper.make_graph([node], "g", [], [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])])
    path.write_bytes(helper.make_model(graph).SerializeToString())


def test_changed_external_data_are_converted(cached, tmp_path, monkeypatch):
    (tmp_path / "real").mkdir()
    monkeypatch.chdir(tmp_path / "real")
    external_model(tmp_path / "real" / "net.onnx", "net.onnx.data")
    data = tmp_path / "real" / "net.onnx.data"
    (tmp_path / "link.onnx").symlink_to("real/net.onnx")
    for path in ("net.onnx", tmp_path / "link.onnx"):
        data.write_bytes(b"12345678")
        cached.converts(path)
        assert cached.converts(path) == 0
        data.write_bytes(os.urandom(8))
        assert cached.converts(path) == 1
        data.unlink()
        assert cached.converts(path) == 1


def test_changed_parameters_of_mxnet_are_converted(cached, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net-symbol.json").write_text("{}")
    for name in ("net-0001.params", "net-0002.params"):
        (tmp_path / name).write_bytes(b"parameters")
        assert cached.converts("net-symbol.json") == 1
        assert cached.converts(tmp_path / "net-symbol.json") == 0
    (tmp_path / "net-0001.params").write_bytes(b"other data")
    assert cached.converts("net-symbol.json") == 1


def test_changed_files_of_arguments_are_converted(cached, path, tmp_path):
    """The cache may be inside of such a folder."""
    run = tmp_path / "run"
    (run / "inner").mkdir(parents=True)
    (tmp_path / "rate.npy").write_bytes(b"rate")
    cached.folder = run / "kept"
    files = {
        b"rate=%s/rate.npy" % bytes(tmp_path): tmp_path / "rate.npy", b"--adapter=%s:0.5" % bytes(run): run / "a",
        bytes(run): run / "inner" / "b",
    }  # fmt: skip
    for argument, file in files.items():
        assert cached.converts(path, converter_arguments=[argument]) == 1
        assert cached.converts(path, converter_arguments=[argument]) == 0
        file.write_bytes(b"changed")
        assert cached.converts(path, converter_arguments=[argument]) == 1
        assert cached.converts(path, converter_arguments=[argument]) == 0


def test_cache_folder_may_begin_with_a_dash(cached, path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    cached.folder = Path("-kept")
    assert cached.converts(path) == 1
    assert cached.converts(path) == 0


def test_folder_of_other_users_is_refused(cached, path):
    cached.folder.mkdir()
    for mode in (0o777, 0o770, 0o1777):
        cached.folder.chmod(mode)
        found = opened(path, converter=cached.converter, cache_folder=os.fsencode(cached.folder))
        assert found.status == "GK_ERROR_FILE"
        assert "other users may write into it" in found.text
    found = opened(path, converter=cached.converter, cache_folder=os.fsencode(path))
    assert (found.status, found.text) == ("GK_ERROR_FILE", f"{path} (gk_options.cache_folder): not a folder")
    assert cached.count() == 0
