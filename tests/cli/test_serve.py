"""graphkit serve: wrong arguments, output, and the missing extra."""

from __future__ import annotations

import importlib.util
import json
import signal
import subprocess
import sys
import urllib.request

import numpy as np
import pytest

import graphkit as gk


@pytest.fixture
def net(tmp_path):
    x = gk.input("x", ["N", 3])
    gk.Model({"y": x * gk.constant(np.float32(2))}).save(tmp_path / "net.onnx")
    return tmp_path / "net.onnx"


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["none.onnx"], 2, "none.onnx: no such file"),
        (["a=none.onnx"], 2, "none.onnx: no such file"),
        (["net.onnx", "net.onnx"], 2, "two models are called 'net'"),
        (["."], 2, "two models are called 'net'"),
        (["net.onnx", "--tls-cert", "net.onnx"], 2, "--tls-key"),
        (["net.onnx", "--tls-cert", "net.onnx", "--tls-key", "net.onnx"], 2, "cannot be used"),
        (["net.onnx", "--api-key-file", "none.txt"], 2, "none.txt: the file cannot be read"),
        (["net.onnx", "--api-key-file", "short.txt"], 2, "--api-key-file short.txt: the API key must have at least 16"),
        (["net.onnx", "--max-body", "much"], 2, "not an amount of memory"),
        (["net.onnx", "--timeout", "0"], 2, "--timeout"),
        (["net.onnx", "--timeout", "inf"], 2, "timeout=inf: expected a number of seconds"),
        (["net.onnx", "--max-delay-ms", "inf"], 2, "max_delay=inf: expected a number of seconds"),
        (["net.onnx", "--drain", "nan"], 2, "drain=nan: expected a number of seconds"),
        (["net.onnx", "--host", "256.0.0.1"], 5, "cannot listen on 256.0.0.1"),
    ],
)
def test_wrong_arguments(call, net, monkeypatch, arguments, code, message):
    monkeypatch.chdir(net.parent)
    (net.parent / "net" / "1").mkdir(parents=True)
    (net.parent / "net" / "1" / "model.onnx").write_bytes(net.read_bytes())
    (net.parent / "short.txt").write_text("short\n")
    found, out, err = call("serve", *arguments, "--port", 0, "--json")
    assert found == code
    assert message in err
    assert json.loads(out)["exit_code"] == code


def test_an_empty_variable_is_no_key(call, net, monkeypatch):
    monkeypatch.setenv("GRAPHKIT_API_KEY", "")
    code, _, err = call("serve", net, "--port", 0)
    assert code == 2
    assert "variable GRAPHKIT_API_KEY: the API key must have" in err


def test_a_missing_extra_is_named(call, net, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name == "uvicorn" else find(name, *a))
    code, _, err = call("serve", net)
    assert code == 5
    assert "needs uvicorn; install with: pip install '.[serve]'" in err


def test_the_address_is_printed(net, tmp_path):
    (tmp_path / "key.txt").write_text("a-key-of-many-characters\n")
    command = [
        *(sys.executable, "-P", "-m", "graphkit", "serve", f"own={net}", "--port", "0", "--json", "--threads", "1"),
        *("--host", "0.0.0.0", "--drain", "0"),
    ]
    environment = {"GRAPHKIT_API_KEY": "a-key-of-many-characters", "PATH": ""}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment) as server:
        lines = []
        while not lines or lines[-1] != b"}\n":
            lines.append(server.stdout.readline())
            assert lines[-1], server.stderr.read()
        found = json.loads(b"".join(lines))
        assert found["schema"] == "graphkit.serve"
        url = found["url"].replace("0.0.0.0", "127.0.0.1")
        request = urllib.request.Request(f"{url}/v2/models/own", headers={"X-API-Key": "a-key-of-many-characters"})
        with urllib.request.urlopen(request, timeout=300) as answer:
            assert json.loads(answer.read())["name"] == "own"
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(f"{url}/v2/models/own", timeout=300)
        server.send_signal(signal.SIGTERM)
        log = [json.loads(line) for line in server.stderr.read().splitlines()]
        assert server.wait(120) == 0
    assert [line["event"] for line in log] == [
        "loaded",
        "listening",
        "request",
        "request",
        "stopping",
        "unloaded",
        "stopped",
    ]
