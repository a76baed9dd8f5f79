"""Models over several ranks: a pipeline has the results of one process that accumulates the micro-batches."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from combinations import default_at, in_one_item
from pipelines import (
    AB,
    NETWORKS,
    alone,
    assert_same,
    group,
    in_two_stages,
    pictures,
    piped,
    ranks_of,
    rows,
    vectors,
)

import graphkit as gk
from graphkit.dist import pipeline
from graphkit.errors import InputError, NotFinite
from graphkit.ops import F

# --- the order of passes --------------------------------------------------------------------------------


@in_one_item()
@pytest.mark.parametrize("stages", range(1, 6))
@pytest.mark.parametrize("count", [1, 2, 3, 4, 7, 16])
def test_the_order_of_passes_ends_and_keeps_few_micro_batches(stages, count):
    """Each stage waits for all earlier ones, and backward for all later ones, as with values that skip stages."""
    left = [pipeline.one_forward_one_backward(stages, stage, count) for stage in range(stages)]
    for stage, order in enumerate(left):
        assert sorted(order) == sorted(itertools.product(["forward", "backward"], range(count)))
        held = most = 0
        for direction, _ in order:
            held += 1 if direction == "forward" else -1
            most = max(most, held)
        assert most == min(stages - stage, count)
    done = set()
    while any(left):
        ready = [
            stage for stage, order in enumerate(left)
            if order and (
                all((s, "forward", order[0].batch) in done for s in range(stage)) if order[0].direction == "forward"
                else all((s, "backward", order[0].batch) in done for s in range(stage + 1, stages))
                and (stage, "forward", order[0].batch) in done
            )
        ]  # fmt: skip
        assert ready, "no stage can go on"
        for stage in ready:
            done.add((stage, *left[stage].pop(0)))


@in_one_item()
@pytest.mark.parametrize("samples", [1, 3, 8, 17])
@pytest.mark.parametrize("count", [1, 2, 4, 8])
def test_micro_batches_are_all_of_a_batch(samples, count):
    sizes = pipeline.sizes(samples, count)
    assert sum(sizes) == samples
    assert len(sizes) == min(samples, count)
    assert max(sizes) - min(sizes) <= 1
    assert np.concatenate([np.arange(samples)[part] for part in pipeline.bounds(sizes)]).tolist() == [*range(samples)]


# --- what is computed -----------------------------------------------------------------------------------


@default_at(0, 1, 3)
@pytest.mark.parametrize("network", NETWORKS)
def test_a_pipeline_computes_what_one_process_does(on_ranks, network):
    whole, losses = alone(network)
    for trainer, seen in on_ranks(lambda store: piped(store, network), ranks_of(network)):
        np.testing.assert_allclose(seen, losses, rtol=1e-5)
        assert_same(trainer, whole, NETWORKS[network][5])
        assert trainer.updates == whole.updates == 3


@default_at(2, 4, 5, 8, 13)
@pytest.mark.parametrize(
    "options",
    [
        {"micro": 1}, {"micro": 2}, {"count": 13}, {"count": 3}, {"micro": 16}, {"clip_norm": 0.05}, {"ema": 0.9},
        {"deterministic": True}, {"deterministic": True, "count": 13}, {"deterministic": True, "micro": 1},
        {"on_nonfinite": "skip"}, {"on_nonfinite": "ignore"}, {"freeze": ["a_*"]},
        {"lr_mult": {"b_*": 0.5}}, {"freeze": ["b_*"]}, {"freeze": ["c_*"]}, {"freeze": ["a_*", "c_*"]},
    ],
    ids=str,
)  # fmt: skip
def test_options(on_ranks, options):
    whole, losses = alone("mlp", **options)
    for trainer, seen in on_ranks(lambda store: piped(store, "mlp", **options), 3):
        np.testing.assert_allclose(seen, losses, rtol=1e-6)
        # Unless a program is deterministic, it may have other kernels for a second size, and for matrices that another
        # program updates.
        others = options.get("count", 16) % 4 or options.get("micro") == 1
        assert_same(
            trainer, whole, 1e-6 if "clip_norm" in options or (others and "deterministic" not in options) else 0
        )


@default_at(1)
@pytest.mark.parametrize("options", [{"freeze": ["token"]}, {"clip_norm": 0.5}, {"ema": 0.9}], ids=str)
def test_a_parameter_of_two_stages_is_lent_for_a_step(on_ranks, options):
    whole, _ = alone("transformer", **options)

    def work(store):
        trainer, _ = piped(store, "transformer", **options)
        scores = trainer.evaluate(rows(8, 9), ["accuracy"])
        if store.rank == 1:
            with pytest.raises(InputError, match="'token' is held by rank 0"):
                trainer.net.params["token"]
        return trainer, scores

    expected = whole.evaluate(rows(8, 9), ["accuracy"])
    for trainer, scores in on_ranks(work):
        assert_same(trainer, whole, 1e-5)
        assert scores == pytest.approx(expected)


def test_control_flow_within_stages_and_a_value_of_whole_numbers_between_them(on_ranks):
    """The loop of the first stage counts. The second stage reads the count and has its own loop."""

    def repeated(state, times, function):
        going = lambda s: F.less(s[0], times)  # noqa: E731
        return gk.while_loop(going, lambda s: (s[0] + np.int64(1), function(s[1])), (np.int64(0), state))[1]

    def model():
        x = gk.input("x", ["N", 6])
        with group("a"):
            weight = gk.parameter("a", [6, 6], {"type": "normal", "std": 0.3})
            large = F.cast(F.greater(x, np.float32(1.5)), to="int64")
            count = F.min(F.reduce_sum(large, keepdims=False), np.int64(3))
            h = repeated(gk.tanh(x), np.int64(3), lambda s: gk.tanh(F.mat_mul(s, weight)))
        with group("b"):
            h = repeated(h, count + np.int64(1), gk.tanh)
            y = gk.nn.linear(h, 2, name="b")
        return gk.Model(y, seed=1)

    def trained(store):
        return in_two_stages(store, model(), gk.optim.Adam(0.01))

    whole = trained(None)
    for found in on_ranks(trained):
        assert_same(found, whole, 1e-6)


def test_loops_that_say_inside_where_they_are(on_ranks):
    """The loops have no group, but their nodes have. It is a pipeline, because each loop is on one rank."""

    def model():
        h = gk.input("x", ["N", 6])
        for name in "ab":

            def body(state, name=name):
                with group(name):
                    return gk.tanh(gk.nn.linear(state, 6, name=name)) * 1.5

            h = gk.while_loop(lambda s: F.less(gk.reduce_sum(s * s, keepdims=False), np.float32(20)), body, h, 3)
        with group("b"):
            return gk.Model(gk.nn.linear(h, 2, name="out"), seed=1)

    def trained(store):
        return in_two_stages(store, model(), gk.optim.SGD(0.1))

    whole = trained(None)
    for rank, found in enumerate(on_ranks(trained)):
        assert found._exchange.held == [("a_weight", "a_bias"), ("b_weight", "b_bias", "out_weight", "out_bias")][rank]
        assert_same(found, whole, 1e-6)


def test_recomputation_by_attributes(on_ranks):
    """Marked values are not stored between the passes of a micro-batch."""

    def model(seed=1, marked=False):
        x = gk.input("x", ["N", 6])
        with group("a"), gk.attr_scope(recompute=marked):
            h = gk.tanh(gk.nn.linear(gk.tanh(gk.nn.linear(x, 50, name="a0")), 6, name="a1"))
        with group("b"):
            y = gk.nn.linear(h, 2, name="b")
        return gk.Model(y, seed=seed)

    def work(store, marked):
        trainer = gk.Trainer(
            model(marked=marked), "mse", gk.optim.Adam(0.01), kvstore=store, groups=AB, micro_batches=4, threads=1
        )
        for step in range(3):
            trainer.step(*vectors(16, step))
        return trainer

    plain, marked = (on_ranks(lambda store, m=m: work(store, m), 2) for m in (False, True))
    assert marked[0]._exchange.peak_saved_bytes < plain[0]._exchange.peak_saved_bytes / 2
    for a, b in zip(plain, marked, strict=True):
        for name in a._exchange.held:
            np.testing.assert_allclose(a.net.params[name], b.net.params[name], rtol=1e-6, atol=1e-7)


def test_what_is_kept_is_kept_once(on_ranks):
    """The first stage keeps the result of each layer once: not again for sending, and not its views."""

    def model():
        x = gk.input("x", ["N", 6])
        with group("a"):
            h = gk.tanh(gk.nn.linear(x, 20, name="a"))
        with group("b"):
            h = F.reshape(F.reshape(h, np.array([0, 4, 5])), np.array([0, 20]))
            y = gk.nn.linear(h, 2, name="b")
        return gk.Model(y, seed=1)

    def work(store):
        trainer = gk.Trainer(model(), "mse", "sgd", kvstore=store, groups=AB, micro_batches=4, threads=1)
        trainer.step(*vectors(16))
        return trainer._exchange.peak_saved_bytes

    first, second = on_ranks(work)
    assert first == 2 * (4 * 20) * 4  # tanh of two micro-batches of 4
    # tanh as it was received, and what the loss keeps of [4, 2].
    assert 4 * 20 * 4 <= second <= (4 * 20 + 4 * 4 * 2) * 4


def test_dropout_and_statistics_are_those_of_the_micro_batches(on_ranks):
    whole, _ = alone("images", steps=5, count=10, micro=3)
    for trainer, _ in on_ranks(lambda store: piped(store, "images", steps=5, count=10, micro=3), 3):
        assert_same(trainer, whole, 1e-6)
        assert trainer.executor.rng == whole.executor.rng


def test_each_rank_has_its_own_parameters_and_few_micro_batches(on_ranks):
    found = on_ranks(lambda store: piped(store, "mlp", micro=8)[0], 3)
    for rank, (trainer, own) in enumerate(zip(found, "abc", strict=True)):
        assert trainer._exchange.held == (f"{own}_weight", f"{own}_bias")
        slots = {name for name in trainer._stepper.slots if trainer._stepper.slots.holds(name)}
        assert slots == {f"{own}_{part}/{slot}" for part in ("weight", "bias") for slot in ("mean", "variance")} | {
            "optimizer_step"
        }
        assert trainer._exchange.peak_in_flight == 3 - rank
        assert trainer.optimizer_state_bytes() == 2 * sum(
            trainer.net.params[f"{own}_{part}"].nbytes for part in ("weight", "bias")
        )
        (other,) = {"a", "b", "c"} - {own} - {"b" if own != "b" else "a"}
        with pytest.raises(InputError, match=rf"'{other}_weight' is held by rank {'abc'.index(other)}"):
            trainer.net.params[f"{other}_weight"]
    bytes_of = [trainer._exchange.peak_saved_bytes for trainer in found]
    assert all(bytes_of), bytes_of


# --- numbers that are not finite ------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["raise", "skip"])
def test_all_ranks_decide_alike_and_change_nothing(on_ranks, how):
    def work(store):
        trainer, _ = piped(store, "images", on_nonfinite=how)
        held = {n: trainer.net.params[n].copy() for n in trainer.net.params if trainer.net.params.holds(n)}
        x, y = pictures(16)
        x[7] = np.nan
        if how == "raise":
            with pytest.raises(NotFinite, match=r"micro-batch 2 of 4 is not finite at update 4, on rank 2"):
                trainer.step(x, y)
        else:
            assert np.isnan(float(trainer.step(x, y)))
            assert trainer.skipped == 1
        for name, array in held.items():
            np.testing.assert_array_equal(trainer.net.params[name], array)
        return trainer, float(trainer.step(*pictures(16, 3)))

    expected = None
    for trainer, loss in on_ranks(work, 3):
        assert np.isfinite(loss)
        assert trainer.updates == 4
        expected = loss if expected is None else expected
        assert loss == expected
