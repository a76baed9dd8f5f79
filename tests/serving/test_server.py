"""Servers on a real socket: aborted and slow connections, TLS, signals, and the end under load."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from handmade import encoded, write_scaled

import graphkit as gk
from graphkit.serving.repository import ModelRepository
from graphkit.serving.server import Server
from graphkit.serving.settings import Settings

# A key and its certificate for localhost until 2126, for this test only.
KEY = """-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgcVtNYUXKkqOWwD3K
qHH4NNeGrzuui54VNMjPkMbpqWGhRANCAAS+MlXmIJ9mb/KFwwMvfdYn2nEMcRHq
/EO9sEHreVdKFzSpp7I5HdMQ8ICYaIwUbK3Ti9vFnBUb5irxlPrP7RWH
-----END PRIVATE KEY-----
"""
CERTIFICATE = """-----BEGIN CERTIFICATE-----
MIIBmjCCAUGgAwIBAgIUHUvbGsJmPruADtfHSmSmJBrSNbAwCgYIKoZIzj0EAwIw
FDESMBAGA1UEAwwJbG9jYWxob3N0MCAXDTI2MTEzMDAzMjExOVoYDzIxMjYxMTA2
MDMyMTE5WjAUMRIwEAYDVQQDDAlsb2NhbGhvc3QwWTATBgcqhkjOPQIBBggqhkjO
PQMBBwNCAAS+MlXmIJ9mb/KFwwMvfdYn2nEMcRHq/EO9sEHreVdKFzSpp7I5HdMQ
8ICYaIwUbK3Ti9vFnBUb5irxlPrP7RWHo28wbTAdBgNVHQ4EFgQUhhIQBGBlzJq3
mYPQ97U0vNEhNscwHwYDVR0jBBgwFoAUhhIQBGBlzJq3mYPQ97U0vNEhNscwDwYD
VR0TAQH/BAUwAwEB/zAaBgNVHREEEzARgglsb2NhbGhvc3SHBH8AAAEwCgYIKoZI
zj0EAwIDRwAwRAIgYZcHoyuSKrJ3fYOJ6W+Tn0o2pVdOsFA5g9YHuMnTPHsCIA18
iDEJ34S2el1Y1iuZ6Y10c3s++WPeydgmDMtQP00s
-----END CERTIFICATE-----
"""
ARRAY = np.array([[1.0, 2.0, 3.0]], np.float32)
BODY, HEADERS = encoded("x", "FP32", ARRAY)


class Running:
    """A server in a thread. port: where it listens."""

    def __init__(self, repository, **options):
        self.server = Server(repository, port=0, drain=0.0, **options)
        self.port = int(self.server.url.rpartition(":")[2])
        self.started = threading.Event()
        self._thread = threading.Thread(target=self.server.run, args=(self.started.set,))
        self._thread.start()
        assert self.started.wait(60)

    def stop(self):
        self.server.stop()
        self._thread.join(60)
        assert not self._thread.is_alive()


@pytest.fixture
def running(scaled):
    made = []

    def start(models=None, tls=None, **settings):
        repository = ModelRepository(models or [scaled], Settings(threads=1, **settings))
        made.append(Running(repository, tls=tls))
        return made[-1]

    yield start
    for each in made:
        each.stop()


def infer(connection, path="/v2/models/scaled/infer"):
    connection.request("POST", path, BODY, HEADERS)
    answer = connection.getresponse()
    return answer.status, json.loads(answer.read())


def is_right(found):
    return found[0] == 200 and found[1]["outputs"][0]["data"] == [2.0, 4.0, 6.0]


def connect(port):
    return http.client.HTTPConnection("127.0.0.1", port, timeout=30)


def raw(port, data):
    """Send bytes; return the received bytes until the server closes the connection, or resets it."""
    found = b""
    with socket.create_connection(("127.0.0.1", port), timeout=300) as connection, contextlib.suppress(ConnectionError):
        connection.sendall(data)
        while part := connection.recv(1 << 16):
            found += part
    return found


def test_broken_connections_do_not_disturb_others(running):
    server = running()
    head = f"POST /v2/models/scaled/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(BODY)}\r\n"
    head += "".join(f"{name}: {value}\r\n" for name, value in HEADERS.items()) + "\r\n"
    good = connect(server.port)
    assert is_right(infer(good))
    broken = []
    for sent in (b"", b"POST /v2", head.encode(), head.encode() + BODY[:20], head.encode() + BODY):
        connection = socket.create_connection(("127.0.0.1", server.port))
        connection.sendall(sent)
        broken.append(connection)
        assert is_right(infer(good))
    for connection in broken:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # close() resets
        connection.close()
        assert is_right(infer(good))
    assert b" 400 " in raw(server.port, b"\0\1\2\r\n\r\n")
    huge = b"GET /v2 HTTP/1.1\r\nHost: localhost\r\nA: " + b"a" * (1 << 17)
    assert b" 200 " not in raw(server.port, huge)  # and it ends
    large = b"POST /v2/models/scaled/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\n"
    assert b" 413 " in raw(server.port, large)
    assert is_right(infer(good))
    good.close()


def test_slow_requests_end(running, monkeypatch):
    server = running(timeout=0.4)
    with monkeypatch.context() as patched:
        patched.setattr("graphkit.serving.connections._HEAD_SECONDS", 0.2)
        for _ in range(10):  # without an answer, the time was over before the first bytes were sent
            if answer := raw(server.port, b"GET /v2 HTT"):
                break
    assert b"did not arrive in time" in answer
    head = b"POST /v2/models/scaled/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: 50\r\n\r\n"
    answer = raw(server.port, head + b"{")
    assert b" 408 " in answer
    assert b"only 1 bytes of the body" in answer


GET = b"GET /v2 HTTP/1.1\r\nHost: localhost\r\n"


@pytest.mark.parametrize("request_", [GET + b"Content-Length: 9\r\n\r\n", GET + b"\r\n"])
def test_bytes_after_an_answer_do_not_keep_connections(running, monkeypatch, request_):
    """The rest of a body, or line ends."""
    monkeypatch.setattr("graphkit.serving.server._KEEP_ALIVE", 0.5)
    port = running().port
    with socket.create_connection(("127.0.0.1", port), timeout=300) as connection:
        connection.sendall(request_)
        answer = b""
        while not answer.endswith(b"}"):  # the head and the body may arrive one after the other
            part = connection.recv(1 << 16)
            assert part
            answer += part
        assert b" 200 " in answer
        with contextlib.suppress(ConnectionError):
            connection.sendall(b"\r\n")
            assert connection.recv(1) == b""


def test_trailers_are_bounded(running):
    head = b"POST /v2/models/scaled/infer HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    trailers = b"2\r\n{}\r\n0\r\nA: " + b"a" * (4 << 20)
    assert b" 408 " not in raw(running(timeout=5.0).port, head + trailers)  # it closes the connection without waiting


def test_connections_are_bounded(running):
    """The limit is exact. Further connections get an error that is logged and counted, and end without a request."""
    port = running(max_connections=2).port
    kept = [connect(port), connect(port)]
    for each in kept:
        each.connect()
    status, found = infer(connect(port))
    assert status == 503
    assert "--max-connections" in found["error"]
    with socket.create_connection(("127.0.0.1", port), timeout=300) as idle, contextlib.suppress(ConnectionError):
        while idle.recv(1 << 10):
            pass
    kept[0].request("GET", "/metrics")
    assert b'graphkit_http_responses_total{status="503"}' in kept[0].getresponse().read()
    for each in kept:
        each.close()


def test_malformed_requests_are_counted(running):
    port = running().port
    answer = raw(port, b"no HTTP\r\n\r\n")
    assert b" 400 " in answer
    assert "error" in json.loads(answer.partition(b"\r\n\r\n")[2])
    connection = connect(port)
    connection.request("GET", "/metrics")
    assert b'graphkit_http_responses_total{status="400"} 1.0' in connection.getresponse().read()
    connection.close()


@pytest.mark.parametrize("chunked", [False, True])
def test_offers_of_other_protocols_are_ignored(running, chunked):
    """Clients of Java, and `curl --http2`, offer HTTP/2 with each request without TLS."""
    port = running().port
    offer = {"Connection": "Upgrade, HTTP2-Settings", "Upgrade": "h2c", "HTTP2-Settings": "AAMAAABk"}
    connection = connect(port)
    for _ in range(2):  # the connection stays open
        body = iter([BODY[:9], BODY[9:]]) if chunked else BODY
        connection.request("POST", "/v2/models/scaled/infer", body, HEADERS | offer, encode_chunked=chunked)
        answer = connection.getresponse()
        assert (answer.status, json.loads(answer.read())["outputs"][0]["data"]) == (200, [2.0, 4.0, 6.0])
        connection.request("GET", "/v2/health/live", headers=offer)
        assert connection.getresponse().read() == b'{"live":true}'
    connection.close()
    head = b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
    plain = b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    assert raw(port, head * 3 + plain).count(b'{"live":true}') == 4


def test_a_client_that_goes_leaves_the_queue(running, hold_runs):
    server = running(timeout=120.0)
    held = hold_runs()
    first, second, metrics = (connect(server.port) for _ in range(3))
    first.request("POST", "/v2/models/scaled/infer", BODY, HEADERS)
    assert held.begun.wait(60)
    second.request("POST", "/v2/models/scaled/infer", BODY, HEADERS)

    def queued():
        metrics.request("GET", "/metrics")
        text = metrics.getresponse().read().decode()
        return 'graphkit_queued_requests{model="scaled",version="1"} 1.0' in text

    until = time.monotonic() + 60
    while not queued():
        assert time.monotonic() < until
    second.close()
    while queued():
        assert time.monotonic() < until
    held.go.set()
    assert first.getresponse().status == 200
    first.close(), metrics.close()


def test_tls(running, tmp_path):
    (tmp_path / "key.pem").write_text(KEY)
    (tmp_path / "cert.pem").write_text(CERTIFICATE)
    server = running(tls=(tmp_path / "cert.pem", tmp_path / "key.pem"))
    assert server.server.url.startswith("https://127.0.0.1:")
    context = ssl.create_default_context(cafile=str(tmp_path / "cert.pem"))
    connection = http.client.HTTPSConnection("localhost", server.port, context=context, timeout=300)
    assert is_right(infer(connection))
    connection.close()
    with contextlib.closing(connect(server.port)) as plain, pytest.raises((http.client.HTTPException, OSError)):
        infer(plain)


def test_tls_handshakes_are_bounded(running, tmp_path, monkeypatch):
    """They count as connections. Those that take too long end."""
    monkeypatch.setattr("graphkit.serving.handshakes._REFUSED", 0)
    monkeypatch.setattr("graphkit.serving.handshakes._HANDSHAKE_SECONDS", 0.5)
    (tmp_path / "key.pem").write_text(KEY)
    (tmp_path / "cert.pem").write_text(CERTIFICATE)
    server = running(tls=(tmp_path / "cert.pem", tmp_path / "key.pem"), max_connections=2)
    idle = [socket.create_connection(("127.0.0.1", server.port), timeout=30) for _ in range(3)]
    begun = time.monotonic()
    assert idle[2].recv(1) == b""
    idle[0].settimeout(0.1)
    with pytest.raises(TimeoutError):
        idle[0].recv(1)
    idle[0].settimeout(30)
    for each in idle:
        with contextlib.suppress(ConnectionError):
            assert each.recv(1) == b""
        each.close()
    context = ssl.create_default_context(cafile=str(tmp_path / "cert.pem"))
    while True:  # until the server has counted the ends
        assert time.monotonic() - begun < 20
        connection = http.client.HTTPSConnection("localhost", server.port, context=context, timeout=30)
        with contextlib.closing(connection), contextlib.suppress(ConnectionError):
            assert is_right(infer(connection))
            break


def test_certificates_and_ports_that_cannot_be_used(scaled, tmp_path):
    repository = ModelRepository([scaled])
    (tmp_path / "cert.pem").write_text(CERTIFICATE)
    for other in ("none.pem", "cert.pem"):
        with pytest.raises(gk.errors.InputError, match=other):
            Server(repository, port=0, tls=(tmp_path / "cert.pem", tmp_path / other))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(gk.errors.RuntimeFailure, match=f"port {port}: .*another --port"):
            Server(repository, port=port)
    with pytest.raises(gk.errors.RuntimeFailure, match="cannot listen on no such host"):
        Server(repository, host="no such host", port=0)


def test_many_clients_get_their_own_answers(running):
    server = running(max_batch=16)
    wrong = []

    def send(number):
        connection = connect(server.port)
        for step in range(10):
            array = np.full((1 + step % 3, 3), 100.0 * number + step, np.float32)
            body, headers = encoded("x", "FP32", array, id=f"{number}-{step}")
            connection.request("POST", "/v2/models/scaled/infer", body, headers)
            answer = json.loads(connection.getresponse().read())
            data = answer["outputs"][0]["data"]
            if answer["id"] != f"{number}-{step}" or data != (2 * array).ravel().tolist():
                wrong.append((number, step, answer))
        connection.close()

    threads = [threading.Thread(target=send, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def started(path, log, *arguments, **options):
    """Start `graphkit serve` and return the process and its port."""
    command = [sys.executable, "-P", "-m", "graphkit", "serve", str(path), "--port", "0", "--threads", "1", *arguments]
    with log.open("wb") as file:
        process = subprocess.Popen(command, stderr=file, **options)
    until = time.monotonic() + 60
    while time.monotonic() < until:
        for line in log.read_text().splitlines():
            if '"listening"' in line:
                return process, int(json.loads(line)["url"].rpartition(":")[2])
        assert process.poll() is None, log.read_text()
        time.sleep(0.02)
    raise AssertionError(log.read_text())


def test_sigterm_and_sighup_under_load_lose_nothing(scaled, tmp_path):
    process, port = started(scaled, tmp_path / "log", "--drain", "0.3", "--max-batch", "4")
    seen: list[str] = []
    begun, ending = threading.Event(), threading.Event()

    def send():
        connection = None
        while True:
            is_new = connection is None
            if is_new:
                connection = connect(port)
                try:
                    connection.connect()
                except (ConnectionRefusedError, ConnectionResetError) as error:
                    connection.close()
                    if not ending.is_set():
                        seen.append(f"lost: {error!r}")
                    return
            try:
                connection.request("POST", "/v2/models/scaled/infer", BODY, HEADERS)
                answer = connection.getresponse()
                seen.append("right" if is_right((answer.status, json.loads(answer.read()))) else "wrong")
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                # The system resets connections that the server has not accepted when it stops to listen.
                if not (is_new and ending.is_set() and isinstance(error, (ConnectionResetError, BrokenPipeError))):
                    seen.append(f"lost: {error!r}")
                return
            begun.set()
            if answer.headers["connection"] == "close":
                connection.close()
                connection = None

    threads = [threading.Thread(target=send) for _ in range(8)]
    for thread in threads:
        thread.start()
    assert begun.wait(60)
    write_scaled(scaled, name="changed")
    os.kill(process.pid, signal.SIGHUP)
    until = time.monotonic() + 30
    while (tmp_path / "log").read_text().count('"loaded"') < 2:
        assert time.monotonic() < until
        time.sleep(0.02)
    ending.set()
    os.kill(process.pid, signal.SIGTERM)
    for thread in threads:
        thread.join()
    assert process.wait(60) == 0
    assert set(seen) == {"right"}
    last = json.loads(Path(tmp_path / "log").read_text().splitlines()[-1])
    assert (last["event"], last["answered"]) == ("stopped", len(seen))


def test_threads_switch_sooner_while_a_server_runs(running):
    before = sys.getswitchinterval()
    server = running()
    assert sys.getswitchinterval() == pytest.approx(0.001)
    server.stop()
    assert sys.getswitchinterval() == before


def test_sighup_while_models_load_is_remembered(scaled, monkeypatch):
    """The models are loaded again when the server answers. An error of that does not end the server."""
    killed = []
    before = signal.signal(signal.SIGHUP, lambda *arguments: killed.append(arguments))
    loads = []

    def reader(path):
        loads.append(path)
        if len(loads) == 1:
            os.kill(os.getpid(), signal.SIGHUP)
        return gk.load(path)

    def reload():
        loads.append(None)
        threading.Timer(0.3, server.stop).start()
        raise MemoryError

    repository = ModelRepository([scaled], Settings(threads=1), reader=reader)
    monkeypatch.setattr(repository, "reload", reload)
    server = Server(repository, port=0, drain=0.0)
    guard = threading.Timer(60, server.stop)
    guard.start()
    try:
        server.run()
    finally:
        signal.signal(signal.SIGHUP, before)
        guard.cancel()
    assert loads == [scaled, None]
    assert killed == []


@pytest.mark.full
def test_interrupt_ends_at_once(scaled, tmp_path):
    process, port = started(scaled, tmp_path / "log")
    idle = connect(port)
    idle.connect()
    os.kill(process.pid, signal.SIGINT)
    assert process.wait(60) == 0
    idle.close()


@pytest.mark.full
def test_a_model_that_fails_to_load_ends_the_command(tmp_path):
    write_scaled(tmp_path / "good.onnx")
    (tmp_path / "bad.onnx").write_bytes(b"no")
    command = [sys.executable, "-P", "-m", "graphkit", "serve", str(tmp_path), "--port", "0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 4
    assert "bad.onnx" in done.stderr.splitlines()[-1]


@pytest.mark.full
def test_sighup_during_imports_is_remembered(scaled, tmp_path):
    """A package is replaced by one whose import sends the signal, and then imports the real one."""
    fake = tmp_path / "fake" / "prometheus_client"
    fake.mkdir(parents=True)
    (fake / "__init__.py").write_text(
        "import os, signal, sys\nos.kill(os.getpid(), signal.SIGHUP)\nsys.path.remove(os.environ['FAKE'])\n"
        "del sys.modules[__name__]\nfrom importlib import import_module\nimport_module(__name__)\n"
    )
    options = {"env": {**os.environ, "PYTHONPATH": str(fake.parent), "FAKE": str(fake.parent)}}
    process, _ = started(scaled, tmp_path / "log", **options)
    until = time.monotonic() + 30
    while '"unchanged"' not in (tmp_path / "log").read_text():
        assert process.poll() is None
        assert time.monotonic() < until
        time.sleep(0.02)
    process.terminate()
    assert process.wait(60) == 0
