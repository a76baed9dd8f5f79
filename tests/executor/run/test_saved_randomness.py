"""Random numbers and training steps in saved programs (.gkp)."""

import json

import numpy as np
import pytest
from saved_loops import random_model, sized_random_model
from saved_programs import assert_same_bits, random_feeds

import graphkit as gk
from graphkit.errors import RuntimeFailure, UnsupportedError
from graphkit.executor.run import saved_template
from graphkit.executor.run.c_runtime import CSession
from graphkit.executor.run.saved_encoding import number
from graphkit.executor.run.saved_program import save_program
from graphkit.ir.graph import Graph, Value
from graphkit.ir.types import DType, TensorType


def test_random_numbers_of_each_run_have_the_bits_of_python(tmp_path):
    net = random_model()
    net.save(tmp_path / "net.gkp", seed=7)
    feeds, executor = random_feeds(net, {}), net.compile(seed=7)
    with CSession(tmp_path / "net.gkp") as session:
        runs = []
        for i in range(3):
            assert session.rng == executor.rng == (7, i)
            runs.append(session.run(feeds))
            assert_same_bits(runs[-1], executor.run(feeds))
        assert runs[0]["n"].tobytes() != runs[1]["n"].tobytes()
        session.rng = executor.rng = (-3, 1 << 40)
        assert_same_bits(session.run(feeds), executor.run(feeds))
        session.rng = (7, 1)
        assert_same_bits(session.run(feeds), runs[1])


def test_random_numbers_of_any_size_have_the_bits_of_python(tmp_path):
    net = sized_random_model()
    options = {"graph": net.graph, "params": net.params, "seed": 7, "threads": 2}
    first = {"x": (2, 6)}
    save_program(options, tmp_path / "net.gkp", [first], [random_feeds(net, first)], any_size=True)
    executor = net.compile(seed=7, threads=2)
    with CSession(tmp_path / "net.gkp") as session:
        for i, rows in enumerate((2, 5, 1, 5, 700)):
            feeds = random_feeds(net, {"x": (rows, 6)})
            assert session.rng == executor.rng == (7, i)
            assert_same_bits(session.run(feeds), executor.run(feeds))
        assert session.find_runs({"x": (5, 6)}) == [0]


def test_random_numbers_may_overwrite_a_value_with_their_shape(tmp_path):
    x = gk.input("x", ["N", "T", 4])
    weights = gk.constant(np.ones((4, 4), np.float32))
    first = gk.exp(x) @ weights
    net = gk.Model({"y": gk.tanh(first) @ weights @ weights + gk.random_normal_like(first) @ weights})
    net.save(tmp_path / "net.gkp", shapes={"x": (2, 3, 4)}, any_size=True, seed=7)
    executor = net.compile(seed=7)
    with CSession(tmp_path / "net.gkp") as session:
        for shape in ((2, 3, 4), (5, 7, 4)):
            feeds = random_feeds(net, {"x": shape})
            assert_same_bits(session.run(feeds), executor.run(feeds))


def test_random_state_of_a_program_for_any_size_is_not_written(tmp_path, monkeypatch):
    """The state is memory between inputs and outputs, which steps may only read."""
    encode = saved_template._location

    def damaged(at, external):
        return number(1) + number(0) if at[0] == external_of_output(external) else encode(at, external)

    def external_of_output(external):
        return next(given for given, place in external.items() if place == 2)

    monkeypatch.setattr(saved_template, "_location", damaged)
    x = gk.input("x", ["N", 2])
    gk.Model({"y": gk.random_normal_like(x)}).save(tmp_path / "net.gkp", shapes={"x": (2, 2)}, any_size=True)
    with CSession(tmp_path / "net.gkp") as session:
        session.run({"x": np.zeros((2, 2), np.float32)})
        with pytest.raises(RuntimeFailure, match="can only be read"):
            session.run({"x": np.zeros((3, 2), np.float32)})


def test_random_state_of_a_network_without_random_nodes_stays(tmp_path):
    gk.models.build("mlp", inputs=12, hidden=(16,), classes=3).save(tmp_path / "net.gkp", shapes={"x": (4, 12)})
    with CSession(tmp_path / "net.gkp") as session:
        session.run({"x": np.zeros((4, 12), np.float32)})
        assert session.rng == (0, 0)


@pytest.mark.full
def test_exported_training_step_trains_with_the_bits_of_python(tmp_path):
    """Outputs of a step are fed to the next one. Dropout draws numbers from a state that is an input."""
    net = gk.models.build("mlp", inputs=6, hidden=(8,), classes=3, dropout=0.2)
    trainer = gk.Trainer(net, optimizer=gk.optim.Adam(0.1), clip_norm=1.0)
    trainer.to_onnx(tmp_path / "step.onnx", verify=False)
    step, states = gk.load(tmp_path / "step.onnx"), gk.load(tmp_path / "step_init.onnx").run({})
    step.save(tmp_path / "step.gkp", shapes={"x": (4, 6), "target": (4,)})
    following = json.loads((tmp_path / "step_roles.json").read_text())["states"]
    rng, executor, found = np.random.default_rng(0), step.compile(), dict(states)
    with CSession(tmp_path / "step.gkp") as session:
        for _ in range(4):
            batch = {"x": rng.standard_normal((4, 6)).astype(np.float32), "target": rng.integers(0, 3, 4)}
            outputs, expected = session.run(batch | found), executor.run(batch | states)
            assert_same_bits(outputs, expected)
            found = {each["input"]: outputs[each["output"]] for each in following}
            states = {each["input"]: expected[each["output"]] for each in following}
    assert {each["role"] for each in following} >= {"parameter", "optimizer", "random", "step"}


def test_graphs_that_update_states_are_refused(tmp_path):
    x, total = gk.input("x", [2]), Value(TensorType(DType.FLOAT32, (2,)), "total", role="state")
    graph = Graph([x, total], [x * 2.0], updates=[(total, x + total)])
    with pytest.raises(UnsupportedError, match=r"updates states \('total'\).*Trainer.to_onnx"):
        save_program({"graph": graph, "params": {"total": np.zeros(2, np.float32)}}, tmp_path / "net.gkp", [{}])
