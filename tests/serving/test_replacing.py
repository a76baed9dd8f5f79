"""A model is loaded again: nothing is done for an equal file, the queue continues, files may be overwritten."""

from __future__ import annotations

import asyncio
import os
import threading

import numpy as np
import pytest
from handmade import write_scaled

import graphkit as gk
from graphkit.executor.memory import packing
from graphkit.executor.run.session import Executor
from graphkit.serving.errors import Retired
from graphkit.serving.repository import ModelRepository
from graphkit.serving.settings import Settings


@pytest.fixture
def loaded():
    """`loaded(path, **settings)`: a repository with the models of a path, which are loaded."""
    made = []

    def load(path, **settings):
        made.append(ModelRepository([path], Settings(threads=1, **settings)))
        made[-1].load_all()
        return made[-1]

    yield load
    for each in made:
        each.close()


def write_dense(path, factor=1.0, meta=None):
    """Write a model of float32 [N, 512] whose weights of 1 MiB stay in the file until they are read."""
    x = gk.input("x", ["N", 512])
    net = gk.Model({"y": gk.nn.linear(x, 512, bias=False, name="fc")}, meta=meta)
    net.params["fc_weight"] = np.full((512, 512), factor, np.float32)
    net.save(path)
    return path


async def asked(model, *, rows=1, width=512):
    (name,) = (each.name for each in model.inputs)
    result = await model.submit({name: np.ones((rows, width), np.float32)}, 60.0)
    return result.outputs["y"]


def test_an_equal_file_is_not_compiled_again(tmp_path, loaded, caplog):
    path = write_dense(tmp_path / "net.onnx")
    repository = loaded(path)
    before = repository.get("net")
    write_dense(path)  # another file with the same content
    caplog.set_level("INFO", "graphkit.serve")
    repository.reload()
    assert repository.get("net") is before
    assert [record.msg for record in caplog.records] == ["unchanged"]
    assert asyncio.run(asked(before))[0, 0] == 512
    write_dense(path, meta={"note": "changed"})
    repository.load("net")
    assert repository.get("net").model.meta["note"] == "changed"


def test_a_file_of_equal_size_and_time_is_noticed(tmp_path, loaded):
    path = write_dense(tmp_path / "net.onnx")
    before = path.stat()
    repository = loaded(path)
    for factor in (2.0, 3.0):
        write_dense(path, factor)
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        assert path.stat().st_size == before.st_size
        repository.load("net")
        assert asyncio.run(asked(repository.get("net")))[0, 0] == 512 * factor


def test_the_sign_of_a_zero_is_noticed(tmp_path, loaded):
    """A comparison of numbers would keep the attribute of the old file, because 0.0 equals -0.0."""
    x, path = gk.input("x", ["N", 3]), tmp_path / "net.onnx"
    gk.Model({"y": gk.leaky_relu(-x, alpha=0.0)}).save(path)
    repository = loaded(path)
    assert np.signbit(asyncio.run(asked(repository.get("net"), width=3))).all()
    gk.Model({"y": gk.leaky_relu(-x, alpha=-0.0)}).save(path)
    repository.load("net")
    assert not np.signbit(asyncio.run(asked(repository.get("net"), width=3))).any()


def test_random_numbers_begin_again(tmp_path, loaded):
    x = gk.input("x", ["N", 3])
    gk.Model({"y": x + gk.random_normal_like(x)}).save(tmp_path / "net.onnx")
    repository = loaded(tmp_path / "net.onnx")
    first = asyncio.run(asked(repository.get("net"), width=3))
    repository.load("net")
    np.testing.assert_array_equal(asyncio.run(asked(repository.get("net"), width=3)), first)


def test_requests_in_the_queue_get_the_new_weights(tmp_path, loaded, monkeypatch):
    """The run in progress ends with the old ones. The thread stays."""
    path = write_dense(tmp_path / "net.onnx")
    repository = loaded(path)
    old = repository.get("net")
    thread = old._batcher._thread
    begun, go = threading.Event(), threading.Event()
    run = Executor.run

    def held(*arguments, **options):
        if threading.current_thread() is thread:
            begun.set()
            assert go.wait(60)
        return run(*arguments, **options)

    monkeypatch.setattr(Executor, "run", held)

    async def ask():
        running = asyncio.ensure_future(asked(old))
        await asyncio.to_thread(begun.wait, 60)
        waiting = asyncio.ensure_future(asked(old))
        await asyncio.sleep(0)
        write_dense(path, 5.0)
        await asyncio.to_thread(repository.load, "net")
        late = asyncio.ensure_future(asked(old))  # found before the model was replaced
        await asyncio.sleep(0)
        go.set()
        return [array[0, 0] for array in await asyncio.gather(running, waiting, late)]

    assert asyncio.run(ask()) == [512, 5 * 512, 5 * 512]
    new = repository.get("net")
    assert new is not old
    assert new._batcher._thread is thread
    old.close()  # it has no queue any more
    assert asyncio.run(asked(new))[0, 0] == 5 * 512


def test_requests_of_another_graph_are_answered_before(tmp_path, loaded):
    path = write_dense(tmp_path / "net.onnx")
    repository = loaded(path)
    old = repository.get("net")
    write_dense(path, 5.0, meta={"classes": '["a"]'})
    repository.load("net")
    with pytest.raises(Retired):
        asyncio.run(asked(old))
    assert asyncio.run(asked(repository.get("net")))[0, 0] == 5 * 512


def test_a_failed_load_leaves_the_queue(tmp_path, loaded, monkeypatch):
    """Of two versions, the first one was read again already."""
    for version in ("1", "2"):
        (tmp_path / "net" / version).mkdir(parents=True)
        write_dense(tmp_path / "net" / version / "model.onnx")
    repository = loaded(tmp_path)
    write_dense(tmp_path / "net" / "1" / "model.onnx", 5.0)
    (tmp_path / "net" / "2" / "model.onnx").write_bytes(b"no")
    with pytest.raises(gk.errors.InvalidModel):
        repository.load("net")
    for version in ("1", "2"):
        assert asyncio.run(asked(repository.get("net", version)))[0, 0] == 512


async def asked_images(model, rows):
    """Return the number of rows of the answer to a request with images for `write_convolution`."""
    result = await model.submit({"x": np.zeros((rows, 128, 4, 4), np.float32)}, 60.0)
    return len(result.outputs["y"])


def write_convolution(path):
    """Write a convolution, which has other layouts of its weights for other numbers of rows."""
    x = gk.input("x", ["N", 128, 4, 4])
    gk.Model({"y": gk.nn.conv2d(x, 128, kernel=3, pad=1, name="c")}).save(path)
    return path


def test_an_overwritten_file_does_not_disturb_a_model(tmp_path, loaded):
    path = write_convolution(tmp_path / "net.onnx")
    repository = loaded(path, max_batch=4)
    model = repository.get("net")
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(gk.errors.InvalidModel):
        repository.load("net")
    for rows in (1, 3, 8, 32):  # more rows than a batch may have need their own runs
        assert asyncio.run(asked_images(model, rows)) == rows


def test_a_full_batch_packs_nothing(tmp_path, loaded, monkeypatch):
    model = loaded(write_convolution(tmp_path / "net.onnx"), max_batch=64).get("net")
    packed = []
    pack = packing._packed
    monkeypatch.setattr(packing, "_packed", lambda *arguments: packed.append(1) or pack(*arguments))
    assert asyncio.run(asked_images(model, 64)) == 64
    assert packed == []


def test_close_waits_for_a_load_in_progress(tmp_path):
    closing = []

    def reader(path):
        closing.append(threading.Thread(target=repository.close))
        closing[0].start()
        closing[0].join(0.2)
        return gk.load(path)

    repository = ModelRepository([write_scaled(tmp_path / "net.onnx")], Settings(threads=1), reader=reader)
    repository.load("net")
    closing[0].join(60)
    assert repository.loaded() == []


def test_nothing_is_loaded_while_the_server_stops(tmp_path):
    """A reload of many models ends after the present one."""
    for name in ("a", "b"):
        write_scaled(tmp_path / f"{name}.onnx")
    read = []

    def reader(path):
        read.append(path.stem)
        if len(read) == 3:
            repository.drain()
        return gk.load(path)

    repository = ModelRepository([tmp_path], Settings(threads=1), reader=reader)
    repository.load_all()
    repository.reload()
    assert read == ["a", "b", "a"]
    with pytest.raises(Retired, match="the server stops"):
        repository.load("b")
    repository.close()


def test_the_last_bits_of_large_weights_are_compared(tmp_path, loaded):
    """They are read in several blocks."""
    x = gk.input("x", ["N", 1101])
    net = gk.Model({"y": gk.nn.linear(x, 1001, bias=False, name="fc")})
    net.save(tmp_path / "net.onnx")
    repository = loaded(tmp_path / "net.onnx")
    before = repository.get("net")
    repository.load("net")
    assert repository.get("net") is before
    weight = net.params["fc_weight"].copy()
    weight[-1, -1] += 1
    net.params["fc_weight"] = weight
    net.save(tmp_path / "net.onnx")
    repository.load("net")
    assert repository.get("net") is not before


def test_a_load_is_refused_while_the_server_stops(client):
    client.app.drain()
    answer = client.post("/v2/repository/models/scaled/load")
    assert answer.status_code == 503
    assert "the server stops" in answer.json()["error"]
