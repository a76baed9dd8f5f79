"""Merged launches have the results of the single launches in the same order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import registers
from card_cases import OPERATORS, CardCase, cases_of
from emulator import Emulator
from stand_in import Card
from together import together

import graphkit as gk
from graphkit.executor.devices.cuda import horizontal_fusion
from graphkit.executor.devices.cuda.horizontal_fusion import BoundLaunch, Step, joined, side_by_side
from graphkit.executor.devices.cuda.launches import Input, Launch, Memory, Output, Source, source_of
from graphkit.ops import Op

ADD = source_of("add_up", ["const float* a", "float* y"], ["y[threadIdx.x] += a[threadIdx.x];"])
SCALE = source_of("scale", ["const float* a", "float* y"], ["y[threadIdx.x] = 2 * a[threadIdx.x] - y[threadIdx.x];"])


def step(source: Source, read: np.ndarray, written: np.ndarray, blocks: int = 1) -> Step:
    launch = Launch(source, blocks, (Input(0), Output(0)))
    return Step([read, None], [written], BoundLaunch(launch, Memory([read], [written], None, None, {})))


def pieces(count: int, size: int = 4) -> list[np.ndarray]:
    memory = np.zeros(count * size, np.float32)
    return [memory[i * size : (i + 1) * size] for i in range(count)]


# --- which steps ------------------------------------------------------------------------------------


def test_neighbours_of_one_source_share_a_launch() -> None:
    a, b, c, d = pieces(4)
    assert side_by_side([step(ADD, a, b), step(ADD, c, d)]) == [[0, 1]]
    assert side_by_side([step(ADD, a, b), step(ADD, a, d)]) == [[0, 1]], "both read"
    assert side_by_side([step(ADD, a, b), step(SCALE, a, c), step(ADD, a, d)]) == [[0, 2], [1]]
    assert side_by_side([step(ADD, a, b), Step([c], [c]), step(ADD, a, d)]) == [[0, 2], [1]]
    assert side_by_side([]) == []


def test_what_waits_for_another_does_not() -> None:
    a, b, c, d = pieces(4)
    assert side_by_side([step(ADD, a, b), step(ADD, b, c)]) == [[0], [1]], "reads what was written"
    assert side_by_side([step(ADD, a, b), step(ADD, c, a)]) == [[0], [1]], "writes what is read"
    assert side_by_side([step(ADD, a, b), step(ADD, c, b)]) == [[0], [1]], "writes what was written"
    assert side_by_side([step(ADD, a, b), step(SCALE, a, c), step(ADD, c, d)]) == [[0], [1], [2]]
    assert side_by_side([step(ADD, a, b), step(SCALE, d, c), step(ADD, a, d)]) == [[0], [1], [2]]
    assert side_by_side([step(ADD, a, b), step(ADD, a, b[:0])]) == [[0, 1]], "no bytes"
    assert side_by_side([step(ADD, a, b), step(ADD, a[:1], b[3:])]) == [[0], [1]], "one element"


def test_what_is_about_other_memory_keeps_its_place() -> None:
    a, b, c, d = pieces(4)
    assert side_by_side([step(ADD, a, b), Step([], [], waits=True), step(ADD, c, d)]) == [[0], [1], [2]]


def test_launches_that_fill_a_card_stay_alone() -> None:
    a, b, c, d = pieces(4)
    many = horizontal_fusion.MOST_BLOCKS
    assert side_by_side([step(ADD, a, b, many), step(ADD, c, d, many)]) == [[0, 1]]
    assert side_by_side([step(ADD, a, b, many + 1), step(ADD, c, d, many + 1)]) == [[0], [1]]


def test_one_too_far_back_is_not_looked_at() -> None:
    a, *others = pieces(horizontal_fusion.REACH + 4)
    between = [Step([a], [other]) for other in others[2:]]
    near = [step(ADD, a, others[0]), *between[:-2], step(ADD, a, others[1])]
    assert side_by_side(near)[0] == [0, len(near) - 1]
    far = [step(ADD, a, others[0]), *between, step(ADD, a, others[1])]
    assert side_by_side(far)[0] == [0]


@together(full=lambda seed: seed > 15)
@pytest.mark.parametrize("seed", range(40))
def test_any_steps_come_to_the_same(seed: int) -> None:
    """Steps of a group one by one, forwards and backwards, as if they ran at once."""
    rng = np.random.default_rng(seed)
    memory = rng.integers(0, 9, 64).astype(np.float32)

    def some() -> slice:
        first = int(rng.integers(0, 60))
        return slice(first, first + int(rng.integers(0, 5)))

    chosen = [(bool(rng.integers(2)), some(), some()) for _ in range(30)]

    def ran(order: list[int]) -> np.ndarray:
        found = memory.copy()
        for number in order:
            adds, read, written = chosen[number]
            total = found[read].sum()
            found[written] = found[written] + total if adds else 2 * total - found[written]
        return found

    groups = side_by_side([step(ADD if adds else SCALE, memory[r], memory[w]) for adds, r, w in chosen])
    expected = ran(list(range(30)))
    assert sorted(n for group in groups for n in group) == list(range(30))
    assert len(groups) < 30
    np.testing.assert_array_equal(ran([n for group in groups for n in group]), expected)
    np.testing.assert_array_equal(ran([n for group in groups for n in reversed(group)]), expected)


@pytest.mark.full
def test_many_updates_take_little_time() -> None:
    """Not the square of their number: 20,000 at once."""
    arrays = pieces(40_000)
    steps = [step(ADD, a, b) for a, b in zip(arrays[::2], arrays[1::2], strict=True)]
    assert side_by_side(steps) == [list(range(20_000))]


# --- what they compute --------------------------------------------------------------------------------


def alone(cls: type[Op]) -> list[CardCase]:
    """The samples that are one launch each."""
    return [c for c in cases_of(cls) if len(c.kernel.launches) == 1 and isinstance(c.kernel.launches[0], Launch)]


# A compiler is asked for each.
IN_DEFAULT_LANE = OPERATORS[::12]


def results_of(case: CardCase) -> list[Any]:
    return [np.full(v.tensor.static_shape, 77, v.dtype.numpy) for v in case.node.outputs]


@together(full=lambda cls: cls not in IN_DEFAULT_LANE)
@pytest.mark.parametrize("cls", OPERATORS)
def test_samples_share_a_launch(cls: type[Op], processor: Emulator) -> None:
    """Merge the launches of samples with the same source. A single sample is merged with itself."""
    samples = alone(cls)
    if not samples:
        pytest.skip("none of the samples is one launch")
    by_source: dict[Source, list[CardCase]] = {}
    for case in samples:
        by_source.setdefault(case.kernel.sources[0], []).append(case)
    # One source for each operator: the others differ in what is between the braces.
    (_, cases), *_ = sorted(by_source.items(), key=lambda item: -len(item[1]))
    cases = (cases * 2)[: max(len(cases), 2)]
    fault = np.zeros(1, np.uint32)
    expected, found, parts = [], [], []
    for case in cases:
        expected.append(results_of(case))
        processor.run(case.kernel, case.arrays, expected[-1], fault=fault)
        found.append(results_of(case))
        scratch = np.full(case.kernel.scratch_bytes, 0xA5, np.uint8)
        tables = {table: table.array for table in case.kernel.tables}
        (launch,) = case.kernel.launches
        assert isinstance(launch, Launch)
        parts.append(BoundLaunch(launch, Memory(case.arrays, found[-1], scratch, fault, tables)))
    processor.run(joined(parts), [], [])
    for one, other in zip(expected, found, strict=True):
        assert [a.tobytes() for a in one] == [b.tobytes() for b in other]


@together()
@pytest.mark.full
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90", "sm_100"])
@pytest.mark.long
def test_shared_launches_compile_for_cards(architecture: str, nvrtc: None) -> None:
    """Those of all operators for one card, and of every third one for the others."""
    chosen = OPERATORS if architecture == registers.FIRST_CARD else OPERATORS[::3]
    sources = dict.fromkeys(c.kernel.sources[0] for cls in chosen for c in alone(cls)[:1])
    parts = [horizontal_fusion.of_parts(source) for source in sources]
    if architecture == registers.FIRST_CARD:
        registers.check(parts, architecture)
    registers.check_like(zip(parts, parts, strict=True), architecture)


# --- in a run ---------------------------------------------------------------------------------------


def trainer(device: str, precision: str = "f32") -> gk.Trainer:
    x = gk.input("x", ["N", 12])
    for number in range(6):
        x = gk.tanh(gk.nn.linear(x, 8 + number, name=f"layer{number}"))
    optimizer = gk.optim.AdamW(0.01, weight_decay=0.01)
    return gk.Trainer(
        gk.Model({"y": x}), "softmax_cross_entropy", optimizer, device=device, seed=3, precision=precision
    )


def test_all_updates_are_one_launch(card: Card) -> None:
    rng = np.random.default_rng(1)
    here, there = trainer("cpu"), trainer("cuda")
    for _ in range(5):
        x, labels = rng.standard_normal((16, 12)).astype(np.float32), rng.integers(0, 13, 16)
        np.testing.assert_allclose(float(there.step(x, labels)), float(here.step(x, labels)), rtol=1e-4)
    updates = sum(name == "AdamWUpdate" for name in card.launched)
    assert updates == 12
    # Besides, the number of updates is copied to where it stays.
    assert card.merged[-1] == (updates + 1, 2)
    for name, array in here.net.params.items():
        np.testing.assert_allclose(there.net.params[name], array, rtol=1e-3, atol=1e-5)


def test_weights_are_rounded_in_one_launch(card: Card) -> None:
    run = trainer("cuda", "bf16")
    for _ in range(3):
        run.step(np.ones((16, 12), np.float32), np.arange(16) % 13)
    casts = sum(name == "Cast" for name in card.launched)
    steps, left = card.merged[0]
    assert casts >= 12
    assert left <= steps - 11
