"""The programs of examples/c_interface compute the bits of Python, in each language whose compiler is installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

import graphkit as gk
from graphkit.executor.run.c_package import write_c_runtime
from graphkit.executor.run.c_runtime import CSession

EXAMPLES = Path(__file__).parents[2] / "examples" / "c_interface"
C_FLAGS = ("-std=c99", "-pedantic", "-Wall", "-Wextra", "-Werror")
CXX_FLAGS = ("-std=c++17", "-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Wconversion", "-Werror")

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(not EXAMPLES.is_dir(), reason="examples/ is not there"),
    pytest.mark.skipif(shutil.which("pkg-config") is None, reason="there is no pkg-config"),
]


class Network(NamedTuple):
    path: Path
    feeds: dict[str, np.ndarray]
    expected: dict[str, np.ndarray]


def _saved(net: gk.Model, path: Path, feeds: dict[str, np.ndarray]) -> Network:
    net.save(path, shapes={name: array.shape for name, array in feeds.items()})
    return Network(path, feeds, net.run(feeds))


@pytest.fixture(scope="module")
def runtime(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("languages") / "runtime"
    write_c_runtime(folder)
    return folder


@pytest.fixture(scope="module")
def cnn(runtime) -> Network:
    """A network with the inputs that the examples generate."""
    x = ((np.arange(128) % 16) / 8 - 1).astype(np.float32).reshape(2, 1, 8, 8)
    return _saved(gk.models.build("lenet", image=(1, 8, 8)), runtime.parent / "cnn.gkp", {"x": x})


@pytest.fixture(scope="module")
def recommender(runtime) -> Network:
    """A network with two inputs and two outputs, one of each int64."""
    x, ids = gk.input("x", ["N", 3]), gk.input("ids", ["N", 2], np.int64)
    features = gk.concat(x, gk.flatten(gk.nn.embedding(ids, 5, 4)), axis=1)
    scores = gk.nn.linear(gk.relu(gk.nn.linear(features, 16, name="hidden")), 6, name="last")
    net = gk.Model({"scores": scores, "best": gk.arg_max(scores, axis=1, keepdims=False)}, name="recommender")
    rng = np.random.default_rng(0)
    feeds = {"x": rng.standard_normal((7, 3)).astype(np.float32), "ids": rng.integers(0, 5, (7, 2))}
    return _saved(net, runtime.parent / "recommender.gkp", feeds)


@pytest.fixture(scope="module")
def batches(cnn) -> list[Network]:
    """Batches of several sizes of the network of `cnn`, whose file has a program of two rows."""
    found = []
    for rows in (0, 3, 5):
        x = ((np.arange(rows * 64) % 16) / 8 - 1).astype(np.float32).reshape(rows, 1, 8, 8)
        with CSession(cnn.path) as session:
            found.append(Network(cnn.path, {"x": x}, session.run({"x": x})))
    return found


class Tools(NamedTuple):
    runtime: Path
    folder: Path

    def call(self, *command: object, **environment: str) -> str:
        """Run a command in the folder: its stdout. The environment lets the linker's tools find the C library."""
        paths = {"PKG_CONFIG_PATH": str(self.runtime / "lib" / "pkgconfig"), "GRAPHKIT_HOME": str(self.runtime)}
        ended = subprocess.run(
            list(map(str, command)), cwd=self.folder, env=os.environ | paths | environment, capture_output=True,
            text=True, timeout=500,
        )  # fmt: skip
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout

    def flags(self) -> list[str]:
        return self.call("pkg-config", "--cflags", "--libs", "graphkit").split()


@pytest.fixture
def tools(runtime, tmp_path) -> Tools:
    shutil.copytree(EXAMPLES, tmp_path / "examples")
    return Tools(runtime, tmp_path / "examples")


def needed(program: str) -> str:
    found = shutil.which(program)
    if found is None:
        pytest.skip(f"there is no {program}")
    return found


def built_c(tools: Tools) -> list[object]:
    tools.call(needed("cc"), *C_FLAGS, "c/run.c", *tools.flags(), "-o", "run")
    return ["./run"]


def built_cpp(tools: Tools) -> list[object]:
    tools.call(needed("c++"), *CXX_FLAGS, "cpp/run.cpp", *tools.flags(), "-o", "run")
    return ["./run"]


def built_rust(tools: Tools) -> list[object]:
    tools.call(needed("cargo"), "build", "--offline", "--quiet", "--manifest-path", "rust/Cargo.toml")
    return ["rust/target/debug/run"]


def built_go(tools: Tools) -> list[object]:
    tools.call("env", "--chdir=go", needed("go"), "build", "-o", "../run", ".", GOPROXY="off", GOTOOLCHAIN="local")
    return ["./run"]


def built_node(tools: Tools) -> list[object]:
    node = needed("node")
    headers = Path(node).resolve().parents[1] / "include" / "node"
    if not (headers / "node_api.h").exists():
        pytest.skip(f"there is no {headers}/node_api.h")
    compiled = ("-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", "node/graphkit.c", "-I", headers)
    tools.call(needed("cc"), *compiled, *tools.flags(), "-o", "node/graphkit.node")
    return [node, "node/run.js"]


LANGUAGES: dict[str, Callable[[Tools], list[object]]] = {
    "c": built_c, "cpp": built_cpp, "rust": built_rust, "go": built_go, "node": built_node,
}  # fmt: skip


def printed(network: Network) -> list[str]:
    """The lines that describe inputs and outputs."""
    ports = [("input", *item) for item in network.feeds.items()]
    ports += [("output", *item) for item in network.expected.items()]
    return [f"{kind} {name} {array.dtype} {list(array.shape)}" for kind, name, array in ports]


def assert_computed(out: str, network: Network) -> None:
    lines = out.splitlines()
    assert [line for line in lines if line.startswith(("input ", "output "))] == printed(network)
    position = len(network.feeds)
    for array in network.expected.values():
        numbers = lines[position + 1 : position + 1 + array.size]
        found = np.array([np.array(number).astype(array.dtype) for number in numbers]).reshape(array.shape)
        assert found.tobytes() == array.tobytes()
        position += 1 + array.size
    assert position == len(lines)


@pytest.mark.parametrize("language", LANGUAGES)
def test_example_has_the_bits_of_python(language, tools, cnn, recommender, batches):
    run = LANGUAGES[language](tools)
    assert_computed(tools.call(*run, cnn.path), cnn)
    for each in batches:
        assert_computed(tools.call(*run, "--rows", len(each.feeds["x"]), each.path), each)
    files = []
    for name, array in recommender.feeds.items():
        files.append(tools.folder / f"{name}.bin")
        array.tofile(files[-1])
    assert_computed(tools.call(*run, recommender.path, *files), recommender)
    for arguments, message in [
        (["none.gkp"], "No such file"),
        ([cnn.path, *files], "the program has 1 inputs, but 2 files were given"),
        ([recommender.path, files[1], files[0]], f"{files[1]} "),
    ]:
        command = [str(part) for part in (*run, *arguments)]
        ended = subprocess.run(command, cwd=tools.folder, capture_output=True, text=True, timeout=100)
        assert ended.returncode in (1, 2)
        assert message in ended.stderr
    if language not in ("c", "cpp"):  # these have an example of their own for networks
        assert_converted_once(tools, run, cnn)


def assert_converted_once(tools: Tools, run: list[object], network: Network) -> None:
    """The program opens a network, and its cache."""
    converter, model = tools.folder / "converter", tools.folder / "net.onnx"
    converter.write_text(f'#!/bin/sh\necho >> log; cp "{network.path}" "$6"\n')
    converter.chmod(0o700)
    model.write_bytes(b"a network")
    for _ in range(2):
        assert_computed(tools.call(*run, "--cache", "kept", model, GRAPHKIT_CONVERTER=str(converter)), network)
    assert (tools.folder / "log").read_text() == "\n"


def test_eight_threads_of_cpp_share_a_program(tools, cnn):
    tools.call(needed("c++"), *CXX_FLAGS, "cpp/threads.cpp", *tools.flags(), "-pthread", "-o", "threads")
    assert tools.call("./threads", cnn.path) == "800 of 800 runs have the expected bits\n"


def test_eight_threads_of_rust_share_a_program(tools, cnn):
    command = (needed("cargo"), "test", "--offline", "--quiet", "--manifest-path", "rust/Cargo.toml")
    assert "4 passed" in tools.call(*command, GRAPHKIT_PROGRAM=str(cnn.path))


def test_wrapper_for_go_passes_options_of_the_converter(tools, cnn):
    command = ("env", "--chdir=go", needed("go"), "test", "-v", "./graphkit")
    out = tools.call(*command, GOPROXY="off", GOTOOLCHAIN="local", GRAPHKIT_PROGRAM=str(cnn.path))
    assert "--- PASS: TestNetworksAreConverted" in out


def test_wrapper_for_node_passes_options_of_the_converter(tools, cnn, tmp_path):
    node, _ = built_node(tools)
    log, kept = tmp_path / "log", tmp_path / "kept"
    copies, sleeps, network = tmp_path / "copies", tmp_path / "sleeps", tmp_path / "net.onnx"
    copies.write_text(f'#!/bin/sh\necho "$7 $8" >> "{log}"; cp "{cnn.path}" "$6"\n')
    sleeps.write_text("#!/bin/sh\nsleep 100\n")
    network.write_bytes(b"a network")
    for script in (copies, sleeps):
        script.chmod(0o700)
    (tools.folder / "open.js").write_text(f"""
const {{Program}} = require('./node/graphkit.node');
const [converter, converterArguments, convertTimeout] = ['{copies}', ['x:1,64', 'é'], 100];
const usual = {{converter, converterArguments, convertTimeout}};
function report(options) {{
  try {{ console.log(new Program('{network}', {{...usual, ...options}}).inputs.length); }}
  catch (error) {{ console.log(error.code); }}
}}
for (const cacheBytes of [undefined, -1]) report({{cacheFolder: '{kept}', cacheBytes}});
report({{cacheFolder: '{kept}s', cacheBytes: 1}});
report({{converter: '{sleeps}', convertTimeout: 0.1}});
report({{converter: ''}});
for (const wrong of [{{converter: 7}}, {{converter: 'a\\0'}}, {{converterArguments: 'x'}},
                     {{converterArguments: ['x', 7]}}, {{cacheFolder: 7}}, {{cacheBytes: -2}},
                     {{convertTimeout: 'x'}}]) report(wrong);
""")
    assert tools.call(node, "open.js").split() == [
        "1", "1", "1", "GK_ERROR_LIMIT", "GK_ERROR_CONVERTER", *["GK_ERROR_ARGUMENT"] * 7,
    ]  # fmt: skip
    assert log.read_text() == "x:1,64 é\n" * 2
    assert (len(list(kept.iterdir())), len(list((tmp_path / "kepts").iterdir()))) == (1, 0)


@pytest.fixture
def converter(tmp_path) -> str:
    path = tmp_path / "converter"
    path.write_text(f'#!/bin/sh\nexec "{sys.executable}" -P -m graphkit "$@"\n')
    path.chmod(0o700)
    return str(path)


def test_examples_open_onnx_files(tools, tmp_path, converter):
    gk.models.build("mlp", inputs=4, hidden=(4,), classes=2).save(tmp_path / "net.onnx")
    tools.call(needed("cc"), *C_FLAGS, "c/open_onnx.c", *tools.flags(), "-o", "open_c")
    tools.call(needed("c++"), *CXX_FLAGS, "cpp/open_onnx.cpp", *tools.flags(), "-o", "open_cpp")
    cache = tmp_path / "kept"
    command = ("./open_c", "--cache", cache, "--timeout", "100", tmp_path / "net.onnx", "x:3,4")
    first = tools.call(*command, GRAPHKIT_CONVERTER=converter)
    assert first.startswith("input x float32 [3, 4]\noutput ")
    assert tools.call(*command, GRAPHKIT_CONVERTER=converter) == first
    assert len(list(cache.iterdir())) == 1
    found = tools.call("./open_cpp", tmp_path / "net.onnx", cache, GRAPHKIT_CONVERTER=converter)
    assert found.endswith(": 8 bytes\n")
    assert len(list(cache.iterdir())) == 2


def test_header_for_cpp_checks_types_and_sizes(tools, cnn, recommender):
    program = f"""
        #include <graphkit.hpp>
        #include <iostream>
        template <typename Body> void report(const Body& body) {{
            try {{ body(); std::cout << "nothing\\n"; }}
            catch (const gk::Error& error) {{ std::cout << gk_status_name(error.status()) << "\\n"; }}
            catch (const std::invalid_argument& error) {{ std::cout << error.what() << "\\n"; }}
        }}
        int main() {{
            const gk::Program program("{cnn.path}"), other("{recommender.path}");
            report([&] {{ gk::Program("none.gkp"); }});
            report([&] {{ gk::Program("{cnn.path}", -1); }});
            report([&] {{ gk::Program::from_memory("ONNX", 4); }});
            report([&] {{ program.run({{}}); }});
            report([&] {{ program.run({{other.make_inputs()[0]}}); }});
            report([&] {{ program.make_inputs()[0].values<double>(); }});
            report([&] {{ other.make_inputs()[1].values<std::int64_t>(); }});
            report([&] {{ program.find({{{{2}}}}); }});
            report([&] {{ program.find({{{{3, 1, 8, 8}}}}); }});
            report([&] {{ program.find({{{{2, 1, 8, 8}}}}).run(program.make_inputs()); }});
            report([&] {{ program.run_shapes({{other.make_inputs()[0]}}); }});
            report([&] {{ other.make_inputs(-1); }});
            const std::vector<gk::Array> batch = other.run_shapes(other.make_inputs(9));
            std::cout << batch[0].port().shape[0] << " " << batch[1].size<std::int64_t>() << "\\n";
        }}
    """
    (tools.folder / "errors.cpp").write_text(program)
    tools.call(needed("c++"), *CXX_FLAGS, "errors.cpp", *tools.flags(), "-o", "errors")
    assert tools.call("./errors").splitlines() == [
        "GK_ERROR_FILE", "GK_ERROR_ARGUMENT", "GK_ERROR_FORMAT",
        "GK_ERROR_ARGUMENT", "the array of 'x' has another size",
        "'x' has another type", "nothing", "the shape of 'x' has another rank", "GK_ERROR_ARGUMENT", "nothing",
        "the shape of 'x' has another rank", "'x' has an impossible shape", "9 9",
    ]  # fmt: skip
