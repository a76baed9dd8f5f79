"""Compare reading a record file from the disk cache with copying the same bytes.

    python bench/records.py [--records 100000] [--bytes 10240] [--rounds 9]

*Copy*: `readv` of the whole file into one buffer of 1 MiB, which stays in a core's cache. *Read*: `RecordStream` reads
every record, and their lengths are added up. Both use one thread and take turns. Times are medians of processor time
over rounds. Ratios are paired by round: 1 is the speed of copying.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from tables import table

from graphkit.data.records import RecordStream, RecordWriter
from graphkit.data.records.reading import BLOCK


def make(path: Path, count: int, size: int) -> None:
    content = np.random.default_rng(0).bytes(size)
    with RecordWriter(path) as writer:
        for _ in range(count):
            writer.write(content)


def copy(path: Path, buffer: np.ndarray) -> int:
    total = 0
    file = os.open(path, os.O_RDONLY)
    while got := os.readv(file, [buffer]):
        total += got
    os.close(file)
    return total


def read(path: Path) -> int:
    return sum(map(len, RecordStream(path)))


def seconds(call: Callable[[], object]) -> float:
    begin = time.process_time()
    call()
    return time.process_time() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--bytes", type=int, default=10_240)
    parser.add_argument("--rounds", type=int, default=9)
    given = parser.parse_args()
    buffer = np.empty(BLOCK, np.uint8)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "records.rec"
        make(path, given.records, given.bytes)
        size = copy(path, buffer)
        read(path)
        times = [(seconds(lambda: copy(path, buffer)), seconds(lambda: read(path))) for _ in range(given.rounds)]
    copied, taken = (statistics.median(t) for t in zip(*times, strict=True))
    ratio = statistics.median(a / b for a, b in times)
    heads = ("records", "bytes of each", "copy, GB/s", "read, GB/s", "records/s", "read / copy")
    row = (given.records, given.bytes, size / copied / 1e9, size / taken / 1e9, given.records / taken, ratio)
    print(table(heads, [[f"{v:,.0f}" if v >= 100 else f"{v:.3g}" for v in row]]))


if __name__ == "__main__":
    main()
