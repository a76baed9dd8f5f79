"""Runs on a GPU: states that stay in GPU memory, recordings, and faults.

The fake GPU does its work as late as possible, so a missing wait shows as a wrong result.
"""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
from on_a_card import stand_in_alone
from stand_in import Card
from together import together

import graphkit as gk
from graphkit.errors import NotFinite, OutOfMemory, RuntimeFailure
from graphkit.executor.devices.bound_steps import Choice, NotRecorded
from graphkit.executor.run.params import ParamStore
from graphkit.executor.run.session import Executor
from graphkit.ir.graph import Graph, Node, Value
from graphkit.ir.types import DType, TensorType
from graphkit.ops import F

X = np.random.default_rng(0).standard_normal((16, 12)).astype(np.float32)
LABELS = np.arange(16) % 3


def network() -> gk.Model:
    x = gk.input("x", ["N", 12])
    return gk.Model({"y": gk.nn.linear(gk.tanh(gk.nn.linear(x, 8, name="one")), 3, name="two")})


def trainer(device: str, **options: Any) -> gk.Trainer:
    return gk.Trainer(network(), "softmax_cross_entropy", gk.optim.Adam(0.01), device=device, seed=3, **options)


def counters(graph_of: Any, **arrays: np.ndarray) -> tuple[Executor, ParamStore]:
    """An executor on the card of a graph with updates of states, which are float32, and their store."""
    states = {name: Value(TensorType("float32", a.shape), name, role="state") for name, a in arrays.items()}
    graph = graph_of(**states)
    store = ParamStore({name: v.tensor for name, v in states.items()}, arrays)
    return Executor(graph, store, device="cuda"), store


# --- states -----------------------------------------------------------------------------------------


def test_training_sends_samples_and_nothing_else(card: Card) -> None:
    here, there = trainer("cpu"), trainer("cuda")
    there.step(X, LABELS)
    here.step(X, LABELS)
    for _ in range(4):
        before = card.uploads
        np.testing.assert_allclose(float(there.step(X, LABELS)), float(here.step(X, LABELS)), rtol=1e-4)
        assert card.uploads == before + 1, "samples, labels and the learning rate, together"
    for name, array in here.net.params.items():
        np.testing.assert_allclose(there.net.params[name], array, rtol=1e-3, atol=1e-5)


def brought_by(card: Card, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Bytes of each array that comes to the host from now on."""
    brought: list[int] = []
    copy_out, copy_to_host = card.copy_out, card.copy_to_host
    monkeypatch.setattr(card, "copy_out", lambda array, out: brought.append(array.nbytes) or copy_out(array, out))
    monkeypatch.setattr(card, "copy_to_host", lambda array, to: brought.append(array.nbytes) or copy_to_host(array, to))
    return brought


def test_a_step_brings_its_loss_alone(card: Card, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a metric reads the outputs, they are copied to the host."""
    brought = brought_by(card, monkeypatch)
    run, scores = trainer("cuda"), 4 * 3 * len(X)
    for _ in range(3):
        brought.clear()
        run.step(X, LABELS)
        assert len(brought) == 2, "the words of faults and the loss"
        assert max(brought) < scores
    brought.clear()
    run.fit((X, LABELS), epochs=1, batch_size=len(X), metrics=["accuracy"], progress=False)
    assert scores in brought


# --- a step as one recording ------------------------------------------------------------------------


def taking(card: Card, *, faults: bool = True) -> tuple[Executor, ParamStore]:
    """Add rows of a table to three states. Without `faults`, the whole table is used, so that no index can fail."""

    def graph(**states: Value) -> Graph:
        table, index = Value(TensorType("float32", (5, 4)), "table"), Value(TensorType("int64", (3,)), "index")
        taken = F.reduce_sum(F.gather(table, index) if faults else table, np.array([0]), keepdims=0)
        more = F.tanh(F.mul(F.exp(F.neg(taken)), taken))
        new = [F.add(state, F.mul(more, taken)) for state in states.values()]
        shown = F.neg(more)
        shown.name = "shown"
        return Graph([table, index, *states.values()], [shown], [*zip(states.values(), new, strict=True)])

    return counters(graph, a=np.zeros(4, np.float32), b=np.ones(4, np.float32), c=np.full(4, 2, np.float32))


def step_of(executor: Executor, index: list[int]) -> np.ndarray:
    table = np.linspace(0, 1, 20, dtype=np.float32).reshape(5, 4)
    found: np.ndarray = executor.run({"table": table, "index": np.array(index)})["shown"]
    return found


@together()
@pytest.mark.parametrize("conditions", [True, False])
def test_a_fault_leaves_states_whoever_looks(conditions: bool, card: Card) -> None:
    """With conditions the card does, and a step is one replay."""
    if not conditions:
        card.has_conditions = False
    executor, store = taking(card)
    for _ in range(2):
        for turn in range(4):
            before, replays = {name: np.array(array) for name, array in store.items()}, card.replays
            assert np.isfinite(step_of(executor, [turn, 1, 0])).all()
            for name, array in before.items():
                assert (store[name] != array).any()
        assert card.replays - replays == (1 if conditions else 2)
        before, replays = {name: np.array(array) for name, array in store.items()}, card.replays
        with pytest.raises(RuntimeFailure, match="index"):
            step_of(executor, [1, 7, 0])
        assert card.replays == replays + 1, "what failed is the recording"
        for name, array in before.items():
            np.testing.assert_array_equal(store[name], array)


@together()
@pytest.mark.parametrize("conditions", [True, False])
def test_steps_without_faults_are_one_recording(conditions: bool, card: Card) -> None:
    card.has_conditions = conditions
    executor, store = taking(card, faults=False)
    for _ in range(3):
        step_of(executor, [0, 1, 2])
    before, replays = np.array(store["a"]), card.replays
    step_of(executor, [0, 1, 2])
    assert card.replays == replays + 1
    np.testing.assert_allclose(store["b"] - store["a"], 1, rtol=1e-6)
    assert (store["a"] != before).any()


def test_one_recording_that_is_refused(card: Card, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then there are two, and the host looks between them."""
    record = card.record

    def refusing(stream: Any, steps: Any) -> Any:
        if isinstance(steps[-1], Choice):
            raise NotRecorded("no such nodes")
        return record(stream, steps)

    monkeypatch.setattr(card, "record", refusing)
    executor, store = taking(card)
    step_of(executor, [0, 1, 2])
    with pytest.warns(RuntimeWarning, match="no such nodes; the host checks for faults between steps"):
        step_of(executor, [0, 1, 2])
    replays = card.replays
    step_of(executor, [0, 1, 2])
    assert card.replays == replays + 2
    with pytest.raises(RuntimeFailure, match="index"):
        step_of(executor, [0, 9, 2])
    np.testing.assert_allclose(store["c"] - store["a"], 2, rtol=1e-6)


def test_an_output_that_is_a_state_s_old_value(card: Card) -> None:
    """Also where the update is part of a recording, which writes it before outputs are read."""

    def graph(**states: Value) -> Graph:
        x = Value(TensorType("float32", (4,)), "x")
        names = list(states)
        new = [F.add(states[name], x) for name in names]
        shown = states[names[-1]]
        outputs = [shown, F.reshape(shown, np.array([2, 2])), F.neg(x)]
        return Graph([x, *states.values()], outputs, [*zip(states.values(), new, strict=True)])

    executor, store = counters(graph, **{f"s{i}": np.zeros(4, np.float32) for i in range(5)})
    x = np.ones(4, np.float32)
    for run in range(6):
        first, second, _ = executor.run({"x": x}).values()
        np.testing.assert_array_equal(first, np.full(4, run, np.float32))
        np.testing.assert_array_equal(second, np.full((2, 2), run, np.float32))
        np.testing.assert_array_equal(store["s4"], np.full(4, run + 1, np.float32))
    assert card.replays


def test_a_step_of_a_network_with_maps(card: Card) -> None:
    """Maps are made from an output that nothing else reads."""
    losses = {}
    for device in ("cpu", "cuda"):
        y = gk.nn.linear(gk.input("x", ["N", 12]), 3, name="two")
        classes = F.zip_map(gk.softmax(y), classlabels_int64s=(0, 1, 2))
        net = gk.Model({"y": y, "classes": classes}, seed=1)
        run = gk.Trainer(net, "softmax_cross_entropy", gk.optim.SGD(0.1), device=device, output="y")
        losses[device] = [float(run.step(X, LABELS)) for _ in range(3)]
    np.testing.assert_allclose(losses["cuda"], losses["cpu"], rtol=1e-5)


def test_who_runs_a_trainer_s_executor_gets_outputs(card: Card) -> None:
    run = trainer("cuda")
    run.step(X, LABELS)
    rate = {"learning_rate": np.float32(0)}
    found = run.executor.run({"x": X, "target": LABELS, **rate})
    assert found["y"].shape == (16, 3)
    buffer = np.full((16, 3), 77, np.float32)
    run.executor.run({"x": X, "target": LABELS, **rate}, out={"y": buffer})
    assert (buffer != 77).all()


def test_running_statistics_share_a_launch(card: Card) -> None:
    """They are not written in place: a step whose gradients are not finite leaves them."""

    def trained(device: str) -> tuple[list[float], dict[str, np.ndarray]]:
        x = gk.input("x", ["N", 3, 4, 4])
        for _ in range(3):
            x = gk.relu(gk.nn.batch_norm(gk.nn.conv2d(x, 5, 1)))
        net = gk.Model({"y": gk.nn.linear(gk.flatten(x), 3)}, seed=2)
        run = gk.Trainer(net, "softmax_cross_entropy", gk.optim.SGD(0.1), device=device, seed=1, on_nonfinite="skip")
        rng = np.random.default_rng(0)
        batches = [rng.standard_normal((6, 3, 4, 4)).astype(np.float32) for _ in range(5)]
        batches[3][...] = np.nan
        losses = [float(run.step(batch, np.arange(6) % 3)) for batch in batches]
        return losses, dict(net.params)

    here, wanted = trained("cpu")
    there, found = trained("cuda")
    np.testing.assert_allclose(there, here, rtol=1e-4)
    for name, array in wanted.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-3, atol=1e-5, err_msg=name)
    # In the last recording, all updates of parameters share one launch, and all updates of statistics another.
    steps, launches = card.merged[-1]
    statistics = sum("running" in name for name in wanted)
    assert statistics == 6
    assert steps >= len(wanted), "also what is copied to statistics"
    assert launches <= 4


def test_what_is_on_the_card_is_seen_on_the_host(card: Card) -> None:
    run = trainer("cuda")
    run.step(X, LABELS)
    first = run.net.params["one_weight"]
    kept = first.copy()
    run.step(X, LABELS)
    np.testing.assert_array_equal(first, kept)
    assert not np.array_equal(run.net.params["one_weight"], kept), "an array that was read stays as it was"
    on_host = network()
    for name, array in run.net.params.items():
        on_host.params[name] = array
    for device in ("cpu", "cuda"):
        np.testing.assert_allclose(
            run.net.compile(device).run({"x": X})["y"], on_host.run({"x": X})["y"], rtol=1e-4, atol=1e-6
        )
    store = run.net.params
    for other in (copy.copy(store), copy.deepcopy(store), pickle.loads(pickle.dumps(store))):
        before = {name: array.copy() for name, array in other.items()}
        run.step(X, LABELS)
        for name, array in before.items():
            np.testing.assert_array_equal(other[name], array)


def test_what_the_host_writes_is_seen_on_the_card(card: Card) -> None:
    here, there = trainer("cpu"), trainer("cuda")
    for run in (here, there):
        run.step(X, LABELS)
        run.net.params["two_bias"] = np.array([1.0, 2.0, 3.0], np.float32)
    np.testing.assert_allclose(float(there.step(X, LABELS)), float(here.step(X, LABELS)), rtol=1e-4)
    np.testing.assert_allclose(there.net.params["two_bias"], here.net.params["two_bias"], rtol=1e-4)


def test_batches_of_other_sizes_go_on_with_the_same_states(card: Card) -> None:
    here, there = trainer("cpu"), trainer("cuda")
    for size in (16, 5, 16, 16, 5, 5, 16):
        loss = float(here.step(X[:size], LABELS[:size]))
        np.testing.assert_allclose(float(there.step(X[:size], LABELS[:size])), loss, rtol=1e-3)


def test_an_evaluation_beside_training_sees_its_latest_step(card: Card) -> None:
    run = trainer("cuda")
    exe = Executor(run.net.graph, run.net.params, device="cuda")
    for _ in range(3):
        run.step(X, LABELS)
        before = card.uploads
        found = exe.run({"x": X})["y"]
        assert card.uploads == before + 1, "x: the parameters are there"
        np.testing.assert_allclose(found, run.net.run({"x": X})["y"], rtol=1e-4, atol=1e-6)


def test_states_that_change_places(card: Card) -> None:
    def swapped(a: Value, b: Value) -> Graph:
        return Graph([a, b], [a, F.add(b, b)], updates=[(a, b), (b, a)])

    exe, store = counters(swapped, a=np.ones(4, np.float32), b=np.full(4, 2, np.float32))
    for turn in range(4):
        one, two = (1.0, 2.0) if turn % 2 == 0 else (2.0, 1.0)
        found = list(exe.run({}).values())
        assert [found[0].tolist(), found[1].tolist()] == [[one] * 4, [2 * two] * 4]
        assert store["a"].tolist() == [two] * 4
        assert store["b"].tolist() == [one] * 4


def test_a_state_that_others_still_read(card: Card) -> None:
    """Its old value is an output, and its new value is another output."""

    def shared(a: Value) -> Graph:
        grown = F.add(F.mul(a, a), a)
        return Graph([a], [a, grown, F.neg(a)], updates=[(a, grown)])

    exe, store = counters(shared, a=np.full(3, 1, np.float32))
    value = 1.0
    for _ in range(4):
        old, new, negative = exe.run({}).values()
        assert (old[0], new[0], negative[0]) == (value, value * value + value, -value)
        value = float(new[0])
        assert store["a"].tolist() == [value] * 3


# --- recordings -------------------------------------------------------------------------------------


def chain(length: int = 6) -> gk.Model:
    x = gk.input("x", ["N", 12])
    shift = gk.parameter("shift", (12,), init=gk.init.Constant(0.5))
    y = x + shift
    for _ in range(length):
        y = gk.softmax(y * 2.0, axis=-1)
    return gk.Model({"y": y})


def test_steps_are_recorded_once_and_replayed(card: Card) -> None:
    net = chain()
    exe = net.compile("cuda")
    plain = net.compile(threads=1)
    for turn in range(5):
        x = X + turn
        np.testing.assert_allclose(exe.run({"x": x})["y"], plain.run({"x": x})["y"], rtol=1e-5)
    assert (card.recordings, card.replays) == (1, 4)
    net.params["shift"] = net.params["shift"] + 1
    for turn in range(3):
        np.testing.assert_allclose(exe.run({"x": X})["y"], plain.run({"x": X})["y"], rtol=1e-5)
        assert card.recordings == (1 if turn == 0 else 2), "another array: recorded again when it stays"
    assert card.replays == 6


def test_what_is_interpreted_divides_recordings(card: Card) -> None:
    x = gk.input("x", [16, 12])
    one = gk.softmax(gk.reduce_sum(gk.softmax(x, axis=-1), np.array([0]), keepdims=True) * 2.0, axis=-1)
    middle = gk.ops.F.det(gk.reshape(gk.concat(one, one, one, axis=0), np.array([1, 6, 6])))
    two = gk.softmax(gk.exp(gk.reduce_sum(gk.softmax(x * middle, axis=0), np.array([1]), keepdims=True)), axis=0)
    net = gk.Model({"y": two})
    exe = net.compile("cuda")
    assert exe.run({"x": X})["y"].shape == (16, 1)
    assert card.interpreted
    for turn in range(4):
        np.testing.assert_allclose(exe.run({"x": X * turn})["y"], net.run({"x": X * turn})["y"], rtol=1e-4)
    assert card.recordings >= 1


def test_training_is_replayed(card: Card) -> None:
    here, there = trainer("cpu"), trainer("cuda")
    for _ in range(6):
        np.testing.assert_allclose(float(there.step(X, LABELS)), float(here.step(X, LABELS)), rtol=1e-4)
    assert card.recordings
    assert card.replays >= 4 * card.recordings


# --- faults -----------------------------------------------------------------------------------------


def test_a_fault_names_its_node_and_the_next_run_is_well(card: Card) -> None:
    x, at = gk.input("x", [5, 4]), gk.input("at", [3], "int64")
    net = gk.Model({"y": gk.gather(gk.exp(x), at, axis=0, name="pick"), "z": gk.gather(x, at, axis=1, name="other")})
    exe = net.compile("cuda")
    data = X[:5, :4]
    for _ in range(3):
        with pytest.raises(RuntimeFailure, match=r"pick.*Gather.*: an index is outside axis 0 of \[5, 4\]"):
            exe.run({"x": data, "at": np.array([0, 5, 1])})
        with pytest.raises(RuntimeFailure, match=r"other.*: an index is outside axis 1 of \[5, 4\]"):
            exe.run({"x": data, "at": np.array([0, 4, 1])})
        np.testing.assert_array_equal(exe.run({"x": data, "at": np.array([0, 3, -1])})["z"], data[:, [0, 3, -1]])


@stand_in_alone
def test_the_stand_in_works_late(card: Card) -> None:
    """Results are wrong if they are read without waiting, so tests with a missing wait fail."""
    stream, other = card.stream(), card.stream()
    with card.on(stream):
        sent = card.copy_in(np.ones(3, np.float32))
        assert not np.array_equal(np.asarray(sent.view(np.ndarray)), np.ones(3))
    with card.on(other):
        assert not np.array_equal(card.copy_out(sent, None), np.ones(3)), "another stream's work"
    card.synchronize(stream)
    assert np.array_equal(card.copy_out(sent, None), np.ones(3))


def test_a_fault_leaves_states_as_they_were(card: Card) -> None:
    """States are only overwritten after the run is known to be successful."""
    table = gk.parameter("table", (5, 4), init=gk.init.Normal())
    net = gk.Model({"y": gk.nn.linear(gk.gather(table, gk.input("at", ["N"], "int64"), axis=0), 3, name="fc")})
    run = gk.Trainer(net, "softmax_cross_entropy", gk.optim.SGD(0.1, momentum=0.9), device="cuda", seed=0)
    good = np.array([0, 4, 2]), np.array([0, 1, 2])
    for _ in range(3):
        run.step(*good)
        before = {name: array.copy() for name, array in run.net.params.items()}
        with pytest.raises(RuntimeFailure, match="index"):
            run.step(np.array([0, 5, 2]), good[1])
        for name, array in before.items():
            np.testing.assert_array_equal(run.net.params[name], array)


def test_a_loss_that_is_no_number_leaves_states_as_they_were(card: Card) -> None:
    run = trainer("cuda")
    for _ in range(3):
        run.step(X, LABELS)
        before = {name: array.copy() for name, array in run.net.params.items()}
        with pytest.raises(NotFinite):
            run.step(np.full_like(X, np.nan), LABELS)
        for name, array in before.items():
            np.testing.assert_array_equal(run.net.params[name], array)


@together()
@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
@pytest.mark.parametrize("shape", [(0, 2), (3,)])
def test_a_guard_says_what_it_has_met(card: Card, value: str, shape: tuple[int, ...]) -> None:
    x, token = Value(TensorType("float32", shape), "x"), Value(TensorType("float16", (1,)), "token")
    exe = Executor(Graph([x, token], [F.finite_guard(x, token)]), ParamStore({}), device="cuda")
    given = np.ones(shape, np.float32)
    for _ in range(2):
        np.testing.assert_array_equal(exe(given, np.array([-2], np.float16))[0], given)
        with pytest.raises(NotFinite, match=rf"FiniteGuard.*: {value}$"):
            exe(given, np.array([value], np.float16))
    assert "FiniteGuard" in card.launched


def test_what_values_size_comes_after_a_look_at_faults(card: Card, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows that an index outside leaves unwritten are not counted: they might be a loop's iterations."""
    x, at = gk.input("x", ["N", 4]), gk.input("at", [3], "int64")
    exe = gk.Model({"y": gk.non_zero(gk.gather(gk.exp(x), at, axis=0, name="pick"))}).compile("cuda")
    ran = []

    compute = card.compute

    def watched(node: Node, operands: Any) -> Any:
        ran.append(node.op.name)
        return compute(node, operands)

    monkeypatch.setattr(card, "compute", watched)
    assert exe.run({"x": X[:5, :4], "at": np.array([0, 2, 1])})["y"].shape == (2, 12)
    assert ran == ["NonZero"]
    with pytest.raises(RuntimeFailure, match=r"pick.*: an index is outside axis 0"):
        exe.run({"x": X[:5, :4], "at": np.array([0, 5, 1])})
    assert ran == ["NonZero"]


def test_memory_that_is_not_there_names_what_wants_it(card: Card, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(nbytes: int) -> Any:
        raise MemoryError(f"{nbytes} bytes")

    exe = chain().compile("cuda")
    monkeypatch.setattr(card, "alloc", none)
    with pytest.raises(OutOfMemory, match=r"no memory for the arena on device 'cuda:0', \d+ bytes .*largest value is"):
        exe.run({"x": X})


# --- bfloat16 ---------------------------------------------------------------------------------------


def test_bfloat16_is_bits_that_kernels_know(card: Card) -> None:
    """In and out, as parameters and as states."""
    bfloat16 = DType.BFLOAT16.numpy
    x, a = Value(TensorType(DType.BFLOAT16, (6, 4)), "x"), Value(TensorType(DType.BFLOAT16, (4, 4)), "a", role="state")
    y = F.mat_mul(F.tanh(x), a)
    graph = Graph([x, a], [F.reshape(y, np.array([4, 6])), a], updates=[(a, F.mul(a, a))])
    store = ParamStore({"a": a.tensor}, {"a": np.full((4, 4), 0.5, bfloat16)})
    exe = Executor(graph, store, device="cuda")
    data, value = X[:6, :4].astype(bfloat16), np.full((4, 4), 0.5, bfloat16)
    for _ in range(4):
        found, old = exe.run({"x": data}).values()
        assert found.dtype == old.dtype == bfloat16
        np.testing.assert_array_equal(old, value)
        wanted = np.tanh(data.astype(np.float32)).astype(bfloat16).astype(np.float32) @ value.astype(np.float32)
        np.testing.assert_allclose(found.astype(np.float32), wanted.reshape(4, 6), rtol=2e-2, atol=1e-2)
        value = value * value
        np.testing.assert_array_equal(store["a"], value)
    assert not card.interpreted


def test_products_in_bfloat16_train_float32_parameters(card: Card) -> None:
    plain, rounded = trainer("cuda"), trainer("cuda", precision="bf16")
    for _ in range(6):
        np.testing.assert_allclose(float(rounded.step(X, LABELS)), float(plain.step(X, LABELS)), rtol=2e-2)
    for name, array in plain.net.params.items():
        assert rounded.net.params[name].dtype == np.float32
        assert not np.array_equal(rounded.net.params[name], array), "it makes a difference"
    assert not card.interpreted
