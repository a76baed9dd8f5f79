"""Saved programs (.gkp): libgraphkit.so computes Python's bits, and rejects damaged files."""

import ctypes
import gc
import re
import subprocess
import threading
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from combinations import in_one_item
from onnx import helper
from saved_programs import assert_same_bits, branch_model, check, model_of, random_feeds, trees_model

import graphkit as gk
from graphkit import cli
from graphkit.errors import GraphkitError, InputError, LimitReached, RuntimeFailure, UnsupportedError, UsageError
from graphkit.executor.run import c_runtime
from graphkit.executor.run.c_runtime import CSession, library_path
from graphkit.ir.types import DType
from graphkit.passes.training.to_training import to_inference

ROOT = Path(__file__).parents[3]


# Networks with their options, and the size of each symbolic dimension.
SMALL = {
    "mlp": (dict(inputs=12, hidden=(16,), classes=3), 4),
    "lenet": ({}, 2),
    "dqn": ({}, 2),
    "text_cnn": (dict(vocab=30), 5),
    "lstm_lm": (dict(vocab=20), 3),
    "transformer_lm": (dict(vocab=20), 6),
    "dlrm": ({}, 2),
}
LARGE = {
    "resnet": ({}, 1), "mobilenetv3": ({}, 4), "densenet": ({}, 1), "vae": ({}, 3), "gan": ({}, 2),
    "unet": (dict(image=(1, 64, 64)), 2), "wide_and_deep": ({}, 3), "ncf": ({}, 3),
    "bert": (dict(vocab=50, width=64, heads=2, layers=2, length=16), 3),
    "vit": (dict(image=(3, 32, 32), patch=8, layers=2), 1),
}  # fmt: skip


def check_network(path, name, options, size):
    net = gk.models.build(name, **options)
    net = gk.Model.from_graph(to_inference(net.graph), net.params.entries())
    shapes = {n: tuple(d if isinstance(d, int) else size for d in t.shape) for n, t in net.input_types.items()}
    check(net, path, shapes)


@in_one_item()
@pytest.mark.parametrize("name", SMALL)
def test_small_networks_have_the_bits_of_python(name, tmp_path):
    check_network(tmp_path / "net.gkp", name, *SMALL[name])


@pytest.mark.full
@pytest.mark.parametrize("name", LARGE)
def test_large_networks_have_the_bits_of_python(name, tmp_path):
    check_network(tmp_path / "net.gkp", name, *LARGE[name])


@pytest.mark.full
def test_parts_of_a_batch_have_the_bits_of_python(tmp_path):
    """Convolutions compute a large batch in parts. 5 examples are parts of 2, and one that remains."""
    net = gk.models.build("mobilenetv3")
    net = gk.Model.from_graph(to_inference(net.graph), net.params.entries())
    shapes = {"x": (5, 3, 224, 224)}
    net.save(tmp_path / "net.gkp", shapes=shapes, threads=2, deterministic=True)
    feeds = random_feeds(net, shapes)
    expected = net.compile(threads=2, deterministic=True).run(feeds)
    for threads in (1, 2):
        with CSession(tmp_path / "net.gkp", threads) as session:
            assert_same_bits(session.run(feeds), expected)


def test_outputs_agree_with_onnxruntime(mlp, tmp_path):
    feeds, _ = check(mlp, tmp_path / "net.gkp", {"x": (4, 12)})
    mlp.save(tmp_path / "net.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "net.onnx")
    with CSession(tmp_path / "net.gkp") as program:
        found = program.run(feeds)
    for name, expected in zip([o.name for o in session.get_outputs()], session.run(None, feeds), strict=True):
        np.testing.assert_allclose(found[name], expected, rtol=1e-4, atol=1e-5)


def test_outputs_that_no_step_computes_are_copied(tmp_path):
    net = model_of(
        [
            helper.make_node("Relu", ["x"], ["y"]),
            helper.make_node("Identity", ["x"], ["same"]),
            helper.make_node("Reshape", ["y", "shape"], ["flat"]),
            helper.make_node("Identity", ["constant"], ["fixed"]),
        ],
        [("x", np.float32, [2, 3])],
        [
            ("y", np.float32, [2, 3]),
            ("same", np.float32, [2, 3]),
            ("flat", np.float32, [6]),
            ("fixed", np.float32, [2]),
        ],
        [("shape", np.array([6])), ("constant", np.array([1.5, -2], np.float32))],
    )
    feeds, _ = check(net, tmp_path / "net.gkp")
    with CSession(tmp_path / "net.gkp") as session:
        found = session.run(feeds)
    np.testing.assert_array_equal(found["same"], feeds["x"])
    np.testing.assert_array_equal(found["flat"], np.maximum(feeds["x"], 0).reshape(6))
    np.testing.assert_array_equal(found["fixed"], np.array([1.5, -2], np.float32))


def test_empty_and_scalar_arrays(tmp_path):
    net = model_of(
        [helper.make_node("Mul", ["x", "s"], ["y"]), helper.make_node("ReduceSum", ["x"], ["sum"], keepdims=0)],
        [("x", np.float32, [0, 3]), ("s", np.float32, [])],
        [("y", np.float32, [0, 3]), ("sum", np.float32, [])],
    )
    _, expected = check(net, tmp_path / "net.gkp")
    assert expected["sum"].shape == ()
    assert expected["y"].size == 0


def weights(*shape):
    return np.random.default_rng(3).standard_normal(shape).astype(np.float32)


# Operators whose kernels are made in different ways: inputs, constants, attributes, and the shape of the first output.
OPERATORS = {
    "Pad": ({"x": [2, 3]}, {"pads": np.array([1, 0, 0, 2])}, dict(mode="reflect"), [3, 5]),
    "Resize-nearest": ({"x": [1, 2, 3, 3]}, {"": None, "s": np.array([1, 1, 2, 2], np.float32)}, dict(), [1, 2, 6, 6]),
    "Resize-linear": (
        {"x": [1, 2, 3, 3]}, {"": None, "s": np.array([1, 1, 2, 1.5], np.float32)}, dict(mode="linear"), [1, 2, 6, 4],
    ),
    "ConvTranspose": ({"x": [1, 3, 5, 5]}, {"w": weights(3, 4, 3, 3)}, dict(strides=[2, 2]), [1, 4, 11, 11]),
    "Conv": ({"x": [1, 8, 7, 7]}, {"w": weights(8, 1, 3, 3), "b": weights(8)}, dict(group=8), [1, 8, 5, 5]),
    "Conv-1": ({"x": [2, 4, 9]}, {"w": weights(5, 4, 3)}, dict(dilations=[2]), [2, 5, 5]),
    "GRU": ({"x": [4, 2, 3]}, {"w": weights(1, 15, 3), "r": weights(1, 15, 5)}, dict(hidden_size=5), [4, 1, 2, 5]),
    "Slice": ({"x": [6, 4]}, {"from": np.array([5]), "to": np.array([0]), "axes": np.array([0]), "by": np.array([-2])},
              dict(), [3, 4]),
    "TopK": ({"x": [3, 9]}, {"k": np.array([4])}, dict(), [3, 4]),
    "Col2Im": ({"x": [1, 5, 5]}, {"size": np.array([5, 5]), "block": np.array([1, 5])}, dict(), [1, 1, 5, 5]),
    "LayerNormalization": ({"x": [3, 8]}, {"scale": weights(8)}, dict(), [3, 8]),
    "CumSum": ({"x": [3, 8]}, {"axis": np.array(1)}, dict(), [3, 8]),
    "MatMul": ({"x": [2, 3, 4], "y": [2, 4, 5]}, {}, dict(), [2, 3, 5]),
    "Softmax": ({"x": [3, 8]}, {}, dict(axis=0), [3, 8]),
    "Transpose": ({"x": [3, 4, 5]}, {}, dict(perm=[2, 0, 1]), [5, 3, 4]),
    "GridSample": ({"x": [1, 3, 5, 5], "grid": [1, 4, 2, 2]}, {}, dict(padding_mode="border"), [1, 3, 4, 2]),
    "ScatterElements": ({"x": [3], "u": [2]}, {"i": np.array([2, 0])}, dict(), [3]),
}  # fmt: skip


@in_one_item()
@pytest.mark.parametrize("name", OPERATORS)
def test_operators(name, tmp_path):
    inputs, constants, attributes, shape = OPERATORS[name]
    operator, operands = name.split("-")[0], [*inputs, *constants]
    if operator == "ScatterElements":
        operands = ["x", "i", "u"]
    net = model_of(
        [helper.make_node(operator, operands, ["out"], **attributes)],
        [(n, np.float32, s) for n, s in inputs.items()],
        [("out", np.float32, shape)],
        [(n, array) for n, array in constants.items() if array is not None],
    )
    check(net, tmp_path / "net.gkp")


def test_integer_products(tmp_path):
    net = model_of(
        [
            helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["q"]),
            helper.make_node("QLinearMatMul", ["q", "scale", "zero", "w", "scale", "zero", "scale", "zero"], ["p"]),
            helper.make_node("Reshape", ["q", "shape"], ["q4"]),
            helper.make_node("QLinearConv", ["q4", "scale", "zero", "k", "scale", "zero", "scale", "zero"], ["c"]),
            helper.make_node("DequantizeLinear", ["p", "scale", "zero"], ["product"]),
            helper.make_node("DequantizeLinear", ["c", "scale", "zero"], ["filtered"]),
        ],
        [("x", np.float32, [4, 9])],
        [("product", np.float32, [4, 3]), ("filtered", np.float32, [1, 2, 2, 2])],
        [
            ("scale", np.array(0.05, np.float32)),
            ("zero", np.array(128, np.uint8)),
            ("w", np.random.default_rng(0).integers(0, 255, (9, 3)).astype(np.uint8)),
            ("k", np.random.default_rng(0).integers(0, 255, (2, 4, 2, 2)).astype(np.uint8)),
            ("shape", np.array([1, 4, 3, 3])),
        ],
    )
    check(net, tmp_path / "net.gkp")


@pytest.mark.parametrize(("then", "otherwise"), [("Neg", "Sin"), ("Identity", "Neg")])
def test_branches(then, otherwise, tmp_path):
    net = branch_model(then, otherwise)
    net.save(tmp_path / "net.gkp")
    x = np.array([[1, -2], [0.5, 3]], np.float32)
    functions = {"Neg": np.negative, "Sin": np.sin, "Identity": np.positive}
    with CSession(tmp_path / "net.gkp") as session:
        for condition in (1, 0, 1, 2):
            feeds = {"c": np.array(condition, np.uint8).view(bool), "x": x}
            found = session.run(feeds)
            assert_same_bits(found, net.run(feeds))
            expected = np.exp(functions[then if condition else otherwise](x))
            np.testing.assert_allclose(found["y"], expected, rtol=1e-6)


def test_time_limit_ends_runs_of_many_short_parts(tmp_path):
    """The time counts over all parts of a batch, in C and in Python."""
    net, x = gk.models.build("lenet"), np.zeros((1 << 16, 1, 28, 28), np.float32)
    net.save(tmp_path / "net.gkp", shapes={"x": x.shape}, threads=2)
    for threads in (1, 2):
        with (
            CSession(tmp_path / "net.gkp", threads=threads, timeout=0.001) as session,
            pytest.raises(RuntimeFailure, match=r"the time limit is over .*GK_ERROR_LIMIT"),
        ):
            session.run({"x": x})
    with pytest.raises(LimitReached, match="the time limit is over"):
        net.compile(threads=2, timeout=0.001).run({"x": x})


def test_trees_and_maps(tmp_path):
    """An output of maps is the array of their values in C."""
    net = trees_model()
    net.save(tmp_path / "net.gkp")
    x = np.random.default_rng(0).standard_normal((9, 3)).astype(np.float32)
    expected = net.run({"x": x})
    with CSession(tmp_path / "net.gkp") as session:
        found = session.run({"x": x})
    np.testing.assert_array_equal(found["label"], expected["label"])
    np.testing.assert_array_equal(found["maps"], np.array([list(row.values()) for row in expected["maps"]], np.float32))


def test_nan_and_infinity_have_the_bits_of_python(mlp, mlp_file):
    x = np.linspace(-1, 1, 48, dtype=np.float32).reshape(4, 12)
    x[0, 0], x[1, 1], x[2, 2] = np.nan, np.inf, -np.inf
    with CSession(mlp_file) as session:
        assert_same_bits(session.run({"x": x}), mlp.run({"x": x}))


def test_number_of_threads_does_not_change_bits(tmp_path):
    net = gk.models.build("mlp", inputs=300, hidden=(500,), classes=70)
    path = tmp_path / "net.gkp"
    net.save(path, shapes={"x": (64, 300)}, threads=4)
    feeds = random_feeds(net, {"x": (64, 300)})
    found = []
    for threads in (1, 3, 4):
        with CSession(path, threads) as session:
            found.append(session.run(feeds))
    for each in found[1:]:
        assert_same_bits(each, found[0])
    assert_same_bits(found[0], net.compile(threads=4).run(feeds))


def test_inputs_and_outputs_are_described(mlp, mlp_file):
    with CSession(mlp_file) as session:
        assert session.inputs == {"x": (np.dtype(np.float32), (4, 12))}
        assert session.outputs == {mlp.graph.output_names[0]: (np.dtype(np.float32), (4, 3))}


def test_eight_threads_share_a_session(mlp, mlp_file):
    feeds = [{"x": np.random.default_rng(i).standard_normal((4, 12)).astype(np.float32)} for i in range(8)]
    expected = [mlp.run(each) for each in feeds]
    wrong = []
    with CSession(mlp_file) as session:

        def work(i):
            for _ in range(200):
                found = session.run(feeds[i])
                if any(found[name].tobytes() != array.tobytes() for name, array in expected[i].items()):
                    wrong.append(i)

        threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong


def test_runs_leave_few_reference_cycles(mlp_file):
    """Otherwise, memory of a process grows until Python collects garbage."""
    x = np.ones((4, 12), np.float32)
    with CSession(mlp_file) as session:
        session.run({"x": x})
        gc.collect()
        gc.disable()
        try:
            for _ in range(100):
                session.run({"x": x})
            assert gc.collect() < 100  # types of arrays, not something of each run
        finally:
            gc.enable()


def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def test_open_run_and_close_leak_nothing(mlp_file):
    x = np.ones((4, 12), np.float32)

    def opened(count):
        for _ in range(count):
            with CSession(mlp_file) as session:
                session.run({"x": x})

    with CSession(mlp_file) as session:
        for _ in range(500):
            session.run({"x": x})
        opened(50)
        before = resident()
        for _ in range(10_000):
            session.run({"x": x})
        opened(200)
        assert resident() - before < 1 << 20


# --- errors ------------------------------------------------------------------------------------------


def test_shapes_that_depend_on_values_are_refused(tmp_path):
    net = model_of(
        [helper.make_node("NonZero", ["x"], ["y"], name="places")],
        [("x", np.float32, [2, 3])],
        [("y", np.int64, [2, "n"])],
    )
    with pytest.raises(UnsupportedError, match=r"places \(NonZero: shapes that depend on values"):
        net.save(tmp_path / "net.gkp")


def test_missing_shape_is_named(tmp_path):
    net = gk.Model({"y": gk.relu(gk.input("x", [2, "N"]))})
    with pytest.raises(InputError, match="'x'"):
        net.save(tmp_path / "net.gkp")


def test_gk_load_says_how_to_run_the_file(mlp_file):
    with pytest.raises(GraphkitError, match="gkp"):
        gk.load(mlp_file)


def test_command_exports_and_verifies(mlp, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    mlp.save("net.json")
    assert cli.invoke(["export", "net.json", "x:4,12", "-o", "net.gkp"]) == 0
    assert "same bits" in capsys.readouterr().err
    assert Path("net.gkp").exists()
    assert cli.invoke(["export", "net.json", "x:4,12", "-o", "net.gkp", "--opset", "18"]) != 0
    assert "--opset" in capsys.readouterr().err


def test_a_program_with_other_bits_is_not_written(mlp, tmp_path, monkeypatch, capsys):
    mlp.save(tmp_path / "net.json")
    run = CSession.run

    def one_bit_flipped(session, feeds):
        found = run(session, feeds)
        next(iter(found.values())).view(np.uint8)[..., 0] ^= 1
        return found

    monkeypatch.setattr(CSession, "run", one_bit_flipped)
    # `main` would reset the handler of SIGINT in this process, and later tests send SIGINT.
    assert cli.invoke(["export", str(tmp_path / "net.json"), "x:4,12", "-o", str(tmp_path / "net.gkp")]) == 1
    assert "net.gkp: the C library computes output" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir() if "gkp" in path.name] == []


def test_options_of_other_formats_are_refused(mlp, tmp_path):
    with pytest.raises(UsageError, match="has no option 'opset'; its options are shapes, batch, any_size"):
        mlp.save(tmp_path / "net.gkp", opset=17)


@pytest.mark.parametrize(
    ("feeds", "message"),
    [({}, "input 'x'"), ({"x": np.ones((4, 12))}, "float64"), ({"x": np.ones((4, 11), np.float32)}, "11")],
)
def test_wrong_arrays_are_refused(mlp_file, feeds, message):
    with CSession(mlp_file) as session, pytest.raises(InputError, match=message):
        session.run(feeds)


class TestStatuses:
    """Statuses and texts of the C functions."""

    @pytest.fixture
    def library(self):
        return c_runtime._library()

    def open(self, library, path, abi=1, size=24):
        handle = ctypes.c_void_p(1)
        options = c_runtime._Options(0, 0, 0)
        status = library.gk_open_checked(str(path).encode(), ctypes.byref(options), ctypes.byref(handle), abi, size)
        return library.gk_status_name(status).decode(), library.gk_error().decode(), handle

    def test_missing_file(self, library, tmp_path):
        name, text, handle = self.open(library, tmp_path / "none.gkp")
        assert name == "GK_ERROR_FILE"
        assert "none.gkp: No such file" in text
        assert handle.value is None

    def test_folder(self, library, tmp_path):
        assert self.open(library, tmp_path)[0] == "GK_ERROR_FILE"

    def test_other_abi(self, library, mlp_file):
        assert self.open(library, mlp_file, abi=2)[0] == "GK_ERROR_VERSION"
        assert self.open(library, mlp_file, size=8)[0] == "GK_ERROR_VERSION"

    def test_types_have_names_and_sizes(self, library):
        library.gk_type_name.restype, library.gk_type_size.restype = ctypes.c_char_p, ctypes.c_size_t
        for number, name in enumerate(c_runtime._TYPES, 1):
            assert library.gk_type_name(number).decode() == name
            assert library.gk_type_size(number) == DType(name).numpy.itemsize
        for number in (-1, 0, len(c_runtime._TYPES) + 1):
            assert library.gk_type_name(number) == b""
            assert library.gk_type_size(number) == 0

    def test_null_pointers(self, library, mlp_file):
        assert library.gk_open_checked(None, None, None, 1, 24) == 1
        assert library.gk_run(None, None, 0, None, 0) == 1
        assert library.gk_input_count(None) == 0
        assert library.gk_input_name(None, 0) is None
        library.gk_close(None)
        with CSession(mlp_file) as session:
            assert library.gk_input_name(session._handle, 7) is None
            assert library.gk_input_type(session._handle, 7) == 0

    def run(self, library, session, inputs, outputs):
        def pointers(values):
            return (ctypes.c_void_p * len(values))(*values)

        status = library.gk_run(session._handle, pointers(inputs), len(inputs), pointers(outputs), len(outputs))
        return library.gk_status_name(status).decode(), library.gk_error().decode()

    def test_wrong_arguments_of_a_run(self, library, mlp_file):
        x, y = np.ones((4, 12), np.float32), np.ones((4, 3), np.float32)
        with CSession(mlp_file) as session:
            assert self.run(library, session, [x.ctypes.data], [y.ctypes.data])[0] == "GK_OK"
            status, text = self.run(library, session, [], [y.ctypes.data])
            assert status == "GK_ERROR_ARGUMENT"
            assert "1 inputs, but 0" in text
            status, text = self.run(library, session, [None], [y.ctypes.data])
            assert status == "GK_ERROR_ARGUMENT"
            assert "'x' is NULL" in text
            status, text = self.run(library, session, [x.ctypes.data + 1], [y.ctypes.data])
            assert status == "GK_ERROR_ARGUMENT"
            assert "aligned" in text

    def test_unused_output_needs_no_memory(self, library, mlp_file):
        x = np.ones((4, 12), np.float32)
        with CSession(mlp_file) as session:
            assert self.run(library, session, [x.ctypes.data], [None])[0] == "GK_OK"

    def test_failed_step_is_named(self, library, tmp_path):
        net = model_of(
            [helper.make_node("Gather", ["x", "i"], ["y"], name="pick")],
            [("x", np.float32, [3]), ("i", np.int64, [1])],
            [("y", np.float32, [1])],
        )
        net.save(tmp_path / "net.gkp")
        x, i, y = np.ones(3, np.float32), np.array([5]), np.ones(1, np.float32)
        with CSession(tmp_path / "net.gkp") as session:
            status, text = self.run(library, session, [x.ctypes.data, i.ctypes.data], [y.ctypes.data])
            assert status == "GK_ERROR_RUN"
            assert "pick" in text
            i[0] = 2
            assert self.run(library, session, [x.ctypes.data, i.ctypes.data], [y.ctypes.data])[0] == "GK_OK"


def test_library_needs_no_python():
    library = library_path()
    listed = subprocess.run(["nm", "-D", library], capture_output=True, text=True, check=True).stdout
    symbols = [line.split() for line in listed.splitlines()]
    assert not [s for s in symbols if s[-1].startswith(("Py", "_Py"))]
    exported = {s[-1].split("@")[0] for s in symbols if len(s) == 3 and s[1] in "TDB"}
    header = (ROOT / "graphkit" / "include" / "graphkit.h").read_text()
    assert exported == set(re.findall(r"\b(gk_\w+)\(", header)) - {"gk_open", "gk_open_memory"}
