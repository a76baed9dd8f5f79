"""Models and versions: which are found, loaded, replaced and unloaded, and that no request is lost by it."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
from handmade import write_scaled

import graphkit as gk
from graphkit.serving.repository import ModelRepository
from graphkit.serving.sources import find_models, named_sources


def found(*models):
    return find_models(named_sources(list(models)))


def value(ask, client, model="scaled"):
    status, answer = ask(client, [[1.0, 1.0, 1.0]], model)
    return answer["outputs"][0]["data"][0] if status == 200 else status


def test_sources_of_every_kind(tmp_path):
    file = write_scaled(tmp_path / "file.onnx")
    plain = write_scaled(tmp_path / "repository" / "plain.onnx")
    old, new = (write_scaled(tmp_path / "repository" / "versions" / n / "model.onnx") for n in ("2", "10"))
    for other in ("repository/empty/1/notes.txt", "repository/versions/config.pbtxt", "repository/0/model.onnx"):
        (tmp_path / other).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / other).touch()
    run = tmp_path / "run"
    run.mkdir()
    gk.load(file).save(run / "model.json")
    assert found(file, tmp_path / "repository", run, ("own", plain)) == {
        "file": {1: file}, "plain": {1: plain}, "versions": {2: old, 10: new}, "run": {1: run}, "own": {1: plain},
    }  # fmt: skip
    assert found(tmp_path / "repository" / "versions") == {"versions": {2: old, 10: new}}


def test_two_models_of_one_name_are_both_named(tmp_path):
    first, second = write_scaled(tmp_path / "a" / "net.onnx"), write_scaled(tmp_path / "b" / "net.onnx")
    with pytest.raises(gk.errors.UsageError) as caught:
        found(first, second)
    assert all(text in str(caught.value) for text in ("'net'", str(first), str(second), "NAME=PATH"))


def test_sources_without_models(tmp_path):
    with pytest.raises(gk.errors.UsageError, match="no such file"):
        found(tmp_path / "none.onnx")
    with pytest.raises(gk.errors.UsageError, match="it contains no model"):
        found(tmp_path)
    with pytest.raises(gk.errors.UsageError, match="at least one model"):
        found()
    write_scaled(tmp_path / "x.onnx"), write_scaled(tmp_path / "y.onnx")
    with pytest.raises(gk.errors.UsageError, match="2 models, which cannot all be called 'n'"):
        found(("n", tmp_path))
    with pytest.raises(gk.errors.UsageError, match="not a name"):
        found(("a/b", tmp_path / "x.onnx"))


def test_the_newest_version_answers(served, tmp_path, ask):
    for version, factor in (("9", 9.0), ("10", 10.0)):
        write_scaled(tmp_path / "scaled" / version / "model.onnx", factor)
    client = served([tmp_path])
    assert value(ask, client) == 10.0
    assert value(ask, client, "scaled/versions/9") == 9.0
    assert value(ask, client, "scaled/versions/8") == 404
    assert client.get("/v2/models/scaled").json()["versions"] == ["9", "10"]


def test_index_load_and_unload(served, scaled, ask):
    client = served([scaled])
    index = lambda **body: client.post("/v2/repository/index", json=body).json()  # noqa: E731
    ready = {"name": "scaled", "version": "1", "state": "READY", "reason": ""}
    assert index() == index(ready=True) == [ready]
    assert client.post("/v2/repository/models/scaled/unload").status_code == 200
    assert value(ask, client) == 404
    assert client.get("/v2/models/scaled/ready").status_code == 404
    assert client.get("/v2/health/ready").status_code == 503
    assert index() == [ready | {"state": "UNAVAILABLE", "reason": "unloaded"}]
    assert index(ready=True) == []
    assert client.post("/v2/repository/models/scaled/unload").status_code == 404
    write_scaled(scaled, 5.0)
    assert client.post("/v2/repository/models/scaled/load", json={}).status_code == 200
    assert value(ask, client) == 5.0
    assert index() == [ready]


def test_requests_cannot_name_files(client, tmp_path):
    write_scaled(tmp_path / "other.onnx")
    for name in ("other", "..%2Fother.onnx", "%2Fetc%2Fpasswd", "other.onnx"):
        assert client.post(f"/v2/repository/models/{name}/load").status_code == 404
    for body in ({"parameters": {"config": "{}"}}, {"parameters": {"file:1/model.onnx": "AAAA"}}):
        answer = client.post("/v2/repository/models/scaled/load", json=body)
        assert answer.status_code == 400
        assert "only from the files of the repository" in answer.json()["error"]
    for body in (b"{", b"[]", b'{"parameters": 3}'):
        assert client.post("/v2/repository/models/scaled/load", content=body).status_code == 400


def test_a_damaged_file_keeps_the_old_version(served, scaled, ask):
    client = served([scaled])
    good = scaled.read_bytes()
    scaled.unlink()
    scaled.write_bytes(good[:40])
    answer = client.post("/v2/repository/models/scaled/load")
    assert answer.status_code == 500
    assert "scaled.onnx" in answer.json()["error"]
    assert value(ask, client) == 2.0
    (entry,) = client.post("/v2/repository/index").json()
    assert entry["state"] == "READY"
    assert "scaled.onnx" in entry["reason"]


def test_models_that_appear_can_be_loaded(served, tmp_path, ask):
    write_scaled(tmp_path / "first.onnx")
    client = served([tmp_path])
    write_scaled(tmp_path / "second.onnx", 3.0)
    assert value(ask, client, "second") == 404
    client.post("/v2/repository/models/second/load").raise_for_status()
    assert value(ask, client, "second") == 3.0


def test_reload_loads_all_but_unloaded_models(tmp_path):
    for name in ("a", "b"):
        write_scaled(tmp_path / f"{name}.onnx")
    repository = ModelRepository([tmp_path])
    repository.load_all()
    repository.unload("b")
    before = repository.get("a")
    write_scaled(tmp_path / "c.onnx")
    (tmp_path / "damaged.onnx").write_bytes(b"no")
    repository.reload()
    assert repository.get("a") is not before
    assert [model.name for model in repository.loaded()] == ["a", "c"]
    repository.close()


def test_any_error_of_a_load_keeps_the_old_versions(tmp_path):
    for version in ("1", "2"):
        write_scaled(tmp_path / "a" / version / "model.onnx")
    before = {thread.ident for thread in threading.enumerate()}
    failing = set()

    def reader(path):
        if path.parent.name in failing:
            raise MemoryError
        return gk.load(path)

    repository = ModelRepository([tmp_path], reader=reader)
    repository.load_all()
    old = repository.get("a")
    failing.add("2")
    repository.reload()
    assert repository.get("a") is old
    with pytest.raises(MemoryError):
        repository.load("a")
    repository.close()
    assert {t.ident for t in threading.enumerate() if t.name == "graphkit-serve a"} <= before


def test_statistics_survive_a_reload(client, ask):
    value(ask, client)
    client.post("/v2/repository/models/scaled/load").raise_for_status()
    value(ask, client)
    (found,) = client.get("/v2/models/scaled/stats").json()["model_stats"]
    assert found["inference_stats"]["success"]["count"] == 2


def test_reload_under_load_loses_nothing(served, scaled, ask):
    client = served([scaled], max_batch=4)
    stop = threading.Event()
    seen: list[object] = []

    def send(number):
        while not stop.is_set():
            status, answer = ask(client, np.full((1, 3), float(number)))
            seen.append(status == 200 and answer["outputs"][0]["data"] == [2.0 * number] * 3)

    threads = [threading.Thread(target=send, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(5):
        assert client.post("/v2/repository/models/scaled/load").status_code == 200
    stop.set()
    for thread in threads:
        thread.join()
    assert len(seen) > 5
    assert all(seen)


def test_a_model_that_cannot_be_loaded_stops_the_start(tmp_path):
    Path(tmp_path / "damaged.onnx").write_bytes(b"no")
    repository = ModelRepository([tmp_path])
    with pytest.raises(gk.errors.GraphkitError, match=r"damaged\.onnx"):
        repository.load_all()
