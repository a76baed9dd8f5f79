"""Files made to hurt: each ends in an error that names file and node, within limits of memory and time."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import onnx
import pytest
from cases import each_case
from onnx import TensorProto, helper, numpy_helper

MEMORY = 6 << 30
SECONDS = 60


def info(name, shape=None, kind=TensorProto.FLOAT):
    return helper.make_tensor_value_info(name, kind, shape)


def constant(name, value, dtype=None):
    return numpy_helper.from_array(np.asarray(value, dtype), name)


def model(nodes, outputs=("y",), initializers=(), inputs=None, **options):
    inputs = [info("x", [3])] if inputs is None else inputs
    graph = helper.make_graph(nodes, "g", inputs, [info(o) for o in outputs], list(initializers))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21), helper.make_opsetid("f", 1)], **options)


def looped(count, *more, inner=()):
    body = helper.make_graph(
        [helper.make_node("Identity", ["c"], ["again"]), helper.make_node("Sin", ["s"], ["t"]), *inner, *more],
        "body",
        [info("i", [], TensorProto.INT64), info("c", [], TensorProto.BOOL), info("s", [3])],
        [info("again", [], TensorProto.BOOL), info("t", [3]), *(info(o) for node in more for o in node.output)],
    )
    names = [f"ys{i}" for i in range(len(more))]
    given = [] if count is None else [constant("count", count, np.int64)]
    loop = helper.make_node("Loop", ["count" if given else "", "go", "x"], ["y", *names], body=body, name="again")
    return model([loop], ("y", *names), [*given, constant("go", True), constant("wide", [1 << 16, 3])])


def sized(operator, *operands, **attributes):
    """One node whose constant operands or attributes make its result enormous."""
    tensors = [constant(f"c{i}", o) for i, o in enumerate(operands) if not isinstance(o, str)]
    names = [o if isinstance(o, str) else f"c{i}" for i, o in enumerate(operands)]
    return model([helper.make_node(operator, names, ["y"], name="huge", **attributes)], initializers=tensors)


def unfolding():
    functions = []
    for level in range(31):
        called = ("", "Sin") if level == 0 else ("f", f"F{level - 1}")
        nodes = [helper.make_node(called[1], [a], [b], domain=called[0]) for a, b in (("a", "t"), ("t", "b"))]
        functions.append(helper.make_function("f", f"F{level}", ["a"], ["b"], nodes, [helper.make_opsetid("", 21),
                                              helper.make_opsetid("f", 1)]))  # fmt: skip
    return model([helper.make_node("F30", ["x"], ["y"], domain="f")], functions=functions)


def nested_loops(depth=14):
    nodes, made = [helper.make_node("Concat", ["s1", "s1"], ["y0"], axis=0)], "y0"
    for level in range(1, depth + 1):
        body = helper.make_graph(
            [helper.make_node("Identity", [f"c{level}"], [f"d{level}"]), *nodes], "b",
            [info(f"i{level}", [], TensorProto.INT64), info(f"c{level}", [], TensorProto.BOOL), info(f"s{level}")],
            [info(f"d{level}", [], TensorProto.BOOL), info(made)],
        )  # fmt: skip
        outer = "x" if level == depth else f"s{level + 1}"
        nodes, made = [helper.make_node("Loop", ["m", "", outer], [f"y{level}"], body=body)], f"y{level}"
    return model(nodes, (made,), [constant("m", 1)])


def grown(state, build, *initializers):
    """Return a model with an endless loop. In each iteration, the nodes of `build` compute the new state."""
    body = helper.make_graph(
        [helper.make_node("Identity", ["c"], ["again"]), *build()],
        "body",
        [info("i", [], TensorProto.INT64), info("c", [], TensorProto.BOOL), helper.make_value_info("s", state)],
        [info("again", [], TensorProto.BOOL), helper.make_value_info("t", state)],
    )
    loop = helper.make_node("Loop", ["", "go", "start"], ["y"], body=body, name="again")
    graph = helper.make_graph([*initializers, loop], "g", [info("x", [3])], [helper.make_value_info("y", state)],
                              [constant("go", True)])  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])


def growing_sequence():
    kind = helper.make_sequence_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, None))
    wide = helper.make_node("ConstantOfShape", ["rows"], ["wide"])
    return grown(
        kind,
        lambda: [helper.make_node("Sin", ["wide"], ["row"]), helper.make_node("SequenceInsert", ["s", "row"], ["t"])],
        helper.make_node("Constant", [], ["rows"], value_ints=[1 << 18]), wide,
        helper.make_node("SequenceEmpty", [], ["start"]),
    )  # fmt: skip


def doubling_sequence():
    kind = helper.make_tensor_type_proto(TensorProto.FLOAT, ["n"])
    return grown(
        kind,
        lambda: [
            helper.make_node("SequenceConstruct", ["s", "s"], ["pair"]),
            helper.make_node("ConcatFromSequence", ["pair"], ["t"], axis=0, name="joined"),
        ],
        helper.make_node("Identity", ["x"], ["start"]),
    )


def doubling_string():
    kind = helper.make_tensor_type_proto(TensorProto.STRING, [1])
    return grown(
        kind,
        lambda: [helper.make_node("StringConcat", ["s", "s"], ["t"], name="joined")],
        helper.make_node("Constant", [], ["start"], value_strings=["a"]),
    )


def growing_scan():
    """Rows of a loop that is interpreted, because strings are in it."""
    text = helper.make_node("Cast", ["i"], ["text"], to=TensorProto.STRING)
    number = helper.make_node("Cast", ["text"], ["number"], to=TensorProto.FLOAT)
    return looped(None, number, helper.make_node("Expand", ["number", "wide"], ["row"]), inner=[text])


IMAGE = np.zeros((1, 1, 2, 2), np.float32)
ONE = np.ones((1, 1, 1, 1), np.float32)
FAR = 1 << 40

# name: (model, exit code, what the message has)
CASES = {
    "endless loop": (lambda: looped(None), 5, "more than 100000 iterations"),
    "loop of 2^62": (lambda: looped(1 << 62), 5, "more than 100000 iterations"),
    "growing loop": (lambda: looped(None, helper.make_node("Expand", ["s", "wide"], ["row"])), 5, "again: no memory"),
    "growing sequence loop": (growing_sequence, 5, "again"),
    "doubling sequence loop": (doubling_sequence, 5, "again"),
    "doubling string loop": (doubling_string, 5, "joined"),
    "growing interpreted loop": (growing_scan, 5, "again"),
    "expand": (lambda: sized("Expand", "x", [FAR, 3]), 5, "'huge'"),
    "expand beyond counting": (lambda: sized("Expand", "x", [1 << 62, 1 << 62, 3]), 5, "'huge'"),
    "tile": (lambda: sized("Tile", "x", [FAR]), 5, "'huge'"),
    "constant of shape": (lambda: sized("ConstantOfShape", [FAR]), 5, "'huge'"),
    "negative shape": (lambda: sized("ConstantOfShape", [-5]), 4, "'huge'"),
    "pad": (lambda: sized("Pad", "x", [FAR, 0]), 5, "'huge'"),
    "range": (lambda: sized("Range", np.float32(0), np.float32(1e12), np.float32(1)), 5, "huge"),
    "one hot": (lambda: sized("OneHot", [0, 1], FAR, np.array([0, 1], np.float32)), 5, "'huge'"),
    "resize": (lambda: sized("Resize", IMAGE, "", np.array([1, 1, 1e30, 1e30], np.float32)), 4, "'huge'"),
    "resize to": (lambda: sized("Resize", IMAGE, "", "", [1, 1, FAR, 2]), 5, "'huge'"),
    "max pool": (lambda: sized("MaxPool", IMAGE, kernel_shape=[FAR, FAR], pads=[FAR] * 4), 5, "'huge'"),
    "transposed convolution": (lambda: sized("ConvTranspose", IMAGE, ONE, strides=[FAR, FAR]), 5, "ConvTranspose"),
    "kernel shape": (lambda: sized("Conv", IMAGE, ONE, kernel_shape=[FAR, FAR]), 4, "'huge'"),
    "random": (lambda: sized("RandomNormal", shape=[1 << 62, 1 << 62]), 5, "'huge'"),
    "parts": (lambda: sized("Split", "x", num_outputs=FAR), 4, "'huge'"),
    "blocks": (lambda: sized("DepthToSpace", IMAGE, blocksize=-1), 4, "'huge'"),
    "input": (lambda: model([helper.make_node("Sin", ["p"], ["y"])], inputs=[info("p", [FAR])]), 5, "'p'"),
    "functions": (unfolding, 4, "more than the limit of 2000000"),
    "nested loops": (nested_loops, 4, "nested too deeply"),
}


def limits():
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (4 * SECONDS, 4 * SECONDS))


def started(script, *arguments, **options):
    """A process of Python within limits of memory and time."""
    given = [sys.executable, "-P", "-c", script, *map(str, arguments)]
    environment = os.environ | {"GRAPHKIT_NUM_THREADS": "1"}
    return subprocess.Popen(given, stdout=-1, stderr=-1, text=True, preexec_fn=limits, env=environment, **options)


def command(*arguments):
    return started("from graphkit.cli import main; main()", *arguments)


QUICK = (
    "endless loop",
    "growing loop",
    "growing sequence loop",
    "doubling string loop",
    "expand",
    "max pool",
    "parts",
    "input",
    "functions",
)
# Enough for everything that comes to it; what does not must not need it.
OPTIONS = ("--max-iterations", "100000", "--max-memory", "500MB")
# Runs the commands that stdin has as JSON, and prints [exit code, stderr, seconds] of each.
RUNS = """
import contextlib, io, json, sys, time
from graphkit import cli

found = []
for words in json.load(sys.stdin):
    said, start = io.StringIO(), time.monotonic()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
        code = cli.invoke(words)
    found.append([code, said.getvalue(), time.monotonic() - start])
json.dump(found, sys.stdout)
"""


@pytest.fixture(scope="module")
def end_of(tmp_path_factory):
    """`end_of(name)`: how the run of a model ended. One process runs all models of a lane."""
    folder = tmp_path_factory.mktemp("hostile")
    found = {}

    def run_all(names):
        for name in names:
            onnx.save(CASES[name][0](), folder / f"{name}.onnx")
        lines = [["run", str(folder / f"{n}.onnx"), *(OPTIONS if "loop" in n else ())] for n in names]
        with started(RUNS, stdin=-1) as process:
            out, said = process.communicate(json.dumps(lines), timeout=4 * SECONDS)
        assert process.returncode == 0, said
        found.update(zip(names, json.loads(out), strict=True))

    def end(name):
        if name not in found:
            run_all([n for n in CASES if (n in QUICK) == (name in QUICK)])
        return found[name]

    return end


@each_case(CASES, group=lambda name: "models", full=lambda name: name not in QUICK)
def test_a_hostile_model_is_an_error(name, end_of):
    found, said, seconds = end_of(name)
    _, code, words = CASES[name]
    assert found == code, said
    assert words in said
    assert f"{name}.onnx" in said
    assert "Traceback" not in said
    assert seconds < SECONDS


# Says when the model runs.
TOLD = """
import sys
from graphkit import cli
from graphkit.executor.run.session import Executor
run = Executor.run

def told(*arguments, **options):
    print("runs", flush=True)
    return run(*arguments, **options)

Executor.run = told
cli.main()
"""


def test_ctrl_c_ends_an_endless_loop(tmp_path):
    onnx.save(looped(None), tmp_path / "hostile.onnx")
    with started(TOLD, "run", tmp_path / "hostile.onnx", "--max-iterations", 10**15) as process:
        assert process.stdout.readline() == "runs\n"
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=SECONDS)
    assert process.returncode == 130


def test_a_command_ends_in_time(tmp_path):
    onnx.save(looped(None), tmp_path / "hostile.onnx")
    with command("run", tmp_path / "hostile.onnx", "--max-iterations", 10**15, "--timeout", 1) as process:
        _, said = process.communicate(timeout=SECONDS)
    assert process.returncode == 5
    assert "hostile.onnx: not finished within 1 s (--timeout)" in said


def test_the_time_is_named_alike_where_the_library_asks_first(call, tmp_path):
    """Only the main thread gets an alarm, so other threads check the time themselves."""
    onnx.save(looped(None), tmp_path / "hostile.onnx")
    # The first run imports everything: the time is over in the loop of the second.
    assert call("run", tmp_path / "hostile.onnx", "--max-iterations", 10)[0] == 5
    given = ("run", tmp_path / "hostile.onnx", "--max-iterations", 10**15, "--timeout")
    for seconds in (0.5, 2, 8):  # on a busy machine, half a second may be over before the loop begins
        with ThreadPoolExecutor(1) as beside:
            code, _, said = beside.submit(call, *given, seconds).result(SECONDS)
        if "again" in said:
            break
    assert code == 5
    assert f"hostile.onnx: not finished within {seconds:g} s (--timeout): again" in said
    assert said.count("hostile.onnx") == 1


def test_a_command_takes_no_more_than_its_memory(call, tmp_path):
    onnx.save(sized("Expand", "x", [1 << 24, 3]), tmp_path / "large.onnx")
    code, _, said = call("run", tmp_path / "large.onnx", "--max-memory", "100MB")
    assert code == 5
    assert "201326592 bytes" in said
    assert "100000000 bytes" in said


def test_names_of_a_file_give_a_terminal_no_commands(call, tmp_path):
    name = "\x1b[2J\x1b]0;title\x07\u202e\r"
    x = helper.make_tensor_value_info(name, TensorProto.FLOAT, [2])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])
    for operator, code in (("Relu", 0), (name, 3)):
        graph = helper.make_graph([helper.make_node(operator, [name], ["y"], name=name)], name, [x], [y])
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)]), tmp_path / "net.onnx")
        for command in ("inspect", "run", "plan", "ops", "inspect --json"):
            found, out, err = call(*command.split(), tmp_path / "net.onnx")
            assert found == code or command.startswith(("ops", "inspect"))
            assert not set("\x1b\x07\r\u202e") & set(out + err)
