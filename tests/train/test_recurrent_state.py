"""Carried states: truncated backpropagation through time."""

from __future__ import annotations

import numpy as np
import pytest
from combinations import in_one_item

import graphkit as gk
from graphkit.data import TokenStream, Vocabulary
from graphkit.errors import InputError, InvalidModel, UsageError

CARRY = {"h": "last_h", "c": "last_c"}
OPTIONS = {"vocab": 7, "hidden": 6, "layers": 2}


@pytest.fixture
def stream():
    words = Vocabulary.build(["abcde"], "char")
    tokens = np.random.default_rng(0).integers(2, 7, 121)
    return TokenStream(tokens, words, length=9)


def trainer(**options):
    net = gk.models.build("lstm_lm", **OPTIONS, stateful=True)
    settings = {"output": "logits", "carry": CARRY, "threads": 1, "seed": 0} | options
    return gk.Trainer(net, optimizer=gk.optim.SGD(0.5), **settings)


def test_fit_feeds_the_last_state_to_next_batch(stream):
    fitted, by_hand = trainer(), trainer()
    history = fitted.fit(stream, epochs=2, batch_size=4)
    for record in history:
        h = c = np.zeros((2, 4, 6), np.float32)
        losses = []
        for batch in stream.batches(4):
            feeds = {"x": batch.inputs, "h": h, "c": c}
            # The state after the batch, computed with the parameters from before the update.
            results = by_hand.net.compile(threads=1).run(feeds)
            losses.append(float(by_hand.step(feeds, batch.targets)) * batch.size)
            h, c = results["last_h"], results["last_c"]
        assert record["loss"] == pytest.approx(sum(losses) / 120, rel=1e-5)
    for n in fitted.net.params:
        np.testing.assert_allclose(fitted.net.params[n], by_hand.net.params[n], rtol=1e-4, atol=1e-6)


def test_input_and_output_of_a_state_need_equal_sizes():
    x, h = gk.input("x", ["N", 6]), gk.input("h", ["N", 4])
    net = gk.Model({"y": gk.nn.linear(x, 3), "next": gk.nn.linear(h, 5), "flat": gk.reduce_sum(h, keepdims=False)})
    for output in ("next", "flat"):
        with pytest.raises(UsageError, match="sizes must be equal"):
            gk.Trainer(net, output="y", carry={"h": output})


def test_state_is_carried_while_gradients_accumulate(stream):
    found = trainer(accumulate=2)
    history = found.fit(stream, epochs=3, batch_size=4, metrics=["perplexity"])
    assert found.updates == 6
    assert history[2]["loss"] < history[0]["loss"]
    assert history[0]["loss"] == pytest.approx(np.log(history[0]["perplexity"]), rel=1e-5)


def test_evaluation_carries_state_between_batches(stream):
    found = trainer().evaluate(stream, ["perplexity"], batch_size=4)["perplexity"]
    whole = gk.Trainer(gk.models.build("lstm_lm", **OPTIONS), threads=1, seed=0)
    long = TokenStream(np.append(stream.arrays["x"], stream.targets[-1]), stream.vocabulary, length=1000)
    assert found == pytest.approx(whole.evaluate(long, ["perplexity"], batch_size=4)["perplexity"], rel=1e-5)
    forgetful = trainer(carry={})
    zeros = {n: np.zeros((2, 4, 6), np.float32) for n in CARRY}
    with pytest.raises(InputError, match="expected 3 inputs"):
        forgetful.evaluate(stream, batch_size=4)
    assert np.isfinite(float(forgetful.step({"x": np.zeros((3, 4), np.int64), **zeros}, np.zeros((3, 4), np.int64))))


def test_resume_within_an_epoch_restores_state(stream, tmp_path):
    whole = trainer()
    whole.fit(stream, epochs=2, batch_size=4)

    class Killed(Exception):
        pass

    def killed(batches=7):
        """Stop the run after a number of batches. An epoch has four."""
        part = trainer()
        step, count = part._step, iter(range(batches))

        def limited(*arguments):
            if next(count, None) is None:
                raise Killed
            return step(*arguments)

        part._step = limited
        with pytest.raises(Killed):
            part.fit(stream, epochs=2, batch_size=4, folder=tmp_path, checkpoint_every=1)

    killed()
    resumed = trainer()
    resumed.resume(tmp_path)
    assert (resumed.epoch, resumed.batch) == (1, 3)
    resumed.fit(stream, epochs=2, batch_size=4)
    for n in whole.net.params:
        np.testing.assert_array_equal(resumed.net.params[n], whole.net.params[n])
    with pytest.raises(InvalidModel, match="does not fit"):
        trainer(carry={}).resume(tmp_path)


def test_other_batch_size_resets_state():
    from graphkit.train.recurrent_state import RecurrentState

    state = RecurrentState(gk.models.build("lstm_lm", **OPTIONS, stateful=True), CARRY)
    x = np.zeros((3, 4), np.int64)
    assert state.feeds(x)["h"].shape == (2, 4, 6)
    state.keep({"last_h": np.ones((2, 4, 6), np.float32), "last_c": np.ones((2, 4, 6), np.float32)})
    assert state.feeds({"x": x})["c"].all()
    assert state.feeds((x,))["h"].all()
    assert not state.feeds(x[:, :2])["h"].any()
    state.reset()
    assert not state.feeds(x)["h"].any()
    with pytest.raises(InputError, match=r"expected 1 input \(x\), got 2"):
        state.feeds((x, x))


@in_one_item()
@pytest.mark.parametrize(
    ("carry", "message"),
    [
        ({"hh": "last_h"}, "the model has no input 'hh'"),
        ({"h": "last"}, "the model has no output 'last'"),
        ({"x": "last_h"}, r"input 'x' is int64\[T, N\], but output 'last_h' is float32"),
    ],
)
def test_errors(carry, message):
    with pytest.raises(UsageError, match=message):
        trainer(carry=carry)


def test_size_of_state_must_follow_from_inputs():
    h = gk.input("h", ["B", 3])
    x = gk.input("x", ["N", 3])
    net = gk.Model({"y": gk.reduce_sum(h, keepdims=True) + x, "last": h + 1.0})
    from graphkit.train.recurrent_state import RecurrentState

    with pytest.raises(UsageError, match=r"the size of 'h', .*, does not follow from the other inputs"):
        RecurrentState(net, {"h": "last"}).feeds(np.zeros((2, 3), np.float32))
