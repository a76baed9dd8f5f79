"""Models and versions: which are found, loaded, replaced and unloaded, and that no request is lost by it."""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from handmade import write_scaled

import graphkit as gk
from graphkit.serving.repository import ModelRepository
from graphkit.serving.served_model import ServedModel
from graphkit.serving.settings import Settings
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


def test_names_and_versions_that_cannot_be_served(tmp_path):
    write_scaled(tmp_path / "stats" / "stats.onnx")
    with pytest.raises(gk.errors.UsageError, match=r"cannot be called 'stats'.*NAME=PATH"):
        found(tmp_path / "stats" / "stats.onnx")
    for version in ("1", "01", "\N{SUPERSCRIPT TWO}", "\N{ARABIC-INDIC DIGIT TWO}"):
        write_scaled(tmp_path / "twice" / version / "model.onnx")
    with pytest.raises(gk.errors.UsageError, match=r"version 1 of model 'twice'.*twice/01/.*twice/1/"):
        found(tmp_path / "twice")
    (tmp_path / "twice" / "01" / "model.onnx").unlink()
    assert list(found(tmp_path / "twice")["twice"]) == [1]
    name = os.fsdecode(b"\xff.onnx")
    (tmp_path / name).touch()
    with pytest.raises(gk.errors.UsageError, match=r"udcff.onnx'.* not UTF-8"):
        found(tmp_path / name)


def test_a_clash_leaves_other_models_manageable(served, tmp_path, ask, caplog):
    """The error of the server names no files; the log does. Such names do not break the index."""
    for name in ("a", "b"):
        write_scaled(tmp_path / f"{name}.onnx")
    client = served([tmp_path])
    clash = write_scaled(tmp_path / "a" / "1" / "model.onnx")
    (tmp_path / os.fsdecode(b"\xff.onnx")).touch()
    answer = client.post("/v2/repository/models/a/load")
    assert answer.status_code == 500
    assert "two models have this name" in answer.json()["error"]
    assert str(tmp_path) not in answer.text
    assert any(str(clash) in vars(record).get("error", "") for record in caplog.records)
    assert client.post("/v2/repository/models/b/load").status_code == 200
    assert value(ask, client, "a") == value(ask, client, "b") == 2.0
    entries = {entry["name"]: entry for entry in client.post("/v2/repository/index").json()}
    assert entries["a"]["state"] == entries["b"]["state"] == "READY"
    assert entries["a"]["reason"] == "two models have this name"
    assert entries["\\udcff"]["state"] == "UNAVAILABLE"
    shutil.rmtree(clash.parent.parent)
    assert client.post("/v2/repository/models/a/load").status_code == 200


def test_reload_unloads_removed_models(tmp_path):
    """If a folder cannot be read, nothing is unloaded."""
    for name in ("a", "b"):
        write_scaled(tmp_path / "models" / f"{name}.onnx")
    repository = ModelRepository([tmp_path / "models"])
    repository.load_all()
    (tmp_path / "models").rename(tmp_path / "other")
    repository.reload()
    assert [model.name for model in repository.loaded()] == ["a", "b"]
    with pytest.raises(gk.errors.RuntimeFailure, match="source of models cannot be read"):
        repository.load("b")
    (tmp_path / "other").rename(tmp_path / "models")
    content = (tmp_path / "models" / "b.onnx").read_bytes()
    (tmp_path / "models" / "b.onnx").unlink()
    repository.reload()
    assert [model.name for model in repository.loaded()] == ["a"]
    (tmp_path / "models" / "b.onnx").write_bytes(content)
    repository.reload()
    assert [model.name for model in repository.loaded()] == ["a", "b"]
    repository.close()


def test_waiting_loads_do_not_delay_other_requests(served, scaled, monkeypatch):
    """More loads wait than there are threads for other work. Too many get status 503."""
    client = served([scaled])
    repository = client.app.repository
    go = threading.Event()
    monkeypatch.setattr(repository, "load", lambda name: go.wait(60))
    monkeypatch.setattr("graphkit.serving.repository_routes._MOST_CHANGES", 40)
    status = []
    with client:  # one event loop for all threads
        load = lambda: status.append(client.post("/v2/repository/models/scaled/load").status_code)  # noqa: E731
        threads = [threading.Thread(target=load) for _ in range(41)]
        for thread in threads:
            thread.start()
        try:
            while not status:  # one of them is refused
                time.sleep(0.01)
            assert client.get("/metrics").status_code == 200
        finally:
            go.set()
            for thread in threads:
                thread.join()
    assert sorted(status) == [200] * 40 + [503]


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
    for body in (b"{", b"[]", b'{"parameters": 3}', json.dumps({"parameters": {"a" * 300_000: 1}})):
        answer = client.post("/v2/repository/models/scaled/load", content=body)
        assert answer.status_code == 400
        assert len(answer.content) < 400
    assert len(client.post("/v2/repository/index", json={"ready": [0] * 300_000}).content) < 400


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
    write_scaled(tmp_path / "a.onnx", 3.0)
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
    for step in range(6):
        write_scaled(scaled, name=f"version {step}")  # else nothing is compiled
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


def test_programs_are_compiled_before_the_first_request(tmp_path, monkeypatch):
    """That of one row, and that of several if requests share runs."""
    seen = []
    compute = ServedModel._compute

    def counted(self, feeds, timeout=None):
        seen.append(len(feeds["x"]))
        return compute(self, feeds, timeout)

    monkeypatch.setattr(ServedModel, "_compute", counted)
    for size, rows in (("N", [1, 2]), (1, [1])):
        seen.clear()
        gk.Model({"y": gk.relu(gk.input("x", [size, 3]))}).save(tmp_path / "net.onnx")
        repository = ModelRepository([tmp_path / "net.onnx"], Settings(threads=1, max_batch=6))
        repository.load_all()
        repository.close()
        assert seen == rows
