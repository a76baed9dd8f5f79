"""Hashes computed while files are read and written."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import textwrap
import types
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from combinations import in_one_item

from graphkit.executor.devices.extension import import_extension
from graphkit.ir import hashing
from graphkit.ir.hashing import BLAKE2B8, SHA256, hash_of

_LARGE = hashing._INLINE + 1


@in_one_item()
@pytest.mark.parametrize(
    "sizes", [[], [0], [5], [_LARGE], [5, _LARGE, 7, 7], [_LARGE] * 5, [_LARGE, 0, _LARGE, 3], [_LARGE - 1]]
)
def test_chunks_of_any_size(sizes: list[int]) -> None:
    rng = np.random.default_rng(0)
    chunks = [rng.bytes(size) for size in sizes]
    consumed: list[bytes | memoryview] = []
    assert hash_of(SHA256, chunks, consumed.append) == hash_of(SHA256, map(memoryview, chunks))
    assert hash_of(SHA256, chunks) == hashlib.sha256(b"".join(chunks)).hexdigest()
    assert consumed == chunks


@in_one_item()
@pytest.mark.parametrize("sizes", [[], [0], [1], [63, 1, 64, 65], [1023, 1], [1024], [5, _LARGE, 0, 7], [_LARGE] * 3])
def test_blake2b8_is_equal_with_and_without_the_extension(sizes: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    chunks = [rng.bytes(size) for size in sizes]
    import_extension()
    native = hash_of(BLAKE2B8, chunks)
    with monkeypatch.context() as patch:
        patch.delitem(sys.modules, "graphkit._native")
        assert hash_of(BLAKE2B8, chunks) == native
        assert hash_of(BLAKE2B8, [b"".join(chunks)]) == native


def test_weights_are_hashed_by_the_extension(tmp_path: Path) -> None:
    """In a new process, saving and loading import it for them. Without it, hashing takes several times as long."""
    code = """
        import sys
        import numpy as np
        import graphkit as gk
        from graphkit.ir import hashing
        class Refused:
            def __init__(self):
                raise AssertionError("hashed in Python")
        hashing._Blake2b8 = Refused
        if sys.argv[1] == "save":
            net = gk.Model(gk.relu(gk.parameter("w", [1 << 20], init="zeros")))
            net.params["w"] = np.ones(1 << 20, np.float32)
            net.save(sys.argv[2])
        else:
            assert gk.load(sys.argv[2]).params["w"].shape == (1 << 20,)
    """
    for action in ("save", "load"):
        command = [sys.executable, "-P", "-c", textwrap.dedent(code), action, str(tmp_path / "net.json")]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


def test_blake2b8_does_not_change() -> None:
    """Files contain it."""
    expected = "7cf6afd619021bf9a474aad749347135c2666bdc24f15a1fb8ee17e7f8cddb8f"
    assert hash_of(BLAKE2B8, [bytes(range(256)) * 20]) == expected


def test_blake2b8_while_another_thread_imports_the_extension(monkeypatch: pytest.MonkeyPatch) -> None:
    """The module is known before it has its classes."""
    expected = hash_of(BLAKE2B8, [b"weights"])
    monkeypatch.setitem(sys.modules, "graphkit._native", types.ModuleType("graphkit._native"))
    assert hash_of(BLAKE2B8, [b"weights"]) == expected


def test_two_buffers_used_by_turns() -> None:
    """The hash of a chunk has ended when its buffer is filled again."""
    content = np.random.default_rng(1).integers(0, 256, (40, 1 << 20), np.uint8)

    def blocks() -> Iterator[memoryview]:
        buffers = [np.empty(1 << 20, np.uint8) for _ in range(2)]
        for number, block in enumerate(content):
            buffers[number % 2][:] = block
            yield buffers[number % 2].data

    assert hash_of(SHA256, blocks()) == hashlib.sha256(content).hexdigest()


def test_errors_of_producer_and_consumer_are_raised() -> None:
    def fail(chunk: object = None) -> Iterator[bytes]:
        yield bytes(_LARGE)
        raise OSError("no")

    with pytest.raises(OSError, match="no"):
        hash_of(SHA256, fail())

    def refuse(chunk: object) -> None:
        raise OSError("full")

    with pytest.raises(OSError, match="full"):
        hash_of(SHA256, [bytes(_LARGE)] * 3, refuse)


def test_while_the_interpreter_ends() -> None:
    """No thread starts then."""
    code = """
        import atexit
        from graphkit.ir.hashing import SHA256, hash_of
        atexit.register(lambda: print(hash_of(SHA256, [bytes(1 << 20), b"end"])))
    """
    done = subprocess.run([sys.executable, "-P", "-c", textwrap.dedent(code)], capture_output=True, text=True)
    assert (done.stderr, done.stdout) == ("", hashlib.sha256(bytes(1 << 20) + b"end").hexdigest() + "\n")
