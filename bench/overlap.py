"""Measure steps of several processes over a slow network, with and without overlap, buckets and compression.

    python bench/overlap.py [--network namespaces] [--ranks 2] [--gbit 0.5,2] [--layers 8] [--width 1024]

`--network namespaces` puts each process into a network namespace, behind a line of the given rate (namespaces.py; needs
root). All-reduces use TCP, which takes processor time of the same cores. The time of communication is measured by
all-reduces of the same buckets while nothing else runs.

`--network simulated` runs each all-reduce as usual, and then sleeps until the time that its bytes would take has passed
(ring: 2 (n - 1) / n of the bytes over the given bandwidth, and `--latency` for each of the 2 (n - 1) messages). This is
like a network adapter that does not need the processor.

Bound: max(computation, communication) + the all-reduce of the last bucket, from the same run. The bound ignores that no
all-reduce can begin before the forward pass and the first gradients. Processes have one thread each; the network is a
perceptron with `--layers` layers. The table is printed as Markdown.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
from engines import versions
from namespaces import line
from processes import log, machine
from tables import table

import graphkit as gk
from graphkit.dist.job import launch
from graphkit.dist.job.mpi import MpiCommunicator
from graphkit.dist.kvstore import KVStore

# Name, value of `overlap`, megabytes of a bucket (None: as measured), compression.
FORMS = (
    ("one sum behind the backward pass", "funnelled", 1e6, None),
    ("buckets behind the backward pass", "funnelled", 4.0, None),
    ("one sum, chained", "chained", 1e6, None),
    ("buckets of 1 MB, chained", "chained", 1.0, None),
    ("buckets of 4 MB, chained", "chained", 4.0, None),
    ("buckets by the cost model, chained", "chained", None, None),
    ("buckets of 4 MB, chained, float16", "chained", 4.0, "float16"),
    ("buckets of 4 MB, chained, 2bit", "chained", 4.0, "2bit:0.01"),
)


class SimulatedNetwork:
    """Makes the calls of a communicator last as long as a network would take; counts these seconds."""

    def __init__(self, communicator: MpiCommunicator, gbit: float, latency: float):
        self.seconds = 0.0
        self._rate, self._latency, self._ranks = gbit * 1e9 / 8, latency, communicator.size
        self._allreduce, self._allgather = communicator.allreduce, communicator.allgather
        communicator.allreduce = self.allreduce  # type: ignore[method-assign]
        communicator.allgather = self.allgather  # type: ignore[method-assign]

    def _last(self, since: float, bytes_: float, messages: int) -> None:
        seconds = bytes_ / self._rate + messages * self._latency
        self.seconds += seconds
        time.sleep(max(0.0, since + seconds - time.perf_counter()))

    def allreduce(self, array: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        n, since = self._ranks, time.perf_counter()
        found = self._allreduce(array, out)
        self._last(since, 2 * (n - 1) / n * array.nbytes, 2 * (n - 1))
        return found

    def allgather(self, array: np.ndarray) -> np.ndarray:
        since = time.perf_counter()
        found = self._allgather(array)
        self._last(since, (self._ranks - 1) * array.nbytes, self._ranks - 1)
        return found


def trainer(store: KVStore | None, options: argparse.Namespace) -> gk.Trainer:
    value = gk.input("x", ["N", options.width])
    for layer in range(options.layers):
        value = gk.relu(gk.nn.linear(value, options.width, name=f"layer{layer}"))
    model = gk.Model(gk.nn.linear(value, 10, name="last"), seed=0)
    return gk.Trainer(model, "softmax_cross_entropy", gk.optim.SGD(0.01), kvstore=store, threads=1)


def worker(options: argparse.Namespace) -> dict[str, Any] | None:
    """Run the steps of one form on one rank of a job; return the measurements on rank 0."""
    _, overlap, megabytes, compression = FORMS[options.form]
    size = None if megabytes is None else int(megabytes * 1e6)
    store = gk.kvstore.create("dist_sync", overlap=overlap, bucket_bytes=size)
    communicator: Any = store.transport.communicator
    if options.network == "simulated":
        SimulatedNetwork(communicator, options.gbit[0], options.latency)
    if compression is not None:
        store.set_gradient_compression(compression)
    rng = np.random.default_rng(store.rank)
    x, y = rng.random((options.batch, options.width), np.float32), rng.integers(0, 10, options.batch)
    both, alone = trainer(store, options), trainer(None, options)
    stepper = both._stepper
    assert stepper.exchange.buckets is not None
    groups = stepper.exchange.buckets.groups
    buckets = [np.zeros(sum(both.net.params[stepper.trained[i]].size for i in g), np.float32) for g in groups]
    times: dict[str, list[float]] = {"step": [], "computation": [], "communication": [], "last": []}
    sent = 0
    for _ in range(options.steps + 1):
        for one, name in ((both, "step"), (alone, "computation")):
            store.barrier()
            before, start = store.sent_bytes, time.perf_counter()
            float(one.step(x, y))
            times[name].append(time.perf_counter() - start)
            sent += store.sent_bytes - before
        store.barrier()
        start = time.perf_counter()
        for number, bucket in enumerate(buckets):
            begun = time.perf_counter()
            store.transport.start_sum(f"alone {number}", bucket, bucket).wait()
        times["last"].append(time.perf_counter() - begun)
        times["communication"].append(time.perf_counter() - start)
    if store.rank:
        return None
    return {
        **{name: float(np.median(found[1:])) for name, found in times.items()},
        "buckets": len(groups),
        "sent": sent / (options.steps + 1),
        "copied": stepper.exchange.collectives.copied_bytes,
    }


def measured(form: int, gbit: float, launcher: list[str], options: argparse.Namespace) -> dict[str, Any]:
    given = {"form": form, "gbit": gbit, "latency": options.latency, "layers": options.layers, "width": options.width}
    given |= {"batch": options.batch, "steps": options.steps, "network": options.network}
    words = [word for name, value in given.items() for word in (f"--{name}", str(value))]
    command = [*launcher, sys.executable, str(Path(__file__).resolve()), "--worker", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}: {done.stderr[-500:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", choices=["simulated", "namespaces"], default="simulated")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--gbit", type=lambda text: [float(n) for n in text.split(",")], default=[0.5, 2.0])
    parser.add_argument("--latency", type=float, default=5e-4, help="seconds of a message, simulated")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--only", type=lambda text: [int(n) for n in text.split(",")], help="numbers of forms, from 0")
    parser.add_argument("--form", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        if (found := worker(options)) is not None:
            print(json.dumps(found))
        return 0
    facts, engines = machine(), versions()
    print(f"{facts['cpu']}, {facts['cores']} cores, Python {facts['python']}; graphkit {engines['graphkit']}")
    print(f"{options.ranks} processes of one thread, {options.layers} layers of {options.width}, batch {options.batch}")
    head = ["form", "buckets", "step ms", "computation", "communication", "bound", "step / bound", "sent MB", "copied"]
    for gbit in options.gbit:
        body = []
        alike = nullcontext([launch.find_mpiexec(), "-n", str(options.ranks)])
        with line(options.ranks, gbit) if options.network == "namespaces" else alike as launcher:
            for form, (name, *_) in enumerate(FORMS):
                if options.only and form not in options.only:
                    continue
                log(f"{gbit} Gbit/s: {name}")
                row = measured(form, gbit, launcher, options)
                bound = max(row["computation"], row["communication"]) + row["last"]
                milliseconds = [f"{1e3 * row[k]:.1f}" for k in ("step", "computation", "communication")]
                ratio, megabytes = f"{row['step'] / bound:.2f}", f"{row['sent'] / 1e6:.2f}"
                cells = [name, str(row["buckets"]), *milliseconds, f"{1e3 * bound:.1f}", ratio, megabytes]
                body.append([*cells, str(row["copied"])])
        print("\n".join(["", f"## {gbit} Gbit/s, {options.network}", "", table(head, body)]), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
