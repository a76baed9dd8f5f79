"""Models over several ranks: a pipeline computes what one process does that accumulates the micro-batches."""

from __future__ import annotations

import itertools
import json
import re
import signal
import subprocess
import sys

import numpy as np
import pytest
from jobs import FAILED, finish, start

import graphkit as gk
from graphkit import config
from graphkit.dist import pipeline
from graphkit.errors import InputError, NotFinite, UsageError
from graphkit.models._transformer import attention, feed_forward
from graphkit.models._transformer import steps as places_of
from graphkit.ops import F
from graphkit.passes.cleanup import CLEANUP
from graphkit.passes.core.sweep import run_passes
from graphkit.train.partition import partition


def group(name):
    return gk.attr_scope(ctx_group=name)


def mlp(seed=1):
    x = gk.input("x", ["N", 6])
    with group("a"):
        h = gk.tanh(gk.nn.linear(x, 20, name="a"))
    with group("b"):
        h = gk.tanh(gk.nn.linear(h, 30, name="b"))
    with group("c"):
        y = gk.nn.linear(h, 2, name="c")
    return gk.Model(y, seed=seed)


def images(seed=1, ratio=0.5):
    """The first stage's result is added in the third."""
    x = gk.input("x", ["N", 1, 8, 8])
    with group("a"):
        h = first = gk.relu(gk.nn.batch_norm(gk.nn.conv2d(x, 4, 3, pad=1, name="conv1"), name="norm1"))
    with group("b"):
        h = gk.relu(gk.nn.batch_norm(gk.nn.conv2d(h, 4, 3, pad=1, name="conv2"), name="norm2"))
        h = gk.nn.dropout(h, ratio) if ratio else h
    with group("c"):
        h = gk.nn.max_pool2d(F.add(h, first), 2)
        y = gk.nn.linear(F.flatten(h), 2, name="fc")
    return gk.Model(y, seed=seed)


def transformer(seed=1, vocab=11, width=8):
    """Its token table is read by two stages, so is the mask, which is in no group."""
    init = {"type": "normal", "std": 0.3}
    x = gk.input("x", ["N", "T"], "int64")
    table = gk.parameter("token", [vocab, width], init)
    places = places_of(x)
    causal = F.greater_or_equal(F.unsqueeze(places, np.array([1])), F.unsqueeze(places, np.array([0])))
    h = gk.nn.embedding(x, vocab, width, weight=table, name="token")
    for layer, name in enumerate("ab"):
        with group(name), gk.name_scope(f"block{layer}"):
            h = F.add(h, attention(gk.nn.layer_norm(h, name="norm1"), 2, causal, init=init, project_init=init))
            h = F.add(
                h, feed_forward(gk.nn.layer_norm(h, name="norm2"), 16, approximate="tanh", init=init, project_init=init)
            )
    with group("b"):
        logits = F.mat_mul(h, F.transpose(table, perm=(1, 0)))
    return gk.Model({"logits": logits}, seed=seed)


def lstm(seed=1, vocab=11, hidden=8):
    x = gk.input("x", ["T", "N"], "int64")
    with group("a"):
        h, _ = gk.nn.lstm(gk.nn.embedding(x, vocab, hidden, name="token"), hidden, name="lstm0")
    with group("b"):
        h, _ = gk.nn.lstm(h, hidden, name="lstm1")
        y = gk.nn.linear(h, vocab, name="fc")
    return gk.Model(y, seed=seed)


def vectors(count, seed=0):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((count, 6), np.float32), rng.standard_normal((count, 2), np.float32)


def pictures(count, seed=0):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((count, 1, 8, 8), np.float32), rng.standard_normal((count, 2), np.float32)


def rows(count, seed=0):
    rng = np.random.default_rng(seed)
    return rng.integers(0, 11, (count, 5)), rng.integers(0, 11, (count, 5))


def columns(count, seed=0):
    return tuple(np.ascontiguousarray(a.T) for a in rows(count, seed))


ABC, AB = {"a": 0, "b": 1, "c": 2}, {"a": 0, "b": 1}
MSE, ENTROPY = "mse", "softmax_cross_entropy"
# Network, samples, loss, groups, the axis of samples, bound on the difference (0: the same bits).
NETWORKS = {
    "mlp": (mlp, vectors, MSE, ABC, 0, 0),
    "mlp backwards": (mlp, vectors, MSE, {"a": 2, "b": 1, "c": 0}, 0, 0),
    "mlp on two": (mlp, vectors, MSE, {"a": 0, "b": 0, "c": 1}, 0, 0),
    "images": (images, pictures, MSE, ABC, 0, 1e-6),
    "transformer": (transformer, rows, ENTROPY, AB, 0, 1e-5),
    "lstm": (lstm, columns, ENTROPY, AB, 1, 1e-6),
}


def optimizer(network):
    """Biases before a normalisation have no gradient but for rounding, which Adam would make large."""
    return gk.optim.Adam(0.01) if NETWORKS[network][0] is mlp else gk.optim.SGD(0.003, momentum=0.9)


def batches(data, axis, count, micro, steps):
    """Each step's micro-batches."""
    for step in range(steps):
        x, y = data(count, step)
        parts = pipeline.bounds(pipeline.sizes(count, micro))
        yield [tuple(a[(slice(None),) * axis + (part,)] for a in (x, y)) for part in parts]


def alone(network, micro=4, count=16, steps=3, **options):
    """One process that accumulates the micro-batches."""
    model, data, loss, _, axis, _ = NETWORKS[network]
    parts = pipeline.sizes(count, micro)
    trainer = gk.Trainer(model(), loss, optimizer(network), accumulate=len(parts), threads=1, seed=3, **options)
    seen = []
    for batch in batches(data, axis, count, micro, steps):
        losses = []
        for (x, y), size in zip(batch, parts, strict=True):
            results = trainer._step(x, y, size)
            losses.append(float(results[0]))
        seen.append(np.average(losses, weights=parts))
    return trainer, seen


def piped(store, network, micro=4, count=16, steps=3, **options):
    model, data, loss, groups, axis, _ = NETWORKS[network]
    trainer = gk.Trainer(
        model(), loss, optimizer(network), kvstore=store, threads=1, seed=3, groups=groups, micro_batches=micro,
        batch_axes={"x": axis, "target": axis}, **options,
    )  # fmt: skip
    return trainer, [float(trainer.step(*data(count, step))) for step in range(steps)]


def ranks_of(network):
    return len(set(NETWORKS[network][3].values()))


def assert_same(found, whole, bound):
    held = [n for n in found.net.params if found.net.params.holds(n)]
    assert held
    for name in held:
        expected = whole.net.params[name]
        if bound:
            np.testing.assert_allclose(found.net.params[name], expected, rtol=bound, atol=bound, err_msg=name)
        else:
            np.testing.assert_array_equal(found.net.params[name], expected, err_msg=name)


# --- the order of passes --------------------------------------------------------------------------------


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


@pytest.mark.parametrize("samples", [1, 3, 8, 17])
@pytest.mark.parametrize("count", [1, 2, 4, 8])
def test_micro_batches_are_all_of_a_batch(samples, count):
    sizes = pipeline.sizes(samples, count)
    assert sum(sizes) == samples
    assert len(sizes) == min(samples, count)
    assert max(sizes) - min(sizes) <= 1
    assert np.concatenate([np.arange(samples)[part] for part in pipeline.bounds(sizes)]).tolist() == [*range(samples)]


# --- what is computed -----------------------------------------------------------------------------------


@pytest.mark.parametrize("network", NETWORKS)
def test_a_pipeline_computes_what_one_process_does(on_ranks, network):
    whole, losses = alone(network)
    for trainer, seen in on_ranks(lambda store: piped(store, network), ranks_of(network)):
        np.testing.assert_allclose(seen, losses, rtol=1e-5)
        assert_same(trainer, whole, NETWORKS[network][5])
        assert trainer.updates == whole.updates == 3


@pytest.mark.parametrize(
    "options",
    [
        {"micro": 1}, {"micro": 2}, {"count": 13}, {"count": 3}, {"micro": 16}, {"clip_norm": 0.05}, {"ema": 0.9},
        {"deterministic": True}, {"deterministic": True, "count": 13},
        {"on_nonfinite": "skip"}, {"on_nonfinite": "ignore"}, {"freeze": ["a_*"]},
        {"lr_mult": {"b_*": 0.5}}, {"freeze": ["b_*"]}, {"freeze": ["c_*"]}, {"freeze": ["a_*", "c_*"]},
    ],
    ids=str,
)  # fmt: skip
def test_options(on_ranks, options):
    whole, losses = alone("mlp", **options)
    for trainer, seen in on_ranks(lambda store: piped(store, "mlp", **options), 3):
        np.testing.assert_allclose(seen, losses, rtol=1e-6)
        # For a second size a program may have other kernels, unless it is deterministic.
        uneven = options.get("count", 16) % 4 and "deterministic" not in options
        assert_same(trainer, whole, 1e-6 if "clip_norm" in options or uneven else 0)


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
    """The first stage's loop counts, and the second, which has a loop of its own, reads the count."""

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
        how = {"accumulate": 4} if store is None else {"kvstore": store, "groups": AB, "micro_batches": 4}
        trainer = gk.Trainer(model(), "mse", gk.optim.Adam(0.01), threads=1, **how)
        for step in range(3):
            x, y = vectors(16, step)
            for part in [slice(None)] if store else pipeline.bounds(pipeline.sizes(16, 4)):
                trainer.step(x[part], y[part])
        return trainer

    whole = trained(None)
    for found in on_ranks(trained):
        assert_same(found, whole, 1e-6)


def test_loops_that_say_inside_where_they_are(on_ranks):
    """Their nodes are in groups, and they in none: a pipeline all the same, as each is on one rank."""

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
        how = {"accumulate": 4} if store is None else {"kvstore": store, "groups": AB, "micro_batches": 4}
        trainer = gk.Trainer(model(), "mse", gk.optim.SGD(0.1), threads=1, **how)
        for step in range(3):
            x, y = vectors(16, step)
            for part in [slice(None)] if store else pipeline.bounds(pipeline.sizes(16, 4)):
                trainer.step(x[part], y[part])
        return trainer

    whole = trained(None)
    for rank, found in enumerate(on_ranks(trained)):
        assert found._stepper.held == [("a_weight", "a_bias"), ("b_weight", "b_bias", "out_weight", "out_bias")][rank]
        assert_same(found, whole, 1e-6)


def test_recomputation_by_attributes(on_ranks):
    """What is marked is not kept between the passes of a micro-batch."""

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
    assert marked[0]._stepper.peak_saved_bytes < plain[0]._stepper.peak_saved_bytes / 2
    for a, b in zip(plain, marked, strict=True):
        for name in a._stepper.held:
            np.testing.assert_allclose(a.net.params[name], b.net.params[name], rtol=1e-6, atol=1e-7)


def test_what_is_kept_is_kept_once(on_ranks):
    """Of the first stage: the result of each layer, which is sent as well, and not its views."""

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
        return trainer._stepper.peak_saved_bytes

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
        assert trainer._stepper.held == (f"{own}_weight", f"{own}_bias")
        slots = {name for name in trainer._slots if trainer._slots.holds(name)}
        assert slots == {f"{own}_{part}/{slot}" for part in ("weight", "bias") for slot in ("mean", "variance")} | {
            "optimizer_step"
        }
        assert trainer._stepper.peak_in_flight == 3 - rank
        assert trainer.slot_bytes() == 2 * sum(
            trainer.net.params[f"{own}_{part}"].nbytes for part in ("weight", "bias")
        )
        (other,) = {"a", "b", "c"} - {own} - {"b" if own != "b" else "a"}
        with pytest.raises(InputError, match=rf"'{other}_weight' is held by rank {'abc'.index(other)}"):
            trainer.net.params[f"{other}_weight"]
    bytes_of = [trainer._stepper.peak_saved_bytes for trainer in found]
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


# --- epochs, evaluation and files -----------------------------------------------------------------------


def classifier(seed=1):
    x = gk.input("x", ["N", 6])
    with group("a"):
        h = gk.tanh(gk.nn.batch_norm(gk.nn.linear(x, 20, name="a"), name="norm"))
    with group("b"):
        h = gk.nn.dropout(gk.tanh(gk.nn.linear(h, 30, name="b")), 0.2)
    with group("c"):
        y = gk.nn.linear(h, 3, name="c")
    return gk.Model(y, seed=seed)


def labelled(count, seed=0):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((count, 6), np.float32), rng.integers(0, 3, count)


def fitting(store, groups=ABC, **options):
    """A trainer of the classifier; in one process, one that accumulates the same micro-batches."""
    how = {"accumulate": 2} if store is None else {"kvstore": store, "groups": groups, "micro_batches": 2}
    return gk.Trainer(classifier(), optimizer=gk.optim.Adam(0.01), threads=1, seed=3, **how, **options)


def fit(trainer, folder, **options):
    """Micro-batches of 8 either way."""
    size = 16 if trainer.accumulate == 1 else 8
    given = {"metrics": ["accuracy"], "batch_size": size, "progress": False}
    return trainer.fit(labelled(48), labelled(20, 1), folder=folder, **given, **options)


@pytest.mark.parametrize("ema", [None, 0.9])
def test_epochs_are_those_of_one_process(on_ranks, tmp_path, ema):
    one = fitting(None, ema=ema)
    # In one process the data come in batches of 8, in another order than in batches of 16 cut in two.
    history = None

    def work(store):
        trainer = fitting(store, ema=ema)
        found = fit(trainer, tmp_path / "run", epochs=2)
        scores = trainer.evaluate(labelled(20, 1), ["accuracy"])
        return found, scores

    found = on_ranks(work, 3)
    assert found[0] == found[1] == found[2]
    (history, scores), *_ = found
    assert len(history) == 2
    assert history[1]["valid_accuracy"] == scores["accuracy"]
    net = gk.load(tmp_path / "run")
    exe = net.compile()
    x, y = labelled(20, 1)
    (logits,) = exe.run({"x": x}).values()
    assert (logits.argmax(1) == y).mean() == pytest.approx(scores["accuracy"])
    one.resume(tmp_path / "run")
    assert one.updates == 6
    assert one.evaluate(labelled(20, 1), ["accuracy"]) == pytest.approx(scores)


@pytest.mark.parametrize("within", [False, True])
@pytest.mark.parametrize("before", [{"a": 0, "b": 1, "c": 2}, {"a": 1, "b": 0, "c": 0}, None])
@pytest.mark.parametrize("after", [{"a": 2, "b": 0, "c": 1}, None])
def test_a_run_goes_on_in_another_placement(on_ranks, tmp_path, before, after, within):
    """And in one process, which takes micro-batches of 16; what of them is measured is alike but for rounding."""

    class Stop(Exception):
        pass

    def start(store, groups, job):
        trainer = fitting_whole(store, groups)
        return job(trainer)

    def fitting_whole(store, groups):
        how = {} if store is None else {"kvstore": store, "groups": groups, "micro_batches": 1}
        return gk.Trainer(classifier(), optimizer=gk.optim.SGD(0.05, momentum=0.9), threads=1, seed=3, ema=0.9, **how)

    def run(groups, job):
        if groups is None:
            return job(fitting_whole(None, None))
        return on_ranks(lambda store: start(store, groups, job), len(set(groups.values())))[0]

    def options(folder):
        return {"folder": folder, "batch_size": 16, "metrics": ["accuracy"], "progress": False}

    def first(trainer):
        if not within:
            return trainer.fit(labelled(48), epochs=1, **options(tmp_path / "run"))
        calls = []
        step = trainer._step

        def stopping(*given):
            calls.append(given)
            if len(calls) == 3:
                raise Stop
            return step(*given)

        trainer._step = stopping
        with pytest.raises(Stop):
            trainer.fit(labelled(48), epochs=2, checkpoint_every=1, **options(tmp_path / "run"))
        return None

    def further(trainer):
        trainer.resume(tmp_path / "run")
        assert trainer.updates == (2 if within else 3)
        found = trainer.fit(labelled(48), epochs=2, **options(tmp_path / "run"))
        return found[-1]

    run(before, first)
    last = run(after, further)
    expected = fitting_whole(None, None).fit(labelled(48), epochs=2, **options(tmp_path / "whole"))[-1]
    assert last == pytest.approx(expected, rel=1e-4)
    found, whole = gk.load(tmp_path / "run"), gk.load(tmp_path / "whole")
    for name, array in whole.params.items():
        np.testing.assert_allclose(found.params[name], array, rtol=1e-4, atol=1e-5, err_msg=name)


def test_save_writes_what_one_process_writes(on_ranks, tmp_path):
    def work(store):
        trainer = fitting(store)
        for step in range(3):
            trainer.step(*labelled(16, step))
        trainer.save(tmp_path / "run")
        # Nothing of others stays in rank 0.
        return [name for name in trainer.net.params if trainer.net.params.holds(name)]

    held = on_ranks(work, 3)
    names = set(classifier().params)
    assert set().union(*held) == names
    assert sum(map(len, held)) == len(names)
    one = fitting(None)
    one.resume(tmp_path / "run")
    assert one.updates == 3
    for step in range(3):
        x, y = labelled(16, step)
        one.step(x[:8], y[:8])
        one.step(x[8:], y[8:])


# --- what cannot be -------------------------------------------------------------------------------------


def graph_of(*order):
    h = gk.input("x", ["N", 6])
    for index, name in enumerate(order):
        with group(name):
            h = gk.tanh(gk.nn.linear(h, 6, name=f"fc{index}"))
    return gk.Model(h).graph


@pytest.mark.parametrize(
    ("groups", "ranks", "message"),
    [
        ({"a": 0, "d": 1}, 2, "no group 'd'"),
        ({"a": 0, "b": 1}, 2, "no rank is given for 'c'"),
        ({"a": 0, "b": 1, "c": 2}, 2, "'c' is placed on rank 2; the ranks of the job are 0 to 1"),
        ({"a": 0, "b": 1, "c": -1}, 2, "rank -1"),
        ({"a": 0, "b": 1, "c": 1}, 3, "no group is placed on rank 2"),
        ({"a": 0, "b": 1, "c": 0}, 2, r"rank 0 \(c: .*rank 1 \(b: "),
    ],
)
def test_groups_that_do_not_fit(groups, ranks, message):
    with pytest.raises(UsageError, match=message):
        partition(graph_of("a", "b", "c"), groups, ranks)


def test_a_cycle_between_groups_names_the_nodes():
    with pytest.raises(UsageError, match=r"need each other.*fc2.*reads what depends on rank 1.*fc1"):
        partition(graph_of("a", "b", "a"), {"a": 0, "b": 1}, 2)


def test_equal_nodes_of_different_groups_stay_apart():
    """Each stage has a mask of its own: neither needs the other for it."""
    x = gk.input("x", ["N", 6])
    h = x
    for name in "ab":
        with group(name):
            h = F.mul(gk.tanh(gk.nn.linear(h, 6, name=name)), F.cast(F.greater(x, np.float32(0)), to="float32"))
    graph = gk.Model(h, seed=1).graph
    merged = run_passes(graph, CLEANUP)
    assert [n.op.name for n in merged.nodes].count("Greater") == 2
    part = partition(merged, AB, 2)
    assert [v.node.op.name for v in part.crossings] == ["Mul"]


def test_a_graph_without_groups():
    with pytest.raises(UsageError, match="no node of the graph is in a group"):
        partition(gk.Model(gk.nn.linear(gk.input("x", ["N", 3]), 2)).graph, {"a": 0}, 2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"accumulate": 2}, "accumulate"), ({"recompute": "sqrt"}, "recompute"), ({"lazy": ["a_weight"]}, "lazy"),
        ({"kvstore": None}, "several processes"), ({"groups": None}, "micro_batches"),
        ({"micro_batches": 0}, "micro_batches"), ({"shard_optimizer": True}, "shard_optimizer"),
        ({"sync_batch_norm": True}, "sync_batch_norm"),
    ],
)  # fmt: skip
def test_options_that_a_pipeline_has_not(on_ranks, options, message):
    def work(store):
        given = {"kvstore": store, "groups": ABC, "micro_batches": 2} | options
        with pytest.raises(UsageError, match=message):
            gk.Trainer(mlp(), "mse", **given)

    on_ranks(work, 3)


def test_batches_that_do_not_fit(on_ranks):
    """All ranks refuse them, before any of them does something; then they go on."""

    def work(store):
        trainer, _ = piped(store, "mlp", steps=0)
        with pytest.raises(InputError, match="axis 1 is 5, not 6"):
            trainer.step(vectors(8)[0][:, :5], vectors(8)[1])
        with pytest.raises(InputError, match="'z'"):
            trainer.step({"z": vectors(8)[0]}, vectors(8)[1])
        with pytest.raises(InputError, match="not given: 'x'"):
            trainer.step({}, vectors(8)[1])
        trainer.step(*vectors(8))
        with pytest.raises(InputError, match="at least one sample"):
            trainer.step(*vectors(0))
        with pytest.raises(InputError, match="different numbers of samples"):
            trainer.step(vectors(4)[0], vectors(5)[1])

    on_ranks(work, 3)


# --- jobs -----------------------------------------------------------------------------------------------

JOB = """
    import os, signal, sys, numpy as np, graphkit as gk
    kv = gk.kvstore.create("dist_sync")
    x = gk.input("x", ["N", 6])
    h = x
    for index, name in enumerate("abc"[:kv.num_workers]):
        with gk.attr_scope(ctx_group=name):
            h = gk.tanh(gk.nn.linear(h, 512, name=name))
    groups = {name: index for index, name in enumerate("abc"[:kv.num_workers])}
    trainer = gk.Trainer(gk.Model(h, seed=1), "mse", gk.optim.Adam(0.01), kvstore=kv, threads=1, groups=groups,
                         micro_batches=4)
    def batch(step):
        rng = np.random.default_rng(step)
        return rng.standard_normal((1024, 6), np.float32), rng.standard_normal((1024, 512), np.float32)
"""


@pytest.mark.parametrize("hosts", [1, 3])
def test_a_job_of_three_processes_computes_what_one_does(tmp_path, monkeypatch, hosts):
    """Arrays of half a megabyte go between them, on one host and as if on three."""
    if hosts == 3:
        monkeypatch.setenv(config.RANKS_PER_HOST.name, "1")
    status, _, errors = finish(
        start(
            3,
            JOB
            + f"""
    for step in range(3): trainer.step(*batch(step))
    trainer.save({str(tmp_path / "run")!r})
    """,
            trainer=False,
        )
    )
    assert status == 0, errors
    found = gk.load(tmp_path / "run")
    h = gk.input("x", ["N", 6])
    for name in "abc":
        h = gk.tanh(gk.nn.linear(h, 512, name=name))
    one = gk.Trainer(gk.Model(h, seed=1), "mse", gk.optim.Adam(0.01), accumulate=4, threads=1)
    for step in range(3):
        rng = np.random.default_rng(step)
        x, y = rng.standard_normal((1024, 6), np.float32), rng.standard_normal((1024, 512), np.float32)
        for part in pipeline.bounds(pipeline.sizes(1024, 4)):
            one.step(x[part], y[part])
    for name, array in one.net.params.items():
        np.testing.assert_allclose(found.params[name], array, rtol=1e-6, atol=1e-6)


CAUGHT = """
    for step in range(3): trainer.step(*batch(step))
    runner = trainer._stepper._runner
    backward = runner.backward
    def failing(number, *given):
        if kv.rank == 1 and number == 1: raise MemoryError("too much")
        return backward(number, *given)
    runner.backward = failing
    for step in range(2):
        try:
            trainer.step(*batch(step))
        except BaseException as error:
            print(f"rank {kv.rank}: {type(error).__name__}: {error}", flush=True)
"""


def test_who_catches_the_error_of_a_rank_leaves_nobody_waiting():
    status, out, errors = finish(start(3, JOB + CAUGHT, trainer=False))
    assert status in FAILED, errors
    assert "rank 1: RuntimeFailure: rank 1 failed in the step of update 4: too much" in out
    assert "graphkit: rank 1: rank 1 failed in the step of update 4" in errors
    assert "rank 1: MemoryError: too much" in out


def test_a_rank_that_takes_no_step_is_an_error_of_all():
    status, _, errors = finish(
        start(
            3,
            JOB
            + """
    if kv.rank != 1: trainer.step(*batch(0))
    """,
            trainer=False,
        )
    )
    assert status in FAILED
    assert "the processes do not go on together" in errors


def test_batches_that_differ_between_ranks_are_an_error_of_all():
    status, _, errors = finish(
        start(
            3,
            JOB
            + """
    trainer.step(*(a[: 64 + kv.rank // 2] for a in batch(0)))
    """,
            trainer=False,
        )
    )
    assert status in FAILED
    assert "the processes do not go on together" in errors


ACTS = {
    "stop": ("os.kill(os.getpid(), signal.SIGSTOP)", 5, r"of rank 1 are awaited in vain: rank 1 .* no sign of life"),
    "error": ("raise MemoryError('of rank 1')", 5, r"rank 1: MemoryError: of rank 1; this ends the job"),
    "interrupt": ("os.kill(os.getpid(), signal.SIGINT)", 130, r"rank 1: interrupted; this ends the job"),
}  # fmt: skip


@pytest.mark.parametrize("how", ACTS)
def test_a_rank_that_ends_in_the_middle_of_a_pipeline_ends_the_job(monkeypatch, how):
    monkeypatch.setenv(config.RANK_TIMEOUT.name, "2")
    act, code, message = ACTS[how]
    status, _, errors = finish(
        start(
            3,
            JOB
            + f"""
    for step in range(3): trainer.step(*batch(step))
    runner = trainer._stepper._runner
    backward = runner.backward
    def failing(number, *given):
        if kv.rank == 1 and number == 1:
            {act}
        return backward(number, *given)
    runner.backward = failing
    for step in range(3): trainer.step(*batch(step))
    """,
            trainer=False,
        )
    )
    # An idle launcher may kill the process that has called it before that has left with its own code.
    assert status in (code, signal.SIGKILL), errors
    assert re.search(message, errors), errors


@pytest.fixture
def network(tmp_path):
    classifier().save(tmp_path / "net.json")
    x, y = labelled(64)
    np.savez(tmp_path / "data.npz", x=x, y=y)
    return tmp_path


def command(network, *further):
    given = [
        sys.executable,
        "-P",
        "-m",
        "graphkit",
        "train",
        str(network / "net.json"),
        "--data",
        str(network / "data.npz"),
        *further,
    ]
    return subprocess.run(given, capture_output=True, text=True, timeout=120, check=False)


def test_the_command_trains_a_pipeline_and_one_process_goes_on(network):
    placed = ["--processes", "2", "--kvstore", "dist_sync", "--place", "a=0", "--place", "b=1", "--place", "c=1"]
    run = ["-o", str(network / "run"), "--batch-size", "16"]
    done = command(network, *placed, "--micro-batches", "4", "--epochs", "2", *run)
    assert done.returncode == 0, done.stderr
    assert "epoch 2 (2 processes): loss" in done.stdout
    done = command(network, "-o", str(network / "run"), "--resume", "--epochs", "3")
    assert done.returncode == 0, done.stderr
    epochs = [json.loads(line)["epoch"] for line in (network / "run" / "log.jsonl").read_text().splitlines()]
    assert epochs == [1, 2, 3]


def test_a_process_that_is_killed_ends_the_command_and_another_call_goes_on(network, monkeypatch):
    """Rank 1 dies while epochs go on."""
    hook = network / "hook"
    hook.mkdir()
    log = network / "run" / "log.jsonl"
    (hook / "sitecustomize.py").write_text(f"""
import os, pathlib, signal, threading, time
if "1" in (os.environ.get("PMI_RANK"), os.environ.get("OMPI_COMM_WORLD_RANK")):
    def kill():
        while not pathlib.Path({str(log)!r}).exists():
            time.sleep(0.01)
        time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGKILL)
    threading.Thread(target=kill, daemon=True).start()
""")
    monkeypatch.setenv("PYTHONPATH", str(hook))
    placed = ["--processes", "2", "--kvstore", "dist_sync", "--place", "a=0", "--place", "b=1", "--place", "c=1"]
    run = ["-o", str(network / "run"), "--batch-size", "16", "--micro-batches", "4"]
    done = command(network, *placed, *run, "--epochs", "100000", "--rank-timeout", "5")
    assert done.returncode == 5, done.stderr
    monkeypatch.delenv("PYTHONPATH")
    epochs = len(log.read_text().splitlines())
    done = command(network, *placed, "--resume", *run, "--epochs", str(epochs + 2))
    assert done.returncode == 0, done.stderr


def test_inspect_shows_groups(network):
    given = [sys.executable, "-P", "-m", "graphkit", "inspect", str(network / "net.json")]
    done = subprocess.run([*given, "--json"], capture_output=True, text=True, timeout=60, check=True)
    found = json.loads(done.stdout)["groups"]
    assert {name: group["parameters"] for name, group in found.items()} == {"a": 140 + 2 * 20, "b": 630, "c": 93}
    done = subprocess.run(given, capture_output=True, text=True, timeout=60, check=True)
    assert re.search(r"^b +\d+ +630$", done.stdout, re.MULTILINE)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--place", "a=first"], "--place a=first: expected the number of a process"),
        (["--place", "a=0"], "groups= places a model on several processes"),
        (["--micro-batches", "4"], "micro_batches are those of a pipeline"),
    ],
)
def test_places_that_do_not_fit(network, options, message):
    done = command(network, *options)
    assert done.returncode == 2
    assert message in done.stderr
