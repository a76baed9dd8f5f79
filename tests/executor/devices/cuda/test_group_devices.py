"""Groups of nodes on several devices of one process, on stand-ins for cards that do their work as late as they may."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from stand_in import Card
from together import together

import graphkit as gk
from graphkit.errors import UnsupportedError, UsageError
from graphkit.executor.devices import cuda
from graphkit.executor.devices.groups import AnyDevice, GroupDevices
from graphkit.executor.run.session import Executor
from graphkit.ir.types import DType
from graphkit.train.device import choose_device

X = np.random.default_rng(0).standard_normal((16, 12)).astype(np.float32)
LABELS = np.arange(16) % 3

CARDS: dict[str | None, str] = {"first": "cuda:0", "second": "cuda:1"}
MIXED: dict[str | None, str] = {"first": "cpu", "second": "cuda:1", None: "cpu"}
DEVICES: dict[str, dict[str | None, str]] = {
    "two cards": CARDS,
    "host and card": MIXED,
    "card and host": {"first": "cuda:0", "second": "cpu"},
    "three": {"first": "cuda:2", "second": "cuda:1", None: "cpu"},
}


def layers() -> gk.Model:
    """The second group is between two parts of the first."""
    x = gk.input("x", ["N", 12])
    with gk.attr_scope(ctx_group="first"):
        h = gk.tanh(gk.nn.linear(x, 8, name="one"))
    with gk.attr_scope(ctx_group="second"):
        h = gk.tanh(gk.nn.linear(h, 6, name="two"))
    with gk.attr_scope(ctx_group="first"):
        y = gk.nn.linear(h, 3, name="three")
    return gk.Model({"y": y, "h": h}, seed=5)


def recurrent() -> gk.Model:
    x = gk.input("x", ["N", 12])
    steps = gk.reshape(x, np.array([-1, 4, 3]))
    with gk.attr_scope(ctx_group="first"):
        h = gk.nn.lstm(steps, 5, name="one")[0]
    with gk.attr_scope(ctx_group="second"):
        h = gk.nn.lstm(h, 4, name="two")[0]
        y = gk.nn.linear(gk.reduce_mean(h, np.array([1]), keepdims=False), 3, name="out")
    return gk.Model({"y": y}, seed=5)


def statistics() -> gk.Model:
    """Running statistics in one group, dropout in the other."""
    x = gk.input("x", ["N", 12])
    with gk.attr_scope(ctx_group="first"):
        h = gk.nn.batch_norm(gk.nn.linear(x, 8, bias=False, name="one"), name="norm")
    with gk.attr_scope(ctx_group="second"):
        y = gk.nn.linear(gk.nn.dropout(gk.relu(h), 0.3), 3, name="two")
    return gk.Model({"y": y}, seed=5)


def tied() -> gk.Model:
    """Both groups read one parameter."""
    x = gk.input("x", ["N", 12])
    with gk.attr_scope(ctx_group="first"):
        w = gk.parameter("w", (12, 12), init=gk.init.Normal(0.3))
        h = gk.tanh(x @ w)
    with gk.attr_scope(ctx_group="second"):
        y = gk.nn.linear(h @ w, 3, name="out")
    return gk.Model({"y": y}, seed=5)


NETWORKS: dict[str, Callable[[], gk.Model]] = {
    "layers": layers, "recurrent": recurrent, "statistics": statistics, "tied": tied,
}  # fmt: skip


def of_full_lane(name: str, which: str) -> bool:
    """The default lane has each network on one choice of devices."""
    return list(NETWORKS).index(name) != list(DEVICES).index(which)


def trainer(device: AnyDevice, build: Callable[[], gk.Model] = layers, **options: Any) -> gk.Trainer:
    given: dict[str, Any] = {"optimizer": gk.optim.Adam(0.01), "output": "y", "seed": 3, **options}
    return gk.Trainer(build(), "softmax_cross_entropy", device=device, **given)


def same(found: Any, wanted: Any, rtol: float = 1e-4) -> None:
    np.testing.assert_allclose(found, wanted, rtol=rtol, atol=1e-5)


def states(run: gk.Trainer) -> dict[str, np.ndarray]:
    return {name: np.array(array) for name, array in run.executor.params.items()}


# --- what one device computes -----------------------------------------------------------------------


@together(full=of_full_lane)
@pytest.mark.parametrize("which", DEVICES)
@pytest.mark.parametrize("name", NETWORKS)
def test_inference(cards: list[Card], name: str, which: str) -> None:
    net = NETWORKS[name]()
    exe, plain = net.compile(DEVICES[which]), net.compile()
    for size in (16, 5, 16, 0, 5, 16, 16):
        found, wanted = exe.run({"x": X[:size]}), plain.run({"x": X[:size]})
        assert list(found) == list(wanted)
        for key, array in wanted.items():
            assert found[key].dtype == array.dtype
            same(found[key], array)
    x = X.copy()
    x[3, 2] = np.nan
    found, wanted = exe.run({"x": x}), plain.run({"x": x})
    for key, array in wanted.items():
        assert np.isnan(array).any()
        np.testing.assert_array_equal(np.isnan(found[key]), np.isnan(array))


@together(full=of_full_lane)
@pytest.mark.parametrize("which", DEVICES)
@pytest.mark.parametrize("name", NETWORKS)
def test_training(cards: list[Card], name: str, which: str) -> None:
    here, there = trainer("cpu", NETWORKS[name]), trainer(DEVICES[which], NETWORKS[name])
    for size in (16, 16, 5, 16, 16):
        same(float(there.step(X[:size], LABELS[:size])), float(here.step(X[:size], LABELS[:size])))
    wanted, found = states(here), states(there)
    assert wanted.keys() == found.keys()
    for key, array in wanted.items():
        same(found[key], array, rtol=2e-3)
    assert here.executor.rng == there.executor.rng


@pytest.mark.full
@together(
    full=lambda which, options: (
        (which == "two cards") == ("accumulate" in options or "ema" in options or "recompute" in options)
    )
)
@pytest.mark.parametrize(
    "options",
    [
        {"accumulate": 2}, {"clip_norm": 0.1}, {"ema": 0.9}, {"optimizer": gk.optim.Lamb(0.01)},
        {"optimizer": gk.optim.SGD(0.1, momentum=0.9, weight_decay=0.01), "on_nonfinite": "skip"},
        {"on_nonfinite": "ignore"}, {"recompute": "sqrt"}, {"deterministic": True},
    ],
    ids=lambda options: ",".join(options),
)  # fmt: skip
@pytest.mark.parametrize("which", ["two cards", "host and card"])
def test_options_of_training(cards: list[Card], which: str, options: dict[str, Any]) -> None:
    here, there = trainer("cpu", **options), trainer(DEVICES[which], **options)
    for _ in range(4):
        same(float(there.step(X, LABELS)), float(here.step(X, LABELS)))
    for key, array in states(here).items():
        same(states(there)[key], array, rtol=2e-3)


def test_half_floats(cards: list[Card]) -> None:
    plain, rounded = trainer(CARDS), trainer(CARDS, precision="bf16")
    scaled = trainer(CARDS, precision="f16")
    for _ in range(3):
        wanted = float(plain.step(X, LABELS))
        same(float(rounded.step(X, LABELS)), wanted, rtol=2e-2)
        same(float(scaled.step(X, LABELS)), wanted, rtol=2e-2)
    with pytest.raises(UnsupportedError, match="'f16' needs a GPU"):
        trainer(MIXED, precision="f16")


def test_a_whole_training_with_evaluation_and_a_checkpoint(cards: list[Card], tmp_path: Path) -> None:
    here, there = trainer("cpu", statistics), trainer(CARDS, statistics)
    data = (X, LABELS)
    wanted, found = (run.fit(data, data, epochs=2, batch_size=6, progress=False) for run in (here, there))
    for one, other in zip(found, wanted, strict=True):
        assert one.keys() == other.keys()
        same(one["valid_loss"], other["valid_loss"], rtol=1e-3)
    there.save(tmp_path)
    again = trainer("cpu", statistics)
    again.resume(tmp_path)
    same(float(again.step(X, LABELS)), float(there.step(X, LABELS)))


def test_gradients_that_wait_are_used_where_parameters_are(cards: list[Card]) -> None:
    run = trainer(CARDS, accumulate=2)
    for _ in range(3):
        run.step(X, LABELS)
    run.flush()
    store = run.executor.params
    for name in store:
        number = 1 if name.startswith("two") else 0
        assert store.resident(name, cards[number]) is not None, name
    sizes = [sum(o.bytes for o in step.outputs if o is not None) for step in run._stepper.executors[1].plan.copies]
    assert max(sizes) <= 8, "numbers: the rate, the step"


def test_one_device_is_todays_program(cards: list[Card]) -> None:
    net = layers()
    exe, plain = net.compile({"first": "cpu", "second": "cpu"}), net.compile()
    for size in (16, 5):
        np.testing.assert_array_equal(exe.run({"x": X[:size]})["y"], plain.run({"x": X[:size]})["y"])
    assert not exe.plan.copies
    assert exe.plan.to_dict() == plain.plan.to_dict()
    there = net.compile({"first": "cuda:0", "second": "cuda"})
    there.run({"x": X})
    assert not there.plan.copies
    assert not any(step.device for step in there.plan.steps)


# --- copies -----------------------------------------------------------------------------------------


def test_copies_are_in_the_plan(cards: list[Card]) -> None:
    exe = layers().compile(CARDS, shapes={"x": (4, 12)})
    copies = [(step.device, step.outputs[0].type, step.outputs[0].bytes) for step in exe.plan.copies if step.outputs[0]]
    assert copies == [
        ("cuda:0 -> cuda:1", "float32[4, 8]", 4 * 8 * 4),
        ("cuda:1 -> cuda:0", "float32[4, 6]", 4 * 6 * 4),
    ]
    exe.run({"x": X[:4]})
    assert [card.crossed for card in cards] == [[96], [128], []], "and nothing else goes from card to card"
    assert "copies       2: 128 B cuda:0 -> cuda:1, 96 B cuda:1 -> cuda:0" in exe.plan.summary()
    assert "cuda:0 -> cuda:1" in str(exe.plan)
    assert "<svg" in exe.plan.to_html()
    devices = [step.device for step in exe.plan.steps]
    turns = [device for i, device in enumerate(devices) if not i or devices[i - 1] != device]
    assert turns == ["cuda:0", "cuda:0 -> cuda:1", "cuda:1", "cuda:1 -> cuda:0", "cuda:0"]


def test_a_training_step_copies_each_value_once(cards: list[Card]) -> None:
    run = trainer(CARDS)
    for _ in range(3):
        run.step(X, LABELS)
    plan = run.executor.plan
    ways = [(step.node, step.device) for step in plan.copies]
    assert len(ways) == len(set(ways))
    sizes = [sum(o.bytes for o in step.outputs if o is not None) for step in plan.copies]
    assert sum(sum(card.crossed) for card in cards) == 3 * sum(sizes)
    # The activation and its gradient, each copied to the other device and back. The other copies are scalars.
    assert sorted(size for size in sizes if size > 8) == [16 * 6 * 4, 16 * 6 * 4, 16 * 8 * 4, 16 * 8 * 4]


def test_states_stay_on_their_devices(cards: list[Card]) -> None:
    run = trainer(CARDS)
    run.step(X, LABELS)
    for _ in range(3):
        before = [card.uploads for card in cards]
        run.step(X, LABELS)
        # To two pieces of the first card: x, and the labels with the rate, where the loss is.
        assert [card.uploads - b for card, b in zip(cards, before, strict=True)] == [2, 0, 0]
    store = run.executor.params
    for name in store:
        number = 1 if name.startswith("two") else 0
        assert store.resident(name, cards[number]) is not None, name
        assert store.resident(name, cards[1 - number]) is None


def test_steps_are_recorded_and_replayed(cards: list[Card]) -> None:
    here, there = trainer("cpu"), trainer(CARDS)
    for _ in range(6):
        same(float(there.step(X, LABELS)), float(here.step(X, LABELS)))
    assert cards[0].replays > cards[0].recordings > 0
    assert cards[1].replays > cards[1].recordings > 0


def test_batches_are_sent_ahead_to_who_reads_them(cards: list[Card]) -> None:
    x = gk.input("x", ["N", 2048])
    with gk.attr_scope(ctx_group="first"):
        h = gk.nn.linear(x, 4, name="one")
    with gk.attr_scope(ctx_group="second"):
        net = gk.Model({"y": gk.tanh(h)}, seed=0)
    exe = net.compile(CARDS)
    batches = np.random.default_rng(0).standard_normal((3, 16, 2048)).astype(np.float32)
    exe.run({"x": batches[0]})
    for batch in batches:
        exe.send_ahead({"x": batch})
        same(exe.run({"x": batch})["y"], net.run({"x": batch})["y"], rtol=1e-3)
    assert [card.sent for card in cards] == [3, 0, 0]


def test_the_bits_are_those_of_one_card(cards: list[Card]) -> None:
    runs = [trainer(device) for device in ("cuda", CARDS, {**CARDS, "second": "cuda:2"})]
    for _ in range(4):
        losses = {float(run.step(X, LABELS)) for run in runs}
        assert len(losses) == 1
    for key, array in states(runs[0]).items():
        for run in runs[1:]:
            np.testing.assert_array_equal(states(run)[key], array)


def test_work_of_two_cards_is_queued_before_any_is_waited_for(cards: list[Card]) -> None:
    x = gk.input("x", [4, 12])
    parts = {}
    for number, group in enumerate(("first", "second")):
        with gk.attr_scope(ctx_group=group):
            parts[group] = gk.tanh(gk.softmax(x * float(number + 1), axis=-1))
    net = gk.Model(parts)
    exe = net.compile(CARDS)
    exe.run({"x": X[:4]})
    queued: list[int] = []
    waiting = cards[0].synchronize

    def synchronize(stream: Any) -> None:
        queued.append(sum(len(s.work) for s in cards[1].streams))
        waiting(stream)

    cards[0].synchronize = synchronize  # type: ignore[method-assign]
    found = exe.run({"x": X[:4]})
    assert queued[0] > 0
    for name, array in net.run({"x": X[:4]}).items():
        same(found[name], array)
    assert not exe.plan.copies, "a feed that both read is none"


# --- what goes where --------------------------------------------------------------------------------


def test_nodes_in_no_group(cards: list[Card]) -> None:
    """On the device for them; else where most bytes of their operands are."""

    def network() -> gk.Model:
        x = gk.input("x", [4, 12])
        with gk.attr_scope(ctx_group="first"):
            a = gk.tanh(x)
        with gk.attr_scope(ctx_group="second"):
            b = gk.reduce_sum(gk.exp(x), np.array([1]))
        return gk.Model({"y": gk.softmax(a * b, axis=-1)})

    def place(devices: dict[str | None, str]) -> str:
        plan = network().compile(devices).plan
        return next(step.device for step in plan.steps if step.op == "Softmax")

    assert place(CARDS) == "cuda:0"
    assert place(MIXED) == "cpu"
    assert place({**CARDS, None: "cuda:2"}) == "cuda:2"


def test_control_flow_is_on_the_device_of_its_group(cards: list[Card]) -> None:
    x, flag = gk.input("x", [4, 3]), gk.input("flag", (), "bool")
    with gk.attr_scope(ctx_group="first"):
        h = gk.tanh(x)
    with gk.attr_scope(ctx_group="second"):
        h = gk.cond(flag, lambda: gk.exp(h), lambda: gk.neg(h))
    with gk.attr_scope(ctx_group="first"):
        h = gk.while_loop(lambda s: gk.reduce_sum(s, keepdims=False) < 100.0, lambda s: s * 1.5 + 1.0, h, 20)
    net = gk.Model({"y": h})
    feeds = {"x": X[:4, :3]}
    for devices in (CARDS, MIXED):
        exe = net.compile(devices)
        for value in (True, False, True):
            given = {**feeds, "flag": np.array(value)}
            same(exe.run(given)["y"], net.run(given)["y"])


def test_sizes_that_only_a_run_tells(cards: list[Card]) -> None:
    x = gk.input("x", ["N", 12])
    with gk.attr_scope(ctx_group="first"):
        found = gk.transpose(gk.non_zero(gk.relu(x)), perm=[1, 0])
    with gk.attr_scope(ctx_group="second"):
        y = gk.reduce_sum(gk.cast(found, to="float32") * 2.0, np.array([0]))
    net = gk.Model({"y": y, "found": found})
    for devices in (CARDS, MIXED):
        exe = net.compile(devices)
        for size in (16, 3, 0, 16):
            run, wanted = exe.run({"x": X[:size]}), net.run({"x": X[:size]})
            for name, array in wanted.items():
                same(run[name], array)
        with pytest.raises(UnsupportedError, match=r"no plan: cuda:1 receives values with data-dependent shapes"):
            _ = exe.plan


def test_sequences_cross_by_way_of_the_host(cards: list[Card]) -> None:
    x = gk.input("x", ["N", 12])
    with gk.attr_scope(ctx_group="first"):
        parts = gk.ops.F.split_to_sequence(gk.tanh(x), np.array([1, 2], np.int64), axis=0)
    with gk.attr_scope(ctx_group="second"):
        y = gk.ops.F.concat_from_sequence(parts, axis=0) * 2.0
    net = gk.Model({"y": y, "n": gk.ops.F.sequence_length(parts)})
    for devices in (CARDS, MIXED):
        exe = net.compile(devices, optimize=False)
        for name, array in net.run({"x": X[:3]}).items():
            same(exe.run({"x": X[:3]})[name], array)


def test_sizes_do_not_travel(cards: list[Card]) -> None:
    """Sizes of values on other devices follow from the inputs, so they are not sent."""
    x = gk.input("x", ["N", 12])
    with gk.attr_scope(ctx_group="first"):
        h = gk.tanh(x)
    with gk.attr_scope(ctx_group="second"):
        b = gk.parameter("b", (1, 12), init=gk.init.Normal(1.0))
        y = gk.ops.F.expand(b, gk.ops.F.shape(h))
    net = gk.Model({"y": y, "h": h})
    exe = net.compile(CARDS)
    for size in (16, 2, 16):
        same(exe.run({"x": X[:size]})["y"], net.run({"x": X[:size]})["y"])
        assert not exe.plan.copies


def test_outputs_that_nothing_computes(cards: list[Card]) -> None:
    x = gk.input("x", [4, 12])
    b = gk.parameter("b", (2,), init=gk.init.Normal(1.0))
    with gk.attr_scope(ctx_group="second"):
        y = gk.tanh(x)
    with gk.attr_scope(ctx_group="first"):
        z = gk.exp(b)
    net = gk.Model({"y": y, "x": x, "b": b, "z": z, "again": y, "c": gk.constant(np.float32([3, 4]))})
    exe = net.compile(CARDS)
    found, wanted = exe.run({"x": X[:4]}), net.run({"x": X[:4]})
    for name, array in wanted.items():
        same(found[name], array)
    found["y"][:] = 0
    same(found["again"], wanted["again"])
    given = {"x": X[:4], "b": np.float32([5, 6])}
    for name, array in net.run(given).items():
        same(exe.run(given)[name], array)
    same(exe.run({"x": X[:4]}, ["z"])["z"], wanted["z"])
    out = np.empty((4, 12), np.float32)
    assert exe.run({"x": X[:4]}, out={"y": out})["y"] is out
    same(out, wanted["y"])


@together()
@pytest.mark.parametrize("which", DEVICES)
def test_bfloat16_crosses_as_it_is(cards: list[Card], which: str) -> None:
    x = gk.input("x", ["N", 12])
    with gk.attr_scope(ctx_group="first"):
        h = gk.cast(gk.tanh(x), to="bfloat16")
    with gk.attr_scope(ctx_group="second"):
        g = gk.cast(gk.exp(h), to="bfloat16")
    with gk.attr_scope(ctx_group="first"):
        y = gk.cast(g * h, to="float32")
    net = gk.Model({"y": y, "h": h})
    exe = net.compile(DEVICES[which])
    for _ in range(3):
        found, wanted = exe.run({"x": X}), net.run({"x": X})
        assert found["h"].dtype == wanted["h"].dtype
        same(found["h"].astype(np.float32), wanted["h"].astype(np.float32), rtol=1e-2)
        same(found["y"], wanted["y"], rtol=2e-2)


def test_random_numbers_are_those_of_one_device(cards: list[Card]) -> None:
    x = gk.input("x", [4, 12])
    made = {}
    for group in ("first", "second"):
        with gk.attr_scope(ctx_group=group):
            made[group] = x + gk.ops.F.random_uniform(shape=[4, 12])
    net = gk.Model(made)
    exe, plain = net.compile(CARDS, seed=4), net.compile(seed=4)
    for _ in range(3):
        found, wanted = exe.run({"x": X[:4]}), plain.run({"x": X[:4]})
        for name, array in wanted.items():
            np.testing.assert_array_equal(found[name], array)
        assert not np.array_equal(found["first"], found["second"])


# --- threads ----------------------------------------------------------------------------------------


@together()
@pytest.mark.parametrize("which", ["two cards", "host and card"])
def test_several_threads(cards: list[Card], which: str) -> None:
    net = layers()
    exe, plain = net.compile(DEVICES[which]), net.compile()

    def run(size: int) -> None:
        for turn in range(4):
            for name, array in plain.run({"x": X[:size] + turn}).items():
                same(exe.run({"x": X[:size] + turn})[name], array)

    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(run, size) for size in (16, 3, 16, 7)]:
            done.result()


def test_threads_that_train_take_turns(cards: list[Card]) -> None:
    run, alone = trainer(CARDS), trainer("cpu")
    executor = run.executor
    feeds = {"x": X, "target": LABELS, "learning_rate": np.float32(0.01)}
    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(executor.run, feeds) for _ in range(8)]:
            done.result()
    for _ in range(8):
        alone.executor.run(feeds)
    for key, array in states(alone).items():
        same(states(run)[key], array, rtol=5e-3)


# --- errors -----------------------------------------------------------------------------------------


def test_groups_and_devices_that_do_not_go_together(cards: list[Card]) -> None:
    net = layers()
    with pytest.raises(UsageError, match=r"the graph has no group 'thrid'; its groups are 'first', 'second'"):
        net.compile({"first": "cpu", "second": "cuda", "thrid": "cuda:1"})
    with pytest.raises(UsageError, match="no device is given for 'second', and no default"):
        net.compile({"first": "cpu"})
    with pytest.raises(UsageError, match=r"no node of the graph is in a group 'first'.*attr_scope\(ctx_group="):
        gk.Model(gk.tanh(gk.input("x", [3]))).compile({"first": "cuda"})
    with pytest.raises(UnsupportedError, match=r"no device 'gpu'.*of group 'second'"):
        net.compile({"first": "cpu", "second": "gpu"})
    with pytest.raises(UnsupportedError, match=r"no device 'gpu'.*of nodes without a group"):
        net.compile({"first": "cpu", "second": "cpu", None: "gpu"})
    for wrong in ({}, {"first": 1}, ["cpu"], None):
        with pytest.raises(UsageError, match=r"device(= \(--device\): | must be a string or a dict)"):
            net.compile(wrong)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="the graph has no group 'x'"):
        trainer({"x": "cpu", None: "cuda"})
    found = net.compile({"second": "cuda:1", None: "cpu"}).run({"x": X})
    same(found["y"], net.run({"x": X})["y"])


def test_a_device_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (cuda, cuda.card):
        monkeypatch.setattr(module, "cards", lambda: 1)
    with pytest.raises(UnsupportedError, match="no device 'cuda:1': this machine has only 'cuda:0'"):
        layers().compile({"first": "cpu", "second": "cuda:1"})


def test_one_of_several_processes_has_one_device(cards: list[Card]) -> None:
    graph = layers().graph
    for workers, is_remote in ((2, False), (1, True)):
        store: Any = SimpleNamespace(num_workers=workers, is_remote=is_remote, local_rank=0)
        with pytest.raises(UsageError, match="with several processes, each runs on one device"):
            choose_device(CARDS, graph, store)
        assert choose_device({"first": "cuda:1", "second": "cuda:1"}, graph, store) == "cuda:1"
    alone: Any = SimpleNamespace(num_workers=1, is_remote=False)
    assert isinstance(choose_device(CARDS, graph, alone), GroupDevices)
    net = layers()
    with pytest.raises(UsageError, match="with several processes, each runs on one device"):
        Executor(net.graph, net.params, device=CARDS, channels=SimpleNamespace())  # type: ignore[arg-type]


def test_types_that_a_device_of_a_group_has_no_arrays_of(cards: list[Card]) -> None:
    with gk.attr_scope(ctx_group="first"):
        y = gk.tanh(gk.input("x", [3]))
    with gk.attr_scope(ctx_group="second"):
        z = gk.ops.F.string_concat(gk.input("s", [2], DType.STRING), gk.input("t", [2], DType.STRING))
    net = gk.Model({"y": y, "z": z})
    feeds = {"x": X[0, :3], "s": np.array(["a", "b"]), "t": np.array(["c", "d"])}
    found = net.compile({"first": "cuda:1", "second": "cpu"}).run(feeds)
    assert found["z"].tolist() == ["ac", "bd"]
    with pytest.raises(UnsupportedError, match=r"'cuda:1' has no arrays of these types \(string: .*of group 'second'"):
        net.compile({"first": "cpu", "second": "cuda:1"}).run(feeds)


def test_a_profile_is_of_one_device(cards: list[Card], tmp_path: Path) -> None:
    exe = layers().compile(CARDS)
    with pytest.raises(UnsupportedError, match="profiling needs the native engine"), gk.profile(tmp_path / "t.json"):
        exe.run({"x": X})
    exe.run({"x": X})


def test_a_graph_without_passes(cards: list[Card]) -> None:
    net = layers()
    exe = Executor(net.graph, net.params, device=MIXED, optimize=False)
    same(exe.run({"x": X})["y"], net.run({"x": X})["y"])
