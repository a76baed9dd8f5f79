"""The whole package: imported modules, public names, and metadata."""

import importlib.resources
import re
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path

import pytest
from combinations import in_one_item

import graphkit as gk
from graphkit.errors import did_you_mean

PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text("utf-8"))
HEAVY = ("onnx", "onnxruntime", "cupy", "mpi4py", "scipy", "torch")


def fresh(code):
    """Run code in a new interpreter that does not see the current folder."""
    command = [sys.executable, "-P", "-c", textwrap.dedent(code)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@in_one_item()
@pytest.mark.parametrize(
    "use",
    ["", "graphkit.Model, graphkit.nn, graphkit.relu, graphkit.grad", "graphkit.Trainer, graphkit.data"],
    ids=["import", "define", "train"],
)
def test_heavy_packages_load_only_when_they_are_used(use):
    loaded = fresh(f"import sys, graphkit; {use}\nprint(*[m for m in {HEAVY} if m in sys.modules])")
    assert loaded == ""


def test_every_public_name_exists():
    for name in dir(gk):
        assert getattr(gk, name) is not None, name
    assert {"Model", "load", "grad", "verify", "Trainer", "cond", "while_loop", "scan", "map", "nn"} <= set(dir(gk))


def test_an_unknown_name_suggests_one():
    with pytest.raises(AttributeError, match="did you mean 'relu'"):
        gk.rellu  # noqa: B018


@in_one_item()
@pytest.mark.parametrize(("name", "written"), [
    ("dens", r"gk\.nn\.linear\(x, units\)"), ("export", r"net\.save\('net\.onnx'\)"), ("fit", r"gk\.Trainer\("),
    ("layer_norm", r"gk\.nn\.layer_norm$"), ("EarlyStopping", r"gk\.callbacks\.EarlyStopping$"),
    ("Adam", r"gk\.optim\.Adam$"), ("mse", r"gk\.losses\.mse$"),
])  # fmt: skip
def test_names_of_elsewhere_lead_to_ours(name, written):
    with pytest.raises(AttributeError, match=f"has no attribute {name!r}; write {written}"):
        getattr(gk, name)


@in_one_item()
@pytest.mark.parametrize(("name", "known", "hint"), [
    ("acc", ["auc", "accuracy"], "; did you mean 'accuracy'?"),
    ("gpu", ["cpu", "cuda"], "; did you mean 'cuda'?"),
    ("gpu", ["gru"], "; did you mean 'gru'?"),  # no name of the table is known
    ("zz", ["a", "b", "a"], "; known: 'a', 'b'"),
])  # fmt: skip
def test_did_you_mean_knows_other_names(name, known, hint):
    assert did_you_mean(name, known) == hint


def test_processes_of_tests_see_the_installed_package():
    """Without -P, `python -c` and `-m` search the current folder first, with sources but without the extension."""
    call = re.compile(r"sys\.executable,[^\]]*?\"-[cm]\"")
    for file in Path(__file__).parent.rglob("*.py"):
        for found in call.findall(file.read_text()):
            assert '"-P"' in found, f"{file.name}: {found}"


def test_metadata_and_type_marker():
    assert gk.__version__ == PROJECT["project"]["version"]
    assert importlib.resources.files("graphkit").joinpath("py.typed").is_file()
    assert importlib.resources.files("graphkit").joinpath("data", "files", "digits.npz").is_file()


def test_the_public_face_in_one_go(tmp_path):
    import numpy as np

    x = gk.input("x", ["N", 1, 8, 8])
    h = gk.relu(gk.nn.conv2d(x, 4, kernel=3, pad=1, name="conv1"))
    net = gk.Model(gk.nn.linear(gk.flatten(h), 10, name="fc"), name="tiny")
    assert net.inputs == ("x",)
    assert tuple(net.params) == ("conv1_weight", "conv1_bias", "fc_weight", "fc_bias")
    data = np.random.default_rng(0).random((3, 1, 8, 8), np.float32)
    exe = net.compile(device="cpu", threads=2)
    (y,) = exe(data)
    np.testing.assert_array_equal(exe.run({"x": data})[net.outputs[0]], y)
    assert exe.plan.lower_bound <= exe.plan.arena_bytes <= exe.plan.naive_bytes
    for path in (tmp_path / "net.json", tmp_path / "net.onnx"):
        net.save(path)
        np.testing.assert_allclose(gk.load(path).run({"x": data})[net.outputs[0]], y, rtol=1e-5, atol=1e-6)
    again = gk.load(net.to_onnx().SerializeToString())
    assert again.inputs == net.inputs
    net.params["fc_bias"] = np.full(10, 100.0, np.float32)
    assert (exe.run({"x": data})[net.outputs[0]] > 50).all()
    with pytest.raises(ValueError, match="read-only"):
        net.params["fc_bias"][0] = 1
    gradients = gk.grad(net, wrt=["conv1_weight", "x"])
    assert gradients.outputs == ("conv1_weight_grad", "x_grad")
    trainer = gk.Trainer(net, loss="softmax_cross_entropy", optimizer=gk.optim.SGD(0.1, momentum=0.9))
    assert float(trainer.step(data, np.array([1, 2, 3]))) > 0
    trainer.fit((data, np.array([1, 2, 3])), epochs=1, metrics=["accuracy"])
    trainer.save(tmp_path / "run")
    assert gk.load(tmp_path / "run").num_parameters == net.num_parameters


def test_composition_shares_parameters():
    import numpy as np

    x = gk.input("x", ["N", 4])
    body = gk.Model({"h": gk.tanh(gk.nn.linear(x, 3, name="body"))}, name="body", seed=1)
    a, b = gk.input("a", ["N", 4]), gk.input("b", ["N", 4])
    twin = gk.Model({"d": body(a) - body(b)}, name="twin")
    assert twin.inputs == ("a", "b")
    np.testing.assert_array_equal(twin.params["body_weight"], body.params["body_weight"])
    data = np.ones((2, 4), np.float32)
    assert not twin.run({"a": data, "b": data})["d"].any()
    inner = body["body"]
    np.testing.assert_allclose(np.tanh(inner.run({"x": data})["body"]), body.run({"x": data})["h"], rtol=1e-6)


def test_partial_shape_inference():
    x, y = gk.input("x", ["N", 4]), gk.input("y", ["M", 4])
    net = gk.Model({"p": gk.mat_mul(x, gk.transpose(y))})
    assert str(net.output_types["p"]) == "float32[N, M]"
    assert str(net.infer_shapes(x=(7, None))["p"]) == "float32[7, M]"
