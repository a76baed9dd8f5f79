"""Saved files (.gkp) with a program for any sizes of symbolic axes."""

from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest
from combinations import in_one_item
from saved_batches import perceptron, recommender, recurrent
from saved_images import of_any_image, residual
from saved_programs import assert_same_bits, random_feeds

import graphkit as gk
from graphkit import cli
from graphkit.errors import InputError, RuntimeFailure, UnsupportedError
from graphkit.executor.lower.template import Template
from graphkit.executor.run.c_runtime import CSession
from graphkit.executor.run.sized_program import SizedProgram


def sums():
    """The rows of a batch are mixed, and a kernel reads a tensor of sizes."""
    x = gk.input("x", ["N", "T", 4])
    mean = gk.reduce_mean(x, [0, 1], keepdims=True)
    sizes = gk.reduce_sum(gk.cast(gk.shape(x), to="float32"), keepdims=False)
    return gk.Model({"y": (x - mean) @ gk.constant(np.ones((4, 3), np.float32)) * sizes})


def conditional():
    x = gk.input("x", ["N", 3])
    chosen = gk.cond(gk.reduce_sum(x, keepdims=False) > 0.0, lambda: gk.exp(x), lambda: gk.sin(x), name="choice")
    return gk.Model({"y": chosen * 2.0})


NETWORKS = {
    "bert": lambda: gk.models.build("bert", vocab=99, width=16, heads=2, layers=1),
    "transformer": lambda: gk.models.build("transformer_lm", vocab=30, width=16, heads=2, layers=1),
    "lstm": recurrent,
    "lstm_lm": lambda: gk.models.build("lstm_lm", vocab=20),
    "sums": sums,
}


IMAGES = {
    "residual": residual,
    "resnet": lambda: of_any_image(gk.models.build("resnet", layers=18, image=(3, 32, 32), classes=10)),
    "mobilenetv2": lambda: of_any_image(gk.models.build("mobilenetv2", image=(3, 32, 32), classes=10)),
    "unet": lambda: of_any_image(gk.models.build("unet", image=(1, 16, 16), width=4, depth=2)),
}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.full if n in ("resnet", "mobilenetv2") else ()) for n in IMAGES]
)
def test_images_of_any_size_have_the_bits_of_python(name, tmp_path):
    net = IMAGES[name]()
    channels = net.input_types["x"].shape[1]
    net.save(tmp_path / "net.gkp", shapes={"x": (1, channels, 32, 32)}, any_size=True, threads=1)
    executor = net.compile(threads=1)
    executor.run(random_feeds(net, {"x": (1, channels, 32, 32)}))
    with CSession(tmp_path / "net.gkp") as session:
        for rows, height, width in ((1, 32, 48), (3, 64, 32), (2, 36, 68), (1, 128, 128), (1, 8, 32), (9, 32, 48)):
            shape = {"x": (rows, channels, height, width)}
            assert session.find_runs(shape) == [0]
            feeds = random_feeds(net, shape)
            expected = executor.run(feeds)
            assert isinstance(executor._choice.latest, SizedProgram)
            assert_same_bits(session.run(feeds), expected)


def products():
    """Products by the library, by graphkit's own code, by a matrix that is computed, and in float64."""
    x = gk.input("x", ["N", "T", 256])
    w = np.random.default_rng(0).standard_normal((256, 256), dtype=np.float32)
    kinds = {"matrix": w, "dots": w[:, :1], "wide": w[:, :3].astype(np.float64)}
    made = {name: gk.cast(x, to=str(b.dtype)) @ gk.constant(b) for name, b in kinds.items()}
    return gk.Model({**made, "scores": x[:, :4] @ gk.transpose(x, perm=(0, 2, 1))})


def test_products_of_any_size_have_the_bits_of_python(tmp_path):
    """With 4,200 rows, Python takes the library's kernel, with 300 rows its own."""
    net = products()
    net.save(tmp_path / "net.gkp", shapes={"x": (1, 2, 256)}, any_size=True, threads=1)
    executor = net.compile(threads=1)
    executor.run(random_feeds(net, {"x": (1, 2, 256)}))
    with CSession(tmp_path / "net.gkp") as session:
        for shape in ((1, 300, 256), (1, 4200, 256), (3, 1, 256)):
            feeds = random_feeds(net, {"x": shape})
            expected = executor.run(feeds)
            assert isinstance(executor._choice.latest, SizedProgram)
            assert_same_bits(session.run(feeds), expected)


def test_lenet_runs_any_batch(tmp_path):
    net = gk.models.build("lenet", image=(1, 8, 8))
    net.save(tmp_path / "net.gkp", shapes={"x": (2, 1, 8, 8)}, any_size=True, threads=1)
    with CSession(tmp_path / "net.gkp") as session:
        feeds = random_feeds(net, {"x": (5, 1, 8, 8)})
        np.testing.assert_allclose(session.run(feeds)["logits"], net.run(feeds)["logits"], rtol=1e-5, atol=1e-6)


def shapes_at(net, rows, steps):
    sizes = {"N": rows, "T": steps}
    return {
        name: tuple(size if isinstance(size, int) else sizes[str(size)] for size in kind.shape)
        for name, kind in net.input_types.items()
    }


@in_one_item("values")
@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("threads", [1, 2])
def test_inputs_of_any_size_have_the_bits_of_python(name, threads, tmp_path):
    net = NETWORKS[name]()
    first = shapes_at(net, 2, 3)
    net.save(tmp_path / "net.gkp", shapes=first, any_size=True, threads=threads)
    executor = net.compile(threads=threads)
    executor.run(random_feeds(net, first))
    with CSession(tmp_path / "net.gkp") as session:
        for rows, steps in ((2, 3), (1, 1), (3, 7), (2, 40), (5, 4), (3, 7)):
            feeds = random_feeds(net, shapes_at(net, rows, steps))
            expected = executor.run(feeds)
            assert (rows, steps) == (2, 3) or isinstance(executor._choice.latest, SizedProgram)
            assert_same_bits(session.run(feeds), expected)
        assert session.find_runs(shapes_at(net, 3, 7)) == [0]
        assert session.find_runs(first) == [1]


def test_threads_run_many_sizes_at_the_same_time(tmp_path):
    net = recurrent("GRU")
    net.save(tmp_path / "net.gkp", shapes=shapes_at(net, 1, 2), any_size=True, threads=1)
    feeds = [random_feeds(net, shapes_at(net, 1, steps)) for steps in range(1, 41)]
    with CSession(tmp_path / "net.gkp") as session, ThreadPoolExecutor(4) as pool:
        alone = [session.run(each) for each in feeds]
        for found, expected in zip(pool.map(session.run, feeds * 3), alone * 3, strict=True):
            assert_same_bits(found, expected)


def test_shapes_that_break_a_condition_are_named(tmp_path):
    x, y = gk.input("x", ["N", 4]), gk.input("y", ["M", 4])
    first = gk.gather(y, gk.constant(np.array(0)), axis=0, name="row")  # y needs a row
    gk.Model({"z": x + first}).save(tmp_path / "net.gkp", shapes={"x": (2, 4), "y": (3, 4)}, any_size=True)
    with CSession(tmp_path / "net.gkp") as session, pytest.raises(InputError) as caught:
        session.run({"x": np.ones((5, 4), np.float32), "y": np.ones((0, 4), np.float32)})
    assert "node 'row': sizes that must be equal are 0 and 1; given: x [5, 4], y [0, 4]" in str(caught.value)


def test_errors_of_sizes_name_their_node(tmp_path):
    net = gk.Model({"z": gk.add(gk.input("x", ["N", 4]), gk.input("y", ["M", 4]), name="sum")})
    net.save(tmp_path / "net.gkp", shapes={"x": (3, 4), "y": (1, 4)}, any_size=True)
    with CSession(tmp_path / "net.gkp") as session, pytest.raises(RuntimeFailure) as caught:
        session.find_runs({"x": (3, 4), "y": (2, 4)})
    assert "node 'sum': dimensions 2 and 3 do not broadcast; given: x [3, 4], y [2, 4]" in str(caught.value)


def test_errors_of_negative_sizes_name_their_node(tmp_path, monkeypatch):
    """No operator has a negative size: the file gets a condition on the term x - 3 of max(x - 3, 0)."""

    def with_term(recorded):
        known = recorded.instructions
        term = [operation for operation, _, _ in known.steps].index("add")
        condition = (len(known.results), "tail")
        return recorded._replace(
            instructions=SimpleNamespace(steps=known.steps, results=[*known.results, term]),
            nonnegative=[*recorded.nonnegative, condition],
        )

    recorded = Template.recorded
    monkeypatch.setattr(Template, "recorded", lambda *arguments: with_term(recorded(*arguments)))
    x = gk.input("x", ["N"])
    gk.Model({"y": gk.relu(x[3:])}).save(tmp_path / "net.gkp", shapes={"x": (5,)}, any_size=True)
    with CSession(tmp_path / "net.gkp") as session, pytest.raises(RuntimeFailure) as caught:
        session.find_runs({"x": (1,)})
    assert "node 'tail': a size would be -2; given: x [1]" in str(caught.value)


def test_output_dims_of_sizes_that_a_run_refuses_are_refused(tmp_path):
    """The input has 2^30 bytes. The table of distances would have 2^58 bytes."""
    x = gk.input("x", ["N"])
    distances = gk.reduce_sum(gk.abs(gk.unsqueeze(x, [0]) - gk.unsqueeze(x, [1])), [1], keepdims=False)
    gk.Model({"y": distances}).save(tmp_path / "net.gkp", shapes={"x": (3,)}, any_size=True)
    with CSession(tmp_path / "net.gkp") as session:
        assert session.find_runs({"x": (5,)}) == [0]
        with pytest.raises(RuntimeFailure, match=r"too large.*GK_ERROR_ARGUMENT"):
            session.find_runs({"x": (1 << 28,)})


def test_wrong_sizes_are_named(tmp_path):
    net = recurrent("GRU")
    net.save(tmp_path / "net.gkp", shapes=shapes_at(net, 1, 2), any_size=True)
    with CSession(tmp_path / "net.gkp") as session:
        with pytest.raises(InputError, match=r"input 'x' must be \[1, 5, 4\] to fit the other inputs"):
            session.run(random_feeds(net, {"x": (1, 5, 3), "h0": (1, 5)}))
        with pytest.raises(InputError, match=r"input 'h0' must be \[3, 5\]"):
            session.run(random_feeds(net, {"x": (3, 7, 4), "h0": (2, 5)}))
        with pytest.raises(RuntimeFailure, match=r"'x' has a negative size.*GK_ERROR_ARGUMENT"):
            session.find_runs({"x": (1, -7, 4), "h0": (1, 5)})
        with pytest.raises(RuntimeFailure, match="GK_ERROR_ARGUMENT"):
            session.find_runs({"x": (1, 1 << 60, 4), "h0": (1, 5)})


@in_one_item()
@pytest.mark.parametrize(
    ("make", "shapes", "text"),
    [
        (recommender, {"x": (1, 3), "ids": (1, 2)}, r"kernels of \w+ '\w+' are made by Python"),
        (lambda: gk.Model({"y": gk.relu(gk.input("x", [2, 3]))}), {}, "the inputs have fixed sizes"),
        (conditional, {"x": (2, 3)}, r"choice contains subgraphs"),
    ],
)
def test_networks_that_need_python_for_sizes_are_refused(make, shapes, text, tmp_path):
    with pytest.raises(UnsupportedError, match=f"cannot run inputs of any size in C: .*{text}.*Give shapes"):
        make().save(tmp_path / "net.gkp", shapes=shapes, any_size=True)
    with pytest.raises(UnsupportedError, match="deterministic"):
        perceptron().save(tmp_path / "net.gkp", shapes={"x": (1, 12)}, any_size=True, deterministic=True)


def changed(monkeypatch, **fields):
    recorded = Template.recorded

    def other(template, symbols):
        found = recorded(template, symbols)
        return found._replace(**{name: change(getattr(found, name)) for name, change in fields.items()})

    monkeypatch.setattr(Template, "recorded", other)


HUGE = 1 << 40


@in_one_item()
@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"nonnegative": lambda places: [(HUGE, "")]}, "a condition on an unknown size"),
        ({"equal": lambda pairs: [(0, HUGE, "")]}, "a condition on an unknown size"),
        ({"requests": lambda all: [(5, 2, 0), *all[1:]]}, "a block of an unknown size"),
        ({"requests": lambda all: [(0, 2, HUGE), *all[1:]]}, "a block of an unknown size"),
        ({"requests": lambda all: [(0, 2, -HUGE), *all[1:]]}, "a block of an unknown size"),
        ({"requests": lambda all: []}, "memory or a kernel that does not exist"),
        ({"factories": lambda all: []}, "memory or a kernel that does not exist"),
        ({"factories": lambda all: [each._replace(inputs=[[HUGE]]) for each in all]}, "a kernel of an unknown size"),
        ({"factories": lambda all: [each._replace(recipe=b"") for each in all]}, "recipe ends early"),
    ],
)
def test_damaged_templates_are_found(fields, text, tmp_path, monkeypatch):
    changed(monkeypatch, **fields)
    net = recurrent("GRU")
    net.save(tmp_path / "net.gkp", shapes=shapes_at(net, 1, 2), any_size=True)
    with pytest.raises(RuntimeFailure, match=f"{text}.*GK_ERROR_FORMAT"):
        CSession(tmp_path / "net.gkp")


def test_steps_of_damaged_templates_stay_inside_of_their_memory(tmp_path, monkeypatch):
    """All blocks of the arena have the size of the first one."""
    changed(monkeypatch, requests=lambda all: [(first, last, -1) for first, last, _ in all])
    net = gk.models.build("bert", vocab=99, width=16, heads=2, layers=1)
    net.save(tmp_path / "net.gkp", shapes=shapes_at(net, 1, 2), any_size=True)
    text = r"(outside of its memory|overlap).*GK_ERROR_RUN"
    with CSession(tmp_path / "net.gkp") as session, pytest.raises(RuntimeFailure, match=text):
        session.run(random_feeds(net, shapes_at(net, 2, 9)))


def test_command_exports_a_program_for_any_size(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    net = recurrent("GRU")
    net.save("net.json")
    assert cli.invoke(["export", "net.json", "x:1,3,4", "-o", "net.gkp", "--any-size"]) == 0
    assert "runs inputs of the shapes x [N, T, 4], h0 [N, 5]\n" in capsys.readouterr().err
    with CSession("net.gkp") as session:
        feeds = random_feeds(net, shapes_at(net, 4, 9))
        np.testing.assert_allclose(session.run(feeds)["end"], net.run(feeds)["end"], rtol=1e-5, atol=1e-6)
    assert cli.invoke(["export", "net.json", "x:1,3,4", "-o", "net.onnx", "--any-size"]) == 2
    assert "--any-size is for .gkp files" in capsys.readouterr().err
