"""Programs on devices with their own memory, on a fake GPU."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from emulator import Emulator
from on_a_card import stand_in_alone
from stand_in import Card, CardArray
from together import together

import graphkit as gk
from graphkit.checks.samples import dtypes_of, make_case, samples_of, tensor_within
from graphkit.checks.verify import compare_outputs
from graphkit.errors import UnsupportedError
from graphkit.executor.devices.cuda.launches import CardKernel
from graphkit.executor.devices.device import interprets
from graphkit.executor.devices.kernel import KernelContext
from graphkit.executor.devices.registry import make_launched
from graphkit.executor.memory.placement import place_values
from graphkit.executor.run.params import ParamStore
from graphkit.executor.run.session import Executor
from graphkit.ir.graph import Graph, Value
from graphkit.ir.types import DType, MapType, SequenceType, TensorType
from graphkit.ops import F, Op, registry
from graphkit.ops.evaluate import evaluate
from graphkit.ops.sequence.elements import holds_maps

# Operator, number of the sample, element type. `make_case` draws the arrays only when the case runs.
CASES = [
    (cls, number, dtype)
    for cls in registry
    for number, sample in enumerate(samples_of(cls))
    for dtype in dtypes_of(cls, sample)[:1]
]


def run(graph: Graph, feeds: list[Any], device: str) -> list[Any]:
    executor = Executor(graph, ParamStore({}), device=device, threads=1)
    return list(executor.run(dict(zip(graph.input_names, feeds, strict=True))).values())


def launches(graph: Graph) -> bool:
    """Whether every step has a GPU kernel. Views are not steps."""
    return all(make_launched("cuda", node, KernelContext()) is not None for node in place_values(graph).steps)


@together(full=lambda sample: sample[1] > 0)
@pytest.mark.parametrize("sample", CASES, ids=lambda s: f"{s[0].name}-{s[1]}-{s[2]}")
@pytest.mark.long
def test_every_operator(sample: tuple[type[Op], int, DType], card: Card) -> None:
    """The results are those of the reference. If the device does not support a type, the error says so."""
    case = make_case(*sample)
    graph = case.graph()
    # A node of constants alone is folded before the device is asked, unless it has a body; maps are not the device's.
    asked = graph.values if graph.inputs or any(node.op.subgraphs() for node in graph.nodes) else graph.outputs
    kinds = {tensor_within(v.type).dtype for v in asked if not holds_maps(v.type)}
    refused = any(card.stored(kind) is None for kind in kinds)
    # Bits are known to kernels of the card alone.
    if refused or (not all(interprets(card, kind) for kind in kinds) and not launches(graph)):
        with pytest.raises(UnsupportedError, match="has no arrays of these types"):
            run(graph, case.feeds(), "cuda")
        return
    # Where no state is fed, both executors draw from the same one.
    drawn = case.op.random and not any(a.dtype == "uint64" for a in case.arrays if isinstance(a, np.ndarray))
    wanted = run(graph, case.feeds(), "cpu") if drawn else evaluate(graph, case.feeds())
    found = run(graph, case.feeds(), "cuda")
    assert all(type(f) is np.ndarray for f, e in zip(found, wanted, strict=True) if isinstance(e, np.ndarray))
    names = graph.output_names
    for report in compare_outputs(dict(zip(names, found, strict=True)), dict(zip(names, wanted, strict=True))):
        assert report.passed, str(report)


@stand_in_alone
def test_stand_in_refuses_arrays_of_the_host_as_cupy_does(processor: Emulator) -> None:
    card, host = Card(processor), np.ones((2, 3))
    with card.on(card.stream()):
        x = card.copy_in(np.ones((2, 3)))
    refused: list[Callable[[], Any]] = [
        lambda: x + host,
        lambda: np.concatenate([x, host]),
        lambda: card.xp.dot(x, host.T),
        # No operand is on the card.
        lambda: card.xp.add(host, host),
        lambda: card.xp.concatenate([host, host]),
        lambda: card.xp.where(host > 0, 1.0, 0.0),
        lambda: card.xp.add.at(x, 0, host[0]),
    ]
    for mixed in refused:
        with pytest.raises(TypeError, match=r"^Unsupported type <class 'numpy.ndarray'>$"):
            mixed()
    with pytest.raises(ValueError, match=r"^non-scalar numpy\.ndarray cannot be used for fill$"):
        x[:] = host
    x[:, 0] = np.float64(2)
    assert type(card.xp.asarray(host)) is CardArray  # which copies
    assert type(x.sum(axis=0) + card.xp.zeros(3)) is CardArray


@stand_in_alone
def test_stand_in_refuses_arrays_of_another_card_as_cupy_does(processor: Emulator) -> None:
    cards = [Card(processor, number) for number in range(2)]
    arrays = []
    for card in cards:
        with card.on(card.stream()):
            arrays.append(card.copy_in(np.ones((2, 3), np.float32)))
            card.synchronize(card.current)
    x, y = arrays
    refused: list[Callable[[], Any]] = [
        lambda: x + y,
        lambda: np.exp(x)[0] + y.sum(axis=0),
        lambda: cards[0].xp.concatenate([x, y]),
        lambda: cards[0].xp.zeros(3) + y[0],
        lambda: x.__setitem__(0, y[0]),
    ]
    for mixed in refused:
        with pytest.raises(ValueError, match="is different from the current device"):
            mixed()
    with cards[0].on(cards[0].stream()):
        for copied in (lambda: cards[0].copy_out(y, None), lambda: cards[0].copy_in(np.ones((2, 3), np.float32), y)):
            with pytest.raises(AssertionError, match="another card's memory"):
                copied()
    cards[0].xp.copyto(x, y * 2)
    np.testing.assert_array_equal(cards[0].copy_out(x, None), np.full((2, 3), 2))


@stand_in_alone
def test_stand_in_prepares_kernels_on_its_own_card_only(processor: Emulator) -> None:
    card, node = Card(processor), F.exp(Value(TensorType("float32", (3,)), "x")).node
    with pytest.raises(AssertionError, match="outside of `on`"):
        card.prepare(node, CardKernel(()), None)
    with card.on(card.stream()):
        card.prepare(node, CardKernel(()), None)
    assert card.launched == ["Exp"]


@stand_in_alone
def test_stand_in_copies_to_contiguous_arrays_only(processor: Emulator) -> None:
    card = Card(processor)
    with card.on(card.stream()):
        x = card.copy_in(np.ones((2, 3), np.float32))
        with pytest.raises(AssertionError, match="Cannot set to non-contiguous"):
            card.copy_in(np.ones((3, 2), np.float32), x.T)
        with pytest.raises(AssertionError, match="non-contiguous"):
            card.copy_out(x, np.zeros((3, 2), np.float32).T)
        with pytest.raises(AssertionError, match="another shape or dtype"):
            card.copy_out(x, np.zeros((2, 3)))


def random_graph(seed: int) -> Graph:
    rng = np.random.default_rng(seed)
    x = Value(TensorType("float32", ("N", 6)), "x")
    pool: list[Value] = [x, F.constant(value=rng.standard_normal((4, 6)).astype(np.float32))]
    makers: list[Callable[[Value, Value], Value]] = [
        lambda a, b: F.add(a, b),
        lambda a, b: F.mul(F.tanh(a), b),
        lambda a, b: F.relu(a),
        lambda a, b: F.reshape(F.neg(F.reshape(a, np.array([-1]))), F.shape(a)),
        lambda a, b: F.softmax(F.mat_mul(F.mat_mul(a, F.transpose(b)), b)),
        lambda a, b: F.sub(a, F.reduce_max(b, np.array([0]), keepdims=True)),
    ]
    for _ in range(40):
        a, b = (pool[int(rng.integers(max(0, len(pool) - 6), len(pool)))] for _ in range(2))
        pool.append(makers[int(rng.integers(len(makers)))](a, b))
    return Graph([x], [pool[-1], pool[-3], x])


@together(full=lambda seed: seed > 2)
@pytest.mark.parametrize("seed", range(10))
def test_the_same_plan_whatever_the_planner_shares(seed: int, card: Card) -> None:
    graph = random_graph(seed)
    feeds = {"x": np.random.default_rng(seed).standard_normal((4, 6)).astype(np.float32)}
    plain = Executor(graph, ParamStore({}), optimize=False, inplace=False, share=False).run(feeds)
    arenas = {}
    for inplace, share in itertools.product([False, True], repeat=2):
        exe = Executor(graph, ParamStore({}), device="cuda", inplace=inplace, share=share)
        for _ in range(2):
            for name, array in exe.run(feeds).items():
                np.testing.assert_allclose(array, plain[name], rtol=1e-4, atol=1e-5)
        arenas[inplace, share] = exe.plan.arena_bytes
        assert exe.plan.arena_bytes in card.allocated
    assert arenas[True, True] <= arenas[False, False]


def network() -> gk.Model:
    x = gk.input("x", ["N", 1, 8, 8])
    hidden = gk.relu(gk.nn.conv2d(x, 4, kernel=3, pad=1, name="conv1"))
    return gk.Model({"y": gk.nn.linear(gk.flatten(hidden), 10, name="fc")})


def test_parameters_are_copied_once_and_again_when_they_change(card: Card) -> None:
    net = network()
    exe = net.compile("cuda")
    x = np.random.default_rng(0).random((2, 1, 8, 8), np.float32)
    first = exe.run({"x": x})["y"]
    uploads = card.uploads
    exe.run({"x": x})
    assert card.uploads == uploads + 1  # x
    exe.run({"x": x[:1]})
    assert card.uploads - uploads < 2 + len(net.params)  # another program reads the same copies
    net.params["fc_bias"] = net.params["fc_bias"] + 1
    np.testing.assert_allclose(exe.run({"x": x})["y"], first + 1, rtol=1e-5)
    np.testing.assert_allclose(net.compile().run({"x": x})["y"], first + 1, rtol=1e-4, atol=1e-5)


def test_results_belong_to_the_caller(card: Card) -> None:
    exe = network().compile("cuda")
    a, b = np.zeros((2, 1, 8, 8), np.float32), np.ones((2, 1, 8, 8), np.float32)
    first = exe.run({"x": a})["y"]
    kept = first.copy()
    out = np.empty((2, 10), np.float32)
    assert exe.run({"x": b}, out={"y": out})["y"] is out
    np.testing.assert_array_equal(first, kept)
    assert not np.array_equal(out, kept)


def test_training_writes_parameters_and_states(card: Card) -> None:
    losses = {}
    data = (np.random.default_rng(0).random((16, 1, 8, 8), np.float32), np.arange(16) % 10)
    for device in ("cpu", "cuda"):
        trainer = gk.Trainer(network(), "softmax_cross_entropy", gk.optim.SGD(0.1, momentum=0.9), device=device)
        losses[device] = [float(trainer.step(*data)) for _ in range(5)]
    np.testing.assert_allclose(losses["cuda"], losses["cpu"], rtol=1e-4)


def test_dynamic_sizes_control_flow_and_sequences(card: Card) -> None:
    x = gk.input("x", ["N"])
    doubled = gk.while_loop(lambda v: gk.reduce_sum(v, keepdims=0) < 100.0, lambda v: v * 2.0, x)
    net = gk.Model({"where": gk.non_zero(x), "doubled": doubled, "x": x})
    feeds = {"x": np.array([1.0, 0.0, 3.0, 0.0, 5.0], np.float32)}
    expected = net.compile().run(feeds)
    exe = net.compile("cuda")
    for _ in range(2):
        found = exe.run(feeds)
        for name, array in expected.items():
            np.testing.assert_array_equal(found[name], array)
            assert type(found[name]) is np.ndarray
    parts = Value(SequenceType(TensorType("float32", (2,))), "parts")
    given = [np.ones(2, np.float32), np.zeros(2, np.float32)]
    (returned,) = Executor(Graph([parts], [parts]), ParamStore({}), device="cuda")(given)
    assert [p.tolist() for p in returned] == [[1, 1], [0, 0]]
    assert all(type(p) is np.ndarray for p in returned)


def test_references_of_numpy_alone_run_on_the_host(card: Card) -> None:
    """Operands are copied to the host and results back, also in subgraphs. Maps are on the host already."""
    tree: dict[str, Any] = {
        "tree_roots": [0], "nodes_featureids": [1], "nodes_modes": np.zeros(1, np.uint8),
        "nodes_splits": np.array([0.5], np.float32), "nodes_truenodeids": [0], "nodes_trueleafs": [1],
        "nodes_falsenodeids": [1], "nodes_falseleafs": [1], "leaf_targetids": [0, 1],
        "leaf_weights": np.array([3, 4], np.float32), "n_targets": 2,
    }  # fmt: skip
    x, chosen = Value(TensorType("float32", ("N", 2)), "x"), Value(TensorType("bool", ()), "chosen")
    scores = F.relu(F.tree_ensemble(F.neg(x), **tree))
    inner = [Value(scores.type, name) for name in ("yes", "no")]
    grown, negative = Graph(inner[:1], [F.tree_ensemble(inner[0], **tree)]), Graph(inner[1:], [F.neg(inner[1])])
    either = F.if_(chosen, scores, then_branch=grown, else_branch=negative)
    zipped = F.zip_map(either, classlabels_strings=["no", "yes"])
    graph = Graph([x, chosen], [scores, either, zipped])
    for rows in ([[0, -1], [0, 0]], np.zeros((0, 2))):
        for branch in (True, False):
            feeds = [np.array(rows, np.float32), np.array(branch)]
            wanted, found = evaluate(graph, feeds), run(graph, feeds, "cuda")
            for expected, array in zip(wanted[:2], found[:2], strict=True):
                np.testing.assert_array_equal(array, expected)
                assert type(array) is np.ndarray
            assert found[2] == wanted[2]


def test_maps_of_any_type_stay_on_the_host(card: Card) -> None:
    x = Value(MapType(DType.INT64, TensorType("string", ())), "x")
    y = F.neg(F.cast_map(x, map_form="SPARSE", max_map=4))
    (found,) = run(Graph([x], [y]), [{0: "1.5", 2: "-3"}], "cuda")
    assert found.tolist() == [[-1.5, 0, 3, 0]]
    (returned,) = run(Graph([x], [x]), [{7: "seven"}], "cuda")
    assert returned == {7: "seven"}


def test_concurrent_runs_have_a_stream_and_an_arena_each(card: Card) -> None:
    net = network()
    exe, plain = net.compile("cuda"), net.compile(threads=1)
    batches = [np.full((2, 1, 8, 8), i, np.float32) for i in range(40)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda x: exe.run({"x": x})["y"], batches))
    for x, y in zip(batches, found, strict=True):
        np.testing.assert_allclose(y, plain.run({"x": x})["y"], rtol=1e-4, atol=1e-4)
    assert 1 <= len(card.streams) <= 4


def test_errors(card: Card, monkeypatch: pytest.MonkeyPatch) -> None:
    for dtype, made in ((DType.BFLOAT16, F.hardmax), (DType.FLOAT8E5M2FNUZ, F.identity)):
        x = Value(TensorType(dtype, (3,)), "x")
        exe = Executor(Graph([x], [made(x, name="narrow")]), ParamStore({}), device="cuda", optimize=False)
        with pytest.raises(UnsupportedError, match=rf"'cuda:0' has no arrays of these types \({dtype.value}: x, n"):
            _ = exe.plan
    with pytest.raises(UnsupportedError, match="profiling needs the native engine: device 'cpu'"), gk.profile():
        network().compile("cuda").run({"x": np.zeros((1, 1, 8, 8), np.float32)})
    monkeypatch.setenv("GRAPHKIT_STRICT", "1")
    network().compile("cuda").run({"x": np.zeros((1, 1, 8, 8), np.float32)})
    x = Value(TensorType("float32", (2, 2)), "x")
    exe = Executor(Graph([x], [F.det(x, name="alone")]), ParamStore({}), device="cuda")
    with pytest.raises(UnsupportedError, match=r"these nodes have no native kernel: alone \(Det\)"):
        exe.run({"x": np.eye(2, dtype=np.float32)})
