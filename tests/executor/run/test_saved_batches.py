"""Saved files (.gkp) whose programs compute batches of any size in parts."""

import ctypes
import re

import numpy as np
import pytest
from combinations import in_one_item
from saved_batches import attention, convnet, perceptron, recommender, recurrent
from saved_programs import assert_same_bits, random_feeds

import graphkit as gk
from graphkit import cli
from graphkit.errors import InputError, RuntimeFailure, UnsupportedError, UsageError
from graphkit.executor.run import saved_program
from graphkit.executor.run.c_runtime import CSession, _dims, _library, _pointers
from graphkit.executor.run.saved_batch import run_in_parts
from graphkit.executor.run.saved_encoding import number, sequence

SIZES = (1, 8, 32)
# Shapes of inputs with symbolic axes besides the rows.
NETWORKS = {
    "convnet": (convnet, {}),
    "perceptron": (perceptron, {}),
    "recommender": (recommender, {}),
    "attention": (attention, {}),
    "lstm": (recurrent, {"x": (1, 6, 4)}),
}


def save(name, path, threads=2):
    make, shapes = NETWORKS[name]
    net = make()
    net.save(path, shapes=shapes, batch=SIZES, threads=threads)
    return net


def feeds_of(session, net, rows):
    axes = session.batch_axes[0]
    ports = zip(session.inputs.items(), axes, strict=True)
    return random_feeds(net, {name: shape if axis < 0 else (rows, *shape[1:]) for (name, (_, shape)), axis in ports})


def shapes_of(feeds):
    return {name: array.shape for name, array in feeds.items()}


def programs_of(net, threads):
    """A function for each size, which runs the program that the file has."""
    executors = {rows: net.compile(threads=threads) for rows in SIZES}
    return {rows: executor.run for rows, executor in executors.items()}


@in_one_item("values")
@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("threads", [1, 2])
def test_a_batch_of_any_size_has_the_bits_of_its_parts(name, threads, tmp_path):
    net = save(name, tmp_path / "net.gkp", threads)
    programs = programs_of(net, threads)
    with CSession(tmp_path / "net.gkp") as session:
        batched = frozenset(n for n, axis in zip(session.inputs, session.batch_axes[0], strict=True) if axis == 0)
        for rows in (0, 1, 7, 45, 8):
            feeds = feeds_of(session, net, rows)
            found = session.run(feeds)
            assert {array.shape[0] for array in found.values()} == {rows}
            runs = session.find_runs(shapes_of(feeds))
            parts = [(n, k, programs[n]) for n, k in sorted(zip(SIZES, runs, strict=True))[::-1]]
            if rows:
                assert_same_bits(found, run_in_parts(parts, feeds, batched))
            for output, array in net.run(feeds).items():
                np.testing.assert_allclose(found[output], array, rtol=1e-4, atol=1e-5)


def test_parts_are_those_with_the_fewest_rows_and_runs(tmp_path):
    """A run counts as one row more than it has."""
    save("perceptron", tmp_path / "net.gkp")
    with CSession(tmp_path / "net.gkp") as session:
        runs = {rows: session.find_runs({"x": (rows, 12)}) for rows in (0, 1, 4, 5, 8, 9, 13, 28, 45, 64)}
    assert runs == {
        0: [0, 0, 0], 1: [1, 0, 0], 4: [4, 0, 0], 5: [0, 1, 0], 8: [0, 1, 0], 9: [1, 1, 0], 13: [0, 2, 0],
        28: [0, 0, 1], 45: [0, 2, 1], 64: [0, 0, 2],
    }  # fmt: skip


def test_one_program_runs_smaller_and_larger_batches(tmp_path):
    net = perceptron()
    net.save(tmp_path / "net.gkp", shapes={"x": (4, 12)})
    with CSession(tmp_path / "net.gkp") as session:
        for rows, runs in ((1, 1), (4, 1), (5, 2), (12, 3)):
            feeds = {"x": np.random.default_rng(0).standard_normal((rows, 12)).astype(np.float32)}
            assert session.find_runs(shapes_of(feeds)) == [runs]
            np.testing.assert_allclose(session.run(feeds)["logits"], net.run(feeds)["logits"], rtol=1e-5, atol=1e-6)


def test_programs_with_other_axes_are_not_mixed(tmp_path):
    """Rows run in programs whose inputs have the same other axes."""
    net = recurrent("GRU")
    shapes = [{"x": (1, steps, 4), "h0": (1, 5)} for steps in (2, 3)]
    net.save(tmp_path / "net.gkp", shapes=shapes, batch=(1, 4))
    with CSession(tmp_path / "net.gkp") as session:
        assert session.find_runs({"x": (9, 3, 4), "h0": (9, 5)}) == [0, 0, 1, 2]
        feeds = random_feeds(net, {"x": (9, 3, 4), "h0": (9, 5)})
        found = session.run(feeds)
        assert found["sequence"].shape == (9, 3, 5)
        np.testing.assert_allclose(found["sequence"], net.run(feeds)["sequence"], rtol=1e-5, atol=1e-6)
        with pytest.raises(InputError, match=r"no program for these shapes.*given: x \[9, 5, 4\], h0 \[9, 5\]"):
            session.run(random_feeds(net, {"x": (9, 5, 4), "h0": (9, 5)}))


def test_inputs_that_all_rows_share_may_come_first(tmp_path):
    keys, q = gk.input("keys", ["M", 4]), gk.input("q", ["N", 4])
    weights = gk.softmax(gk.mat_mul(q, gk.transpose(keys, perm=(1, 0))), axis=-1)
    net = gk.Model({"y": gk.mat_mul(weights, keys)})
    assert list(net.input_types) == ["keys", "q"]
    net.save(tmp_path / "net.gkp", shapes={"keys": (3, 4)}, batch=(1, 4))
    with CSession(tmp_path / "net.gkp") as session:
        feeds = random_feeds(net, {"keys": (3, 4), "q": (7, 4)})
        np.testing.assert_allclose(session.run(feeds)["y"], net.run(feeds)["y"], rtol=1e-5, atol=1e-6)


def test_wrong_shapes_of_a_batch_are_named(tmp_path):
    net = save("recommender", tmp_path / "net.gkp")
    with CSession(tmp_path / "net.gkp") as session:
        with pytest.raises(InputError, match="input 'x' has 3 rows, but input 'ids' has 4"):
            session.run({"x": np.zeros((3, 3), np.float32), "ids": np.zeros((4, 2), np.int64)})
        for shape, text in [
            ((-1, 3), "'x' has -1 rows"),
            ((1 << 40, 3), "more than 2.31"),
            ((3, 4), r"given: x \[3, 4\]"),
        ]:
            with pytest.raises(RuntimeFailure, match=f"{text}.*GK_ERROR_ARGUMENT"):
                session.find_runs({"x": shape, "ids": (shape[0], 2)})
        feeds = feeds_of(session, net, 7)
        feeds["ids"][6, 1] = 9
        with pytest.raises(RuntimeFailure, match=r"index.*GK_ERROR_RUN"):
            session.run(feeds)


def test_outputs_may_be_unused_and_pointers_are_checked(tmp_path):
    net, library = save("recommender", tmp_path / "net.gkp"), _library()
    with CSession(tmp_path / "net.gkp") as session:
        feeds = feeds_of(session, net, 13)
        expected = session.run(feeds)
        arrays, dims = list(feeds.values()), _dims([array.shape for array in feeds.values()])
        best = np.empty(13, np.int64)
        outputs = (ctypes.c_void_p * 3)(None, None, best.ctypes.data)
        arguments = (session._handle, _pointers(arrays), dims, 2, outputs, 3)
        assert library.gk_run_shapes(*arguments) == 0
        assert best.tobytes() == expected["best"].tobytes()
        wrong = [
            (None, *arguments[1:]), (*arguments[:3], 1, outputs, 3), (*arguments[:2], None, 2, outputs, 3),
            (*arguments[:2], (type(dims[0]) * 2)(), 2, outputs, 3),
            (session._handle, (ctypes.c_void_p * 2)(), dims, 2, outputs, 3),
            (*arguments[:4], (ctypes.c_void_p * 3)(best.ctypes.data + 1), 3),
        ]  # fmt: skip
        for each in wrong:
            assert library.gk_run_shapes(*each) == 1
        assert library.gk_find_output_dims(session._handle, dims, 2, 3, (ctypes.c_int64 * 3)()) == 1
        assert library.gk_find_output_dims(session._handle, dims, 2, 0, None) == 1
        assert library.gk_find_runs(session._handle, dims, 2, None) == 1
        assert library.gk_input_batch_axis(session._handle, 9) == library.gk_output_batch_axis(None, 0) == -1


def test_shared_inputs_have_no_batch_axis(tmp_path):
    save("attention", tmp_path / "net.gkp")
    with CSession(tmp_path / "net.gkp") as session:
        assert session.batch_axes == ([0, -1], [0])


def mixing():
    x = gk.input("x", ["N", 3])
    return {
        "mean": (gk.Model({"y": x - gk.reduce_mean(x, [0], name="centre")}), "ReduceMean 'centre' may mix rows"),
        "output": (gk.Model({"y": gk.relu(x), "s": gk.constant(np.ones(2, np.float32))}), "output 's' is float32"),
        "steps": (recurrent(mixed=True), "LSTM 'layer' may mix rows"),
        "random": (gk.Model({"y": gk.dropout(x, 0.5, training_mode=True, name="d")[0]}), "draws random numbers"),
        "static": (gk.Model({"y": gk.relu(gk.input("x", [2, 3]))}), "no input has a symbolic first axis"),
        "twice": (gk.Model({"y": gk.relu(gk.input("x", ["N", "N"]))}), "'N' is the batch axis of an input, too"),
    }


@in_one_item()
@pytest.mark.parametrize("name", mixing())
def test_rows_that_depend_on_each_other_are_refused(name, tmp_path):
    net, text = mixing()[name]
    shapes = {"steps": {"x": (1, 6, 4)}, "twice": {"x": (2, 2)}}.get(name, {})
    with pytest.raises(UnsupportedError, match=f"batches of any size in C: .*{text}.*Give shapes"):
        net.save(tmp_path / "net.gkp", shapes=shapes, batch=(1, 8))
    assert not list(tmp_path.iterdir())


def test_rows_that_depend_on_each_other_have_programs_of_certain_sizes(tmp_path):
    net, _ = mixing()["mean"]
    net.save(tmp_path / "net.gkp", shapes={"x": (4, 3)})
    with CSession(tmp_path / "net.gkp") as session:
        assert session.batch_axes == ([-1], [-1])
        with pytest.raises(InputError, match=r"but for: x \[4, 3\]; given: x \[5, 3\]"):
            session.run({"x": np.zeros((5, 3), np.float32)})
    with pytest.raises(UnsupportedError, match="ReduceMean 'centre'"):
        net.save(tmp_path / "other.gkp")


def test_sizes_are_checked(tmp_path):
    for sizes in ((), (0, 1), (8, 8)):
        with pytest.raises(UsageError, match="batch sizes must be different numbers from 1 on"):
            perceptron().save(tmp_path / "net.gkp", batch=sizes)
    with pytest.raises(InputError, match=r"input 'x' is float32\[N, T, 4\]: give its shape, with any number of rows"):
        recurrent().save(tmp_path / "net.gkp", batch=(1, 8))


@in_one_item()
@pytest.mark.parametrize(
    ("inputs", "outputs", "text"),
    [
        ([0], [0], "axes of another number"),
        ([0, 0], [0, 0], "axes of another number"),
        ([1, 0], [0, 0, 0], "'x' has no batch axis 1"),
        ([0, -2], [0, 0, 0], "'ids' has no batch axis -2"),
        ([-1, -1], [0, 0, 0], "no axis in the inputs"),
        ([0, 0], [0, 0, -1], "or not in each output"),
        ([1 << 62, 0], [0, 0, 0], "no batch axis"),
    ],
)
def test_damaged_axes_are_found(inputs, outputs, text, tmp_path, monkeypatch):
    axes = sequence(map(number, inputs)) + sequence(map(number, outputs))
    monkeypatch.setattr(saved_program._Contents, "batch_axes", lambda contents: axes)
    recommender().save(tmp_path / "net.gkp", batch=(1, 8))
    with pytest.raises(RuntimeFailure, match=rf"{re.escape(text)}.*GK_ERROR_FORMAT"):
        CSession(tmp_path / "net.gkp")


def test_programs_that_do_not_fit_a_batch_are_found(tmp_path, monkeypatch):
    """The file says that rows are independent, but the programs have other shapes."""
    axes = sequence([number(0)]) + sequence([number(0)])
    monkeypatch.setattr(saved_program._Contents, "batch_axes", lambda contents: axes)
    x = gk.input("x", ["N", 4])
    cases = {
        "'y' has another number of rows": gk.transpose(x, perm=(1, 0)),
        "'y' has no batch axis 0": gk.reduce_sum(x, keepdims=False),
        "'y' has rows of different sizes": gk.mat_mul(x, gk.transpose(x, perm=(1, 0))),
        "draws random numbers": gk.dropout(x, 0.5, training_mode=True)[0],
    }
    for text, y in cases.items():
        gk.Model({"y": y}).save(tmp_path / "net.gkp", shapes=[{"x": (2, 4)}, {"x": (3, 4)}])
        with pytest.raises(RuntimeFailure, match=rf"{text}.*GK_ERROR_FORMAT"):
            CSession(tmp_path / "net.gkp")


def test_command_exports_batches_of_any_size(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    perceptron().save("net.json")
    for arguments, rows in ([], [1, 8, 32]), (["--batch", "2,16"], [2, 16]), (["x:3,12", "--batch", "4"], [4]):
        assert cli.invoke(["export", "net.json", "-o", "net.gkp", *arguments]) == 0
        said = capsys.readouterr().err
        assert "same bits" in said
        assert "runs inputs of the shapes x [N, 12]\n" in said
        with CSession("net.gkp") as session:
            assert [inputs["x"][1][0] for inputs, _ in session.programs] == rows
            assert session.run({"x": np.zeros((5, 12), np.float32)})["logits"].shape == (5, 3)
    mixing()["mean"][0].save("mean.json")
    assert cli.invoke(["export", "mean.json", "-o", "mean.gkp"]) == 0
    assert "not for batches of any size: ReduceMean 'centre' may mix rows" in capsys.readouterr().err
    assert cli.invoke(["export", "mean.json", "-o", "mean.gkp", "--batch", "1,8"]) == 3
    assert cli.invoke(["export", "net.json", "-o", "net.gkp", "--batch", "one"]) == 2
    assert cli.invoke(["export", "net.json", "-o", "net.onnx", "--batch", "1"]) == 2
    assert "--batch is for .gkp files" in capsys.readouterr().err
