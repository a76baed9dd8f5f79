"""Philox4x32-10, compared with published vectors, and the numbers of the random operators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from combinations import in_one_item

from graphkit.autodiff import gradient
from graphkit.errors import RuntimeFailure, TypeMismatch, UsageError
from graphkit.ir.graph import Graph, Node, Value
from graphkit.ir.types import DType, TensorType
from graphkit.ops import F
from graphkit.ops.evaluate import evaluate
from graphkit.ops.math import philox as _philox
from graphkit.ops.xp import numpy_xp
from graphkit.passes.training.randomness import bind_rng

STATE = np.array([0x0123456789ABCDEF, 5], np.uint64)

# Counter, key and result of the known-answer tests of Random123 (kat_vectors, philox4x32 10).
KNOWN = [
    ([0, 0, 0, 0], [0, 0], [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
    ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
    (
        [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
        [0xA4093822, 0x299F31D0],
        [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
    ),
]


def scalar_philox(counter: Sequence[int], key: Sequence[int]) -> list[int]:
    """The algorithm as the paper states it, on Python integers."""
    c, k = list(counter), list(key)
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(p1 >> 32) ^ c[1] ^ k[0], p1 & 0xFFFFFFFF, (p0 >> 32) ^ c[3] ^ k[1], p0 & 0xFFFFFFFF]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c


@in_one_item()
@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN)
def test_known_answers(counter: list[int], key: list[int], expected: list[int]) -> None:
    words = [np.array([c], np.uint32) for c in counter]
    keys = [np.array([k], np.uint32) for k in key]
    got = _philox.philox4x32(numpy_xp, tuple(words), tuple(keys))  # type: ignore[arg-type]
    assert [int(w[0]) for w in got] == expected
    assert scalar_philox(counter, key) == expected


def test_words_follow_the_documented_counter() -> None:
    got = _philox.words(numpy_xp, STATE, 9, 10)
    seed, step = (int(v) for v in STATE)
    key = [seed & 0xFFFFFFFF, seed >> 32]
    blocks = [scalar_philox([b, 9, step & 0xFFFFFFFF, step >> 32], key) for b in range(3)]
    assert got.tolist() == [word for block in blocks for word in block][:10]


def test_an_element_does_not_depend_on_the_number_of_elements() -> None:
    for draw in (_philox.uniform, _philox.normal):
        for bits in (24, 53):
            long = draw(numpy_xp, STATE, 1, (1001,), bits)
            for count in (0, 1, 2, 7):
                assert np.array_equal(draw(numpy_xp, STATE, 1, (count,), bits), long[:count])


def test_seed_step_and_stream_each_matter() -> None:
    base = _philox.words(numpy_xp, STATE, 0, 64)
    others = [
        _philox.words(numpy_xp, STATE + np.array([1, 0], np.uint64), 0, 64),
        _philox.words(numpy_xp, STATE + np.array([1 << 32, 0], np.uint64), 0, 64),
        _philox.words(numpy_xp, STATE + np.array([0, 1], np.uint64), 0, 64),
        _philox.words(numpy_xp, STATE + np.array([0, 1 << 32], np.uint64), 0, 64),
        _philox.words(numpy_xp, STATE, 1, 64),
        _philox.words(numpy_xp, _philox.fold_in(numpy_xp, STATE, np.array(0)), 0, 64),
        _philox.words(numpy_xp, _philox.fold_in(numpy_xp, STATE, np.array(1)), 0, 64),
    ]
    drawn = [base, *others]
    for i, a in enumerate(drawn):
        assert all(np.mean(a == b) < 0.05 for b in drawn[:i])


def test_too_many_words_or_streams() -> None:
    with pytest.raises(RuntimeFailure, match="2\\*\\*34"):
        _philox.words(numpy_xp, STATE, 0, (1 << 34) + 1)
    with pytest.raises(RuntimeFailure, match="stream"):
        _philox.words(numpy_xp, STATE, 1 << 32, 1)


def test_uniforms_are_multiples_in_the_unit_interval() -> None:
    for bits in (24, 53):
        u = _philox.uniform(numpy_xp, STATE, 0, (20_000,), bits)
        assert u.min() >= 0
        assert u.max() < 1
        assert np.array_equal(u * 2.0**bits, np.floor(u * 2.0**bits))
        assert abs(u.mean() - 0.5) < 0.01
        assert abs(u.var() - 1 / 12) < 0.002
    words = _philox.words(numpy_xp, STATE, 0, 4)
    assert _philox.uniform(numpy_xp, STATE, 0, (4,), 24).tolist() == [(int(w) >> 8) * 2.0**-24 for w in words]


def test_normals_have_the_moments_of_a_normal() -> None:
    for bits in (24, 53):
        z = _philox.normal(numpy_xp, STATE, 2, (40_001,), bits)
        assert np.isfinite(z).all()
        moments = [z.mean(), z.var(), (z**3).mean(), (z**4).mean()]
        assert np.allclose(moments, [0, 1, 0, 3], atol=0.08)
        assert abs(np.corrcoef(z[0:-1:2], z[1::2])[0, 1]) < 0.03


# --- operators ------------------------------------------------------------------------------------


def run(outputs: Any, inputs: Sequence[Value] = (), feeds: Sequence[Any] = ()) -> list[np.ndarray]:
    outputs = outputs if isinstance(outputs, (list, tuple)) else [outputs]
    return evaluate(Graph(inputs, outputs), feeds)


@in_one_item()
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_results_have_the_dtype_and_the_parameters(dtype: str) -> None:
    uniform, normal = run(
        [
            F.random_uniform(STATE, shape=(100, 100), low=-1.0, high=3.0, dtype=dtype),
            F.random_normal(STATE, shape=(100, 100), mean=2.0, scale=0.5, dtype=dtype),
        ]
    )
    assert uniform.dtype == normal.dtype == DType.of(dtype).numpy
    wide = uniform.astype(np.float64), normal.astype(np.float64)
    assert wide[0].min() >= -1
    assert wide[0].max() <= 3
    assert np.allclose([wide[0].mean(), wide[1].mean(), wide[1].std()], [1.0, 2.0, 0.5], atol=0.03)


def test_bernoulli_draws_one_with_probability_x() -> None:
    x = np.repeat(np.array([0.0, 0.25, 1.0], np.float32)[:, None], 10_000, axis=1)
    (y,) = run(F.bernoulli(x, STATE, dtype="int32"))
    assert y.dtype == np.int32
    assert np.allclose(y.mean(axis=1), [0, 0.25, 1], atol=0.02)


def test_rng_of_another_shape_is_refused() -> None:
    with pytest.raises(TypeMismatch, match=r"rng must be uint64\[2\], not uint64\[3\]"):
        F.random_uniform(np.zeros(3, np.uint64), shape=(2,))


def test_dropout_scales_what_it_keeps() -> None:
    x = np.ones((100, 100), np.float32)
    y, mask = run(F.dropout(x, np.float32(0.25), np.array(True), STATE))
    assert mask.dtype == np.bool_
    assert np.array_equal(y, np.where(mask, np.float32(1 / 0.75), 0))
    assert abs(mask.mean() - 0.75) < 0.02


@pytest.mark.parametrize("training", [None, np.array(False)])
def test_dropout_passes_through_outside_training(training: Any) -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    y, mask = run(F.dropout(x, np.float32(0.25), training, STATE))
    assert np.array_equal(y, x)
    assert mask.all()


@in_one_item()
@pytest.mark.parametrize("as_input", [False, True])
@pytest.mark.parametrize("training", [False, True])
def test_dropout_gradient_replays_the_mask(training: bool, as_input: bool) -> None:
    x = Value(TensorType("float32", ("N", 5)), "x")
    mode = Value(TensorType("bool", ()), "mode")
    y, mask = F.dropout(x, np.float32(0.5), mode if as_input else np.array(training), STATE)
    (dx,) = gradient([y], [x])
    inputs, feeds = ([x, mode], [np.ones((8, 5), np.float32), np.array(training)])
    drawn, kept, slope = run([y, mask, dx], inputs, feeds)
    assert np.array_equal(slope, drawn)
    assert np.array_equal(slope, np.where(kept, 2.0 if training else 1.0, 0.0))


def test_dropout_refuses_a_ratio_outside_the_unit_interval() -> None:
    ratio = Value(TensorType("float32", ()), "ratio")
    with pytest.raises(RuntimeFailure, match="ratio"):
        run(F.dropout(np.ones(3, np.float32), ratio, np.array(True)), [ratio], [np.float32(1.5)])


@in_one_item()
@pytest.mark.parametrize("ratio", [2.0, -0.5, float("nan")])
@pytest.mark.parametrize(
    "operands", [(), (np.array(False),), (np.array(True),)], ids=["alone", "inference", "training"]
)
def test_a_constant_ratio_is_checked_when_the_node_is_made(ratio: float, operands: tuple[Any, ...]) -> None:
    x = Value(TensorType("float32", (3,)), "x")
    with pytest.raises(UsageError, match=rf"node Dropout\(.*ratio must be in \[0, 1\], not {ratio:g}"):
        F.dropout(x, ratio, *operands)
    F.dropout(x, 1.0, *operands)


# --- bind_rng -------------------------------------------------------------------------------------


def noise(x: Any) -> Any:
    return F.random_uniform_like(x)


def streams(graph: Graph) -> list[int]:
    found = []
    for node in graph.nodes:
        if node.op.random:  # type: ignore[attr-defined]
            found.append(node.op.stream)  # type: ignore[attr-defined]
        for inner in node.op.subgraphs().values():
            found += streams(inner)
    return found


def test_bind_rng_leaves_a_graph_without_randomness_alone() -> None:
    x = Value(TensorType("float32", (3,)), "x")
    graph = Graph([x], [F.relu(x)])
    assert bind_rng(graph) is graph


def test_bind_rng_numbers_the_nodes_and_appends_one_input() -> None:
    x = Value(TensorType("float32", (4,)), "x")
    graph = Graph([x], [noise(x), F.dropout(x, np.float32(0.5), np.array(True))[0], noise(x)])
    bound = bind_rng(graph)
    assert [v.role for v in bound.inputs] == ["data", "rng"]
    assert bound.inputs[1].type == TensorType("uint64", (2,))
    assert streams(bound) == [0, 1, 2]
    assert bind_rng(bound) is bound
    ones = np.ones(4, np.float32)
    first, again = evaluate(bound, [ones, STATE]), evaluate(bound, [ones, STATE])
    later = evaluate(bound, [ones, STATE + np.array([0, 1], np.uint64)])
    assert all(map(np.array_equal, first, again))
    assert not np.array_equal(first[0], later[0])
    assert not np.array_equal(first[0], first[2])


def test_bind_rng_continues_after_bound_nodes() -> None:
    x = Value(TensorType("float32", (4,)), "x")
    bound = bind_rng(Graph([x], [noise(x)]))
    more = bind_rng(bound.replace(outputs=[*bound.outputs, noise(x)]))
    assert [v.role for v in more.inputs] == ["data", "rng"]
    assert sorted(streams(more)) == [0, 1]


def branch(build: Any) -> Graph:
    x = Value(TensorType("float32", (4,)), "x")
    return Graph([x], [build(x)])


def test_bind_rng_enters_both_branches_of_an_if() -> None:
    x, cond = Value(TensorType("float32", (4,)), "x"), Value(TensorType("bool", ()), "cond")
    y = F.if_(cond, x, then_branch=branch(noise), else_branch=branch(lambda v: F.add(noise(v), noise(v))))
    bound = bind_rng(Graph([x, cond], [noise(y), y]))
    assert sorted(streams(bound)) == [0, 1, 2, 3]
    for flag in (True, False):
        after, inside = evaluate(bound, [np.ones(4, np.float32), np.array(flag), STATE])
        assert not np.array_equal(after, inside)


def test_iterations_of_a_loop_draw_differently() -> None:
    count, keep = Value(TensorType("int64", ())), Value(TensorType("bool", ()))
    state = Value(TensorType("float32", (4,)))
    body = Graph([count, keep, state], [keep, state, noise(state)])
    x = Value(TensorType("float32", (4,)), "x")
    _, drawn = F.loop(np.array(3), None, x, body=body)
    bound = bind_rng(Graph([x], [drawn]))
    (rows,) = evaluate(bound, [np.ones(4, np.float32), STATE])
    assert len({row.tobytes() for row in rows}) == 3


def test_iterations_of_a_scan_draw_differently_and_results_keep_their_places() -> None:
    state, item = Value(TensorType("float32", ())), Value(TensorType("float32", (4,)))
    total = F.add(state, F.reduce_sum(item, keepdims=False))
    body = Graph([state, item], [total, noise(item), item])
    xs = Value(TensorType("float32", ("T", 4)), "xs")
    final, drawn, copied = F.scan(np.float32(0), xs, body=body, num_scan_inputs=1)
    bound = bind_rng(Graph([xs], [final, drawn, copied]))
    given = np.arange(12, dtype=np.float32).reshape(3, 4)
    total_value, rows, copies = evaluate(bound, [given, STATE])
    assert total_value == given.sum()
    assert np.array_equal(copies, given)
    assert len({row.tobytes() for row in rows}) == 3


def test_names_survive_binding() -> None:
    x = Value(TensorType("float32", (4,)), "x")
    y = F.random_uniform_like(x, name="noise")
    bound = bind_rng(Graph([x], [y]))
    (node,) = bound.nodes
    assert isinstance(node, Node)
    assert node.name == "noise"
    assert bound.output_names == Graph([x], [y]).output_names
