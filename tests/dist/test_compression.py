"""Gradient compression: sent values and residuals, and their sum, which is exact."""

from __future__ import annotations

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from cases import each_case
from combinations import in_one_item

import graphkit as gk
from graphkit.dist.collectives import compression
from graphkit.errors import InputError, MissingDependency, UsageError
from graphkit.executor.devices.loading import load_native

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
    """Decompress the bytes."""
    total = np.zeros(size, np.float32)
    made.add(packed, total)
    return total


@pytest.fixture(params=["baseline", "avx2", "avx512"])
def every_isa(request):
    native = load_native()
    try:
        native.use_isa(request.param)
    except native.Unsupported:
        pytest.skip(f"the processor has no {request.param}")
    yield
    native.use_isa("")


# --- one array ----------------------------------------------------------------------------------------


@each_case(list(itertools.product(KINDS, SIZES)), group=lambda case: case[0])
def test_what_is_sent_and_what_waits_are_the_whole(case, every_isa):
    kind, size = case
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


@in_one_item()
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


HALVES = {"float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16)}


def halved(dtype: np.dtype[Any], gradient: np.ndarray, residual: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the sent values and the residual by definition, with numpy and ml_dtypes."""
    with np.errstate(all="ignore"):
        wanted = gradient + residual
        largest = np.float32(ml_dtypes.finfo(dtype).max)
        finite = np.isfinite(wanted)
        sent = np.where(finite, np.clip(wanted, -largest, largest), wanted).astype(dtype)
        return sent, np.where(finite, wanted - sent.astype(np.float32), np.float32(0))


def assert_bits(found: np.ndarray, expected: np.ndarray) -> None:
    """Check that the bits are the same. The bits of NaN may differ."""
    assert found.dtype == expected.dtype
    both = np.isnan(expected.astype(np.float32))
    np.testing.assert_array_equal(np.isnan(found.astype(np.float32)), both)
    kind = f"u{found.itemsize}"
    np.testing.assert_array_equal(found.view(kind)[~both], expected.view(kind)[~both])


def every_kind_of_number(size: int) -> np.ndarray:
    """Return random numbers of all magnitudes, also subnormal or too large for float16, some infinite or NaN."""
    rng = np.random.default_rng(size)
    with np.errstate(all="ignore"):
        found = (rng.standard_normal(size) * 10.0 ** rng.uniform(-46, 39, size)).astype(np.float32)
    special = np.float32([0, -0.0, np.nan, np.inf, -np.inf, 65504, 65519.9, 65520, -7e4, 3.4e38, 1e-45, 6e-8, 2.98e-8])
    places = rng.integers(0, max(size, 1), size // 3)
    found[places] = rng.choice(special, len(places))
    return found


@in_one_item()
@pytest.mark.parametrize("size", [0, 1, 2, 7, 16, 31, 255, 256, 257, 1000, 70_001])
@pytest.mark.parametrize("kind", HALVES)
def test_halves_are_those_of_the_definition(every_isa, kind, size):
    made, dtype = compression.create(kind), HALVES[kind]
    gradient, residual = every_kind_of_number(size), np.roll(every_kind_of_number(size), size // 2)
    sent, left = halved(dtype, gradient, residual)
    packed = made.pack(gradient, residual)
    assert_bits(packed.view(dtype), sent)
    assert_bits(residual, left)
    total = every_kind_of_number(size)[::-1].copy()
    with np.errstate(all="ignore"):
        expected = total + sent.astype(np.float32)
    made.add(packed, total)
    assert_bits(total, expected)


@in_one_item()
@pytest.mark.parametrize("kind", HALVES)
def test_every_half_and_what_lies_between_two(every_isa, kind):
    made, dtype = compression.create(kind), HALVES[kind]
    every = np.arange(1 << 16, dtype=np.uint16)
    with np.errstate(all="ignore"):
        expected = 0 + every.view(dtype).astype(np.float32)
    assert_bits(told(made, every.view(np.uint8), every.size), expected)
    finite = every.view(dtype).astype(np.float32)
    finite = np.unique(finite[np.isfinite(finite)])
    between = (finite[:-1].astype(np.float64) + finite[1:]) / 2
    ties = between.astype(np.float32)
    np.testing.assert_array_equal(ties.astype(np.float64), between)
    gradient = np.concatenate([finite, ties, np.nextafter(ties, np.float32(np.inf)), np.nextafter(ties, -ties)])
    sent, left = halved(dtype, gradient, np.zeros_like(gradient))
    residual = np.zeros_like(gradient)
    assert_bits(made.pack(gradient, residual).view(dtype), sent)
    assert_bits(residual, left)


def test_numbers_beyond_the_halves_follow_later():
    made = compression.create("float16")
    gradient, residual = np.float32([1e5, -2e5, 3]), np.zeros(3, np.float32)
    sent = [told(made, made.pack(gradient, residual), 3)]
    sent.extend(told(made, made.pack(np.zeros_like(gradient), residual), 3) for _ in range(4))
    assert np.isfinite(sent).all()
    np.testing.assert_allclose(np.sum(sent, axis=0), gradient, rtol=1e-6)


def largest(gradient: np.ndarray, residual: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return places, values and residual by definition, with a stable sort."""
    with np.errstate(all="ignore"):
        left = gradient + residual
    magnitude = np.where(np.isnan(left), np.float32(np.inf), np.abs(left))
    places = np.sort(np.argsort(-magnitude, kind="stable")[:count])
    values = left[places]
    left[places] = 0
    left[~np.isfinite(left)] = 0
    return places, values, left


VALUES: dict[str, Any] = {
    "normal": normal,
    "every kind": every_kind_of_number,
    "few values": lambda size: np.round(normal(size) * 2).astype(np.float32),
    "one value": lambda size: np.full(size, -0.25, np.float32),
    "zeros": lambda size: np.zeros(size, np.float32),
    "neighbours": lambda size: (np.arange(size, dtype=np.uint32) // 3 + 0x3F800000).view(np.float32),
    "subnormals": lambda size: np.arange(size, dtype=np.uint32)[::-1].copy().view(np.float32),
    "not finite": lambda size: np.where(np.arange(size) % 3, np.float32(np.nan), np.float32(-np.inf)),
}


LARGEST = list(itertools.product(VALUES, [0, 1, 3, 16, 17, 100, 4097, 70_001], [0.01, 0.3, 1]))


@each_case(LARGEST, group=lambda case: case[0])
def test_the_largest_are_those_of_the_definition(case, every_isa):
    values, size, ratio = case
    made = compression.TopK(ratio)
    gradient = VALUES[values](size)
    residual = np.zeros(size, np.float32) if values != "normal" else normal(size, 1)
    places, sent, left = largest(gradient, residual, made.packed_bytes(size) // 8)
    found = made.pack(gradient, residual).view(np.uint32).reshape(2, -1)
    np.testing.assert_array_equal(found[0], places)
    assert_bits(found[1].view(np.float32), sent)
    assert_bits(residual, left)


def test_the_largest_are_sent():
    made = compression.TopK(0.2)
    gradient = np.float32([1, -9, 2, 8, 0, 3, -4, 5, 6, -7])
    residual = np.zeros(10, np.float32)
    np.testing.assert_array_equal(told(made, made.pack(gradient, residual), 10), [0, -9, 0, 8, 0, 0, 0, 0, 0, 0])
    np.testing.assert_array_equal(residual, [1, 0, 2, 0, 0, 3, -4, 5, 6, -7])
    assert compression.TopK(0.01).packed_bytes(1000) == 80
    assert compression.TopK(0.01).packed_bytes(3) == 8


@in_one_item()
@pytest.mark.parametrize("kind", KINDS)
def test_a_gradient_without_a_number_leaves_nothing(every_isa, kind):
    """Also where there are more of them than are sent."""
    made = compression.create(KINDS[kind])
    gradient, residual = np.full(500, np.nan, np.float32), normal(500)
    assert np.isnan(told(made, made.pack(gradient, residual), 500)).any()
    np.testing.assert_array_equal(residual, 0)


def test_arrays_that_top_k_cannot_take():
    with pytest.raises(UsageError, match=r"below 2\*\*32 elements, not 4294967296"):
        compression.TopK().packed_bytes(1 << 32)


def test_kernels_that_cannot_be_made():
    native = load_native()
    for make in (native.HalvesPack, native.HalvesAdd):
        with pytest.raises(native.Error, match="float16 or bfloat16, not float32"):
            make(3, "float32")
    for count, chosen in ((3, 4), (-1, 0), (1 << 32, 1), (3, -1)):
        with pytest.raises(native.Error, match="elements are chosen"):
            native.TopKPack(count, chosen)


def test_kernels_write_elsewhere_where_they_are_told_to():
    native = load_native()
    gradient, residual, left = normal(70), normal(70, 1), np.empty(70, np.float32)
    given = residual.copy()
    native.HalvesPack(70, "float16")([gradient, residual], [np.empty(70, np.uint16), left])
    np.testing.assert_array_equal(residual, given)
    np.testing.assert_array_equal(left, halved(HALVES["float16"], gradient, residual)[1])
    native.TopKPack(70, 7)([gradient, residual], [np.empty(7, np.uint32), np.empty(7, np.float32), left])
    np.testing.assert_array_equal(residual, given)
    np.testing.assert_array_equal(left, largest(gradient, residual, 7)[2])


@in_one_item()
@pytest.mark.parametrize("kind", KINDS)
def test_without_the_native_extension_the_error_says_so(monkeypatch, kind):
    monkeypatch.setattr(compression, "load_native", lambda: None)
    with pytest.raises(MissingDependency, match=f"{kind} compression needs the native extension"):
        compression.create(KINDS[kind])


@in_one_item()
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


@in_one_item()
@pytest.mark.parametrize("kind", KINDS)
def test_steps_add_up(kind):
    """After many gradients, the sum of the sent values differs from their sum by the residual, which stays small."""
    made = compression.create(KINDS[kind])
    residual = np.zeros(200, np.float32)
    arrived, wanted = np.zeros(200, np.float32), np.zeros(200)
    for step in range(300):
        gradient = 0.1 * normal(200, step)
        wanted += gradient
        made.add(made.pack(gradient, residual), arrived)
    np.testing.assert_allclose(arrived + residual, wanted, atol=1e-3)
    assert np.abs(residual).max() < (1.5 if kind == "top_k" else 0.5)


@in_one_item()
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("3bit", "unknown compression '3bit'; did you mean '2bit'"),
        ({"threshold": 1}, "unknown compression None"),
        ({"type": "2bit", "treshold": 1}, "no option 'treshold'; did you mean 'threshold'"),
        ({"type": "2bit", "threshold": 0}, "above 0, not 0"),
        ({"type": "2bit", "threshold": float("nan")}, "above 0, not nan"),
        ({"type": "2bit", "threshold": True}, "must be a number, not True"),
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
    with pytest.raises(UsageError, match="store of type 'local' sends nothing"):
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


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("hosts", [[(0, 1), (2, 3)], [(0, 2), (1, 3)], [(0,), (1, 2, 3)]], ids=str)
def test_sums_over_hosts_pack_the_sum_of_each(on_ranks, kind, hosts):
    """The first process of each host compresses the host's sum and keeps the residual."""
    shape, steps = (7, 30), 6
    gradients = [[normal(210, 100 * rank + step).reshape(shape) for rank in range(4)] for step in range(steps)]

    def work(store):
        store.set_gradient_compression(KINDS[kind])
        totals = [store.pushpull("w", gradients[step][store.rank]) for step in range(steps)]
        return totals, store.sent_bytes, store.residuals(), store.compressing

    found = on_ranks(work, 4, hosts=hosts)
    made = compression.create(KINDS[kind])
    residuals = [np.zeros(210, np.float32) for _ in hosts]
    for step in range(steps):
        expected = np.zeros(210, np.float32)
        for host, residual in zip(hosts, residuals, strict=True):
            own = np.sum([gradients[step][rank] for rank in reversed(host)], axis=0)  # as these ranks do
            made.add(made.pack(own.reshape(-1), residual), expected)
        for totals, *_ in found:
            np.testing.assert_array_equal(totals[step], expected.reshape(shape))
    leading = tuple(host[0] for host in hosts)
    for rank, (_, sent, left, compressing) in enumerate(found):
        assert sent == steps * made.packed_bytes(210)
        assert compressing == leading
        assert list(left) == (["w"] if rank in leading else [])
    for rank, residual in zip(leading, residuals, strict=True):
        np.testing.assert_array_equal(found[rank][2]["w"], residual)


@pytest.mark.parametrize("hosts", [(), [(0, 1), (2, 3)]], ids=str)
def test_what_is_pushed_may_be_changed_at_once(on_ranks, hosts):
    def work(store):
        store.set_gradient_compression("float16")
        store.init("w", np.zeros(50, np.float32))
        given = np.ones(50, np.float32)
        for _ in range(20):
            store.push("w", given)
            given += 1
        return store.pull("w")

    for found in on_ranks(work, 4, hosts=hosts):
        np.testing.assert_array_equal(found, 80)


def test_sums_over_hosts_in_the_order_of_the_ranks(on_ranks):
    """The sum of these floats depends on the order."""
    parts = [np.float32([1e8]), np.float32([-1e8]), np.float32([1]), np.float32([1])]

    def work(store, ordered):
        store.set_gradient_compression("bfloat16")
        carrier = store.transport.collectives(ordered)
        array = parts[store.rank].copy()
        carrier.start("w", [array], 0)
        carrier.wait(["w"])
        return array[0], store.residuals().get("w")

    hosts = [(0, 1, 2), (3,)]
    found = on_ranks(lambda store: work(store, True), 4, hosts=hosts)
    assert [value for value, _ in found] == [2.0] * 4
    assert found[0][1] == [0]
    assert [value for value, _ in on_ranks(lambda store: work(store, False), 4, hosts=hosts)] == [1.0] * 4


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("hosts", [(), [(0, 1), (2, 3)]], ids=str)
def test_what_is_left_out_goes_on_in_another_store(on_ranks, kind, hosts):
    def pushed(store, steps, left=None):
        store.set_gradient_compression(KINDS[kind])
        if left is not None:
            store.restore_residuals(left[store.rank])
        return [store.pushpull("w", normal(99, 10 * step + store.rank)) for step in steps], store.residuals()

    whole = on_ranks(lambda store: pushed(store, range(8)), 4, hosts=hosts)
    first = on_ranks(lambda store: pushed(store, range(4)), 4, hosts=hosts)
    second = on_ranks(lambda store: pushed(store, range(4, 8), [left for _, left in first]), 4, hosts=hosts)
    for (totals, _), (before, _), (after, _) in zip(whole, first, second, strict=True):
        np.testing.assert_array_equal(totals, before + after)


def test_what_is_left_out_is_given_back_where_it_can_be_sent(on_ranks):
    def work(store):
        with pytest.raises(UsageError, match="call set_gradient_compression first"):
            store.restore_residuals({"w": np.zeros(3, np.float32)})
        store.set_gradient_compression("2bit")
        store.restore_residuals({})
        if store.rank == 1:
            with pytest.raises(UsageError, match="rank 1 does not compress, so it has no residuals; rank 0 does"):
                store.restore_residuals({"w": np.zeros(3, np.float32)})
            return
        with pytest.raises(InputError, match="must be float32, not float64"):
            store.restore_residuals({"w": np.zeros(3)})
        store.restore_residuals({"w": np.zeros(3, np.float32)})
        with pytest.raises(InputError, match="had 3 elements in an earlier push, but has 4"):
            store.restore_residuals({"w": np.zeros(4, np.float32)})

    on_ranks(work, 3, hosts=[(0, 1), (2,)])
    assert gk.kvstore.create("local").residuals() == {}


def test_two_bits_send_a_fifteenth_at_most(on_ranks):
    def work(store):
        gradient = normal(10_000, store.rank)
        store.pushpull("w", gradient)
        whole, store.transport._sent_bytes = store.sent_bytes, 0
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


@pytest.mark.parametrize("hosts", [(), [(0, 1), (2,)]], ids=str)
def test_a_key_keeps_its_size(on_ranks, hosts):
    def work(store):
        store.set_gradient_compression("2bit")
        store.pushpull("w", normal(10))
        store.pushpull("w", normal(11))

    with pytest.raises(InputError, match="key 'w' had 10 elements in an earlier push, but has 11"):
        on_ranks(work, 3, hosts=hosts)


@pytest.mark.parametrize("kind", [pytest.param(k, marks=() if k == "2bit" else pytest.mark.full) for k in KINDS])
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
