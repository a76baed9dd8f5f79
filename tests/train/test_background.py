"""Data and metrics in background threads: the same bits as without, errors at the right place, no thread left."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from combinations import full, in_one_item

import graphkit as gk
from graphkit.data import Dataset, Sentences, TokenStream, Vocabulary
from graphkit.errors import InputError, NotFinite
from graphkit.train.background import METRIC_SECONDS

PAUSE = 1e-3


class Slow(Dataset):
    """A data set whose batches take time, and raise an error from batch number `fails` on."""

    fails: int | None = None
    taken = 0

    def take(self, index):
        time.sleep(PAUSE)
        self.taken += 1
        if self.fails is not None and self.taken > self.fails:
            raise OSError(5, "the disk is gone")
        return super().take(index)


class SlowMetric:
    """The sum of all outputs and targets, in the order of the batches."""

    name = "sums"

    def reset(self):
        self.sums, self.threads = [], set()

    def update(self, output, target):
        time.sleep(METRIC_SECONDS + PAUSE)
        self.sums.append(float(output.sum()) + float(target.sum()))
        self.threads.add(threading.get_ident())

    @property
    def value(self):
        return self.sums[-1]


def trainer(**options):
    x = gk.input("x", ["N", 6])
    h = gk.nn.dropout(gk.tanh(gk.nn.linear(x, 8, name="fc1")), 0.3)
    net = gk.Model({"logits": gk.nn.linear(h, 3, name="fc2")}, name="small", seed=0)
    return gk.Trainer(net, optimizer=gk.optim.SGD(0.1, momentum=0.9), **({"seed": 3} | options))


def data(n=50, kind=Slow):
    rng = np.random.default_rng(5)
    # In Fortran order, so batches must be copied to be contiguous.
    return kind(np.asfortranarray(rng.standard_normal((n, 6), np.float32)), rng.integers(0, 3, n))


def same_bits(a, b):
    assert list(a.params) == list(b.params)
    assert all(a.params[n].tobytes() == b.params[n].tobytes() for n in a.params)


def workers_end():
    """Return whether all threads of an engine have ended, or end soon."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        names = []
        for task in Path("/proc/self/task").glob("*/comm"):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # the thread may end a moment later
                names.append(task.read_text())
        if "graphkit-worker\n" not in names:
            return True
        time.sleep(0.005)
    return False


@in_one_item()
@pytest.mark.parametrize("options", [{}, {"accumulate": 3}, {"ema": 0.9}], ids=str)
@pytest.mark.parametrize("depth", [full(1), 2, full(5)])
def test_background_work_does_not_change_bits(options, depth):
    found = {}
    for prefetch in (0, depth):
        fitted, metric = trainer(**options), SlowMetric()
        history = fitted.fit(data(), data(20), epochs=3, batch_size=8, metrics=["accuracy", metric], prefetch=prefetch)
        found[prefetch] = fitted.net, history
        assert (len(metric.threads - {threading.get_ident()}) > 0) is (prefetch > 0)
    same_bits(found[0][0], found[depth][0])
    assert found[0][1] == found[depth][1]


def texts():
    words = Vocabulary.build(["abcde"], "char")
    rng = np.random.default_rng(0)
    rows = [rng.integers(2, 7, n) for n in rng.integers(1, 30, 40)]

    class SlowSentences(Slow, Sentences):
        pass

    class SlowStream(Slow, TokenStream):
        pass

    classifier = gk.models.build("text_classifier", vocab=len(words), width=4, hidden=4)
    language = gk.models.build("lstm_lm", vocab=len(words), hidden=6, layers=1, stateful=True)
    return [
        (classifier, SlowSentences(rows, rng.integers(0, 2, 40), words), {}),
        (
            language, SlowStream(rng.integers(2, 7, 121), words, length=9),
            {"output": "logits", "carry": {"h": "last_h", "c": "last_c"}},
        ),
    ]  # fmt: skip


@pytest.mark.parametrize("kind", [0, 1], ids=["sentences", "stream"])
def test_text_batches_do_not_depend_on_prefetch(kind):
    nets = []
    for prefetch in (0, 2):
        net, source, options = texts()[kind]
        history = gk.Trainer(net, optimizer="adam", seed=0, **options).fit(
            source, source, epochs=2, batch_size=4, metrics=["perplexity"] if kind else ["accuracy"], prefetch=prefetch
        )
        nets.append((net, history))
    same_bits(nets[0][0], nets[1][0])
    assert nets[0][1] == nets[1][1]


def test_resume_within_an_epoch_is_bit_identical(tmp_path):
    straight = trainer()
    straight.fit(data(), epochs=3, batch_size=8)
    broken = data()
    broken.fails = 12  # an epoch has seven batches
    with pytest.raises(OSError, match="the disk is gone"):
        trainer().fit(broken, epochs=3, batch_size=8, folder=tmp_path, checkpoint_every=2)
    resumed = trainer()
    resumed.resume(tmp_path)
    assert (resumed.epoch, resumed.batch, resumed.updates) == (1, 5, 12)
    resumed.fit(data(), epochs=3, batch_size=8)
    same_bits(straight.net, resumed.net)


def test_unreadable_batch_stops_training():
    broken, found, stepped = data(), trainer(), trainer()
    broken.fails = 5
    with pytest.raises(OSError, match="the disk is gone") as caught:
        found.fit(broken, batch_size=8)
    assert caught.value.errno == 5
    assert any("load batch" in note for note in caught.value.__notes__)
    assert (found.batch, found.updates) == (5, 5)
    for inputs, targets in list(data().batches(8, seed=3))[:5]:
        stepped.step(inputs, targets)
    same_bits(found.net, stepped.net)
    assert workers_end()
    # Training continues after the error.
    found.fit(data(), batch_size=8)
    assert found.updates == 7


def test_a_metric_that_fails_stops_training():
    class Fails(SlowMetric):
        def update(self, output, target):
            super().update(output, target)
            if len(self.sums) == 6:
                raise InputError("sums: no more")

    for prefetch in (0, 2):
        found = trainer()
        with pytest.raises(InputError, match="no more"):
            found.fit(data(), batch_size=8, metrics=[Fails()], prefetch=prefetch)
        with pytest.raises(InputError, match="no more"):
            found.evaluate(data(), [Fails()], batch_size=8, prefetch=prefetch)


def test_a_diverging_loss_stops_training_at_its_batch():
    rng = np.random.default_rng(0)
    found = gk.Trainer(trainer().net, "mse", gk.optim.SGD(1e30))
    with pytest.raises(NotFinite, match=r"the loss is (inf|nan) at epoch 1, batch 2"):
        found.fit(Slow(rng.random((20, 6), np.float32), rng.random((20, 3), np.float32)), batch_size=2)


def test_an_interrupt_while_data_are_loaded():
    class Interrupted(Slow):
        def take(self, index):
            if self.taken == 4:
                self.taken += 1
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(0.2)
            return super().take(index)

    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    found = trainer()
    try:
        with pytest.raises(KeyboardInterrupt):
            found.fit(data(kind=Interrupted), batch_size=8)
    finally:
        signal.signal(signal.SIGINT, handler)
    assert workers_end()
    assert found.updates <= 4
    found.fit(data(), batch_size=8)
    assert found.updates == 7


def test_loading_appears_in_a_trace_beside_the_steps(tmp_path):
    found, source = trainer(), data(400)
    found.fit(data(16), batch_size=8)  # the first step allocates memory
    with gk.profile(tmp_path / "trace.json"):
        found.fit(source, batch_size=8, metrics=[SlowMetric()])
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    loads = [e for e in events if e["name"] == "load batch"]
    assert len(loads) > 40
    assert {e["cat"] for e in loads} == {"engine"}
    assert len([e for e in events if e["name"] == "metrics"]) > 40
    runs = [e for e in events if e.get("cat") == "run"]
    assert len(runs) == 50
    assert not {e["tid"] for e in runs} & {e["tid"] for e in loads}
    beside = [(a, b) for a in loads for b in runs if a["ts"] < b["ts"] and b["ts"] + b["dur"] < a["ts"] + a["dur"]]
    assert beside, "no step ran while a batch was loaded"
    assert max(e["args"]["live bytes"] for e in events if e["ph"] == "C") > 0


def test_ranks_load_their_parts_ahead(on_ranks):
    nets = {}
    for prefetch in (0, 2):

        def work(store, prefetch=prefetch):
            found = trainer(kvstore=store, threads=1)
            # The last batch has one sample, so one rank has none.
            return found.net, found.fit(data(41), data(20), epochs=2, batch_size=5, prefetch=prefetch)

        first, second = on_ranks(work)
        same_bits(first[0], second[0])
        assert first[1] == second[1]
        nets[prefetch] = first
    same_bits(nets[0][0], nets[2][0])
    assert nets[0][1] == nets[2][1]
