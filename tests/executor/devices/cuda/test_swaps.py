"""Saved activations are swapped to host memory, on a fake GPU that copies as late as possible."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from on_a_card import stand_in_alone
from stand_in import Card
from test_array_programs import random_graph
from together import together

import graphkit as gk
from graphkit.errors import NotFinite, OutOfMemory, UsageError
from graphkit.executor.devices.bound_steps import BoundStep
from graphkit.executor.lower.arrays.loop import SwappedRows
from graphkit.executor.lower.arrays.swapped import SwapQueue
from graphkit.executor.memory import swapping
from graphkit.executor.run.params import ParamStore
from graphkit.executor.run.session import Executor
from graphkit.ops.internal.swap import SwapIn, SwapOut

ROWS, WIDTH = 16, 16  # of a KiB
X = np.random.default_rng(0).standard_normal((ROWS, WIDTH)).astype(np.float32)
LABELS = np.arange(ROWS) % 4
SHAPES = {"x": X.shape, "target": LABELS.shape}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Activations of these networks are large enough, and the copies of some have their time."""
    monkeypatch.setattr(swapping, "MIN_BYTES", X.nbytes)


def layers(count: int = 9) -> gk.Model:
    h = gk.input("x", ["N", WIDTH])
    for i in range(count):
        h = gk.tanh(gk.nn.linear(h, WIDTH, name=f"fc{i}"))
    return gk.Model({"y": gk.nn.linear(h, 4, name="out")}, seed=1)


def trainer(net: gk.Model | None = None, **options: Any) -> gk.Trainer:
    optimizer = gk.optim.SGD(0.1, momentum=0.9)
    options = {"device": "cuda", "seed": 1, **options}
    return gk.Trainer(layers() if net is None else net, "softmax_cross_entropy", optimizer, **options)


def bits(run: gk.Trainer) -> dict[str, bytes]:
    return {name: np.asarray(array).tobytes() for name, array in run.net.params.items()}


def losses(run: gk.Trainer, sizes: Sequence[int] = (ROWS,) * 4) -> list[float]:
    return [float(run.step(np.resize(X, (size, WIDTH)), np.resize(LABELS, size))) for size in sizes]


# --- training ---------------------------------------------------------------------------------------


@together()
@pytest.mark.parametrize("early", [False, pytest.param(True, marks=pytest.mark.full)])
def test_training_is_the_same_to_the_bit(early: bool, card: Card) -> None:
    card.early = early
    plain, swapped = trainer(), trainer(swap_memory=True)
    before, after = plain.plan(SHAPES), swapped.plan(SHAPES)
    assert after.arena_bytes < 0.8 * before.arena_bytes
    assert after.host_bytes >= 4 * X.nbytes
    assert f"{after.host_bytes // X.nbytes} values" in after.summary()
    assert before.host_bytes == 0
    wanted, staging = losses(plain), card.staging
    assert losses(swapped) == wanted
    assert bits(swapped) == bits(plain)
    assert card.replays
    assert card.staging - staging == staging + after.host_bytes


def test_batches_of_other_sizes(card: Card) -> None:
    plain, swapped = trainer(), trainer(swap_memory=True)
    sizes = (ROWS, 17, ROWS, ROWS, 2, 33, 17, ROWS)
    assert losses(swapped, sizes) == losses(plain, sizes)
    assert bits(swapped) == bits(plain)


@pytest.mark.full
def test_accumulated_batches_and_recomputed_ones(card: Card) -> None:
    for options in ({"accumulate": 2}, {"recompute": "sqrt"}):
        plain, swapped = trainer(**options), trainer(swap_memory=True, **options)
        assert losses(swapped) == losses(plain)
        assert bits(swapped) == bits(plain)


def test_what_is_not_finite_goes_there_and_back(card: Card) -> None:
    spoilt = X.copy()
    spoilt[3, 5], spoilt[4, 6] = np.nan, np.inf
    plain, swapped = trainer(on_nonfinite="ignore"), trainer(on_nonfinite="ignore", swap_memory=True)
    for _ in range(3):
        np.testing.assert_equal(float(swapped.step(spoilt, LABELS)), float(plain.step(spoilt, LABELS)))
    assert bits(swapped) == bits(plain)


def test_on_the_processor_marks_mean_nothing() -> None:
    plain, marked = trainer(device="cpu"), trainer(device="cpu", swap_memory=True)
    before, after = plain.plan(SHAPES), marked.plan(SHAPES)
    assert (after.arena_bytes, after.host_bytes) == (before.arena_bytes, 0)
    assert not any(step.kernel == "swap" for step in after.steps)
    assert losses(marked) == losses(plain)


def test_another_value_is_an_error() -> None:
    with pytest.raises(UsageError, match="swap_memory must be True or False, not 'all'"):
        trainer(device="cpu", swap_memory="all")


# --- which values -----------------------------------------------------------------------------------


def swapped_by(run: gk.Trainer) -> int:
    return sum(step.op.endswith("SwapOut") for step in run.plan(SHAPES).steps)


def marked(count: int = 9) -> gk.Model:
    """Mark the first half of the layers, except the second layer."""
    h = gk.input("x", ["N", WIDTH])
    with gk.attr_scope(swap_memory=True):
        for i in range(count // 2):
            with gk.attr_scope(swap_memory=i != 1):
                h = gk.tanh(gk.nn.linear(h, WIDTH, name=f"fc{i}"))
    for i in range(count // 2, count):
        h = gk.tanh(gk.nn.linear(h, WIDTH, name=f"fc{i}"))
    return gk.Model({"y": gk.nn.linear(h, 4, name="out")}, seed=1)


def test_what_is_marked(card: Card) -> None:
    assert swapped_by(trainer()) == 0
    assert swapped_by(trainer(marked())) == 3
    # A layer with swap_memory=False is left out.
    assert swapped_by(trainer(marked(), swap_memory=True)) == swapped_by(trainer(swap_memory=True)) - 1


@together()
@pytest.mark.parametrize("suffix", ["json", pytest.param("onnx", marks=pytest.mark.full)])
def test_marks_are_saved(suffix: str, card: Card, tmp_path: Any) -> None:
    marked().save(tmp_path / f"net.{suffix}")
    again = trainer(gk.load(tmp_path / f"net.{suffix}"))
    assert swapped_by(again) == 3
    assert losses(again) == losses(trainer(marked()))


def test_small_values_stay(card: Card) -> None:
    shapes = {"x": (ROWS - 1, WIDTH), "target": (ROWS - 1,)}
    assert trainer(swap_memory=True).plan(shapes).host_bytes == 0
    looping = trainer(looped("scan", True, 8))
    # A row of a stack may be below the limit, but not by much.
    assert looping.plan(shapes).host_bytes > 0
    assert looping.plan({"x": (1, WIDTH), "target": (1,)}).host_bytes == 0


@together()
@pytest.mark.parametrize("seed", [2, 3, *(pytest.param(n, marks=pytest.mark.full) for n in range(4, 40))])
def test_any_graph(seed: int, card: Card, monkeypatch: pytest.MonkeyPatch) -> None:
    """Results are the same even if copies have little time, and for any views."""
    card.early = seed % 2 == 0
    with gk.attr_scope(swap_memory=True):
        graph = random_graph(seed)
    feeds = {"x": np.random.default_rng(seed).standard_normal((4, 6)).astype(np.float32)}
    plain = Executor(graph, ParamStore({}), device="cuda", optimize=False).run(feeds)  # nothing is large enough
    monkeypatch.setattr(swapping, "MIN_BYTES", 0)
    monkeypatch.setattr(swapping, "COPY_COST", seed % 3)
    swapped = Executor(graph, ParamStore({}), device="cuda", optimize=False)
    for _ in range(3):
        for name, array in swapped.run(feeds).items():
            np.testing.assert_array_equal(array, plain[name])
    assert swapped.plan.host_bytes
    assert card.replays


def test_without_room_for_copies_nothing_is_swapped(card: Card, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(swapping, "COPY_COST", 10**6)
    assert swapped_by(trainer(swap_memory=True)) == 0


# --- order ------------------------------------------------------------------------------------------


@stand_in_alone
@together()
@pytest.mark.parametrize("missing", [SwapIn, SwapOut], ids=["in", "out"])
def test_a_wait_that_is_missing_shows(missing: type, card: Card, monkeypatch: pytest.MonkeyPatch) -> None:
    """A value that has not come back, and memory that is written over before it has been copied."""
    stream_wait = SwapQueue.stream_wait

    def forgetful(queue: SwapQueue, values: Sequence[gk.Value]) -> None:
        stream_wait(queue, [v for v in values if v.node is None or not isinstance(v.node.op, missing)])

    right = trainer()
    monkeypatch.setattr(SwapQueue, "stream_wait", forgetful)
    wrong = trainer(swap_memory=True, on_nonfinite="ignore")
    losses(right, [ROWS])
    losses(wrong, [ROWS])
    assert bits(wrong) != bits(right)


# --- what goes wrong --------------------------------------------------------------------------------


def raising(error: BaseException, calls: int) -> Callable[..., None]:
    begin, left = SwapQueue.begin, iter(range(calls))

    def begun(queue: SwapQueue, *given: Any) -> None:
        begin(queue, *given)
        if next(left, None) == calls - 1:
            raise error

    return begun


@together()
@pytest.mark.parametrize("ran", [0, pytest.param(1, marks=pytest.mark.full)])
@pytest.mark.parametrize("error", [KeyboardInterrupt(), ValueError("in a step")], ids=["interrupt", "error"])
def test_a_step_that_ends_early_leaves_nothing_under_way(
    error: BaseException, ran: int, card: Card, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the first run, and while steps are recorded."""
    plain, swapped = trainer(), trainer(swap_memory=True)
    assert losses(swapped, [ROWS] * ran) == losses(plain, [ROWS] * ran)
    before = bits(swapped)
    with monkeypatch.context() as patch:
        patch.setattr(SwapQueue, "begin", raising(error, 5))
        with pytest.raises(type(error)):
            swapped.step(X, LABELS)
    assert bits(swapped) == before
    assert not any(stream.work for stream in card.streams)
    assert losses(swapped) == losses(plain)
    assert bits(swapped) == bits(plain)


def test_a_loss_that_is_no_number_leaves_states_as_they_were(card: Card) -> None:
    plain, swapped = trainer(), trainer(swap_memory=True)
    for _ in range(3):
        assert losses(swapped, [ROWS]) == losses(plain, [ROWS])
        before = bits(swapped)
        with pytest.raises(NotFinite):
            swapped.step(np.full_like(X, np.nan), LABELS)
        assert bits(swapped) == before


def test_memory_of_the_host_that_is_not_there(card: Card, monkeypatch: pytest.MonkeyPatch) -> None:
    host_memory = card.host_memory

    def little(nbytes: int) -> Any:
        if nbytes > 2 * X.nbytes:
            raise MemoryError(f"{nbytes} bytes")
        return host_memory(nbytes)

    run = trainer(swap_memory=True)
    monkeypatch.setattr(card, "host_memory", little)
    with pytest.raises(OutOfMemory, match=r"no memory for values .* swapped to pinned host memory, \d+ bytes"):
        run.step(X, LABELS)


# --- concurrent runs --------------------------------------------------------------------------------


def test_each_instance_has_memory_of_its_own(card: Card) -> None:
    """Runs at one time, of a network and its gradients."""
    with gk.attr_scope(swap_memory=True):
        h = gk.input("x", [ROWS, WIDTH])
        for i in range(8):
            h = gk.tanh(gk.nn.linear(h, WIDTH, name=f"fc{i}"))
        net = gk.Model({"loss": gk.reduce_mean(h * h, keepdims=False)}, seed=1)
    exe = gk.grad(net, of="loss", wrt=["x"]).compile("cuda")
    feeds = [X * scale for scale in np.linspace(0.5, 2, 12, dtype=np.float32)]
    wanted = [exe.run({"x": x}) for x in feeds]
    staging = card.staging
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(lambda x: exe.run({"x": x}), feeds))
    for one, other in zip(found, wanted, strict=True):
        for name, array in other.items():
            np.testing.assert_array_equal(one[name], array)
    assert exe.plan.host_bytes
    assert staging > exe.plan.host_bytes
    assert card.staging % staging == 0


def test_in_a_piece_of_a_divided_graph(cards: list[Card]) -> None:
    """The last group's forward and backward part are one piece."""

    def net() -> gk.Model:
        h = gk.input("x", ["N", WIDTH])
        with gk.attr_scope(ctx_group="first"):
            h = gk.tanh(gk.nn.linear(h, WIDTH, name="before"))
        with gk.attr_scope(ctx_group="second"):
            for i in range(8):
                h = gk.tanh(gk.nn.linear(h, WIDTH, name=f"fc{i}"))
            return gk.Model({"y": gk.nn.linear(h, 4, name="out")}, seed=1)

    devices = {"first": "cuda:0", "second": "cuda:1"}
    plain, swapped = trainer(net(), device=devices), trainer(net(), device=devices, swap_memory=True)
    assert {step.device for step in swapped.plan(SHAPES).steps if step.kernel == "swap"} == {"cuda:1"}
    assert losses(swapped) == losses(plain)
    assert bits(swapped) == bits(plain)


# --- other networks ---------------------------------------------------------------------------------


@pytest.mark.full
def test_a_transformer(card: Card, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(swapping, "COPY_COST", 2)
    tokens = np.random.default_rng(0).integers(0, 12, (2, 8))

    def run(**options: Any) -> gk.Trainer:
        net = gk.models.build("transformer_lm", vocab=12, width=16, heads=2, layers=3)
        return trainer(net, **options)

    plain, swapped = run(), run(swap_memory=True)
    shapes = dict.fromkeys((*plain.net.inputs, "target"), tokens.shape)
    assert swapped.plan(shapes).host_bytes
    assert swapped.plan(shapes).arena_bytes < plain.plan(shapes).arena_bytes
    for _ in range(3):
        assert float(swapped.step(tokens, tokens)) == float(plain.step(tokens, tokens))
    assert bits(swapped) == bits(plain)


def looped(loop: str, swap_memory: bool, length: int = 2) -> gk.Model:
    """A loop, followed by layers that take as long as the copies of its saved values."""
    x = gk.input("x", ["N", WIDTH])
    w = gk.parameter("w", (WIDTH, WIDTH), init=gk.init.Normal(0.3))

    def step(h: gk.Value) -> gk.Value:
        return gk.tanh((h @ w) + x)

    def chosen(h: gk.Value) -> gk.Value:
        return gk.cond(gk.reduce_sum(h) > 0.0, lambda h: h * 0.9, lambda h: gk.tanh(h) - 0.1, (step(h),))

    if loop in ("scan", "branches"):
        step_of = step if loop == "scan" else chosen
        h, _ = gk.scan(lambda c, _: (step_of(c), None), x, None, length=length, swap_memory=swap_memory)
    elif loop == "fold":
        rows = gk.constant(np.ones((length, WIDTH), np.float32))
        h = gk.fold(lambda c, row: step(c) + row, x, rows, reverse=True, swap_memory=swap_memory)
    else:
        start = gk.constant(np.int64(0)), x
        _, h = gk.while_loop(lambda s: s[0] < length, lambda s: (s[0] + 1, step(s[1])), start, swap_memory=swap_memory)
        h = gk.reshape(h, np.array([-1, WIDTH]))
    for i in range(12 if length == 2 else 1):
        h = gk.tanh(gk.nn.linear(h, WIDTH, name=f"fc{i}"))
    return gk.Model({"y": gk.nn.linear(h, 4, name="out")}, seed=1)


@together()
@pytest.mark.parametrize("loop", ["scan", *(pytest.param(kind, marks=pytest.mark.full) for kind in ("fold", "while"))])
def test_what_a_short_loop_saves(loop: str, card: Card, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stacks are swapped as all values are."""
    monkeypatch.setattr(swapping, "COPY_COST", 2)
    plain, swapped = trainer(looped(loop, False)), trainer(looped(loop, True))
    assert losses(swapped) == losses(plain)
    assert bits(swapped) == bits(plain)
    assert plain.plan(SHAPES).host_bytes == 0
    assert swapped_by(swapped)


# --- stacks of loops --------------------------------------------------------------------------------


@together(full=lambda early: early)
@pytest.mark.parametrize("early", [False, True])
def test_branches_between_rows(early: bool, card: Card) -> None:
    """Branches are part of the recording that contains the copies, and contain no copies themselves."""
    card.early = early
    plain, swapped = trainer(looped("branches", False, 7)), trainer(looped("branches", True, 7))
    assert swapped.plan(SHAPES).host_bytes
    found = losses(swapped)
    assert found == losses(plain)
    assert bits(swapped) == bits(plain)
    assert card.conditions
    np.testing.assert_allclose(found, losses(trainer(looped("branches", False, 7), device="cpu")), rtol=1e-4)


@together()
@pytest.mark.parametrize("early", [False, pytest.param(True, marks=pytest.mark.full)])
@pytest.mark.parametrize("loop", ["scan", pytest.param("fold", marks=pytest.mark.full)])
def test_stacks_row_by_row(loop: str, early: bool, card: Card) -> None:
    card.early = early
    plain, swapped = trainer(looped(loop, False, 7)), trainer(looped(loop, True, 7))
    assert swapped.plan(SHAPES).host_bytes >= 7 * X.nbytes
    sizes = (ROWS, 17, ROWS, ROWS, 17, ROWS)
    assert losses(swapped, sizes) == losses(plain, sizes)
    assert bits(swapped) == bits(plain)
    assert card.replays


@together(full=lambda loop: loop == "fold")
@pytest.mark.parametrize("loop", ["scan", "fold"])
def test_the_arena_does_not_grow_with_iterations(loop: str, card: Card) -> None:
    arenas: dict[bool, list[int]] = {}
    for swap_memory in (False, True):
        runs = [trainer(looped(loop, swap_memory, length)) for length in (8, 16, 64)]
        arenas[swap_memory] = [run.plan(SHAPES).arena_bytes for run in runs]
    assert len(set(arenas[True])) == 1
    assert arenas[False] == sorted(set(arenas[False]))
    assert arenas[False][1] > 2 * arenas[True][1]


@stand_in_alone
@together()
@pytest.mark.parametrize("missing", ["in", "out"])
def test_a_row_that_nobody_waits_for_shows(missing: str, card: Card, monkeypatch: pytest.MonkeyPatch) -> None:
    before = SwappedRows.before

    def forgetful(rows: SwappedRows, trip: int, memory: Any) -> Any:
        coming = {row for row, _, _ in memory.from_host(trip)}
        for step in before(rows, trip, memory):
            waits = not step.inputs and bool(coming) == (missing == "in")
            yield BoundStep(lambda *_: rows._copies.clear(), (), (), None) if waits else step  # type: ignore[arg-type]

    right = trainer(looped("scan", False, 7))
    monkeypatch.setattr(SwappedRows, "before", forgetful)
    wrong = trainer(looped("scan", True, 7), on_nonfinite="ignore")
    losses(right, [ROWS])
    losses(wrong, [ROWS])
    assert bits(wrong) != bits(right)


@together()
@pytest.mark.full
@pytest.mark.parametrize("calls", [2, 10])
@pytest.mark.parametrize("ran", [0, 1])
def test_a_loop_that_ends_early(ran: int, calls: int, card: Card, monkeypatch: pytest.MonkeyPatch) -> None:
    """Among the rows that leave, and among those that come back."""
    plain, swapped = trainer(looped("scan", False, 7)), trainer(looped("scan", True, 7))
    assert losses(swapped, [ROWS] * ran) == losses(plain, [ROWS] * ran)
    before = bits(swapped)
    with monkeypatch.context() as patch:
        patch.setattr(SwapQueue, "begin", raising(KeyboardInterrupt(), calls))
        with pytest.raises(KeyboardInterrupt):
            swapped.step(X, LABELS)
    assert bits(swapped) == before
    assert not any(stream.work for stream in card.streams)
    assert losses(swapped) == losses(plain)
    assert bits(swapped) == bits(plain)


@pytest.mark.full
def test_stacks_that_others_read_stay(card: Card) -> None:
    """A stack that is an output of the network stays on the GPU. A stack that only the gradient reads is swapped."""

    def net(swap_memory: bool) -> gk.Model:
        x = gk.input("x", ["N", WIDTH])
        w = gk.parameter("w", (WIDTH, WIDTH), init=gk.init.Normal(0.3))

        def step(c: gk.Value, _: Any) -> tuple[Any, Any]:
            new = gk.tanh(c @ w)
            return new, (new * 2.0, new, new)

        last, (doubled, states, _) = gk.scan(step, x, None, length=6, swap_memory=swap_memory)
        mean = gk.reduce_mean(doubled + states, np.array([0]), keepdims=False)
        y = gk.nn.linear(last + mean, 4, name="out")
        return gk.Model({"y": y, "doubled": doubled, "states": states}, seed=1)

    plain, swapped = (trainer(net(swap_memory), output="y") for swap_memory in (False, True))
    assert swapped.plan(SHAPES).host_bytes
    assert losses(swapped) == losses(plain)
    assert bits(swapped) == bits(plain)
