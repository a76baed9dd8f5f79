"""Limits of size, number and time; access by key, host and origin."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from handmade import write_scaled

import graphkit as gk
from graphkit.serving.guard import Access
from graphkit.serving.repository import ModelRepository
from graphkit.serving.serve import check_api_key
from graphkit.serving.server import Server, access_for, is_loopback
from graphkit.serving.settings import Settings

KEY = "a-key-of-many-characters"
INFER = "/v2/models/scaled/infer"


@pytest.fixture
def slow(tmp_path):
    """Write a model with a loop. Its input is the number of iterations."""
    n = gk.input("x", [1], dtype="int64")
    count = gk.while_loop(lambda i: i < gk.squeeze(n), lambda i: i + 1, gk.constant(np.int64(0)))
    gk.Model({"y": gk.reshape(count, gk.constant(np.array([1])))}).save(tmp_path / "slow.onnx")
    return tmp_path / "slow.onnx"


def test_large_bodies(served, scaled):
    client = served([scaled], max_body=1000, max_json=500)
    answer = client.post(INFER, content=bytes(1001))
    assert answer.status_code == 413
    assert "--max-body" in answer.json()["error"]
    assert answer.headers["connection"] == "close"
    chunks = (bytes(200) for _ in range(10))  # without Content-Length
    assert client.post(INFER, content=chunks).status_code == 413
    answer = client.post(INFER, content=b" " * 501)
    assert answer.status_code == 413
    assert "--max-json" in answer.json()["error"]


def test_bytes_in_progress(served, scaled, ask):
    client = served([scaled], max_pending=300)
    answer = client.post(INFER, content=bytes(301))
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "1"
    assert "--max-pending" in answer.json()["error"]
    assert ask(client, [[1, 2, 3]])[0] == 200
    assert "graphkit_http_pending_bytes 0.0" in client.get("/metrics").text


def test_a_run_beyond_the_time_limit(served, slow, ask):
    client = served([slow], timeout=0.3)
    status, answer = ask(client, np.array([10**12]), "slow", "INT64")
    assert status == 504
    assert "--timeout" in answer["error"]
    for _ in range(100):  # on a busy machine, a short run may take longer than the limit
        status, answer = ask(client, np.array([10]), "slow", "INT64")
        if status != 504:
            break
    assert answer["outputs"][0]["data"] == [10]


def test_iterations_are_limited(served, slow, ask):
    client = served([slow], max_iterations=100)
    status, answer = ask(client, np.array([10**12]), "slow", "INT64")
    assert status == 504
    assert "100 iterations" in answer["error"]


def test_too_many_requests(served, scaled, hold_runs, ask):
    client = served([scaled], max_queue=1, timeout=120.0)
    held, found = hold_runs(), []
    first = threading.Thread(target=lambda: found.append(ask(client, [[1, 2, 3]])[0]))
    first.start()
    try:
        assert held.begun.wait(60)
        assert "graphkit_http_requests_in_progress 2.0" in client.get("/metrics").text
        answer = client.post(INFER, json={})
        assert answer.status_code == 503
        assert answer.headers["retry-after"] == "1"
        assert "--max-queue" in answer.json()["error"]
        assert client.get("/v2/health/live").status_code == 200
    finally:
        held.go.set()
        first.join()
    assert found == [200]


def test_memory_is_limited(served, tmp_path, ask):
    x = gk.input("x", ["N", 3])
    gk.Model({"y": gk.reduce_sum(gk.expand(x, gk.constant(np.array([1 << 20, 1, 3]))), [0], keepdims=0)}).save(
        tmp_path / "wide.onnx"
    )
    client = served([tmp_path / "wide.onnx"], max_memory="1MB")
    status, answer = ask(client, [[1, 2, 3]], "wide")
    assert status == 503
    assert "max_memory" in answer["error"]


def test_settings_are_checked(scaled):
    wrong = [("max_batch", 0), ("max_delay", -1.0), ("timeout", 0.0)]
    for number in (float("nan"), float("inf"), 1e300):
        wrong += [("max_delay", number), ("timeout", number), ("drain", number)]
    for name, value in wrong:
        with pytest.raises(gk.errors.UsageError, match=f"{name}="):
            Server(ModelRepository([scaled]), port=0, drain=value) if name == "drain" else Settings(**{name: value})


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"Authorization": "Bearer wrong"}, 401),
        ({"Authorization": f"Basic {KEY}"}, 401),
        ({"Authorization": "Bearer ü".encode()}, 401),
        ({"Authorization": f"bearer {KEY}"}, 200),
        ({"X-API-Key": KEY}, 200),
    ],
)
def test_an_api_key(served, scaled, headers, status):
    client = served([scaled], Access(KEY))
    for path in ("/v2", "/v2/models/scaled", "/metrics", "/predict"):
        answer = client.get(path, headers=headers)
        assert answer.status_code == status
        assert KEY not in answer.text
    for path in ("/", "/v2/health/live", "/v2/health/ready"):
        assert client.get(path).status_code == 200


def test_keys_are_safe():
    check_api_key(KEY)
    for wrong in ("short", "with a space and more", "ümlaut-of-many-characters", "line\nline-of-characters"):
        with pytest.raises(gk.errors.InputError, match="at least 16 characters"):
            check_api_key(wrong)


def test_other_hosts_and_origins(served, scaled):
    client = served([scaled], access_for("127.0.0.1", None))
    for headers, status in (
        ({"Host": "localhost:8000"}, 200),
        ({"Host": "[::1]:8000"}, 200),
        ({"Host": "attacker.example"}, 403),
        ({"Host": "localhost.attacker.example"}, 403),
        ({"Host": "localhost:8000", "Origin": "http://localhost:8000"}, 200),
        ({"Host": "localhost:8000", "Origin": "http://attacker.example"}, 403),
        ({"Host": "localhost:8000", "Origin": "null"}, 403),
        ({"Host": "[::1"}, 403),
        ({"Host": "localhost:8000", "Origin": "http://[::1"}, 403),
    ):
        assert client.get("/v2", headers=headers).status_code == status, headers


def test_loopback_and_its_hosts():
    assert all(map(is_loopback, ("localhost", "127.0.0.1", "127.3.2.1", "::1")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "10.0.0.1", "example.org")))
    assert access_for("0.0.0.0", None).hosts is None
    assert access_for("127.0.0.1", KEY).hosts is None


def test_errors_with_paths_that_are_not_utf8(served, scaled, monkeypatch, ask):
    client = served([scaled])

    def fail(*arguments, **options):
        raise gk.errors.InputError("\udcff.onnx cannot be read")

    monkeypatch.setattr("graphkit.serving.served_model.ServedModel.submit", fail)
    assert ask(client, [[1, 2, 3]])[1] == {"error": "model 'scaled': \\udcff.onnx cannot be read"}


def test_an_internal_error_shows_no_details(served, tmp_path, monkeypatch, ask):
    client = served([write_scaled(tmp_path / "scaled.onnx")])

    def fail(*arguments, **options):
        raise ZeroDivisionError("secret")

    monkeypatch.setattr("graphkit.serving.served_model.ServedModel.submit", fail)
    status, answer = ask(client, [[1, 2, 3]])
    assert (status, answer) == (500, {"error": "internal error: ZeroDivisionError"})
