"""Ranks whose set-up or state differs end with one error on all ranks, which names both sides; nothing is written."""

from __future__ import annotations

import re

import numpy as np
import pytest
from jobs import FAILED, TRAINER, finish, start

import graphkit as gk
from graphkit.dist.agreement import shown
from graphkit.dist.updaters import updater_facts
from graphkit.errors import RanksDiffer
from graphkit.ir.graph import topological
from graphkit.ops.internal.collective import AllReduceWait

X, Y = np.ones((4, 3), np.float32), np.zeros((4, 2), np.float32)


def model(classes=2):
    x = gk.input("x", ["N", 3])
    return gk.Model(gk.nn.linear(gk.nn.batch_norm(x, name="norm"), classes, name="fc"), seed=1)


def trainer_of(store, optimizer=None, net=None, loss="mse", **options):
    return gk.Trainer(net or model(), loss, optimizer or gk.optim.SGD(0.1), kvstore=store, threads=1, **options)


def caught(work, *arguments):
    """The message of the RanksDiffer that `work` raises."""
    with pytest.raises(RanksDiffer) as error:
        work(*arguments)
    return str(error.value)


def on_second(store, given, otherwise=None):
    return given if store.rank == 1 else otherwise


def test_equal_settings_are_shown_alike():
    settings = {"type": "sgd", "rates": {"a": 1.0, "b": 2.0}, "lr": 0.1}
    assert shown(settings) == shown(dict(reversed([*settings.items()])) | {"rates": {"b": 2.0, "a": 1.0}})


def test_an_optimizer_of_ones_own_is_known_by_its_class():
    class Own:
        def describe(self):
            return "an optimizer"

    assert list(updater_facts(Own())) == ["updater"]


# --- set-up -----------------------------------------------------------------------------------------------

WARMUP = gk.optim.Warmup(gk.optim.Constant(0.1), 5)
SETUPS = {
    "lora": ({"lora": gk.settings.Lora(rank=2)}, "rank 0 has lora none, rank 1 has .*rank.: 2"),
    "learning rate": ({"optimizer": gk.optim.SGD(0.2)}, "rank 0 has learning rate 0.1, rank 1 has 0.2"),
    "schedule": ({"optimizer": gk.optim.SGD(WARMUP)}, r"learning rate 0.1, rank 1 has warmup\(after=0.1, steps=5\)"),
    "optimizer": ({"optimizer": gk.optim.Adam(0.1)}, "rank 0 has optimizer sgd, rank 1 has adam"),
    "momentum": ({"optimizer": gk.optim.SGD(0.1, momentum=0.9)}, "rank 0 has momentum 0.0, rank 1 has 0.9"),
    "clip": ({"clip_norm": 1.0}, "rank 0 has clip_norm none, rank 1 has 1.0"),
    "ema": ({"ema": 0.9}, "rank 0 has ema none, rank 1 has decay 0.9, warmup False"),
    "accumulate": ({"accumulate": 2}, "rank 0 has accumulate 1, rank 1 has 2"),
    "nonfinite": ({"on_nonfinite": "skip"}, "rank 0 has on_nonfinite raise, rank 1 has skip"),
    "precision": ({"precision": "bf16"}, "rank 0 has precision f32, rank 1 has bf16"),
    "deterministic": ({"deterministic": True}, "rank 0 has deterministic False, rank 1 has True"),
    "sharding": ({"shard_optimizer": True}, "rank 0 has shard_optimizer False, rank 1 has True"),
    "statistics": ({"sync_batch_norm": True}, "rank 0 has sync_batch_norm False, rank 1 has True"),
    "frozen": ({"freeze": ["fc_bias"]}, r"'fc_bias' float32\[2\], trained, .*rank 1 has float32\[2\], not trained"),
    "rates": ({"lr_mult": {"fc_bias": 2}}, "'fc_bias' .*rank 1 has .*lr_mult 2"),
    "decays": ({"wd_mult": {"fc_bias": 0}}, "'fc_bias' .*rank 1 has .*wd_mult 0"),
    "loss": ({"loss": "l1"}, "rank 0 has loss mse, rank 1 has l1"),
    "groups": ({"groups": {"a": 0, "b": 1}}, "rank 0 has groups none, rank 1 has a 0, b 1"),
}  # fmt: skip


@pytest.mark.parametrize("name", SETUPS)
def test_other_options_of_one_rank_are_named(on_ranks, name):
    options, message = SETUPS[name]
    for said in on_ranks(lambda store: caught(lambda: trainer_of(store, **on_second(store, options, {})))):
        assert re.search(message, said), said


def test_parameters_of_other_shapes_are_named(on_ranks):
    for said in on_ranks(lambda store: caught(lambda: trainer_of(store, net=model(2 + store.rank)))):
        assert "rank 0 has parameter 'fc_weight' float32[2, 3], trained" in said
        assert "rank 1 has float32[3, 3], trained" in said


def test_ranks_that_agree_are_named_together(on_ranks):
    rates = [0.1, 0.2, 0.1]
    for said in on_ranks(lambda store: caught(lambda: trainer_of(store, gk.optim.SGD(rates[store.rank]))), 3):
        assert "ranks 0, 2 have learning rate 0.1, rank 1 has 0.2" in said


def test_long_values_are_shortened(on_ranks):
    def work(store):
        return caught(store.transport.compare, "a test", {"weights": [*range(500), store.rank]})

    for said in on_ranks(work):
        assert re.search(r"rank 0 has weights 0, 1, 2.*\.\.\. \(checksum \w{8}\), rank 1 has 0, 1, 2", said)
        assert len(said) < 500


def test_what_may_differ_does(on_ranks):
    """Ranks may have different threads, seeds of steps, and recomputation: these do not affect common results."""

    def work(store):
        trainer = trainer_of(store, seed=store.rank, recompute=on_second(store, "sqrt"))
        return [float(trainer.step(X, Y)) for _ in range(3)]

    first, second = on_ranks(work)
    np.testing.assert_allclose(first, second)


@pytest.mark.parametrize(
    ("options", "message"),
    [({"batch_size": 2}, "batch_size 4, rank 1 has 2"), ({"epochs": 3}, "epochs 1, rank 1 has 3")],
    ids=["batch_size", "epochs"],
)
def test_other_options_of_fit_are_named(on_ranks, options, message):
    def work(store):
        data = np.ones((16, 3), np.float32), np.zeros((16, 2), np.float32)
        given = {"batch_size": 4, "epochs": 1, **on_second(store, options, {})}
        return caught(lambda: trainer_of(store).fit(data, **given))

    for said in on_ranks(work):
        assert message in said


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        (range(15), range(16), "rank 0 has samples 15, rank 1 has 16"),
        (range(8), range(8, 16), "rank 0 has checksum of labels [0-9]+, rank 1 has [0-9]+"),
    ],
    ids=["samples", "labels"],
)
def test_each_rank_passes_the_whole_data_set(on_ranks, first, second, message):
    """Parts of a data set are an error, also if they give equally many batches."""

    def work(store):
        labels = np.array(on_second(store, second, first)) % 2 * (store.rank + 1)
        data = np.ones((len(labels), 3), np.float32), labels
        trainer = trainer_of(store, net=model(classes=3), loss="softmax_cross_entropy")
        return caught(lambda: trainer.fit(data, batch_size=4))

    for said in on_ranks(work):
        assert re.search(message, said)
        assert "must pass the whole training data" in said


@pytest.mark.parametrize(
    "given",
    [
        lambda labels: labels.astype(np.uint8),
        lambda labels: labels.astype(">i4"),
        lambda labels: np.stack([labels, labels], axis=1)[:, 0],
        lambda labels: labels[::-1].copy()[::-1],
    ],
    ids=["uint8", "big-endian", "column", "reversed"],
)
def test_ranks_may_have_equal_labels_in_different_forms(on_ranks, given):
    def work(store):
        labels = np.arange(8) % 3
        data = np.ones((8, 3), np.float32), on_second(store, given, np.asarray)(labels)
        trainer = trainer_of(store, net=model(classes=3), loss="softmax_cross_entropy")
        return trainer.fit(data, batch_size=4, epochs=1)[0]["loss"]

    first, second = on_ranks(work)
    assert first == second


def test_labels_of_one_process_may_be_a_column_of_a_table():
    data = np.ones((8, 3), np.float32), np.zeros((8, 2), np.int64)[:, 0]
    trainer = trainer_of(gk.kvstore.create("local"), loss="softmax_cross_entropy")
    assert np.isfinite(trainer.fit(data, batch_size=4, epochs=1)[0]["loss"])


def test_fit_needs_one_seed_for_the_order_of_the_data(on_ranks):
    data = np.ones((16, 3), np.float32), np.zeros((16, 2), np.float32)
    for said in on_ranks(lambda store: caught(lambda: trainer_of(store, seed=store.rank).fit(data))):
        assert "rank 0 has seed 0, rank 1 has 1" in said


# --- while training ---------------------------------------------------------------------------------------


def checked(on_ranks, drift, size=2, **options):
    """Return the errors of all ranks in a step after `drift(trainer)` on the last rank. The step changes nothing."""

    def work(store):
        trainer = trainer_of(store, gk.optim.SGD(0.1, momentum=0.9), **options)
        for _ in range(4):
            trainer.step(X, Y)
        if store.rank == size - 1:
            drift(trainer)
        arrays = {**trainer.net.params, **trainer._stepper.slots}
        before = {name: array.copy() for name, array in arrays.items()}
        updates = trainer.updates
        said = caught(trainer.step, X, Y)
        assert trainer.updates == updates
        for name, array in {**trainer.net.params, **trainer._stepper.slots}.items():
            np.testing.assert_array_equal(array, before[name], err_msg=name)
        return said

    first, *others = on_ranks(work, size)
    assert others == [first] * (size - 1)
    return first


def scale(trainer):
    trainer.rate_scale = 0.5


@pytest.mark.parametrize(
    "options",
    [{}, {"on_nonfinite": "skip"}, {"on_nonfinite": "ignore"}, {"accumulate": 2},
     {"accumulate": 2, "on_nonfinite": "ignore"}, {"deterministic": True},
     {"shard_optimizer": True, "on_nonfinite": "ignore"}],
    ids=str,
)  # fmt: skip
def test_another_learning_rate_of_a_step_is_named(on_ranks, options):
    assert "rank 0 has learning rate 0.1, rank 1 has 0.05" in checked(on_ranks, scale, **options)


@pytest.mark.parametrize("how", ["raise", "skip", "ignore"])
@pytest.mark.parametrize("options", [{}, {"accumulate": 2}, {"shard_optimizer": True}], ids=str)
def test_everything_that_a_step_writes_waits_for_the_loss(on_ranks, options, how):
    def work(store):
        stepper = trainer_of(store, on_nonfinite=how, **options)._stepper
        for program in filter(None, (stepper.programs[0], stepper.exchange.idle_program)):
            for state, new in program.updates:
                waits = [node.op.keys for node in topological([new]) if isinstance(node.op, AllReduceWait)]
                assert ("loss",) in waits, (program.name, program.name_of(state))

    on_ranks(work)


def test_one_of_three_ranks_with_another_rate(on_ranks):
    assert "ranks 0, 1 have learning rate 0.1, rank 2 has 0.05" in checked(on_ranks, scale, 3)


def test_a_parameter_that_one_rank_sets_is_named(on_ranks):
    def drift(trainer):
        trainer.net.params["fc_bias"] = np.ones(2, np.float32)

    said = checked(on_ranks, drift)
    assert re.search(r"rank 0 has parameter 'fc_bias' as trained, rank 1 has set 1 time \(checksum \w+\)", said), said


def test_a_parameter_that_all_ranks_set_alike_is_no_error(on_ranks):
    def work(store, value):
        trainer = trainer_of(store)
        trainer.step(X, Y)
        trainer.net.params["fc_bias"] = np.full(2, value, np.float32)
        return trainer

    for trainer in on_ranks(lambda store: (found := work(store, 1.0), found.step(X, Y))[0]):
        assert trainer.updates == 2
    for said in on_ranks(lambda store: caught(work(store, float(store.rank)).step, X, Y)):
        assert re.search("rank 0 has parameter 'fc_bias' set 1 time .*, rank 1 has set 1 time", said)


def test_a_resume_of_one_rank_is_named(on_ranks, tmp_path):
    one = trainer_of(None)
    one.step(X, Y)
    one.save(tmp_path)

    def work(store):
        trainer = trainer_of(store)
        if store.rank:
            trainer.resume(tmp_path)
        return caught(trainer.step, X, Y)

    for said in on_ranks(work):
        assert "rank 0 has resumed run none, rank 1 has" in said
        assert "rank 0 has updates 0, rank 1 has 1" in said


def test_a_callback_of_one_rank_that_changes_rates_is_named(on_ranks):
    class Lowers(gk.Callback):
        def on_step_end(self, trainer, numbers):
            trainer.rate_scale = 0.5

    def work(store):
        data = np.ones((32, 3), np.float32), np.zeros((32, 2), np.float32)
        callbacks = [Lowers()] if store.rank else []
        return caught(lambda: trainer_of(store).fit(data, batch_size=4, callbacks=callbacks))

    for said in on_ranks(work):
        assert "rank 0 has learning rate 0.1, rank 1 has 0.05" in said


@pytest.mark.parametrize("again", [False, True], ids=["pipeline", "cycle"])
def test_ranks_of_groups_compare_their_steps(on_ranks, again):
    def work(store):
        x = gk.input("x", ["N", 3])
        with gk.attr_scope(ctx_group="first"):
            h = gk.tanh(gk.nn.linear(x, 3, name="a"))
        with gk.attr_scope(ctx_group="second"):
            h = gk.nn.linear(h, 2, name="b")
        if again:
            with gk.attr_scope(ctx_group="first"):
                h = gk.nn.linear(h, 2, name="c")
        trainer = trainer_of(store, net=gk.Model(h, seed=1), groups={"first": 0, "second": 1})
        trainer.step(X, Y)
        if store.rank:
            trainer.rate_scale = 0.5
        return caught(trainer.step, X, Y), trainer.updates

    for said, updates in on_ranks(work):
        assert "rank 0 has learning rate 0.1, rank 1 has 0.05" in said
        assert updates == 1


def test_the_fingerprint_needs_no_further_message(on_ranks, monkeypatch):
    """If all ranks agree, a step has as many progress steps as without a fingerprint."""

    def work(store):
        trainer = trainer_of(store)
        trainer.step(X, Y)
        told = []
        tell = store.transport.communicator.allgather_bytes
        monkeypatch.setattr(
            store.transport.communicator, "allgather_bytes", lambda mine: told.append(len(mine)) or tell(mine)
        )
        calls = store.transport.communicator.engine._queue.calls
        trainer.step(X, Y)
        return store.transport.communicator.engine._queue.calls - calls

    # The loss, and the gradients of one bucket.
    assert on_ranks(work) == [2, 2]


# --- a store alone ----------------------------------------------------------------------------------------


def test_another_optimizer_of_a_store_is_named(on_ranks):
    rates = [0.1, 0.2]
    for said in on_ranks(lambda store: caught(store.set_optimizer, gk.optim.SGD(rates[store.rank]))):
        assert "rank 0 has learning rate 0.1, rank 1 has 0.2" in said


def test_other_factors_by_key_are_named(on_ranks):
    def work(store):
        keyed = gk.optim.KeyedOptimizer(gk.optim.SGD(0.1), rates={"w": 1.0 + store.rank})
        return caught(store.set_optimizer, keyed)

    for said in on_ranks(work):
        assert "rank 0 has rates w 1.0, rank 1 has w 2.0" in said


def double(key, total, stored):
    stored += 2 * total


def once(key, total, stored):
    stored += total


def test_another_updater_is_named(on_ranks):
    for said in on_ranks(lambda store: caught(store.set_updater, double if store.rank else once)):
        assert re.search(r"rank 0 has updater \S*\.once, rank 1 has \S*\.double", said), said


def test_an_optimizer_of_one_rank_alone_is_an_error_of_both(on_ranks):
    def work(store):
        store.init("w", np.zeros(2))
        with pytest.raises(gk.errors.RuntimeFailure) as error:
            go(store)
        return str(error.value)

    def go(store):
        if store.rank:
            store.set_optimizer(gk.optim.SGD(0.1))
        store.push("w", np.ones(2))
        store.pull("w")

    for said in on_ranks(work):
        assert "rank 0: sum 'w'" in said
        assert "rank 1: set_optimizer" in said


def test_other_optimizer_states_of_one_rank_are_named(on_ranks, tmp_path):
    def work(store):
        store.init("w", np.zeros(2))
        store.set_optimizer(gk.optim.SGD(0.1, momentum=0.9))
        for number in range(2):
            store.push("w", np.ones(2))
            store.pull("w")
            store.save_optimizer_states(tmp_path / f"{store.rank}-{number}")
        store.load_optimizer_states(tmp_path / f"{store.rank}-0")
        return caught(store.load_optimizer_states, tmp_path / f"{store.rank}-{store.rank}")

    for said in on_ranks(work):
        assert re.search(r"rank 0 has s:w/momentum float64\[2\] \(checksum \w+\), rank 1 has float64\[2\]", said), said


def test_what_was_pushed_before_an_updater_goes_without_it(on_ranks):
    def work(store):
        store.init("w", np.zeros(2))
        store.push("w", np.ones(2))
        store.set_updater(double)
        store.push("w", np.ones(2))
        return store.pull("w").tolist()

    assert on_ranks(work) == [[6.0, 6.0]] * 2


SERVED = """
    import pytest, numpy as np, graphkit as gk
    from graphkit.errors import RanksDiffer
    from test_agreement import caught, trainer_of
    optimizer = gk.optim.SGD(0.1 * (1 + kv.rank))
    kv.init("w", np.zeros(2))
    print(caught(kv.set_optimizer, optimizer))
    print(caught(trainer_of, kv, optimizer))
    trainer = trainer_of(kv, seed=kv.rank)
    print(caught(trainer.fit, (np.ones((16, 3), np.float32), np.zeros((16, 2), np.float32))))
"""


@pytest.mark.full
def test_workers_with_servers_are_compared(jobs):
    for said in jobs.run(SERVED, 3, store="dist_async", servers=1):
        assert said.count("rank 0 has learning rate 0.1, rank 1 has 0.2") == 2
        assert "rank 0 has seed 0, rank 1 has 1" in said


# --- jobs -------------------------------------------------------------------------------------------------


@pytest.mark.full
@pytest.mark.parametrize(
    "code",
    [
        "trainer.rate_scale = 1 + kv.rank; steps(2)",
        "gk.Trainer(trainer.net, 'mse', gk.optim.SGD(0.1 * (1 + kv.rank)), kvstore=kv)",
    ],
    ids=["step", "set-up"],
)
def test_a_job_whose_ranks_differ_ends_with_an_error(tmp_path, code):
    saves = f"trainer.save({str(tmp_path / 'run')!r})"
    status, _, errors = finish(start(2, f"steps(1)\n{code}\n{saves}", TRAINER))
    assert status in FAILED
    assert "rank 0 has learning rate 0.1, rank 1 has 0.2" in errors
    assert not (tmp_path / "run").exists()
