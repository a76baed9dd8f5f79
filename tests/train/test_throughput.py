"""Samples per second and time spent waiting, in the log and in the progress bar."""

import json
import time

import numpy as np
import pytest

import graphkit as gk
from graphkit.train.epoch_stats import Throughput


def test_throughput_counts_from_its_creation():
    waited = [7.0]
    pace = Throughput(lambda: waited[0])
    pace.add(30)
    pace.add(12)
    time.sleep(0.05)
    waited[0] += 0.025
    assert pace.waited == pytest.approx(0.025)
    assert 0.05 <= pace.seconds < 5
    assert pace.samples_per_second == pytest.approx(42 / pace.seconds, rel=0.5)
    assert str(pace).endswith("%")
    assert "samples/s, waiting " in str(pace)


def test_log_has_throughput_and_waiting_of_ranks(on_ranks, tmp_path):
    x, y = np.ones((48, 3), np.float32), np.zeros((48, 2), np.float32)

    def work(store):
        net = gk.Model(gk.nn.linear(gk.input("x", ["N", 3]), 2, name="fc"), seed=0)
        trainer = gk.Trainer(net, "mse", gk.optim.SGD(0.1), kvstore=store, threads=1)
        if store.rank:
            step = trainer._stepper.take
            trainer._stepper.take = lambda *given: time.sleep(0.03) or step(*given)
        return trainer.fit((x, y), epochs=2, batch_size=4, folder=tmp_path / "run", progress=False)

    histories = on_ranks(work)
    lines = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    for line in lines:
        assert 0 < line["samples_per_second"] < 48 / (4 * 0.03)  # six batches; the first may have started earlier
        # One of the two ranks waits. On a busy machine, their steps take longer than the pauses that it waits for.
        assert 0.01 < line["waiting"] < 0.8
    assert all("waiting" not in record for history in histories for record in history)


def test_one_process_logs_no_waiting(tmp_path):
    net = gk.Model(gk.nn.linear(gk.input("x", ["N", 3]), 2, name="fc"), seed=0)
    trainer = gk.Trainer(net, "mse", gk.optim.SGD(0.1), threads=1)
    trainer.fit((np.ones((8, 3), np.float32), np.zeros((8, 2), np.float32)), folder=tmp_path / "run", progress=False)
    assert "waiting" not in json.loads((tmp_path / "run" / "log.jsonl").read_text())
