"""Data sets that worker processes import."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from pathlib import Path

import ml_dtypes
import numpy as np

from graphkit.data import LazyDataset
from graphkit.errors import DamagedSample, InputError


class Noisy(LazyDataset):
    """Sample n is n and, in training, random numbers. Its arrays are of every kind that a batch may have."""

    augments = True

    def sample(self, number, draw):
        noise = np.zeros(2, np.float32) if draw is None else draw.standard_normal(2, np.float32)
        inputs = {
            "x": np.array([number, *noise], np.float32),
            "half": np.full((2, 2), number, ml_dtypes.bfloat16),
            "none": np.empty((0, 3), np.int8),
            "flag": number % 2 == 0,
        }
        return inputs, {"label": number % 3, "weight": np.float64(noise[0])}


class Plain(LazyDataset):
    """An array and a number; the target is known beforehand."""

    def sample(self, number, draw):
        return np.full(5, number, np.float32), None


class Growing(LazyDataset):
    """Sample n has n squared elements, but sample 40, which has many; padded to the longest of a batch."""

    def sample(self, number, draw):
        return np.full(3_000_000 if number == 40 else number * number, number, np.float32), number

    def make_batch(self, places, key, making):
        found = [self.sample(int(self._numbers[place]), None) for place in places]
        longest = max((len(x) for x, _ in found), default=0)
        x = making.empty((len(found), longest), np.dtype(np.float32))
        x[:] = -1
        for row, (values, _) in zip(x, found, strict=True):
            row[: len(values)] = values
        return x, np.array([target for _, target in found], np.int64)


class Heavy(LazyDataset):
    """Samples of a MiB."""

    def sample(self, number, draw):
        return np.full((256, 1024), number, np.float32), number


class Rusty(LazyDataset):
    """Some samples cannot be read."""

    augments = True

    def __init__(self, count, bad, name="rusty"):
        super().__init__(count, name=name)
        self.bad = bad

    def sample(self, number, draw):
        if number in self.bad:
            if draw is not None:
                draw.random(3)
            raise DamagedSample(f"photos/{number}.png: the file ends within the image")
        noise = 0.0 if draw is None else draw.random()
        return np.array([number, noise, 1, 0, 2, 1], np.float32), number % 3


class Unpickled(Exception):
    """Cannot be made again from its arguments."""

    def __init__(self, first, second):
        super().__init__(f"{first} {second}")


def _hang():
    time.sleep(3600)


def _hold():
    """Hold the interpreter lock forever."""
    re.match("(a+)+$", "a" * 64 + "b")


def _exit():
    sys.exit(4)


def _raise(error):
    raise error


HARM = {
    "value": lambda: _raise(ValueError("odd sum")),
    "graphkit": lambda: _raise(InputError("no such key")),
    "memory": lambda: _raise(MemoryError("4 PB")),
    "unpickled": lambda: _raise(Unpickled("two", "parts")),
    "exit": _exit,
    "killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "gone": lambda: os._exit(3),
    "hang": _hang,
    "hold": _hold,
}


class Harmful(LazyDataset):
    """Sample `at` does something bad; the process that made a sample is its second number."""

    def __init__(self, count, at, harm, name="harmful"):
        super().__init__(count, name=name)
        self.at, self.harm = at, harm

    def sample(self, number, draw):
        if number == self.at:
            HARM[self.harm]()
        return np.array([number, os.getpid()]), None


class Reluctant(LazyDataset):
    """It comes to no worker."""

    def __setstate__(self, state):
        _hang()

    def sample(self, number, draw):
        return np.full(5, number, np.float32), number


class Words(LazyDataset):
    def sample(self, number, draw):
        return {"word": np.array(["a", "bc"][number % 2])}, number


class Imports(LazyDataset):
    """Samples are the modules that the worker has imported, and its number of threads."""

    names = ("graphkit.ops", "graphkit.model", "graphkit.executor", "scipy", "onnx")

    def sample(self, number, draw):
        found = [name in sys.modules for name in self.names]
        return np.array(found), int(os.environ["OMP_NUM_THREADS"]) * int(os.environ["GRAPHKIT_NUM_THREADS"])


class Environment(LazyDataset):
    """Samples are the worker's limit for memory that Pillow keeps."""

    def sample(self, number, draw):
        return np.array(int(os.environ["PILLOW_BLOCKS_MAX"])), None


class Mapped:
    """As PyTorch has them."""

    def __init__(self, count, extra=None):
        self.count, self.extra = count, extra
        self.table = np.arange(count * 6, dtype=np.float32).reshape(count, 6)

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return self.table[index], index % 3


class Told(LazyDataset):
    """Records in a folder which worker made which samples. After some samples, each worker misbehaves (`harm`)."""

    def __init__(self, count, folder, slow, harm="hang"):
        super().__init__(count, name="told")
        self.folder, self.slow, self.harm = str(folder), slow, harm

    def sample(self, number, draw):
        Path(self.folder, f"{number}.{os.getpid()}").touch()
        if len(os.listdir(self.folder)) > self.slow:
            Path(self.folder, f"{number}.bad").touch()
            HARM[self.harm]()
        return np.arange(6, dtype=np.float32) + number, number % 3
