"""Failures of commands: always one line, one exit code, and with --json one object on stdout."""

import errno
import gc
import json
import mmap
import re
import subprocess
import sys

import numpy as np
import onnx
import pytest
from combinations import in_one_item
from onnx import TensorProto, helper

import graphkit as gk
from graphkit import cli
from graphkit.cli._limits import _allowance, _held_to_memory
from graphkit.errors import OutOfMemory

FIELDS = {"schema", "version", "command", "kind", "exit_code", "message", "node", "operator"}


@pytest.fixture
def net(tmp_path):
    path = tmp_path / "net.json"
    assert cli.invoke(["build", "mlp", "-p", "inputs=6", "-p", "classes=3", "-o", str(path)]) == 0
    return path


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_a_wrong_option_is_an_object_for_every_command(call, command):
    code, out, err = call(command, "--no-such-option", "--json")
    assert code == 2
    found = json.loads(out)
    assert set(found) == FIELDS
    assert (found["schema"], found["command"], found["kind"]) == ("graphkit.error", command, "UsageError")
    assert found["exit_code"] == 2
    assert "--no-such-option" in found["message"]
    assert "--no-such-option" in err


@pytest.mark.parametrize("arguments", [["nothing", "--json"], ["inspect", "--json"], ["run", "none.onnx", "--json"]])
def test_usage_errors_before_and_in_a_command(call, arguments):
    code, out, err = call(*arguments)
    assert (code, json.loads(out)["exit_code"]) == (2, 2)
    assert err


def test_without_json_nothing_is_on_stdout(call):
    code, out, err = call("run", "none.onnx")
    assert (code, out) == (2, "")
    assert err.startswith("graphkit: ")


def write(path, *nodes):
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )  # fmt: skip
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    return path


@pytest.mark.parametrize(
    ("node", "code", "name", "operator"),
    [
        (helper.make_node("Conv", ["x", "x"], ["y"], name="it's"), 4, "it's", "Conv"),
        (helper.make_node("Wonder", ["x"], ["y"], name="odd"), 3, "odd", "Wonder"),
        (helper.make_node("Relu", ["x", "x"], ["y"]), 4, "y", "Relu"),
    ],
    ids=["type", "unsupported", "unnamed"],
)
def test_node_and_operator_are_fields(call, tmp_path, node, code, name, operator):
    found, out, _ = call("verify", write(tmp_path / "net.onnx", node), "--json")
    error = json.loads(out)
    assert (found, error["exit_code"], error["node"], error["operator"]) == (code, code, name, operator)


def test_a_fault_of_ours_has_its_traceback_and_is_an_object(call, monkeypatch, net):
    from graphkit.cli import inspect

    def broken(*_, **__):
        raise ZeroDivisionError("in the works")

    monkeypatch.setattr(inspect, "read_model", broken)
    code, out, err = call("inspect", net, "--json")
    assert code == 5
    assert json.loads(out)["kind"] == "ZeroDivisionError"
    assert "Traceback" in err
    assert "internal error: ZeroDivisionError: in the works. Please report it" in err


# --- code of the caller's -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("def make():\n    x = [1]\n    return x[3]\n", "{}:3, in make: IndexError: list index out of range"),
        ("import nothing_of_that_name\n", "{}:1, in <module>: ModuleNotFoundError"),
        ("def make(:\n", "{}:1: SyntaxError"),
        ("import sys\nsys.exit(0)\n", "{} ends the program"),
        ("def helper():\n    raise ValueError\n\ndef make():\n    helper()\n", "{}:2, in helper: ValueError"),
    ],
    ids=["index", "import", "syntax", "exit", "bare"],
)
def test_an_error_in_a_file_of_functions_is_one_line(call, tmp_path, source, message):
    file = tmp_path / "mynet.py"
    file.write_text(source)
    code, out, err = call("build", f"{file}:make", "-o", tmp_path / "net.json", "--json")
    assert code == 1
    assert json.loads(out)["kind"] == "UserCodeError"
    assert message.format(file) in err
    assert "(for the traceback: graphkit --traceback COMMAND ...)" in err
    assert "--traceback" not in json.loads(out)["message"]
    assert "Traceback" not in err
    assert not (tmp_path / "net.json").exists()
    _, _, err = call("--traceback", "build", f"{file}:make", "-o", tmp_path / "net.json")
    assert "Traceback" in err
    assert "--traceback" not in err


def test_an_error_of_graphkit_in_such_a_file_keeps_its_code_and_gets_the_line(call, tmp_path):
    file = tmp_path / "mynet.py"
    file.write_text("import graphkit as gk\n\ndef make():\n    return gk.relu(gk.input('x', ['N']), 1, 2)\n")
    code, _, err = call("build", f"{file}:make", "-o", tmp_path / "net.json")
    assert code in (2, 4)
    assert f"{file}:4, in make: " in err


# --- said twice ---------------------------------------------------------------------------------------


def test_an_input_given_twice_is_refused(call, net, tmp_path):
    for name in ("a.npy", "b.npy"):
        np.save(tmp_path / name, np.zeros((2, 6), np.float32))
    np.savez(tmp_path / "all.npz", x=np.zeros((2, 6), np.float32))
    a, b, both = (tmp_path / n for n in ("a.npy", "b.npy", "all.npz"))
    for inputs in ([f"x={a}", f"x={b}"], [f"x={a}", "x:3,6"], ["x:2,6", "x:3,6"], [both, f"x={b}"]):
        code, _, err = call("run", net, *inputs)
        assert code == 2
        assert "input 'x' is given twice" in err


def test_an_option_given_twice_is_refused(call, tmp_path):
    code, _, err = call("build", "mlp", "-p", "classes=3", "-p", "classes=4", "-o", tmp_path / "net.json")
    assert code == 2
    assert "--option classes is given twice, as 3 and as 4" in err


def test_a_false_declaration_is_a_line_on_stderr(call, tmp_path):
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", ["N"]), ("y", [5])))
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "net", [x], [y])
    path = tmp_path / "net.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8), path)
    code, out, err = call("run", path, "x:3", "--json")
    assert code == 0
    assert json.loads(out)
    (line,) = [line for line in err.splitlines() if "declared" in line]
    assert line.startswith("graphkit: warning: ")
    assert "tensor 'y' is declared as [5], but is [3]" in line


def test_a_low_limit_leaves_libraries_what_they_need(tmp_path):
    """ONNX Runtime and the C library end the process if its own memory is refused."""
    path = tmp_path / "net.onnx"
    gk.models.build("mlp").save(path)
    command = [sys.executable, "-P", "-m", "graphkit", "verify", path, "--max-memory"]
    done = subprocess.run([*command, "400KB"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    done = subprocess.run([*command, "1KB"], capture_output=True, text=True, check=False)
    assert done.returncode == 5
    assert re.search(
        r"^graphkit: out of memory: .*the limit is 1000 bytes \(max_memory=, --max-memory, GRAPHKIT_MAX_MEMORY\)$",
        done.stderr,
        re.MULTILINE,
    )


@in_one_item()
@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        OSError(errno.ENOMEM, "Cannot allocate memory", "module.py"),
        ImportError("library.so: failed to map segment from shared object"),
        ImportError("library.so: cannot allocate memory in static TLS block"),
    ],
    ids=repr,
)
def test_memory_that_the_system_refuses_names_the_limit(error):
    said = r"^Python or a library needs more memory than the limit of 1.0 MiB \(--max-memory\) allows$"
    with pytest.raises(OutOfMemory, match=said), _held_to_memory(1 << 20):
        raise error


@in_one_item()
@pytest.mark.parametrize(
    "error", [MemoryError("2 bytes"), OSError(errno.ENOENT, "missing"), ImportError("missing")], ids=repr
)
def test_other_errors_under_a_limit_are_left_alone(error):
    with pytest.raises(type(error)) as raised, _held_to_memory(1 << 20):
        raise error
    assert raised.value is error


def test_the_system_holds_a_library_to_the_limit():
    gc.collect()  # memory that is freed later would raise the allowance
    size = _allowance() + (1 << 30)
    private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS  # untouched, it takes addresses only
    mmap.mmap(-1, size, flags=private).close()
    with pytest.raises(OutOfMemory, match="more memory than the limit"), _held_to_memory(1 << 20):
        mmap.mmap(-1, size, flags=private)
