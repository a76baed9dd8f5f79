"""The backend `onnxruntime`: networks of the zoo, control flow, training, and the commands."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from combinations import in_one_item

import graphkit as gk
from graphkit.checks.inputs import make_feeds
from graphkit.checks.random_nodes import build
from graphkit.cli import invoke
from graphkit.errors import BackendError
from graphkit.onnx_io import runtime_session
from graphkit.onnx_io.compare import OnnxRuntimeModel

pytest.importorskip("onnxruntime")


def compare(net: gk.Model, feeds: dict[str, np.ndarray], least: float = 1.0, **options: Any) -> gk.Model:
    """Compare all outputs; `least`: the share of the nodes that must be in groups."""
    executor = net.compile(threads=1, backends=gk.backend.use("onnxruntime", min_nodes=1, **options))
    for _ in range(2):
        found, wanted = executor.run(feeds), net.compile(threads=1).run(feeds)
        for name, array in wanted.items():
            np.testing.assert_allclose(found[name], array, rtol=2e-4, atol=2e-4, err_msg=name)
    decisions = executor.backend_decisions
    assert sum(bool(each.group) for each in decisions) >= least * len(decisions), gk.backend.explain(executor)
    return net


@in_one_item()
@pytest.mark.parametrize("name", ["lenet", "wide_and_deep", "lstm_lm"])
def test_networks_of_the_zoo(name: str) -> None:
    net = gk.models.build(name)
    compare(net, make_feeds(net).arrays, check=True)


# Smaller forms of the networks whose weights take seconds to make and to copy. Their nodes are those of the large ones.
REDUCED: dict[str, dict[str, Any]] = {
    "alexnet": {"image": (3, 64, 64), "hidden": 24},
    "bert": {"vocab": 50, "width": 16, "heads": 4, "layers": 2, "length": 8},
    "vgg": {"image": (3, 32, 32), "hidden": 24},
    "vit": {"size": "tiny", "patch": 8, "image": (3, 32, 24), "layers": 2},
}


@pytest.mark.full
@pytest.mark.parametrize("name", gk.models.names())
def test_all_networks_of_the_zoo(name: str) -> None:
    net = gk.models.build(name, **REDUCED.get(name, {}))
    compare(net, make_feeds(net).arrays, 0.5)


def check_random_network(seed: int, dtype: Any, tolerance: float) -> None:
    net, graph = build(seed, dtype)
    model = gk.Model.from_graph(graph, net.params)
    feeds = {graph.name_of(v): net.arrays[v] for v in graph.inputs if v.role == "data"}
    wanted = model.compile(threads=1).run(feeds)
    found = model.compile(threads=1, backends=gk.backend.use("onnxruntime", min_nodes=1)).run(feeds)
    for name, array in wanted.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_allclose(
            found[name].astype(float), array.astype(float), tolerance, tolerance, err_msg=f"seed {seed}, {name}"
        )


@in_one_item()
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 1e-3), (np.float64, 1e-6), (np.float16, 3e-2)])
def test_random_networks(dtype: Any, tolerance: float) -> None:
    for seed in range(2):
        check_random_network(seed, dtype, tolerance)


@pytest.mark.full
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 1e-3), (np.float64, 1e-6), (np.float16, 3e-2)])
def test_many_random_networks(dtype: Any, tolerance: float) -> None:
    for seed in range(2, 60):
        check_random_network(seed, dtype, tolerance)


def recurrent_filter() -> gk.Model:
    """A network like those of voice activity detection: a branch by sampling rate, with a loop over frames."""
    x, rate = gk.input("x", ["B", 64]), gk.input("rate", [], "int64")
    state = gk.input("state", ["B", 8])

    def run(frames: int) -> Any:
        weight = gk.parameter(f"weight{frames}", [64 // frames, 8])
        steps = gk.transpose(gk.reshape(x, [0, frames, 64 // frames]), perm=[1, 0, 2])
        last, outs = gk.scan(lambda s, v: ((r := gk.tanh(v @ weight + s)), gk.sigmoid(r)), state, steps)
        return last, gk.reduce_mean(outs, axes=[0, 2], keepdims=False)

    last, score = gk.cond(gk.equal(rate, np.int64(16)), lambda: run(8), lambda: run(4))
    _trips, total = gk.while_loop(
        lambda s: s[0] < 3, lambda s: (s[0] + 1, s[1] * np.float32(0.5) + score), (gk.constant(np.int64(0)), score)
    )
    return gk.Model({"score": total, "next": last}, name="filter", seed=2)


@pytest.mark.parametrize("rate", [16, 8])
def test_control_flow(rate: int) -> None:
    rng = np.random.default_rng(rate)
    feeds = {
        "x": rng.standard_normal((2, 64)).astype("f"),
        "rate": np.int64(rate),
        "state": np.zeros((2, 8), np.float32),
    }
    net = recurrent_filter()
    compare(net, feeds)
    compare(net, feeds, 0.0, control_flow=False)


def test_new_sizes_need_no_new_session(monkeypatch) -> None:
    made = []
    create = runtime_session.BoundModel.__init__
    monkeypatch.setattr(
        runtime_session.BoundModel, "__init__", lambda self, *given: (made.append(given[1]), create(self, *given))[1]
    )
    net = gk.models.build("lenet")
    executor = net.compile(threads=1, backends="onnxruntime")
    for count in (1, 4, 0, 7):
        feeds = {name: array[:1].repeat(count, 0) for name, array in make_feeds(net).arrays.items()}
        for name, array in net.run(feeds).items():
            np.testing.assert_allclose(executor.run(feeds)[name], array, rtol=1e-4, atol=1e-5)
    assert made == [1]  # threads of one session


def test_threads_of_sessions_do_not_spin() -> None:
    x = gk.input("x", [4])
    model = runtime_session.BoundModel(gk.Model({"y": gk.tanh(x)}).to_onnx(), 2)
    options = model._session.get_session_options()
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == "0"


@pytest.mark.parametrize("count", [10, 100_000])
def test_results_are_copied_or_written_in_place(count: int) -> None:
    x = gk.input("x", ["N"])
    y = gk.exp(gk.tanh(x))
    net = gk.Model({"y": y, "z": y * 2, "w": gk.relu(gk.relu(x) - 1)})
    array = np.linspace(-2, 2, count, dtype=np.float32)
    compare(net, {"x": array})
    executor = net.compile(backends=gk.backend.use("onnxruntime", min_nodes=1))
    target = np.empty_like(array)
    executor.run({"x": array[::-1]}, ["z"], out={"z": target})
    np.testing.assert_allclose(target, net.run({"x": array[::-1]})["z"], rtol=1e-5)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float16", 2e-3), ("float64", 1e-12)])
def test_other_float_types(dtype: str, tolerance: float) -> None:
    x = gk.input("x", ["N", 3], dtype)
    net = gk.Model({"y": gk.softmax(gk.relu(x @ gk.transpose(x)) * 2)})
    array = np.random.default_rng(0).standard_normal((200, 3)).astype(dtype)
    executor = net.compile(backends="onnxruntime")
    np.testing.assert_allclose(executor.run({"x": array})["y"], net.run({"x": array})["y"], atol=tolerance)
    assert any(each.group for each in executor.backend_decisions)


@pytest.mark.filterwarnings("ignore::graphkit.errors.BackendWarning")
def test_bfloat16_stays_in_graphkit() -> None:
    x = gk.input("x", [3], "bfloat16")
    executor = gk.Model({"y": gk.tanh(gk.exp(x))}).compile(backends=gk.backend.use("onnxruntime", min_nodes=1))
    assert {each.reason for each in executor.backend_decisions} == {
        "onnxruntime: ONNX Runtime has no kernel for Exp of bfloat16.",
        "onnxruntime: ONNX Runtime has no kernel for Tanh of bfloat16.",
    }


def test_training_equals_training_without_backend() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((40, 1, 28, 28)).astype(np.float32), rng.integers(0, 10, 40)

    def losses(**options: Any) -> list[float]:
        trainer = gk.Trainer(gk.models.build("lenet"), optimizer=gk.optim.SGD(0.1), threads=1, **options)
        return [float(trainer.step(x[4 * i : 4 * i + 4], y[4 * i : 4 * i + 4])) for i in range(10)]

    np.testing.assert_allclose(losses(backends="onnxruntime"), losses(), rtol=1e-4)


def test_error_of_a_run_names_group_and_nodes() -> None:
    x, i = gk.input("x", [3]), gk.input("i", ["N"], "int64")
    net = gk.Model({"y": gk.exp(gk.gather(gk.tanh(x), i, name="rows"))})
    executor = net.compile(backends="onnxruntime")
    with pytest.raises(
        BackendError, match=r"group 'onnxruntime/0' \(nodes 'tanh', 'rows', 'exp'\): it failed in a run"
    ):
        executor.run({"x": np.zeros(3, np.float32), "i": np.array([5])})


@pytest.fixture
def command(capsys) -> Callable[..., tuple[int, str, str]]:
    """Run a command; return the exit code, stdout and stderr."""

    def run(*arguments: str) -> tuple[int, str, str]:
        code = invoke(arguments)
        return (code, *capsys.readouterr())

    return run


@pytest.fixture
def lenet_file(tmp_path) -> str:
    path = str(tmp_path / "net.onnx")
    gk.models.build("lenet").save(path)
    return path


def test_plan_command(command, lenet_file: str) -> None:
    _, text, _ = command("plan", lenet_file, "--backend", "onnxruntime", "--no-run", "--json")
    assert {each["group"] for each in json.loads(text)["backends"]} == {"onnxruntime/0"}
    assert "in 1 group" in command("plan", lenet_file, "--backend", "onnxruntime", "--no-run")[1]


def test_run_command(command, lenet_file: str) -> None:
    plain, given = (command("run", lenet_file, "--json", *more) for more in ((), ("--backend", "onnxruntime")))
    assert json.loads(plain[1]).keys() == json.loads(given[1]).keys()
    code, _, message = command("run", lenet_file, "--backend", "nothing")
    assert code == 2
    assert "there is no backend 'nothing'" in message


def test_bench_compares_with_graphkit_alone(command, lenet_file: str, monkeypatch) -> None:
    """A wrong backend is found even if ONNX Runtime is the other engine."""
    given = ("bench", lenet_file, "--runs", "1", "--threads", "1", "--backend", "onnxruntime")
    code, text, errors = command(*given)
    assert code == 0
    assert "outputs of graphkit with onnxruntime, compared with graphkit without backends:\noutput" in text
    assert "backends: 10 nodes of 10 in 1 group" in errors
    run = OnnxRuntimeModel.run
    monkeypatch.setattr(OnnxRuntimeModel, "run", lambda *given: {n: a + 1 for n, a in run(*given).items()})
    code, text, _ = command(*given, "--json")
    assert (code, json.loads(text)["compared_with"]) == (1, "graphkit")


OWN = """
import numpy as np
import graphkit as gk

gk.backend.register(
    "own", supports=lambda node: node.op.name == "Tanh", compile=lambda part: lambda x: np.tanh(x)
)
"""


def test_backend_of_a_file(command, lenet_file: str, tmp_path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(OWN)
    try:
        code, _, errors = command("run", lenet_file, "--backend", f"{file}:own")
        assert code == 0
        assert "backends: 3 nodes of 10 in 3 groups" in errors
        code, _, errors = command("run", lenet_file, "--backend", f"{file}:other")
        assert code == 2
        assert f"{file} registers no backend 'other'" in errors
        assert "also give the name" in command("run", lenet_file, "--backend", str(file))[2]
        assert "there is no file" in command("run", lenet_file, "--backend", f"{tmp_path}/no.py:own")[2]
    finally:
        gk.backend.unregister("own")


@pytest.mark.full
def test_bench_command(command, lenet_file: str) -> None:
    given = ("--runs", "20", "--against", "nothing", "--backend", "onnxruntime", "--json")
    assert json.loads(command("bench", lenet_file, *given)[1])["backends"] == ["onnxruntime"]
    assert command("bench", lenet_file, "--training", "--loss", "softmax_cross_entropy", *given)[0] == 0
