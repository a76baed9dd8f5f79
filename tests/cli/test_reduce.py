"""graphkit reduce"""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

USAGE = 2
KINDS = ("Relu", "Tanh", "Sigmoid", "Abs")


@pytest.fixture
def net(tmp_path):
    """A chain of 40 nodes with one Sin and one Cos."""
    special = {13: "Sin", 29: "Cos"}
    nodes = [
        helper.make_node(special.get(i, KINDS[i % 4]), ["x" if i == 0 else f"v{i - 1}"], [f"v{i}"]) for i in range(40)
    ]
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["N", 3]) for n in ("x", "v39")]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:])
    path = tmp_path / "net.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 12)], ir_version=7), path)
    return path


def shell(text):
    return ("--", "sh", "-c", text, "{}")


# Fails if the file contains the name of the operator.
HAS_SIN = shell('! grep -q Sin "$0"')


def kinds(path):
    return [node.op_type for node in onnx.load(path).graph.node]


def test_one_node_remains_with_its_input(call, net, tmp_path):
    code, out, _ = call("reduce", net, "-o", tmp_path / "small.onnx", *HAS_SIN)
    assert code == 0
    assert kinds(tmp_path / "small.onnx") == ["Sin"]
    assert "1 node of 40" in out
    feeds = dict(np.load(tmp_path / "small.npz"))
    session = onnxruntime.InferenceSession(tmp_path / "small.onnx", providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(session.run(None, feeds)[0], np.sin(feeds["v12"]), rtol=1e-6)
    assert onnx.load(tmp_path / "small.onnx").opset_import[0].version == 12


def test_the_path_is_the_last_argument_by_default(call, net, tmp_path):
    script = tmp_path / "check.py"
    script.write_text("import sys; sys.exit(b'Cos' in open(sys.argv[1], 'rb').read())")
    code, out, _ = call("reduce", net, "-o", tmp_path / "small.onnx", "--json", "--", sys.executable, script)
    result = json.loads(out)
    assert code == 0
    assert (result["nodes"], result["original_nodes"], result["operators"]) == (1, 40, ["Cos"])
    assert result["complete"]
    assert result["recorded_by"] == "ONNX Runtime"


def test_failures_by_text_and_code(call, net, tmp_path):
    both = shell('grep -q Sin "$0" && grep -q Cos "$0" && echo "found both" && exit 3; exit 0')
    code, _, _ = call("reduce", net, "-o", tmp_path / "small.onnx", "--fail-text", "found b.th", *both)
    assert code == 0
    assert sorted(kinds(tmp_path / "small.onnx")) == ["Cos", "Sin"]
    code, _, _ = call("reduce", net, "-o", tmp_path / "code.onnx", "--fail-code", "3", *both)
    assert code == 0
    assert sorted(kinds(tmp_path / "code.onnx")) == ["Cos", "Sin"]
    code, _, err = call("reduce", net, "-o", tmp_path / "other.onnx", "--fail-code", "4", *both)
    assert code == USAGE
    assert "does not fail" in err


def test_commands_get_the_recorded_inputs(call, net, tmp_path):
    """The test compares the arrays that the command gets with the inputs of the part."""
    script = tmp_path / "check.py"
    script.write_text(
        "import sys, zipfile\n"
        "names = zipfile.ZipFile(sys.argv[2]).namelist()\n"
        "sys.exit(b'Sin' in open(sys.argv[1], 'rb').read() and len(names) > 0)"
    )
    command = (sys.executable, script, "{}", "{npz}")
    code, _, _ = call("reduce", net, "-o", tmp_path / "small.onnx", "--input", "x:5,3", "--", *command)
    assert code == 0
    assert np.load(tmp_path / "small.npz")["v12"].shape == (5, 3)


def test_slow_runs_are_found_by_their_time(call, net, tmp_path):
    slow = shell('grep -q Sin "$0" && sleep 60; exit 0')
    limit = ("--timeout-each", "0.3", "--max-tries", "8")
    code, _, err = call("reduce", net, "-o", tmp_path / "small.onnx", *limit, *slow)
    assert code == USAGE
    assert "does not fail" in err
    code, out, _ = call("reduce", net, "-o", tmp_path / "small.onnx", *limit, "--fail-timeout", "--json", *slow)
    assert code == 0
    assert json.loads(out)["tries"] <= 8
    assert "Sin" in kinds(tmp_path / "small.onnx")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("absent.onnx", "-o", "s.onnx", *HAS_SIN), "absent.onnx"),
        (("net.onnx", "-o", "s.txt", *HAS_SIN), "must end in .onnx"),
        (("net.onnx", "-o", "absent/s.onnx", *HAS_SIN), "no folder"),
        (("net.onnx", "-o", "s.onnx", "--fail-text", "(", *HAS_SIN), "not a regular expression"),
        (("net.onnx", "-o", "s.onnx", "--fail-timeout", *HAS_SIN), "--timeout-each"),
        (("net.onnx", "-o", "s.onnx", "--", "/no/such/command"), "cannot be started"),
        (("net.onnx", "-o", "s.onnx", "--", "true"), "does not fail"),
        (("net.onnx", "-o", "s.onnx"), "COMMAND"),
        (("net.onnx", "-o", "s.onnx", "--input", "z:1", *HAS_SIN), "'z'"),
    ],
)
def test_errors(call, net, tmp_path, arguments, words):
    code, _, err = call("reduce", *arguments)
    assert code == USAGE
    assert words in err
    assert [p.name for p in tmp_path.iterdir()] == ["net.onnx"]


def test_ctrl_c_keeps_the_smallest_part(net, tmp_path):
    """The fourth run takes long; the parts before are written."""
    count = tmp_path / "count"
    text = 'echo x >> "$1"; [ $(wc -l < "$1") -gt 3 ] && sleep 60; exit 1'
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "graphkit", "reduce", net, "-o", tmp_path / "small.onnx", "--",
         "sh", "-c", text, "{}", count],
        stderr=subprocess.PIPE, text=True, env=os.environ,
    )  # fmt: skip
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not (count.exists() and len(count.read_text().splitlines()) > 3):
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 130
    assert "stopped" in err
    onnx.checker.check_model(onnx.load(tmp_path / "small.onnx"))
    assert len(kinds(tmp_path / "small.onnx")) == 20
    assert sorted(p.name for p in tmp_path.iterdir()) == ["count", "net.onnx", "small.npz", "small.onnx"]
