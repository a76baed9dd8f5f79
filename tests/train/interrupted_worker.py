"""Train in processes that are stopped, at the n-th of many events or after some time, and resume in other processes.

One process imports graphkit, and forks another for every attempt. `interrupted_worker.py FOLDER CASES SEED` prints, as
JSON, the events of each case, and the differences of its results from those of an uninterrupted run.
"""

import contextlib
import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import numpy as np

import graphkit as gk
from graphkit.data import TokenStream, Vocabulary
from graphkit.executor.run.session import Executor
from graphkit.ir.atomic import PendingFile
from graphkit.train import checkpoint
from graphkit.train.metrics import Accuracy
from graphkit.train.progress import JsonLog

EPOCHS = 3
# In the first cases, signals come early, at events that every run has, so that each interrupts a run.
FIRST = (signal.SIGKILL, signal.SIGINT)


class Running(gk.Callback):
    """A callback whose state depends on every step and every epoch."""

    def reset(self):
        self.sum = 0.0

    def on_step_end(self, trainer, numbers):
        self.sum = 0.9 * self.sum + numbers["loss"]

    def on_epoch_end(self, trainer, numbers):
        self.sum += numbers["learning_rate"]

    def state(self):
        return {"sum": self.sum}

    def restore(self, state):
        self.sum = state["sum"]


class SlowDataset(gk.data.Dataset):
    """A data set that loads so slowly that `fit` loads ahead in a worker."""

    def take(self, index):
        time.sleep(0.6e-3)
        return super().take(index)


def classifier(**options):
    x = gk.input("x", ["N", 6])
    h = gk.nn.dropout(gk.tanh(gk.nn.linear(x, 8, name="fc1")), 0.3)
    h = gk.nn.batch_norm(h, name="bn")
    net = gk.Model({"logits": gk.nn.linear(h, 3, name="fc2")}, name="small", seed=0)
    rng = np.random.default_rng(5)
    train, valid = (SlowDataset(rng.standard_normal((n, 6), np.float32), rng.integers(0, 3, n)) for n in (46, 20))
    optimizer = gk.optim.Adam(gk.optim.Cosine(1e-2, 40))
    trainer = gk.Trainer(net, optimizer=optimizer, ema=0.9, seed=3, threads=1, **options)
    return trainer, train, valid, ["accuracy", "f1"], 8


def language(**options):
    words = Vocabulary.build(["abcde"], "char")
    net = gk.models.build("lstm_lm", vocab=len(words), hidden=6, layers=1, stateful=True)
    rng = np.random.default_rng(5)
    train, valid = (TokenStream(rng.integers(2, 7, n), words, length=9) for n in (161, 81))
    carry = {"h": "last_h", "c": "last_c"}
    trainer = gk.Trainer(net, optimizer="adam", output="logits", carry=carry, seed=3, threads=1, **options)
    return trainer, train, valid, ["perplexity"], 4


VARIANTS = {
    "classifier": (classifier, {}),
    "accumulating": (classifier, {"accumulate": 4}),
    "language": (language, {}),
}


class Events:
    """Counts events, and sends a signal to this process at event number `at`."""

    def __init__(self, at, number):
        self.count, self.at, self.number = 0, at, number

    def happens(self, name):
        self.count += 1
        if self.count == self.at:
            sys.stderr.write(f"stopped {name}\n")
            os.kill(os.getpid(), self.number)

    def around(self, owner, method):
        original = getattr(owner, method)
        name = f"{owner.__name__}.{method}"

        def counted(*args, **kwargs):
            self.happens(f"before {name}")
            result = original(*args, **kwargs)
            self.happens(f"after {name}")
            return result

        setattr(owner, method, counted)

    def watch(self):
        for owner, method in [
            (Executor, "run"), (PendingFile, "finish"), (PendingFile, "commit"), (JsonLog, "write"),
            (checkpoint, "save"), (SlowDataset, "take"), (Accuracy, "update"), (gk.Trainer, "swap"),
        ]:  # fmt: skip
            self.around(owner, method)


def train(folder, variant, every, events=None):
    """Train in the process that may be stopped."""
    make, options = VARIANTS[variant]
    trainer, train, valid, metrics, size = make(**options)
    if checkpoint.exists(folder):
        trainer.resume(folder)
    if events is not None:
        events.watch()
    trainer.fit(
        train, valid, epochs=EPOCHS, batch_size=size, metrics=metrics, folder=folder, checkpoint_every=every,
        callbacks=[Running()], log_every=2,
    )  # fmt: skip


def attempt(folder, variant, every, number=None, at=None, delay=None):
    """Train in a forked process. Return how it ended, and the number of its events if it completed the run."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        with contextlib.suppress(BaseException):
            signal.signal(signal.SIGINT, signal.default_int_handler)
            events = Events(at or 0, number)
            try:
                train(folder, variant, every, events)
                os.write(writing, str(events.count).encode())
                code = 0
            except KeyboardInterrupt:
                code = 130
            except Exception as error:  # noqa: BLE001 - the exit code reports it
                sys.stderr.write(f"{type(error).__name__}: {error}\n")
        os._exit(code)
    os.close(writing)
    if delay is not None:
        time.sleep(delay)
        os.kill(child, number)
    _, status = os.waitpid(child, 0)
    with os.fdopen(reading, "rb") as pipe:
        seen = pipe.read()
    return os.waitstatus_to_exitcode(status), int(seen or 0)


def results(folder):
    """Return the files of a complete run; arrays as the digest of their file."""
    manifest = json.loads((folder / checkpoint.MANIFEST).read_text())
    manifest["position"].pop("seconds")
    manifest.pop("run", None)
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    for line in lines:
        for measured in ("seconds", "samples_per_second", "peak_memory"):
            line.pop(measured, None)
    model = (folder / "model.json").read_text()
    return {"checkpoint": manifest, "log": lines, "model": model}


def main(root, cases, seed):
    draw = random.Random(seed)
    # A killed process loses nothing that it wrote. Only a power cut would, so fsync is replaced to save time.
    os.fsync = lambda descriptor: None
    for make, options in VARIANTS.values():
        make(**options)  # the children inherit all imports of this call
    straight, lengths, seconds = {}, {}, {}
    for variant in VARIANTS:
        start = time.monotonic()
        code, lengths[variant] = attempt(root / variant, variant, 1)
        assert code == 0, f"{variant}: {code}"
        seconds[variant] = time.monotonic() - start
        straight[variant] = results(root / variant)
    reports = []
    for case in range(cases):
        variant = draw.choice(list(VARIANTS))
        folder = root / f"case{case}"
        every, by_clock = draw.choice([1, 1, 2, None]), draw.random() < 0.5
        stops = draw.choice([1, 2, 3])
        first = FIRST[case] if case < len(FIRST) else None
        if first:
            by_clock, stops = False, max(stops, 2)
        done = []
        for _ in range(stops):
            number = draw.choice([signal.SIGINT, signal.SIGKILL])
            if first and not done:
                number = first
            if by_clock:
                stop = {"delay": draw.uniform(0.1, 1.0) * seconds[variant]}
            else:
                stop = {"at": draw.randint(1, max(2, round(1.3 * lengths[variant] / stops)))}
            code, _ = attempt(folder, variant, every, number, **stop)
            done.append([number.name, stop, code])
            if code == 0:
                break
        code, _ = attempt(folder, variant, every) if done[-1][2] else (0, 0)
        found = results(folder) if code == 0 else {}
        differs = [key for key in straight[variant] if found.get(key) != straight[variant][key]]
        reports.append(
            {"case": case, "variant": variant, "every": every, "stops": done, "end": code, "differs": differs}
        )
    sys.stdout.write(json.dumps(reports))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
