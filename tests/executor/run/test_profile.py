"""Profiling: Perfetto can read the trace, and the numbers of the table add up."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphkit as gk
from graphkit import cli
from graphkit.errors import UsageError
from graphkit.executor.run.engine import Engine
from graphkit.executor.run.profile import Profile, _own_times
from graphkit.executor.run.session import Executor


def network() -> tuple[gk.Model, Executor]:
    x = gk.input("x", ["N", 1, 8, 8])
    hidden = gk.relu(gk.nn.conv2d(x, 4, kernel=3, pad=1, name="conv1"))
    net = gk.Model({"y": gk.nn.linear(gk.flatten(hidden), 10, name="fc")}, name="small")
    return net, net.compile(threads=1, optimize=False)


X = np.ones((2, 1, 8, 8), np.float32)


def check_trace(trace: dict[str, Any]) -> list[dict[str, Any]]:
    """Check the format of every event, and that complete events of a row are nested."""
    events: list[dict[str, Any]] = trace["traceEvents"]
    rows: dict[int, list[tuple[float, float]]] = {}
    for event in events:
        assert event["ph"] in "XMC"
        assert isinstance(event["pid"], int)
        assert isinstance(event["name"], str)
        if event["ph"] == "X":
            assert event["dur"] >= 0
            assert event["ts"] >= 0
            rows.setdefault(event["tid"], []).append((event["ts"], -event["dur"]))
        if event["ph"] == "C":
            assert all(isinstance(v, int) for v in event["args"].values())
    named = {e["tid"] for e in events if e["name"] == "thread_name"}
    assert set(rows) <= named
    for row in rows.values():
        ends: list[float] = []
        for start, negative in sorted(row):
            while ends and ends[-1] <= start:
                ends.pop()
            assert not ends or start - negative <= ends[-1] + 1e-3
            ends.append(start - negative)
    return events


def test_trace_file_and_table(tmp_path: Path) -> None:
    _, exe = network()
    plain = exe.run({"x": X})["y"]
    with gk.profile(tmp_path / "trace.json") as profile:
        for _ in range(3):
            np.testing.assert_array_equal(exe.run({"x": X})["y"], plain)
    exe.run({"x": X})  # not recorded
    events = check_trace(json.loads((tmp_path / "trace.json").read_text()))
    steps = [e for e in events if e["ph"] == "X" and e["cat"] in ("native", "interpreted")]
    planned = [s for s in exe.plan.steps if s.kernel in ("native", "interpreted")]
    assert [e["args"]["node"] for e in steps] == [s.node for s in planned] * 3
    assert [e["name"] for e in steps] == [s.op for s in planned] * 3
    conv = next(e for e in steps if e["args"]["node"] == "conv1")
    assert conv["args"]["inputs"][:2] == ["float32[2, 1, 8, 8]", "float32[4, 1, 3, 3]"]
    assert conv["args"]["outputs"] == ["float32[2, 4, 8, 8]"]
    assert conv["args"]["bytes"] == 4 * (2 * 64 + 4 * 9 + 4 + 2 * 4 * 64)
    memory = [e["args"]["live bytes"] for e in events if e["ph"] == "C"]
    assert max(memory) == exe.plan.lower_bound
    assert memory[-1] == 0
    assert [e["name"] for e in events if e.get("cat") == "run"] == ["run small"] * 3

    operators = profile.operators
    assert sum(o.calls for o in operators) == len(steps)
    assert sum(o.share for o in operators) == pytest.approx(1)
    assert list(operators) == sorted(operators, key=lambda o: -o.seconds)
    assert sum(o.seconds for o in operators) < profile.seconds
    assert {o.operator: o.kind for o in operators} == {s.op: s.kernel for s in planned}
    assert "3 runs, " in str(profile)
    assert str(profile).count("Conv") == 1


def test_a_native_loop_and_the_steps_inside_it() -> None:
    w = np.eye(8, dtype=np.float32)
    last, _ = gk.scan(lambda h, x: (gk.mat_mul(h, w), h), gk.input("h", [1, 8]), gk.input("x", [5, 1]))
    exe = gk.Model(last).compile(threads=1)
    with gk.profile() as profile:
        exe.run({"h": np.ones((1, 8), np.float32), "x": np.ones((5, 1), np.float32)})
    events = check_trace(profile.trace())
    calls = {o.operator: o.calls for o in profile.operators}
    assert (calls["Scan"], calls["MatMul"]) == (1, 5)
    (outer,) = (e for e in events if e["name"] == "Scan")
    inner = [e for e in events if e["name"] == "MatMul"]
    assert all(e["args"]["node"].startswith(outer["args"]["node"] + "/") for e in inner)
    assert all(outer["ts"] <= e["ts"] <= outer["ts"] + outer["dur"] for e in inner)
    own = {o.operator: o.seconds for o in profile.operators}
    assert sum(own.values()) == pytest.approx(outer["dur"] / 1e6)


def test_own_time_leaves_out_what_is_inside() -> None:
    assert _own_times([("a/x", 10, 12), ("a/y", 13, 18), ("a", 9, 20), ("b", 20, 21)]) == [2, 5, 4, 1]
    assert _own_times([("a/b/c", 2, 3), ("a/b", 1, 4), ("a", 0, 9)]) == [1, 2, 6]
    assert _own_times([]) == []


def test_every_thread_and_engine_worker_has_a_row() -> None:
    _, exe = network()
    with gk.profile() as profile, Engine(2) as engine:

        def run() -> None:
            for _ in range(5):
                exe.run({"x": X})

        threads = [threading.Thread(target=run, name=f"runner {i}") for i in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        variable = engine.variable()
        engine.push(lambda: None, writes=[variable], name="load")
    events = check_trace(profile.trace())
    names = [e["args"]["name"] for e in events if e["name"] == "thread_name"]
    assert sorted(names)[1:] == ["runner 0", "runner 1", "runner 2"]
    assert names[-1].startswith("engine ")
    assert [e["name"] for e in events if e.get("cat") == "engine"] == ["load"]
    assert sum(e.get("cat") == "run" for e in events) == 15


def test_engines_that_were_there_before() -> None:
    with Engine(1) as engine:
        variable = engine.variable()
        engine.push(lambda: None, writes=[variable], name="before")
        engine.wait(variable)
        with gk.profile() as profile:
            engine.push(lambda: None, writes=[variable], name="inside")
            engine.wait(variable)
        engine.push(lambda: None, writes=[variable], name="after")
    assert [e["name"] for e in profile.trace()["traceEvents"] if e.get("cat") == "engine"] == ["inside"]


def test_one_profile_at_a_time(tmp_path: Path) -> None:
    _, exe = network()
    with gk.profile() as outer:
        with pytest.raises(UsageError, match="at a time"), gk.profile():
            pass
        exe.run({"x": X})
    assert outer.operators
    with pytest.raises(ZeroDivisionError), gk.profile(tmp_path / "trace.json"):
        raise ZeroDivisionError
    assert check_trace(json.loads((tmp_path / "trace.json").read_text()))
    assert str(Profile()).endswith("0 runs, 0.000 ms, 0.000 ms of it in steps")
    assert repr(Profile()) == "<Profile: 0 runs of 0 programs>"
    assert repr(outer) == "<Profile: 1 run of 1 program>"


def test_some_of_the_runs(tmp_path: Path) -> None:
    _, exe = network()
    path = tmp_path / "trace.json"
    with Engine(1) as engine, gk.profile(path, skip=2, runs=3) as profile:
        variable = engine.variable()
        for i in range(8):
            assert path.exists() is (i >= 5)
            engine.push(lambda: None, writes=[variable], name=f"load {i}")
            engine.wait(variable)
            exe.run({"x": X})
    events = check_trace(json.loads(path.read_text()))
    assert sum(e.get("cat") == "run" for e in events) == 3
    assert [e["name"] for e in events if e.get("cat") == "engine"] == ["load 3", "load 4"]
    assert "3 runs, " in str(profile)
    with gk.profile() as everything:
        exe.run({"x": X})
    assert "1 run, " in str(everything)
    with gk.profile(path, skip=9):
        exe.run({"x": X})
    assert not any(e["ph"] == "X" for e in json.loads(path.read_text())["traceEvents"])
    for options in ({"skip": -1}, {"runs": 0}):
        with pytest.raises(UsageError, match="skip= must be at least 0 and runs= at least 1"), gk.profile(**options):
            pass


def test_a_run_that_fails_is_in_the_trace() -> None:
    x = gk.input("x", [3])
    net = gk.Model(gk.gather(gk.exp(x), gk.input("i", [2], dtype="int64")))
    exe = net.compile(threads=1)
    feeds = {"x": np.ones(3, np.float32), "i": np.array([0, 7])}
    with gk.profile() as profile, pytest.raises(gk.GraphkitError):
        exe.run(feeds)
    assert [o.operator for o in profile.operators] == ["Exp"]
    np.testing.assert_allclose(exe.run(feeds | {"i": np.array([0, 2])})[net.outputs[0]], np.e * np.ones(2), rtol=1e-6)


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    net, _ = network()
    net.save(tmp_path / "net.onnx")
    monkeypatch.chdir(tmp_path)

    def graphkit(*arguments: str) -> str:
        assert cli.invoke(arguments) == 0
        return capsys.readouterr().out

    text = graphkit("run", "net.onnx", "x:2,1,8,8", "--profile", "trace.json")
    check_trace(json.loads((tmp_path / "trace.json").read_text()))
    assert "time per operator" in text
    assert "Conv" in text
    result = json.loads(graphkit("run", "net.onnx", "x:2,1,8,8", "--profile", "trace.json", "--json"))
    assert {"ai.graphkit.ChannelsLastConv", "Gemm"} <= {o["operator"] for o in result["operators"]}
    assert sum(o["share"] for o in result["operators"]) == pytest.approx(1)
    assert "operators" not in json.loads(graphkit("run", "net.onnx", "--json"))
