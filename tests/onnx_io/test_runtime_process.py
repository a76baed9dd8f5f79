"""ONNX Runtime in another process: its results, its errors, and its end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphkit as gk
from graphkit.cli import invoke
from graphkit.errors import InputError, InvalidModel, ReferenceEnded
from graphkit.onnx_io import runtime_process
from graphkit.onnx_io.runtime_process import running

X = np.arange(6, dtype=np.float32).reshape(2, 3)


def doubled() -> gk.Model:
    return gk.Model({"y": gk.input("x", ["N", 3]) * 2.0}, name="net")


def quotients(folder: Path) -> Path:
    """A file whose integer division ONNX Runtime does not survive for the smallest integer by -1."""
    net = gk.Model({"y": gk.input("a", ["N"], "int32") / gk.input("b", ["N"], "int32")}, name="net")
    net.save(folder / "net.onnx")
    np.save(folder / "a.npy", np.array([-(2**31)], np.int32))
    np.save(folder / "b.npy", np.array([-1], np.int32))
    return folder / "net.onnx"


def test_results_are_those_of_onnx_runtime(tmp_path: Path) -> None:
    doubled().save(tmp_path / "net.onnx")
    for model in (doubled().to_onnx(), doubled().to_onnx().SerializeToString(), tmp_path / "net.onnx"):
        with running(model, {"x": X}) as pending:
            np.testing.assert_array_equal(pending.results()["y"], 2 * X)


def test_large_models_go_through_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime_process, "_SENT", 0)
    sent: list[Any] = []
    ask = runtime_process._Process.ask

    def noted(process: Any, request: Any) -> None:
        sent.append(request)
        ask(process, request)

    monkeypatch.setattr(runtime_process._Process, "ask", noted)
    net = gk.Model({"y": gk.mat_mul(gk.input("x", ["N", 3]), gk.parameter("w", [3, 2], "ones"))}, name="net")
    with running(net.to_onnx(), {"x": X}) as pending:
        np.testing.assert_array_equal(pending.results()["y"], X @ np.ones((3, 2)))
        assert Path(sent[0][0]).exists()
    assert not Path(sent[0][0]).exists()


def test_one_process_answers_one_request_after_the_other() -> None:
    seen = set()
    for _ in range(3):
        with running(doubled().to_onnx(), {"x": X}) as pending:
            seen.add(pending._process._process.pid)
            assert pending.results()["y"].shape == (2, 3)
    assert len(seen) == 1
    assert os.getpid() not in seen


def test_requests_at_the_same_time_have_processes_of_their_own() -> None:
    with running(doubled().to_onnx(), {"x": X}) as one, running(doubled().to_onnx(), {"x": X + 1}) as two:
        np.testing.assert_array_equal(two.results()["y"], 2 * X + 2)
        np.testing.assert_array_equal(one.results()["y"], 2 * X)


def test_errors_are_those_of_onnx_runtime() -> None:
    with pytest.raises(InputError, match="the model has no input 'z'"), running(doubled().to_onnx(), {"z": X}) as one:
        one.results()
    with pytest.raises(InvalidModel, match=r"ONNX Runtime .* refuses the model"), running(b"no model", {}) as one:
        one.results()
    with running(doubled().to_onnx(), {"x": X}) as one:
        assert one.results()["y"].shape == (2, 3)


def test_what_is_left_unread_is_not_the_next_answer() -> None:
    with running(doubled().to_onnx(), {"x": X}):
        pass
    with running(doubled().to_onnx(), {"x": X + 1}) as pending:
        np.testing.assert_array_equal(pending.results()["y"], 2 * X + 2)


def test_its_end_is_an_error_with_the_name_of_the_signal() -> None:
    runtime_process.prepare()
    pid = runtime_process._idle[-1]._process.pid
    os.kill(pid, signal.SIGSTOP)  # it cannot answer before it ends
    with running(doubled().to_onnx(), {"x": X}) as one:
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(ReferenceEnded, match="has ended by SIGKILL"):
            one.results()
    with running(doubled().to_onnx(), {"x": X}) as one:
        assert one.results()["y"].shape == (2, 3)


def test_a_process_that_has_ended_is_not_asked() -> None:
    runtime_process.prepare()
    process = runtime_process._idle[-1]._process
    process.kill()
    process.wait()
    with running(doubled().to_onnx(), {"x": X}) as one:
        assert one._process._process.pid != process.pid
        assert one.results()["y"].shape == (2, 3)


def test_a_crash_is_a_line_of_the_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = quotients(tmp_path)
    arguments = [f"{name}={tmp_path / name}.npy" for name in "ab"]
    assert invoke(["verify", str(path), *arguments]) == 1
    printed = capsys.readouterr().out
    assert "FAILED" in printed
    assert "ONNX Runtime's process has ended by SIGFPE while it ran the model" in " ".join(printed.split())


def test_processes_end_with_this_one() -> None:
    code = (
        "import graphkit as gk, graphkit.onnx_io.runtime_process as p, os, signal\n"
        "print(gk.verify(gk.Model({'y': gk.tanh(gk.input('x', [3]))})).passed, p._idle[0]._process.pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=False, timeout=300)
    passed, pid = done.stdout.split()
    assert passed == "True", done.stderr

    def goes_on() -> bool:
        try:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
        except (FileNotFoundError, ProcessLookupError):
            return False

    end = time.monotonic() + 60
    while goes_on():
        assert time.monotonic() < end, "the process goes on"
        time.sleep(0.05)


def test_the_process_that_was_used_last_is_used_again() -> None:
    with running(doubled().to_onnx(), {"x": X}) as one, running(doubled().to_onnx(), {"x": X}) as two:
        one.results(), two.results()
    assert len(runtime_process._idle) >= 2
    last = runtime_process._idle[-1]
    for _ in range(2):
        with running(doubled().to_onnx(), {"x": X}) as pending:
            assert pending._process is last
            pending.results()


def test_a_process_whose_answer_nobody_reads_ends_silently() -> None:
    """The other side may close its end before the process sends its answer, or after."""
    code = f"import sys; sys.path[:] = {sys.path!r}\n" + (
        "import os, pickle, socket, sys, threading\n"
        "import graphkit.onnx_io.runtime_process as p\n"
        "from multiprocessing.connection import Connection\n"
        "for answered in (False, True):\n"
        "    mine, other = socket.socketpair()\n"
        "    with Connection(mine.detach()) as near:\n"
        "        near.send_bytes(pickle.dumps((b'no model', {}, None), protocol=5))\n"
        "        process = threading.Thread(target=p.main, args=(other.detach(),))\n"
        "        if answered:\n"
        "            process.start()\n"
        "            assert near.poll(60)\n"
        "    if not answered:\n"
        "        process.start()\n"
        "    process.join()\n"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=False, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")


def test_idle_processes_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime_process, "_GRACE", 60.0)
    with running(doubled().to_onnx(), {"x": X}) as pending:
        pending.results()
    process = runtime_process._idle[-1]._process
    runtime_process._close_all()
    assert process.returncode == 0
    assert not runtime_process._idle
