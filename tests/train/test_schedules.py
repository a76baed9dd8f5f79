"""Compare schedules with PyTorch and with their formulas, for given steps and for all updates of a run."""

import json
import math

import numpy as np
import pytest
from combinations import in_one_item

import graphkit as gk
from graphkit.errors import RanksDiffer, UsageError

STEPS = 40


def trainer(lr, **options):
    net = gk.Model(gk.nn.linear(gk.input("x", ["N", 3]), 2, name="fc"), seed=0)
    return gk.Trainer(net, "mse", gk.optim.SGD(lr), threads=1, seed=1, **options)


def data(n=24):
    rng = np.random.default_rng(0)
    return rng.standard_normal((n, 3), np.float32), rng.standard_normal((n, 2), np.float32)


class Rates(gk.Callback):
    """A callback that records the rate of every update."""

    def __init__(self):
        self.seen = []

    def on_fit_begin(self, trainer, numbers):
        self.rate = trainer.learning_rate

    def on_step_end(self, trainer, numbers):
        self.seen.append(self.rate)
        self.rate = numbers["learning_rate"]


def torchs(name, optimizer):
    from torch.optim import lr_scheduler as theirs

    make = {
        "step": lambda: theirs.StepLR(optimizer, 7, 0.3),
        "exponential": lambda: theirs.ExponentialLR(optimizer, 0.9),
        "cosine": lambda: theirs.CosineAnnealingLR(optimizer, STEPS, eta_min=0.01),
        "linear": lambda: theirs.LinearLR(optimizer, 1.0, 0.1, STEPS),
        "polynomial": lambda: theirs.PolynomialLR(optimizer, STEPS, 2.5),
        "one-cycle": lambda: theirs.OneCycleLR(optimizer, 0.2, STEPS, cycle_momentum=False),
        "one-cycle of others": lambda: theirs.OneCycleLR(
            optimizer, 0.2, STEPS, pct_start=0.45, div_factor=7, final_div_factor=30, cycle_momentum=False
        ),
        "warmup": lambda: theirs.SequentialLR(
            optimizer,
            [theirs.LinearLR(optimizer, 0.1, 1.0, 9), theirs.CosineAnnealingLR(optimizer, STEPS - 10)],
            [10],
        ),
    }  # fmt: skip
    return make[name]()


OURS = {
    "step": gk.optim.Step(0.2, every=7, factor=0.3),
    "exponential": gk.optim.Exponential(0.2, 0.9),
    "cosine": gk.optim.Cosine(0.2, STEPS, 0.01),
    "linear": gk.optim.Linear(0.2, STEPS, 0.02),
    "polynomial": gk.optim.Polynomial(0.2, STEPS, power=2.5),
    "one-cycle": gk.optim.OneCycle(0.2, STEPS),
    "one-cycle of others": gk.optim.OneCycle(0.2, STEPS, rise=0.45, start_factor=7, end_factor=30),
    "warmup": gk.optim.Warmup(gk.optim.Cosine(0.2, STEPS - 10), 10),
}


@pytest.mark.pytorch
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", OURS)
def test_the_rates_are_those_of_pytorch(name):
    torch = pytest.importorskip("torch")
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.2)
    scheduler = torchs(name, optimizer)
    for step in range(STEPS):
        assert OURS[name](step) == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-6, abs=1e-9), step
        optimizer.step()
        scheduler.step()


@pytest.mark.pytorch
@pytest.mark.parametrize(("mode", "cooldown", "min_delta"), [("min", 0, 0.0), ("min", 3, 0.1), ("max", 0, 0.2)])
def test_the_plateaus_are_those_of_pytorch(mode, cooldown, min_delta):
    torch = pytest.importorskip("torch")
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    theirs = torch.optim.lr_scheduler.ReduceLROnPlateau(
        optimizer, mode, factor=0.5, patience=2, threshold=min_delta, threshold_mode="abs", cooldown=cooldown,
        min_lr=0.01, eps=0.0,
    )  # fmt: skip
    ours = gk.callbacks.ReduceOnPlateau(3, 0.5, "score", mode, min_delta, cooldown, lowest=0.01)
    found = trainer(0.1)
    ours.on_fit_begin(found, {"resumed": False})
    for epoch, score in enumerate(np.random.default_rng(3).normal(size=60).round(1), 1):
        theirs.step(score)
        ours.on_epoch_end(found, {"epoch": epoch, "score": score})
        assert found.rate_scale == pytest.approx(optimizer.param_groups[0]["lr"]), epoch
    assert found.rate_scale < 0.3


def test_schedule_without_steps_covers_the_run():
    """The updates of a run follow from the data: the last batch is smaller, and the last update has fewer batches."""
    rates = Rates()
    trainer(gk.optim.Linear(1e-3), accumulate=2).fit(data(22), epochs=4, batch_size=4, callbacks=[rates])
    assert len(rates.seen) == 24  # an epoch has six batches, an update two
    np.testing.assert_allclose(sorted(set(rates.seen)), [1e-3 * n / 12 for n in range(1, 13)], rtol=1e-9)
    warm = gk.optim.Warmup(gk.optim.Cosine(1e-3), 3)
    rates = Rates()
    found = trainer(warm)
    found.fit(data(), epochs=5, batch_size=8, callbacks=[rates])
    fixed = gk.optim.Warmup(gk.optim.Cosine(1e-3, 12), 3)
    assert rates.seen == [fixed(n) for n in range(15)]
    # Another run has its own updates.
    rates = Rates()
    found.fit(data(), epochs=3, batch_size=8, callbacks=[rates])
    fixed = gk.optim.Warmup(gk.optim.Cosine(1e-3, 6), 3)
    assert rates.seen == [fixed(n) for n in range(9)]


def test_an_open_schedule_of_two_processes(on_ranks):
    def work(store):
        rates = Rates()
        trainer(gk.optim.Cosine(1e-3), kvstore=store).fit(data(48), epochs=2, batch_size=8, callbacks=[rates])
        return rates.seen

    assert on_ranks(work) == [[gk.optim.Cosine(1e-3, 6)(n) for n in range(6)]] * 2


def test_schedule_without_steps_needs_data_with_length():
    x, y = data()
    with pytest.raises(UsageError, match="Cosine without steps covers all updates of a run, which only `fit` knows"):
        trainer(gk.optim.Cosine(0.1)).step(x, y)
    with pytest.raises(UsageError, match="has no length: pass steps="):
        trainer(gk.optim.Cosine(0.1)).fit(lambda: iter([(x, y)]))
    assert trainer(gk.optim.Cosine(0.1, 3)).fit(lambda: iter([(x, y)]))


def test_descriptions_read_back():
    for made in (*OURS.values(), gk.optim.Cosine(0.1), gk.optim.Warmup(gk.optim.OneCycle(0.1), 4)):
        assert gk.optim.schedule(json.loads(json.dumps(made.describe()))) == made
    with pytest.raises(UsageError, match="a dict that describes a schedule needs the key 'type': constant, step"):
        gk.optim.schedule({"rate": 0.1})


@in_one_item()
@pytest.mark.parametrize(
    "make",
    [
        lambda: gk.optim.Cosine(0.1, 0), lambda: gk.optim.Linear(0.1, 2.5), lambda: gk.optim.OneCycle(0.1, rise=1.0),
        lambda: gk.optim.OneCycle(0.1, start_factor=0.0), lambda: gk.optim.Polynomial(0.1, power=-1.0),
        lambda: gk.optim.Linear(math.nan), lambda: gk.callbacks.ReduceOnPlateau(0),
        lambda: gk.callbacks.ReduceOnPlateau(factor=1.0), lambda: gk.callbacks.EarlyStopping(2, mode="least"),
        lambda: gk.callbacks.EarlyStopping(2, min_delta=-1),
    ],
)  # fmt: skip
def test_invalid_schedules_are_rejected(make):
    with pytest.raises(UsageError):
        make()


@in_one_item()
@pytest.mark.parametrize("steps", [1, 2, 3])
def test_a_cycle_of_few_steps_is_finite(steps):
    cycle = gk.optim.OneCycle(0.1, steps)
    assert all(0 < cycle(n) <= 0.1 for n in range(steps + 2))


# --- functions --------------------------------------------------------------------------------------


def linear_rate(step):
    return 0.1 / (1 + step)


def small_trainer(lr, **options):
    x = gk.input("x", ["N", 6])
    h = gk.nn.dropout(gk.tanh(gk.nn.linear(x, 8, name="fc1")), 0.3)
    net = gk.Model({"logits": gk.nn.linear(h, 3, name="fc2")}, name="small", seed=0)
    return gk.Trainer(net, optimizer=gk.optim.SGD(lr, momentum=0.9), seed=3, threads=1, **options)


def small_data():
    rng = np.random.default_rng(5)
    return rng.standard_normal((44, 6), np.float32), rng.integers(0, 3, 44)


class Table:
    """A callable object."""

    def __call__(self, step):
        return np.float64(linear_rate(step))


@in_one_item()
@pytest.mark.parametrize("function", [linear_rate, Table(), lambda step: np.asarray(0.1 / (1 + step))])
def test_function_is_a_learning_rate_across_resume(tmp_path, function):
    rates = []

    class Rates(gk.Callback):
        def on_step_end(self, trainer, numbers):
            rates.append(numbers["learning_rate"])

    whole = small_trainer(function)
    straight = whole.fit(small_data(), epochs=2, batch_size=8, callbacks=Rates())
    assert rates == [linear_rate(n) for n in range(1, 13)]
    small_trainer(function).fit(small_data(), max_steps=8, batch_size=8, folder=tmp_path)
    last = small_trainer(function)
    last.resume(tmp_path)
    assert last.learning_rate == linear_rate(8)
    assert last.fit(small_data(), epochs=2, batch_size=8) == straight[1:]
    assert all(whole.net.params[n].tobytes() == last.net.params[n].tobytes() for n in whole.net.params)


def test_function_may_follow_a_warmup_and_be_scaled():
    schedule = gk.optim.Warmup(linear_rate, 4)
    assert [schedule(n) for n in (0, 3, 4, 5)] == pytest.approx([0.025, 0.1, 0.1, 0.05])
    made = small_trainer(linear_rate)
    made.rate_scale = 0.5
    assert made.learning_rate == 0.05
    assert gk.optim.SGD(linear_rate).describe()["lr"] == {"type": "function", "name": "linear_rate"}
    with pytest.raises(UsageError, match="the learning rate is the function linear_rate, which a description does not"):
        gk.optim.get(gk.optim.SGD(linear_rate).describe())


@in_one_item()
@pytest.mark.parametrize("value", [-1e-3, float("nan"), float("inf"), None, "0.1", True, np.ones(2)])
def test_value_of_a_function_that_is_no_rate_is_an_error(value):
    made = small_trainer(lambda step: 0.1 if step < 2 else value)
    x, y = small_data()
    for _ in range(2):
        made.step(x, y)
    before = {n: a.tobytes() for n, a in made.net.params.items()}
    with pytest.raises(UsageError, match=r"rate of update 2 \(counted from 0\) must be a finite number.*lambda"):
        made.step(x, y)
    assert before == {n: a.tobytes() for n, a in made.net.params.items()}


def test_error_of_a_function_names_the_update():
    made = small_trainer(lambda step: [0.1][step])
    x, y = small_data()
    made.step(x, y)
    with pytest.raises(IndexError) as caught:
        made.step(x, y)
    assert "learning rate function" in caught.value.__notes__[0]
    assert "for update 1" in caught.value.__notes__[0]


def test_class_is_not_a_function():
    with pytest.raises(UsageError, match=r"not the class Cosine; write Cosine\(...\)"):
        gk.optim.SGD(gk.optim.Cosine)


def test_ranks_with_other_functions_differ(on_ranks):
    def work(store):
        made = small_trainer(linear_rate if store.rank else lambda step: 0.2, kvstore=store)
        return made.step(*small_data())

    assert on_ranks(work, ends=RanksDiffer)
