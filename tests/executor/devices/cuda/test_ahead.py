"""Arrays that are sent to a GPU while it computes: a run reads the sent values, and memory is not reused too early."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from on_a_card import stand_in_alone
from stand_in import Card
from together import together

import graphkit as gk
from graphkit.executor.devices.capabilities import SMALL_BYTES
from graphkit.executor.devices.cuda import ahead
from graphkit.executor.devices.cuda.ahead import MOST_SENT

COUNT = SMALL_BYTES // 4


def number(value: float, count: int = COUNT) -> np.ndarray:
    return np.full(count, value, np.float32)


@contextmanager
def running(card: Card) -> Iterator[None]:
    stream = card.stream()
    with card.on(stream):
        yield
    card.synchronize(stream)


def received(card: Card, array: np.ndarray) -> np.ndarray:
    with running(card):
        target = card.view(card.alloc(array.nbytes), 0, array.shape, array.dtype)
        card.copy_in(array, target)
    return card.copy_out(target, None)


def test_what_was_sent_is_read_once(card: Card) -> None:
    array = number(3)
    card.send_ahead(array)
    array[:] = 4  # not allowed for users; shows which of the two is read
    assert (received(card, array) == 3).all()
    assert (received(card, array) == 4).all(), "sent anew"


def test_views_are_found_by_where_they_lie(card: Card) -> None:
    array = number(5, 2 * COUNT)
    card.send_ahead(array)
    array[:] = 6
    part = array[:COUNT]
    assert (received(card, part) == 6).all(), "another length"
    assert (received(card, array.reshape(2, COUNT)).ravel() == 5).all()


@together()
@pytest.mark.parametrize(
    "array", [number(1, 3), np.zeros(0, np.float32), np.ones((COUNT, 4), np.float32)[:, :2], np.float32(2)]
)
def test_small_and_scattered_arrays_are_left(card: Card, array: np.ndarray) -> None:
    card.send_ahead(np.asarray(array))
    assert not card._ahead._sent


def test_memory_is_used_again_when_it_was_read(card: Card) -> None:
    """Memory is only reused after the stream has read it. The test waits for the runs only at the end."""
    streams, targets = [], []
    for turn in range(6):
        array = number(turn)
        card.send_ahead(array)
        streams.append(card.stream())
        with card.on(streams[-1]):
            targets.append(card.view(card.alloc(array.nbytes), 0, array.shape, array.dtype))
            card.copy_in(array, targets[-1])
    assert len(card.allocated) == 6 + 1, "one slot"
    for stream in reversed(streams):
        card.synchronize(stream)
    assert [card.copy_out(t, None)[0] for t in targets] == [0, 1, 2, 3, 4, 5]


def test_what_nobody_reads_is_forgotten(card: Card) -> None:
    arrays = [number(i) for i in range(3 * MOST_SENT)]
    for array in arrays:
        card.send_ahead(array)
    assert len(card._ahead._sent) == MOST_SENT
    for value, array in enumerate(arrays):
        assert (received(card, array) == value).all()
    assert not card._ahead._sent
    assert len(card.allocated) <= MOST_SENT + 2 + len(arrays)


def test_sizes_that_do_not_come_back_make_room(card: Card) -> None:
    for turn in range(2 * MOST_SENT):
        array = number(turn, COUNT + 100 * turn)
        card.send_ahead(array)
        assert (received(card, array) == turn).all()
    assert len(card._ahead._free) == 1


@stand_in_alone
def test_sizes_that_are_a_little_larger_fit(card: Card) -> None:
    for turn in range(40):
        array = number(turn, 2 * COUNT + 100 * turn)
        card.send_ahead(array)
        assert (received(card, array) == turn).all()
    assert [memory.nbytes for memory in card._late] == [2 * SMALL_BYTES, 2.25 * SMALL_BYTES]


@stand_in_alone
def test_room_is_made_when_nothing_is_copied_there_any_more(card: Card) -> None:
    """Pools give released memory to other streams, even if work is still queued."""
    small, stream = number(3), card.stream()
    card.send_ahead(small)
    with card.on(stream):
        target = card.view(card.alloc(small.nbytes), 0, small.shape, small.dtype)
        card.copy_in(small, target)
        assert stream.work, "it is queued"
    card.send_ahead(number(4, 2 * COUNT))
    assert not stream.work
    assert (card.copy_out(target, None) == 3).all()


def test_an_array_that_there_is_no_memory_for_is_sent_when_it_is_fed(
    card: Card, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(device: object, nbytes: int) -> None:
        raise MemoryError(nbytes)

    monkeypatch.setattr(ahead, "_Slot", refused)
    card.send_ahead(number(8))
    assert (received(card, number(8)) == 8).all()


# --- in runs ----------------------------------------------------------------------------------------


def test_a_run_is_fed_what_was_sent(card: Card) -> None:
    x = gk.input("x", ["N", 64])
    net = gk.Model({"y": gk.softmax(x * 2.0, axis=-1)})
    exe = net.compile("cuda")
    for turn in range(4):
        feeds = {"x": np.random.default_rng(turn).standard_normal((300, 64)).astype(np.float32)}
        exe.send_ahead(feeds)
        assert len(card._ahead._sent) == 1
        np.testing.assert_allclose(exe.run(feeds)["y"], net.run(feeds)["y"], rtol=1e-5)
        assert not card._ahead._sent


def test_an_array_that_no_run_reads_is_not_sent(card: Card) -> None:
    exe = gk.Model({"y": gk.softmax(gk.input("x", ["N", 64]))}).compile("cuda")
    exe.send_ahead({"another": np.ones((300, 64), np.float32)})
    assert not card._ahead._sent
    assert not exe._programs.builder.readers("another")
    assert exe._programs.builder.readers("x") == (card,)


def fitted(device: str, **options: object) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    images, labels = rng.standard_normal((600, 256)).astype(np.float32), rng.integers(0, 4, 600)
    net = gk.Model({"y": gk.nn.linear(gk.tanh(gk.nn.linear(gk.input("x", ["N", 256]), 8)), 4)}, name="net", seed=2)
    trainer = gk.Trainer(net, "softmax_cross_entropy", gk.optim.SGD(0.1), device=device, seed=1, **options)
    trainer.fit((images, labels), epochs=2, batch_size=100, valid=(images[:200], labels[:200]), progress=False)
    return dict(net.params)


@together()
@pytest.mark.parametrize("options", [{}, {"accumulate": 2}])
def test_batches_of_fit_are_sent_while_the_card_computes(card: Card, options: dict[str, object]) -> None:
    found = fitted("cuda", **options)
    assert card.sent >= 12
    assert not card._ahead._sent, "every batch was read from there"
    for name, array in fitted("cpu", **options).items():
        np.testing.assert_allclose(found[name], array, rtol=1e-3, atol=1e-5)
