"""Copies of models, graphs and objects that belong to a process: `copy`, `pickle`, `multiprocessing`."""

import copy
import pickle
import subprocess
import sys
import textwrap

import numpy as np
import pytest
from combinations import in_one_item

import graphkit as gk
from graphkit.errors import UsageError
from graphkit.executor.run.engine import Engine


def chain(length):
    x = gk.input("x", ["N", 3])
    h = gk.nn.linear(x, 3, name="first")
    for _ in range(length):
        h = gk.relu(h)
    return gk.Model({"y": gk.nn.linear(h, 2, name="last")}, name="chain", meta={"who": "me"})


def control_flow():
    x = gk.input("x", [3])
    y = gk.cond(gk.reduce_sum(x) > 0.0, lambda v: v * 2.0, lambda v: v - 1.0, x)
    return gk.Model({"y": y}, name="branches")


WAYS = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda m: pickle.loads(pickle.dumps(m)),
    "oldest protocol": lambda m: pickle.loads(pickle.dumps(m, 0)),
}


def assert_equal(copied, net):
    assert copied.to_text() == net.to_text()
    assert (copied.name, dict(copied.meta), copied.inputs, copied.outputs) == (
        net.name, dict(net.meta), net.inputs, net.outputs,
    )  # fmt: skip
    assert list(copied.params) == list(net.params)
    for name, array in net.params.items():
        assert copied.params[name].dtype == array.dtype
        assert copied.params[name].tobytes() == array.tobytes()


@in_one_item()
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("make", [lambda: chain(1), lambda: chain(2000), control_flow], ids=["1", "2000", "branches"])
def test_a_copy_is_equal_and_its_own(way, make):
    net = make()
    net.run({"x": np.ones((3,) if net.name == "branches" else (1, 3), np.float32)})
    copied = way(net)
    assert_equal(copied, net)
    if "first_weight" in net.params:
        before = net.params["first_weight"].copy()
        copied.params["first_weight"] = before + 1
        np.testing.assert_array_equal(net.params["first_weight"], before)
        # Values of the copy are its own as well: what is built on them has its parameters.
        built = gk.Model(copied(gk.input("z", ["N", 3])))
        np.testing.assert_array_equal(built.params["first_weight"], before + 1)


def test_training_a_copy_leaves_the_model_alone():
    net = chain(1)
    before = {name: array.copy() for name, array in net.params.items()}
    for way in WAYS.values():
        trainer = gk.Trainer(way(net), "mse", gk.optim.SGD(0.1), threads=1)
        trainer.step(np.ones((2, 3), np.float32), np.ones((2, 2), np.float32))
        for name, array in before.items():
            np.testing.assert_array_equal(net.params[name], array)
        assert any(not np.array_equal(trainer.net.params[n], a) for n, a in before.items())


@in_one_item()
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64", "int8"])
def test_parameters_of_every_type(dtype):
    from graphkit.ir.types import dtype_of

    kind = dtype_of(dtype)
    array = np.arange(6).reshape(2, 3).astype(kind.numpy)
    w = gk.parameter("w", [2, 3], dtype=dtype, init=0 if dtype == "int8" else 0.5)
    net = gk.Model(gk.identity(w), params={"w": array})
    for way in WAYS.values():
        assert_equal(way(net), net)


def test_a_shallow_copy_shares_the_parameters():
    net = chain(1)
    copied = copy.copy(net)
    copied.params["last_bias"] = np.ones(2, np.float32)
    np.testing.assert_array_equal(net.params["last_bias"], 1)


@pytest.mark.full
def test_a_hundred_thousand_nodes():
    net = chain(100_000)
    assert_equal(copy.deepcopy(net), net)
    assert_equal(pickle.loads(pickle.dumps(net)), net)


def test_graphs_never_change_so_that_they_need_no_copies():
    graph = chain(300).graph
    assert copy.deepcopy(graph) is graph
    assert copy.copy(graph.nodes[0]) is graph.nodes[0]
    assert copy.deepcopy({"v": graph.outputs[0]})["v"] is graph.outputs[0]
    assert str(pickle.loads(pickle.dumps(graph))) == str(graph)


@in_one_item()
@pytest.mark.parametrize("part", [lambda g: g.outputs[0], lambda g: g.nodes[0], lambda g: g.inputs[0]])
def test_a_part_of_a_graph_is_not_pickled(part):
    with pytest.raises(UsageError, match="pickle the Model, or the Graph"):
        pickle.dumps(part(chain(1).graph))


@in_one_item()
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: chain(1).compile(threads=1), "pickle the Model, and compile"),
        (lambda: gk.Trainer(chain(1), "mse", threads=1), "call save.folder."),
        (lambda: gk.kvstore.create(), "call create.. in each process"),
        (lambda: Engine(workers=1), "create another one"),
    ],
    ids=["Executor", "Trainer", "KVStore", "Engine"],
)
@pytest.mark.parametrize("way", [pickle.dumps, copy.copy, copy.deepcopy])
def test_what_belongs_to_a_process_is_refused(make, message, way):
    with pytest.raises(UsageError, match=message):
        way(make())


def test_models_go_to_other_processes(tmp_path):
    script = tmp_path / "spawn.py"
    script.write_text(
        textwrap.dedent("""
        import multiprocessing, numpy as np, graphkit as gk

        @gk.op
        class Twice(gk.Op):
            '''x + x.'''
            domain, inputs, outputs = "com.example", ("x",), ("y",)
            def infer(self, x): return x
            def reference(self, xp, x): return x + x

        def work(net):
            return net.run({"x": np.ones((1, 3), np.float32)})["y"]

        if __name__ == "__main__":
            x = gk.input("x", ["N", 3])
            net = gk.Model({"y": gk.twice(gk.nn.linear(x, 2, name="f"))})
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                print(np.array_equal(pool.apply(work, (net,)), work(net)))
        """)
    )
    command = [sys.executable, "-P", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.stdout == "True\n", done.stderr


def define(factor, module="__main__", name="Scaled", domain="com.example"):
    def reference(self, xp, x):
        return factor * x

    body = {"domain": domain, "inputs": ("x",), "outputs": ("y",), "__module__": module, "__qualname__": name}
    return gk.op(type(name, (gk.Op,), body | {"infer": lambda self, x: x, "reference": reference}))


def test_an_operator_may_be_defined_again():
    from graphkit.ops._base import registry

    x = gk.input("x", [2])
    first = define(2)
    try:
        before = gk.Model({"y": gk.scaled(x)})
        with pytest.warns(UserWarning, match=r"com\.example\.Scaled is defined again; graphs made before keep"):
            first = define(3)
        after = gk.Model({"y": gk.scaled(x)})
        with pytest.warns(UserWarning, match="defined again"):
            first = define(4, domain="com.other")
        feeds = {"x": np.ones(2, np.float32)}
        for net, factor in ((before, 2), (after, 3), (gk.Model({"y": gk.scaled(x)}), 4), (copy.deepcopy(before), 2)):
            np.testing.assert_array_equal(net.run(feeds)["y"], factor)
        with pytest.raises(UsageError, match=r"registered already|named 'scaled' is registered"):
            define(5, module="elsewhere")
    finally:
        registry.remove(first)


@pytest.mark.parametrize("domain", ["", "com.example"])
def test_built_in_operators_stay(domain):
    with pytest.raises(UsageError, match="registered already"):
        define(2, module="__main__", name="Relu", domain=domain)
    assert gk.relu.op.__module__.startswith("graphkit.")
