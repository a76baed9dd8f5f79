"""Gradients in fewer bytes: what arrives, what waits, and that nothing is lost."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import graphkit as gk
from graphkit.dist import compression
from graphkit.errors import InputError, UsageError
from graphkit.executor.devices.loading import load_device, native_module

KINDS: dict[str, Any] = {
    "float16": "float16",
    "bfloat16": "bf16",
    "2bit": {"type": "2bit", "threshold": 0.25},
    "top_k": {"type": "top_k", "ratio": 0.1},
}
SIZES = [0, 1, 15, 16, 17, 33, 1000, 70_000]


def normal(size: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(size).astype(np.float32)


def told(made: compression.Compression, packed: np.ndarray, size: int) -> np.ndarray:
    """What the bytes say."""
    total = np.zeros(size, np.float32)
    made.add(packed, total)
    return total


@pytest.fixture(params=["baseline", "avx2", "avx512"])
def every_isa(request):
    assert load_device("cpu")
    native = native_module()
    try:
        native.use_isa(request.param)
    except native.Unsupported:
        pytest.skip(f"the processor has no {request.param}")
    yield
    native.use_isa("")


# --- one array ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_sent_and_what_waits_are_the_whole(every_isa, kind, size):
    made = compression.create(KINDS[kind])
    gradient, residual = normal(size), normal(size, 1)
    whole = gradient + residual
    given = gradient.copy()
    packed = made.pack(gradient, residual)
    np.testing.assert_array_equal(gradient, given)
    assert packed.dtype == np.uint8
    assert packed.nbytes == made.packed_bytes(size)
    np.testing.assert_allclose(told(made, packed, size) + residual, whole, rtol=1e-6, atol=1e-6)
    twice = np.ones(size, np.float32)
    made.add(packed, twice)
    np.testing.assert_allclose(twice, 1 + told(made, packed, size), rtol=1e-6)


@pytest.mark.parametrize("size", SIZES)
def test_two_bits_are_those_of_the_definition(every_isa, size):
    made = compression.TwoBit(0.25)
    gradient, residual = normal(size), normal(size, 1)
    gradient[: size // 3] = np.round(gradient[: size // 3] * 4) / 4  # the threshold itself among them
    residual[: size // 3] = 0
    whole = gradient + residual
    sent = np.where(whole >= 0.25, 0.25, np.where(whole <= -0.25, -0.25, 0)).astype(np.float32)
    packed = made.pack(gradient, residual)
    np.testing.assert_array_equal(told(made, packed, size), sent)
    np.testing.assert_array_equal(residual, whole - sent)
    assert packed.nbytes <= max(4, -(-4 * size // 16) + 4)


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_halves_are_rounded_to_the_nearest(kind):
    made, dtype = compression.create(kind), np.float16 if kind == "float16" else ml_dtypes.bfloat16
    gradient = normal(999)
    packed = made.pack(gradient, np.zeros_like(gradient))
    np.testing.assert_array_equal(told(made, packed, 999), gradient.astype(dtype).astype(np.float32))


def test_numbers_beyond_the_halves_follow_later():
    made = compression.create("float16")
    gradient, residual = np.float32([1e5, -2e5, 3]), np.zeros(3, np.float32)
    sent = [told(made, made.pack(gradient, residual), 3)]
    sent.extend(told(made, made.pack(np.zeros_like(gradient), residual), 3) for _ in range(4))
    assert np.isfinite(sent).all()
    np.testing.assert_allclose(np.sum(sent, axis=0), gradient, rtol=1e-6)


def test_the_largest_are_sent():
    made = compression.TopK(0.2)
    gradient = np.float32([1, -9, 2, 8, 0, 3, -4, 5, 6, -7])
    residual = np.zeros(10, np.float32)
    np.testing.assert_array_equal(told(made, made.pack(gradient, residual), 10), [0, -9, 0, 8, 0, 0, 0, 0, 0, 0])
    np.testing.assert_array_equal(residual, [1, 0, 2, 0, 0, 3, -4, 5, 6, -7])
    assert compression.TopK(0.01).packed_bytes(1000) == 80
    assert compression.TopK(0.01).packed_bytes(3) == 8


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_not_a_number_is_told_and_does_not_stay(every_isa, kind, value):
    made = compression.create(KINDS[kind])
    for size in (1, 16, 40):
        gradient, residual = np.zeros(size, np.float32), np.zeros(size, np.float32)
        gradient[size // 2] = value
        arrived = told(made, made.pack(gradient, residual), size)
        assert not np.isfinite(arrived[size // 2])
        assert np.isfinite(np.delete(arrived, size // 2)).all()
        np.testing.assert_array_equal(residual, 0)


@pytest.mark.parametrize("kind", KINDS)
def test_steps_add_up(kind):
    """After many gradients the sum of what arrived differs from theirs by what waits, which stays small."""
    made = compression.create(KINDS[kind])
    residual = np.zeros(200, np.float32)
    arrived, wanted = np.zeros(200, np.float32), np.zeros(200)
    for step in range(300):
        gradient = 0.1 * normal(200, step)
        wanted += gradient
        made.add(made.pack(gradient, residual), arrived)
    np.testing.assert_allclose(arrived + residual, wanted, atol=1e-3)
    assert np.abs(residual).max() < (1.5 if kind == "top_k" else 0.5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("3bit", "unknown compression '3bit'; did you mean '2bit'"),
        ({"threshold": 1}, "unknown compression None"),
        ({"type": "2bit", "treshold": 1}, "no option 'treshold'; did you mean 'threshold'"),
        ({"type": "2bit", "threshold": 0}, "above 0, not 0"),
        ({"type": "2bit", "threshold": float("nan")}, "above 0, not nan"),
        ({"type": "2bit", "threshold": True}, "is a number, not True"),
        ({"type": "top_k", "ratio": 1.5}, "at most 1, not 1.5"),
        ({"type": "float16", "ratio": 1}, "no option 'ratio'"),
        ({"type": ["2bit"]}, "unknown compression"),
        ("2bit:much", "'much' is not a number"),
        ("float16:3", "has no option 'number'"),
        ("3bit:3", "unknown compression '3bit'"),
    ],
    ids=str,
)
def test_options_that_are_refused(options, message):
    with pytest.raises(UsageError, match=message):
        compression.create(options)


def test_a_text_says_type_and_number():
    gradient = np.float32([0.05, 0.2, -0.2])
    for options in ("2bit:0.1", {"type": "2bit", "threshold": 0.1}):
        made = compression.create(options)
        sent = told(made, made.pack(gradient, np.zeros_like(gradient)), 3)
        np.testing.assert_array_equal(sent, np.float32([0, 0.1, -0.1]))
    assert compression.create("topk:0.5").packed_bytes(10) == 40


# --- a store ------------------------------------------------------------------------------------------


def test_a_local_store_sends_nothing():
    with pytest.raises(UsageError, match="local store sends nothing"):
        gk.kvstore.create("local").set_gradient_compression("2bit")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("processes", [1, 3])
def test_sums_over_processes(on_ranks, kind, processes):
    shape, steps = (7, 30), 6
    gradients = [[normal(210, 100 * rank + step).reshape(shape) for rank in range(processes)] for step in range(steps)]

    def work(store):
        store.set_gradient_compression(KINDS[kind])
        totals = [store.pushpull("w", gradients[step][store.rank]) for step in range(steps)]
        return totals, store.sent_bytes

    found = on_ranks(work, processes)
    made = compression.create(KINDS[kind])
    residuals = [np.zeros(210, np.float32) for _ in range(processes)]
    for step in range(steps):
        expected = np.zeros(210, np.float32)
        for rank in range(processes):
            made.add(made.pack(gradients[step][rank].reshape(-1), residuals[rank]), expected)
        for totals, sent in found:
            np.testing.assert_array_equal(totals[step], expected.reshape(shape))
            assert sent == steps * made.packed_bytes(210)


def test_two_bits_send_a_fifteenth_at_most(on_ranks):
    def work(store):
        gradient = normal(10_000, store.rank)
        store.pushpull("w", gradient)
        whole, store._sent_bytes = store.sent_bytes, 0
        store.set_gradient_compression("2bit")
        store.pushpull("w", gradient)
        return store.sent_bytes / whole

    assert max(on_ranks(work)) <= 1 / 15


def test_other_types_are_sent_whole(on_ranks):
    def work(store):
        store.set_gradient_compression({"type": "2bit", "threshold": 1e6})
        total = store.pushpull("loss", np.array([1.5, 2.5]))
        return total.tolist(), store.pushpull("count", np.int64(3)).tolist()

    assert on_ranks(work) == [([3, 5], 6)] * 2


def test_a_key_keeps_its_size(on_ranks):
    def work(store):
        store.set_gradient_compression("2bit")
        store.pushpull("w", normal(10))
        store.pushpull("w", normal(11))

    with pytest.raises(InputError, match="key 'w' had 10 elements when it was pushed before, and has 11"):
        on_ranks(work)


@pytest.mark.parametrize("kind", KINDS)
def test_training_reaches_the_same(on_ranks, kind):
    """A regression, whose loss falls with compressed gradients as it does with whole ones."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((64, 8)).astype(np.float32)
    y = x @ rng.standard_normal((8, 1)).astype(np.float32)

    def work(store, options=None):
        if options is not None:
            store.set_gradient_compression(options)
        net = gk.Model(gk.nn.linear(gk.input("x", ["N", 8]), 1, name="fc"), seed=0)
        trainer = gk.Trainer(net, "mse", gk.optim.SGD(0.05), kvstore=store, threads=1)
        part = slice(store.rank, None, store.num_workers)
        return [float(trainer.step(x[part], y[part])) for _ in range(200)], net.params["fc_weight"].tobytes()

    whole, _ = on_ranks(work)[0]
    options = {"type": "2bit", "threshold": 1.0} if kind == "2bit" else KINDS[kind]
    (losses, first), (_, second) = on_ranks(lambda store: work(store, options))
    assert first == second
    assert losses[-1] < max(10 * whole[-1], 0.01 * losses[0])
