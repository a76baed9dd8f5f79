"""Training over ranks that need each other, or share branches and loops: results of one process, and failures."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys

import numpy as np
import pytest
from combinations import default_at
from graphs_on_ranks import group
from jobs import FAILED, command_statuses, finish, start, statuses

import graphkit as gk
from graphkit import config
from graphkit.cli import invoke
from graphkit.errors import InputError, NotFinite, UsageError
from graphkit.ops import F
from graphkit.train.exchange.placement import Placement
from graphkit.train.exchange.stages import Pipeline

AB = {"a": 0, "b": 1}


def cycle():
    """a needs b, which needs a; dropout in both."""
    x = gk.input("x", ["N", 6])
    with group("a"):
        h = gk.nn.dropout(gk.tanh(gk.nn.linear(x, 20, name="a0")), 0.2)
    with group("b"):
        h = gk.nn.dropout(gk.tanh(gk.nn.linear(h, 20, name="b")), 0.3)
    with group("a"):
        y = gk.nn.linear(h, 3, name="a1")
    return gk.Model(y, seed=1)


def looping():
    """A loop over both ranks with a branch over both inside, and statistics."""
    x = gk.input("x", ["N", 6])
    with group("a"):
        h = gk.tanh(gk.nn.linear(x, 8, name="in"))

    def body(s):
        with group("a"):
            u = gk.tanh(gk.nn.linear(s, 8, name="u"))

        def then():
            with group("b"):
                return gk.nn.dropout(gk.tanh(gk.nn.linear(u, 8, name="v")), 0.3)

        def other():
            with group("a"):
                return u * 1.5

        return gk.cond(F.greater(gk.reduce_sum(u, keepdims=False), np.float32(0)), then, other) + s

    h = gk.while_loop(lambda s: F.less(gk.reduce_mean(s * s, keepdims=False), np.float32(1.5)), body, h, 4)
    with group("b"):
        y = gk.nn.linear(gk.nn.batch_norm(h, name="norm"), 3, name="out")
    return gk.Model(y, seed=1)


def tied():
    """Both ranks read one table; the first owns it."""
    x = gk.input("x", ["N", 6])
    table = gk.parameter("table", [6, 6], {"type": "normal", "std": 0.5})
    with group("a"):
        h = gk.tanh(F.mat_mul(x, table))
    with group("b"):
        h = gk.tanh(F.mat_mul(h, table))
    with group("a"):
        y = gk.nn.linear(h, 3, name="fc")
    return gk.Model(y, seed=1)


MODELS = {"cycle": cycle, "looping": looping, "tied": tied}


def labelled(count, seed=0):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((count, 6), np.float32), rng.integers(0, 3, count)


def trainer_of(store, model, groups=AB, optimizer=None, **options):
    how = {} if store is None else {"kvstore": store, "groups": groups}
    optimizer = optimizer or gk.optim.SGD(0.1, momentum=0.9)
    return gk.Trainer(MODELS[model](), optimizer=optimizer, threads=1, seed=3, **how, **options)


def trained(store, model, steps=4, **options):
    trainer = trainer_of(store, model, **options)
    return trainer, [float(trainer.step(*labelled(16, step))) for step in range(steps)]


def assert_same(found, whole, bound=1e-6):
    held = [n for n in found.net.params if found.net.params.holds(n)]
    for name in held:
        expected = whole.net.params[name]
        np.testing.assert_allclose(found.net.params[name], expected, rtol=bound, atol=bound, err_msg=name)
    return held


def assert_one_process(on_ranks, model, samples):
    """Compare losses and parameters of two ranks with one process after three steps. Return those of each rank."""

    def work(store):
        how = {} if store is None else {"kvstore": store, "groups": AB}
        trainer = gk.Trainer(model(), optimizer=gk.optim.SGD(0.1), threads=1, **how)
        return trainer, [float(trainer.step(*labelled(samples, step))) for step in range(3)]

    whole, losses = work(None)
    held = []
    for trainer, seen in on_ranks(work):
        np.testing.assert_allclose(seen, losses, rtol=1e-6)
        held.append(assert_same(trainer, whole))
    return held


# --- what is computed -----------------------------------------------------------------------------------


@pytest.mark.parametrize("groups", [AB, {"a": 1, "b": 0}], ids=str)
@pytest.mark.parametrize("model", MODELS)
def test_ranks_train_what_one_process_does(on_ranks, model, groups):
    whole, losses = trained(None, model)
    held = []
    for trainer, seen in on_ranks(lambda store: trained(store, model, groups=groups)):
        assert isinstance(trainer._exchange, Placement)
        np.testing.assert_allclose(seen, losses, rtol=1e-6)
        held += assert_same(trainer, whole)
        assert trainer.updates == 4
        assert trainer.executor.rng == whole.executor.rng
    # Each parameter and statistic is on one rank.
    assert sorted(held) == sorted(whole.net.params)


def test_where_every_kernel_is_the_same_so_are_the_bits(on_ranks):
    whole, losses = trained(None, "cycle", optimizer=gk.optim.Adam(0.01))
    for trainer, seen in on_ranks(lambda store: trained(store, "cycle", optimizer=gk.optim.Adam(0.01))):
        assert seen == losses
        assert_same(trainer, whole, 0)


@default_at(0, 4, 5)
@pytest.mark.parametrize(
    "options",
    [
        {"clip_norm": 0.05}, {"ema": 0.9}, {"on_nonfinite": "skip"}, {"on_nonfinite": "ignore"},
        {"deterministic": True}, {"lr_mult": {"u_*": 0.5}}, {"freeze": ["u_*", "in_*"]},
        {"freeze": ["v_*", "norm_*", "out_*"]},
    ],
    ids=str,
)  # fmt: skip
def test_options(on_ranks, options):
    whole, losses = trained(None, "looping", **options)
    for trainer, seen in on_ranks(lambda store: trained(store, "looping", **options)):
        np.testing.assert_allclose(seen, losses, rtol=1e-6)
        assert_same(trainer, whole)


def test_recomputation_by_attributes(on_ranks):
    def model():
        x = gk.input("x", ["N", 6])
        with group("a"), gk.attr_scope(recompute=True):
            h = gk.tanh(gk.nn.linear(gk.tanh(gk.nn.linear(x, 50, name="a0")), 6, name="a1"))
        with group("b"):
            h = gk.tanh(gk.nn.linear(h, 6, name="b"))
        with group("a"):
            return gk.Model(gk.nn.linear(h, 3, name="a2"), seed=1)

    assert_one_process(on_ranks, model, 16)


def test_other_batch_sizes(on_ranks):
    def work(store):
        trainer = trainer_of(store, "looping")
        return trainer, [float(trainer.step(*labelled(count, count))) for count in (16, 5, 1, 16)]

    whole, losses = work(None)
    for trainer, seen in on_ranks(work):
        np.testing.assert_allclose(seen, losses, rtol=1e-5)
        assert_same(trainer, whole, 1e-5)


def test_each_rank_has_its_own_parameters_and_slots(on_ranks):
    for rank, (trainer, _) in enumerate(on_ranks(lambda store: trained(store, "cycle", steps=1))):
        own = ("a0_weight", "a0_bias", "a1_weight", "a1_bias") if rank == 0 else ("b_weight", "b_bias")
        assert trainer._exchange.held == own
        slots = {name for name in trainer._stepper.slots if trainer._stepper.slots.holds(name)}
        assert slots == {f"{name}/momentum" for name in own} | {"optimizer_step"}
        assert trainer.optimizer_state_bytes() == sum(trainer.net.params[name].nbytes for name in own)
        assert trainer.plan({"x": (16, 6), "target": (16,)}).arena_bytes > 0
        with pytest.raises(InputError, match=f"is held by rank {1 - rank}"):
            trainer.net.params["b_weight" if rank == 0 else "a0_weight"]


def test_a_pipeline_stays_one(on_ranks):
    def work(store):
        x = gk.input("x", ["N", 6])
        with group("a"):
            h = gk.tanh(gk.nn.linear(x, 8, name="a"))
        with group("b"):
            h = gk.nn.linear(h, 3, name="b")
        return gk.Trainer(gk.Model(h, seed=1), kvstore=store, groups=AB)._exchange

    assert all(isinstance(exchange, Pipeline) for exchange in on_ranks(work))


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("cycle", r"rank 0 \(a: .*reads a value that depends on rank 1.*micro_batches=4 .*needs a pipeline"),
        ("looping", r" of group 'b' is inside of node 'while_loop'.*micro_batches=4 .*needs a pipeline"),
    ],
)
def test_micro_batches_need_a_pipeline(on_ranks, model, message):
    def work(store):
        with pytest.raises(UsageError, match=message):
            trainer_of(store, model, micro_batches=4)

    on_ranks(work)


@pytest.mark.parametrize(
    ("groups", "message"),
    [({"a": 0}, "no rank is given for 'b'"), ({"a": 0, "b": 1, "c": 1}, "no group 'c'"),
     ({"a": 0, "b": 0}, "no group is placed on rank 1"), ({"a": 0, "b": 7}, "'b' is placed on rank 7")],
)  # fmt: skip
def test_groups_that_do_not_fit(on_ranks, groups, message):
    def work(store):
        with pytest.raises(UsageError, match=message):
            trainer_of(store, "looping", groups=groups)

    on_ranks(work)


def test_a_group_inside_of_a_loop_alone(on_ranks):
    """The second rank computes only nodes inside of the loop."""

    def model():
        x = gk.input("x", ["N", 6])

        def body(h):
            with group("b"):
                return gk.tanh(gk.nn.linear(h, 6, name="b")) * 1.5

        h = gk.while_loop(lambda h: F.less(gk.reduce_sum(h * h, keepdims=False), np.float32(60)), body, x, 3)
        with group("a"):
            return gk.Model(gk.nn.linear(h, 3, name="a"), seed=1)

    assert all(assert_one_process(on_ranks, model, 4))


# --- numbers that are not finite, and batches that do not fit -------------------------------------------


@pytest.mark.parametrize("how", ["raise", "skip"])
@pytest.mark.parametrize("model", ["cycle", "looping"])
def test_all_ranks_decide_alike_and_change_nothing(on_ranks, model, how):
    def work(store):
        trainer, _ = trained(store, model, on_nonfinite=how)
        held = {n: trainer.net.params[n].copy() for n in trainer.net.params if trainer.net.params.holds(n)}
        x, y = labelled(16)
        x[7] = np.nan
        if how == "raise":
            with pytest.raises(NotFinite, match=r"the loss is nan at update 5, on rank \d"):
                trainer.step(x, y)
        else:
            assert np.isnan(float(trainer.step(x, y)))
            assert trainer.skipped == 1
        for name, array in held.items():
            np.testing.assert_array_equal(trainer.net.params[name], array)
        return trainer, float(trainer.step(*labelled(16, 9)))

    _, expected = work(None) if how == "skip" else (None, None)
    losses = [loss for _, loss in on_ranks(work)]
    assert losses[0] == losses[1]
    assert np.isfinite(losses[0])
    if expected is not None:
        assert losses[0] == pytest.approx(expected, rel=1e-6)


def test_a_gradient_of_one_rank_that_is_not_finite(on_ranks):
    """The loss is: the root of 0 has no derivative, which the second rank alone finds."""

    def work(store):
        x = gk.input("x", ["N", 6])
        with group("a"):
            h = gk.tanh(gk.nn.linear(x, 3, name="a0"))
        with group("b"):
            root = F.sqrt(h * gk.parameter("b", [3], {"type": "zeros"}))
        with group("a"):
            net = gk.Model(gk.nn.linear(h, 3, name="a1") + root * 0.0, seed=1)
        how = {} if store is None else {"kvstore": store, "groups": AB}
        trainer = gk.Trainer(net, optimizer=gk.optim.SGD(0.1), threads=1, on_nonfinite="skip", **how)
        before = {n: trainer.net.params[n].copy() for n in trainer.net.params if trainer.net.params.holds(n)}
        assert np.isnan(float(trainer.step(*labelled(8))))
        for name, array in before.items():
            np.testing.assert_array_equal(trainer.net.params[name], array)
        return trainer.skipped

    assert [work(None), *on_ranks(work)] == [1, 1, 1]


def test_batches_that_do_not_fit(on_ranks):
    """All ranks reject them before any work is done. Later steps work."""

    def work(store):
        trainer = trainer_of(store, "looping")
        with pytest.raises(InputError, match="axis 1 is 5, not 6"):
            trainer.step(labelled(8)[0][:, :5], labelled(8)[1])
        with pytest.raises(InputError, match=r"^no input 'z'; known: "):
            trainer.step({"z": labelled(8)[0]}, labelled(8)[1])
        with pytest.raises(InputError, match="dimension N is"):
            trainer.step(labelled(8)[0], labelled(7)[1])
        return float(trainer.step(*labelled(8)))

    first, second = on_ranks(work)
    assert first == second


def test_an_empty_batch_is_what_it_is_in_one_process(on_ranks):
    """Its loss is NaN."""

    def work(store):
        trainer = trainer_of(store, "cycle", on_nonfinite="skip")
        assert np.isnan(float(trainer.step(*labelled(0))))
        assert trainer.skipped == 1
        return float(trainer.step(*labelled(8)))

    alone = work(None)
    assert on_ranks(work) == [pytest.approx(alone, rel=1e-5)] * 2


# --- epochs, evaluation and files -----------------------------------------------------------------------


@pytest.mark.parametrize("model", ["cycle", "looping"])
def test_epochs_evaluation_and_files(on_ranks, tmp_path, model):
    """A run with placed ranks and validation can be resumed with another placement, and by one process."""
    fit = {"valid": labelled(24, 5), "metrics": ["accuracy"], "batch_size": 16, "progress": False}

    def run(store, folder, epochs, groups=AB, resume=False):
        trainer = trainer_of(store, model, groups=groups)
        if resume:
            trainer.resume(folder)
        records = trainer.fit(labelled(64), epochs=epochs, folder=folder, **fit)
        return trainer, [{k: v for k, v in r.items() if "loss" in k or "accuracy" in k} for r in records]

    _, whole = run(None, tmp_path / "alone", 3)
    for record in whole:
        del record["valid_loss"]  # placed ranks know the outputs of validation alone
    for _, records in on_ranks(lambda store: run(store, tmp_path / "placed", 2)):
        for found, expected in zip(records, whole, strict=False):
            assert found == pytest.approx(expected, rel=1e-5)
    for _, records in on_ranks(lambda store: run(store, tmp_path / "placed", 3, {"a": 1, "b": 0}, resume=True)):
        assert records[-1] == pytest.approx(whole[-1], rel=1e-5)
    found, expected = gk.load(tmp_path / "placed"), gk.load(tmp_path / "alone")
    for name, array in expected.params.items():
        np.testing.assert_allclose(found.params[name], array, rtol=1e-5, atol=1e-5, err_msg=name)
    trainer = trainer_of(None, model)
    trainer.resume(tmp_path / "placed")
    assert trainer.epoch == 3


# --- jobs -----------------------------------------------------------------------------------------------

JOB = """
    import os, signal, sys, numpy as np, graphkit as gk
    from graphkit.ops import F
    kv = gk.kvstore.create("dist_sync")
    names = "abc"[:kv.num_workers]
    x = gk.input("x", ["N", 64])
    def body(h):
        for name in names:
            with gk.attr_scope(ctx_group=name):
                h = gk.tanh(gk.nn.linear(h, 64, name=name)) * 1.5
        return h
    h = gk.while_loop(lambda h: F.less(gk.reduce_mean(h * h, keepdims=False), np.float32(100)), body, x, 5)
    trainer = gk.Trainer(gk.Model(h, seed=1), "mse", gk.optim.SGD(0.1), kvstore=kv, threads=1,
                         groups={name: rank for rank, name in enumerate(names)})
    def batch(step):
        rng = np.random.default_rng(step)
        return rng.standard_normal((512, 64), np.float32), rng.standard_normal((512, 64), np.float32)
"""


@pytest.mark.parametrize(
    ("ranks", "per_host", "steps"),
    [(2, None, 2), pytest.param(3, None, 3, marks=pytest.mark.full), pytest.param(3, 1, 3, marks=pytest.mark.full)],
)
def test_a_job_computes_what_one_process_does(jobs, tmp_path, ranks, per_host, steps):
    """Arrays of 128 kB go around in each iteration, on one host and as if on three."""
    done = f"""
    for step in range({steps}): trainer.step(*batch(step))
    trainer.save({str(tmp_path / "run")!r})
    """
    jobs.run(JOB + done, ranks, ranks_per_host=per_host)
    found = gk.load(tmp_path / "run")
    x = gk.input("x", ["N", 64])

    def body(h):
        for name in "abc"[:ranks]:
            h = gk.tanh(gk.nn.linear(h, 64, name=name)) * 1.5
        return h

    h = gk.while_loop(lambda h: F.less(gk.reduce_mean(h * h, keepdims=False), np.float32(100)), body, x, 5)
    one = gk.Trainer(gk.Model(h, seed=1), "mse", gk.optim.SGD(0.1), threads=1)
    for step in range(steps):
        rng = np.random.default_rng(step)
        one.step(rng.standard_normal((512, 64), np.float32), rng.standard_normal((512, 64), np.float32))
    for name, array in one.net.params.items():
        np.testing.assert_allclose(found.params[name], array, rtol=1e-5, atol=1e-6)


ACTS = {
    "kill": ("os.kill(os.getpid(), signal.SIGKILL)", None, r""),
    "stop": ("os.kill(os.getpid(), signal.SIGSTOP)", 5,
             r"the values of while_loop\S* of rank \d failed: rank 1 .* no heartbeat"),
    "error": ("raise MemoryError('of rank 1')", 5, r"rank 1: MemoryError: of rank 1; this ends the job"),
    "interrupt": ("os.kill(os.getpid(), signal.SIGINT)", 130, r"rank 1: interrupted; this ends the job"),
}  # fmt: skip


@pytest.mark.full
@pytest.mark.parametrize("how", ACTS)
def test_a_rank_that_ends_in_the_middle_of_a_loop_ends_the_job(monkeypatch, how):
    monkeypatch.setenv(config.RANK_TIMEOUT.name, "2")
    act, code, message = ACTS[how]
    ending = f"""
    for step in range(2): trainer.step(*batch(step))
    channels = trainer._exchange.channels
    receive = channels.receive
    def failing(source, number, key, *given):
        failing.calls += "/body/" in key
        if kv.rank == 1 and failing.calls == 5:
            {act}
        return receive(source, number, key, *given)
    failing.calls = 0
    channels.receive = failing
    for step in range(3): trainer.step(*batch(step))
    """
    status, _, errors = finish(start(3, JOB + ending, before=""))
    if code is None:
        assert status != 0
    else:
        # A busy launcher lets UCX abort in a rank whose peers are gone.
        aborted = {signal.SIGABRT} if re.search(r"ucp_worker\.c:\d+ +Fatal", errors) else set()
        assert status in {*statuses(code), *aborted}, errors
    assert re.search(message, errors), errors


@pytest.mark.full
def test_a_rank_that_takes_no_step_is_an_error_of_all():
    status, _, errors = finish(start(3, JOB + "\n    if kv.rank != 1: trainer.step(*batch(0))\n", before=""))
    assert status in FAILED
    assert "the processes make different calls" in errors


@pytest.fixture
def network(tmp_path):
    looping().save(tmp_path / "net.json")
    x, y = labelled(64)
    np.savez(tmp_path / "data.npz", x=x, y=y)
    return tmp_path


def command(network, *further):
    given = [sys.executable, "-P", "-m", "graphkit", "train", str(network / "net.json"), "--data",
             str(network / "data.npz"), *further]  # fmt: skip
    return subprocess.run(given, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.full
def test_the_command_trains_and_one_process_goes_on(network):
    placed = ["--processes", "2", "--kvstore", "dist_sync", "--place", "a=0", "--place", "b=1"]
    run = ["-o", str(network / "run"), "--batch-size", "16"]
    refused = command(network, *placed, "--micro-batches", "4", *run)
    assert refused.returncode in command_statuses(2)
    assert "micro_batches=4 (--micro-batches) needs a pipeline" in refused.stderr
    done = command(network, *placed, "--epochs", "2", *run)
    assert done.returncode == 0, done.stderr
    assert "epoch 2 (2 processes): loss" in done.stdout
    done = command(network, "-o", str(network / "run"), "--resume", "--epochs", "3")
    assert done.returncode == 0, done.stderr
    epochs = [json.loads(line)["epoch"] for line in (network / "run" / "log.jsonl").read_text().splitlines()]
    assert epochs == [1, 2, 3]


def test_inspect_counts_what_is_inside_of_loops(network, capsys):
    assert invoke(["inspect", str(network / "net.json"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["groups"]
    assert {name: g["parameters"] for name, g in found.items()} == {"a": 56 + 72, "b": 72 + 2 * 8 + 27}
