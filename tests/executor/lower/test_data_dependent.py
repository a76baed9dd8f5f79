"""Operators whose results have sizes that values decide: native everywhere, in graphs, branches and loops."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import onnx
import pytest
from combinations import in_one_item
from compiled_graph import Native, body, draw, value
from onnx import TensorProto, helper

import graphkit as gk
from graphkit.errors import DeclarationWarning, GraphkitError, RuntimeFailure
from graphkit.executor.run.program import Program
from graphkit.ir.types import TensorType
from graphkit.onnx_io.compare import OnnxRuntimeModel
from graphkit.ops import F

pytestmark = pytest.mark.usefixtures("strict")

FIRST = np.array([0])


def boxes_of(rng: np.random.Generator, count: int) -> np.ndarray:
    corners = rng.uniform(0, 8, (1, count, 2))
    return np.concatenate([corners, corners + rng.uniform(1, 4, (1, count, 2))], axis=-1).astype(np.float32)


@in_one_item()
@pytest.mark.parametrize("optimize", [True, False])
def test_sizes_that_change_from_run_to_run(optimize: bool) -> None:
    """Sizes are none, all, more than ever before, and fewer again. Later steps read the results."""
    x, c = value("x", "n", 4), value("c", "n", dtype="bool")
    places = F.non_zero(x)
    kept = F.compress(x, c, axis=0)
    y, first, inverse, counts = F.unique(F.round(F.reshape(kept, np.array([-1]))))
    rows, *_ = F.unique(F.round(x), axis=0, sorted=False)
    outputs = [
        places, kept, y, first, inverse, counts, F.relu(kept), F.gather_nd(x, F.transpose(places)), F.shape(rows),
        F.reduce_sum(kept, FIRST), F.gather(y, inverse), F.compress(x, F.reshape(F.cast(x, to="bool"), np.array([-1]))),
    ]  # fmt: skip
    run = Native([x, c], outputs, optimize=optimize)
    rng = np.random.default_rng(0)
    for n in (3, 0, 1, 50, 7, 0, 50, *rng.integers(0, 60, 6)):
        for kept_part in (0.5, 0.0, 1.0):
            run(draw(rng, n, 4) * (rng.random((n, 4)) < 0.5), rng.random(n) < kept_part)


def test_suppression_with_fed_limits() -> None:
    boxes, scores = value("boxes", 1, "n", 4), value("scores", 1, 3, "n")
    most, least = value("most", 1, dtype="int64"), value("least", 1)
    chosen = F.non_max_suppression(boxes, scores, most, np.array([0.3], np.float32), least)
    places = F.squeeze(F.gather(chosen, np.array([2]), axis=1), np.array([1]))
    run = Native([boxes, scores, most, least], [chosen, F.gather(F.squeeze(boxes, FIRST), places)])
    rng = np.random.default_rng(1)
    for n in (5, 0, 90, 1, 30):
        for most_boxes, limit in ((3, 0.5), (0, 0.0), (n, 2.0), (n, -1.0), (1, 0.9)):
            scored = rng.uniform(size=(1, 3, n)).astype(np.float32)
            run(boxes_of(rng, n), scored, np.array([most_boxes]), np.array([limit], np.float32))


def test_results_of_known_size() -> None:
    """They are in planned memory: for a known condition, and if each position gets a number."""
    x = value("x", 5, 2)
    y, _, inverse, _ = F.unique(x, axis=0)
    some = F.compress(x, np.array([True, False, True]), axis=0)
    assert some.tensor.is_static
    run = Native([x], [F.neg(inverse), y, F.exp(some)])
    rng = np.random.default_rng(2)
    for _ in range(3):
        run(rng.integers(0, 2, (5, 2)).astype(np.float32))


def test_unknown_rank() -> None:
    x, s = value("x", "n"), value("s", "r", dtype="int64")
    turned = F.reshape(x, s)
    assert turned.rank is None
    run = Native([x, s], [F.non_zero(turned), *F.unique(turned), F.compress(turned, F.greater(x, np.float32(0)))])
    rng = np.random.default_rng(3)
    for shape in ((12,), (3, 4), (2, 1, 6), (0, 3), (1,)):
        run(draw(rng, int(np.prod(shape))), np.array(shape))


@in_one_item()
@pytest.mark.parametrize("optimize", [True, False])
def test_in_branches(optimize: bool) -> None:
    p, x, c = value("p", dtype="bool"), value("x", 6, 3), value("c", 6, dtype="bool")
    boxes, scores = value("boxes", 1, 6, 4), value("scores", 1, 2, 6)
    limits = np.array([4]), np.array([0.2], np.float32)
    outputs = [
        gk.cond(p, lambda: F.compress(x, c, axis=0), lambda: F.neg(x)),
        gk.cond(p, lambda: F.non_zero(x), lambda: F.non_max_suppression(boxes, scores, *limits)),
        gk.cond(p, lambda: F.unique(x)[0], lambda: F.relu(F.unique(F.abs(x), sorted=False)[0])),
    ]
    run = Native([p, x, c, boxes, scores], outputs, optimize=optimize)
    rng = np.random.default_rng(4)
    for taken in (True, False, True):
        for kept in (0.5, 0.0, 1.0):
            arrays = np.round(draw(rng, 6, 3)), rng.random(6) < kept, boxes_of(rng, 6), np.abs(draw(rng, 1, 2, 6))
            run(taken, *arrays)


@in_one_item()
@pytest.mark.parametrize("optimize", [True, False])
def test_in_a_loop(optimize: bool) -> None:
    """A state that loses rows, a stack of rows of unknown length, and a branch inside."""
    m, x = value("m", dtype="int64"), value("x", "n", 3)
    inner = TensorType("float32", ("k", 3))

    def build(i: Any, c: Any, s: Any) -> list[Any]:
        above = F.greater(F.reduce_max(s, np.array([1]), keepdims=False), F.cast(i, to="float32") * 0.2)
        kept = gk.cond(F.equal(i, np.array(2)), lambda: s, lambda: F.compress(s, above, axis=0))
        different = F.unique(F.round(kept))[3]
        return [c, kept, F.reduce_sum(different, keepdims=False), F.shape(F.non_zero(kept))]

    run = Native([m, x], list(F.loop(m, None, x, body=body([inner], build))), optimize=optimize)
    rng = np.random.default_rng(5)
    for trips, n in ((4, 20), (0, 3), (9, 50), (3, 0), (1, 1), (9, 50)):
        run(trips, draw(rng, n, 3))


def test_several_threads_call_one_executor() -> None:
    x = value("x", "n")
    run = Native([x], [F.non_zero(x), *F.unique(x, sorted=False), F.compress(x, F.greater(x, np.float32(2)))])
    run(np.zeros(3, np.float32))
    wrong: list[Exception] = []
    rounds = [0] * 6

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        try:
            for _ in range(40):
                run(rng.integers(0, 5, rng.integers(0, 3000)).astype(np.float32))
                rounds[seed] += 1
        except (AssertionError, GraphkitError) as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong, wrong[0]
    assert rounds == [40] * 6


def test_operands_that_do_not_fit_name_the_node() -> None:
    x, c = value("x", "n", 2), value("c", "k", dtype="bool")
    known_in_the_run = F.compress(c, c)
    graph = gk.Model({"y": F.compress(x, known_in_the_run, axis=0, name="choose"), "z": F.neg(x)}).compile()
    x1, ones = np.ones((3, 2), np.float32), np.ones(3, bool)
    assert graph.run({"x": x1, "c": ones})["y"].shape == (3, 2)
    with pytest.raises(
        RuntimeFailure,
        match=r"choose: Compress\(float32\[3, 2\], bool\[5\]\): the condition is true at position 4, which is outside",
    ):
        graph.run({"x": x1, "c": np.ones(5, bool)})
    assert graph.run({"x": x1, "c": ~ones})["y"].shape == (0, 2)


def test_a_result_that_was_inferred_otherwise() -> None:
    """Sizes that inference knew, and that operands of unknown size do not keep."""
    x, c = value("x", "n"), value("c", 3, dtype="bool")
    places = F.non_zero(x)  # [1, n], with a condition of three for it
    kept = F.compress(places, c, axis=1)
    run = Native([x, c], [kept])
    run(np.array([1, 0, 2, 3], np.float32), np.array([True, False, True]))
    with pytest.raises(RuntimeFailure, match="outside the axis"):
        run(np.array([1, 0], np.float32), np.array([True, False, True]))


def file_with(nodes: list[Any], inputs: list[Any], outputs: list[Any], declared: tuple[Any, ...] = ()) -> bytes:
    made = [[helper.make_tensor_value_info(*v) for v in values] for values in (inputs, outputs, declared)]
    graph = helper.make_graph(nodes, "g", made[0], made[1], value_info=made[2])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return model.SerializeToString()


def test_shapes_that_a_file_declares() -> None:
    """They are compared with the shapes of each run, also inside of branches."""
    inside = helper.make_graph(
        [helper.make_node("NonZero", ["x"], ["found"])], "then",
        [], [helper.make_tensor_value_info("found", TensorProto.INT64, [1, 2])],
    )  # fmt: skip
    other = helper.make_graph(
        [helper.make_node("NonZero", ["y"], ["others"])], "else",
        [], [helper.make_tensor_value_info("others", TensorProto.INT64, None)],
    )  # fmt: skip
    source = file_with(
        [helper.make_node("If", ["p"], ["z"], then_branch=inside, else_branch=other),
         helper.make_node("NonZero", ["y"], ["outside"])],
        [("p", TensorProto.BOOL, []), ("x", TensorProto.FLOAT, [4]), ("y", TensorProto.FLOAT, [4])],
        [("z", TensorProto.INT64, None), ("outside", TensorProto.INT64, [1, 3])],
    )  # fmt: skip
    executor = gk.load(source).compile()
    two, three = np.array([0, 1, 1, 0], np.float32), np.array([2, 1, 1, 0], np.float32)
    assert executor.run({"p": np.array(True), "x": two, "y": three})["z"].tolist() == [[1, 2]]
    with pytest.warns(DeclarationWarning, match="outside"):
        executor.run({"p": np.array(True), "x": two, "y": two})
    with pytest.warns(DeclarationWarning, match="found"):
        executor.run({"p": np.array(True), "x": three, "y": two})


def test_a_detector_equals_onnx_runtime() -> None:
    """Suppression in the body of a loop over images, where the next image has other boxes above a threshold."""
    t = TensorProto
    step = helper.make_graph(
        [
            helper.make_node("Gather", ["scores", "i"], ["own_scores"], axis=0),  # [n]
            helper.make_node("Gather", ["boxes", "i"], ["own_boxes"], axis=0),  # [n, 4]
            helper.make_node("Greater", ["own_scores", "limit"], ["good"]),
            helper.make_node("NonZero", ["good"], ["places"]),
            helper.make_node("Squeeze", ["places", "first"], ["place"]),
            helper.make_node("Gather", ["own_boxes", "place"], ["good_boxes"], axis=0),
            helper.make_node("Compress", ["own_scores", "good"], ["good_scores"], axis=0),
            helper.make_node("Unsqueeze", ["good_boxes", "first"], ["b"]),
            helper.make_node("Unsqueeze", ["good_scores", "both"], ["s"]),
            helper.make_node("NonMaxSuppression", ["b", "s", "most", "overlap"], ["chosen"]),
            helper.make_node("Shape", ["chosen"], ["shape"]),
            helper.make_node("Concat", ["state", "chosen"], ["grown"], axis=0),
            helper.make_node("Identity", ["going"], ["on"]),
        ],
        "step",
        [helper.make_tensor_value_info("i", t.INT64, []), helper.make_tensor_value_info("going", t.BOOL, []),
         helper.make_tensor_value_info("state", t.INT64, [None, 3])],
        [helper.make_tensor_value_info("on", t.BOOL, []), helper.make_tensor_value_info("grown", t.INT64, [None, 3]),
         helper.make_tensor_value_info("shape", t.INT64, [2])],
    )  # fmt: skip
    constants = {
        "limit": np.array(0.4, np.float32), "first": FIRST, "both": np.array([0, 1]), "most": np.array([5]),
        "overlap": np.array([0.3], np.float32), "none": np.zeros((0, 3), np.int64),
    }  # fmt: skip
    graph = helper.make_graph(
        [helper.make_node("Loop", ["m", "", "none"], ["all", "shapes"], body=step)], "g",
        [helper.make_tensor_value_info("m", t.INT64, []),
         helper.make_tensor_value_info("boxes", t.FLOAT, [None, None, 4]),
         helper.make_tensor_value_info("scores", t.FLOAT, [None, None])],
        [helper.make_tensor_value_info("all", t.INT64, [None, 3]),
         helper.make_tensor_value_info("shapes", t.INT64, None)],
        [onnx.numpy_helper.from_array(a, name) for name, a in constants.items()],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()
    executor, theirs = gk.load(model).compile(), OnnxRuntimeModel(model)
    rng = np.random.default_rng(6)
    for images, n in ((3, 40), (1, 7), (4, 100), (2, 0)):
        feeds = {
            "m": np.array(images),
            "boxes": np.concatenate([boxes_of(rng, n) for _ in range(images)]),
            "scores": rng.uniform(0, 1, (images, n)).astype(np.float32),
        }
        for name, expected in theirs.run(feeds).items():
            np.testing.assert_array_equal(executor.run(feeds)[name], expected)


def test_gradients_flow_through_what_was_chosen() -> None:
    x, c = value("x", 5, 2), value("c", 5, dtype="bool")
    loss = F.reduce_sum(F.mul(F.compress(x, c, axis=0), np.float32(3)), keepdims=False)
    run = Native([x, c], [*gk.gradient([loss], [x])])
    (got,) = run(np.ones((5, 2), np.float32), np.array([True, False, True, False, False]))
    np.testing.assert_array_equal(got[:, 0], [3, 0, 3, 0, 0])
    assert not run(np.ones((5, 2), np.float32), np.zeros(5, bool))[0].any()


@pytest.mark.parametrize("threads", [1, 2])
def test_large_results_keep_their_values_in_later_runs(threads: int) -> None:
    """Later runs write larger and smaller results, while the caller still holds earlier ones."""
    x, c = value("x", "n", 64), value("c", "n", dtype="bool")
    kept = F.compress(x, c, axis=0)
    executor = gk.Model({"kept": kept, "again": kept, "places": F.non_zero(x), "most": F.relu(kept)}).compile(
        threads=threads
    )
    rng = np.random.default_rng(5)
    held: list[tuple[np.ndarray, np.ndarray]] = []
    for n in (2000, 2000, 2000, 2500, 9000, 2000, 10, 0, 2000, 2000, 700):
        given, chosen = rng.standard_normal((n, 64)).astype(np.float32), rng.random(n) < 0.6
        result = executor.run({"x": given, "c": chosen})
        rows = given[chosen]
        expected = {"kept": rows, "again": rows, "places": np.stack(given.nonzero()), "most": np.maximum(rows, 0)}
        held += [(result[name], array) for name, array in expected.items()]
        assert not np.shares_memory(result["kept"], result["again"])
        for ours, theirs in held[-16:]:
            np.testing.assert_array_equal(ours, theirs)


def test_large_results_are_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the second run on, the kernel writes to the memory that the caller receives. Small results are copied."""
    x = value("x", "n")
    executor = gk.Model({"y": F.compress(x, F.greater(x, np.float32(0)), axis=0)}).compile()
    copies: list[int] = []
    copied = Program.copied

    def counted(program: Program, position: int, array: np.ndarray) -> np.ndarray:
        copies.append(array.size)
        return copied(program, position, array)

    monkeypatch.setattr(Program, "copied", counted)
    small, large, larger = (np.arange(-9, n, dtype=np.float32) for n in (8, 40000, 90000))
    for given in (large, large, large, larger, larger, small, small):
        np.testing.assert_array_equal(executor.run({"x": given})["y"], given[given > 0])
    assert copies == [39999, 89999]


def test_small_results_keep_their_values_in_later_runs() -> None:
    x = value("x", "n", 2)
    kept = F.compress(
        x, F.squeeze(F.slice(F.greater(x, np.float32(0)), FIRST, FIRST + 1, FIRST + 1), FIRST + 1), axis=0
    )
    executor = gk.Model({"y": kept, "places": F.non_zero(x)}).compile()
    given = [np.arange(n, n - 12, -1, dtype=np.float32).reshape(6, 2) for n in (11, 4, -3, 9)]
    results = [executor.run({"x": array}) for array in given]
    for array, result in zip(given, results, strict=True):
        np.testing.assert_array_equal(result["y"], array[array[:, 0] > 0])
        np.testing.assert_array_equal(result["places"], np.nonzero(array))
        assert result["y"].flags.owndata


def test_two_results_of_one_array_do_not_lose_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small result is copied out of the memory for a large one, which others may use after that."""
    x = value("x", "n")
    kept = F.compress(x, F.greater(x, np.float32(0)), axis=0)
    executor = gk.Model({"one": kept, "other": F.identity(kept)}).compile()
    large = np.arange(1, 1 << 16, dtype=np.float32)
    assert len(executor.run({"x": large})["one"]) == len(large)
    copied = Program.copied

    def after_use_of_recycled_memory(program: Program, position: int, array: np.ndarray) -> np.ndarray:
        taken = [program.allocated(position, (1 << 18,), np.dtype(np.uint8), 1 << 18) for _ in range(8)]
        for memory in taken:
            memory[:] = 255
        return copied(program, position, array)

    monkeypatch.setattr(Program, "copied", after_use_of_recycled_memory)
    signs = np.where(np.arange(len(large)) % 20 == 0, large, -large)
    result = executor.run({"x": signs})
    for name in ("one", "other"):
        np.testing.assert_array_equal(result[name], signs[signs > 0])


def test_equal_runs_need_equal_memory() -> None:
    """The memory of the first run, which the second one does not need, does not count."""
    model = gk.Model({"y": F.compress(value("x", "n", 8), value("c", "n", dtype="bool"), axis=0)})
    executor = model.compile(threads=1, max_memory=9_000_000)
    feeds = {"x": np.ones((200_000, 8), np.float32), "c": np.ones(200_000, bool)}
    for _ in range(4):
        assert len(executor.run(feeds)["y"]) == 200_000


def test_true_may_be_any_byte_but_zero() -> None:
    """Numpy's views of bytes as bool may have other bytes than 0 and 1."""
    c, x = value("c", 4096, dtype="bool"), value("x", 4096)
    chosen = gk.cond(F.squeeze(F.slice(c, FIRST, FIRST + 1)), lambda: -x, lambda: x)
    net = gk.Model({"places": F.non_zero(c), "kept": F.compress(x, c, axis=0), "chosen": chosen})
    bits = np.where(np.arange(4096) < 2048, 3, 0).astype(np.uint8)
    feeds = {"x": np.arange(4096, dtype=np.float32), "c": bits.view(bool)}
    found = net.run(feeds)
    for name, expected in net.run(feeds | {"c": bits > 0}).items():
        np.testing.assert_array_equal(found[name], expected)
