"""One process of a job that trains on the stand-in for a card: card_job.py FOLDER KERNELS OPTIONS...

The same steps are made on the processor; what is printed, for each OPTIONS, is how far parameters are apart.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from emulator import Emulator
from stand_in import Card
from stand_in_nccl import Communicator, Nccl

import graphkit as gk
from graphkit.errors import MissingDependency
from graphkit.executor.devices import cuda
from graphkit.executor.devices.cuda.libraries import nccl
from graphkit.executor.lower.arrays import launched_sum
from graphkit.executor.memory import swapping


def network(*, lazy: bool) -> gk.Value:
    if lazy:
        words = gk.input("words", ["N", 3], dtype="int64")
        return gk.nn.linear(gk.flatten(gk.nn.embedding(words, 20, 4)), 5)
    x = gk.input("x", ["N", 4, 3, 3])
    return gk.nn.linear(gk.flatten(gk.relu(gk.nn.batch_norm(gk.nn.conv2d(x, 6, 3, pad=1)))), 5)


class Trained(NamedTuple):
    """params: after the steps. total: of those that are trained. skipped: steps. kinds: of the steps of sums; because:
    why they are such.
    """

    params: dict[str, np.ndarray]
    total: float
    skipped: int
    kinds: list[str]
    because: str


class Job(NamedTuple):
    """Settings of a job, in addition to the options of its Trainers.

    mixed: rank 0 trains on the CPU. nccl: ranks that have NCCL. places: PCI addresses of the GPUs of the ranks. early:
    side streams run as early as possible. swaps: activations are swapped to host memory. sizes: sizes of the batches of
    each rank. ends: how rank 1 ends before the second step.
    """

    mixed: bool = False
    nccl: tuple[int, ...] = ()
    places: tuple[str, ...] = ("0000:01:00.0", "0000:02:00.0")
    early: bool = False
    swaps: bool = False
    sizes: tuple[tuple[int, ...], ...] = ((4, 4, 6),) * 2
    ends: str = ""
    compression: str = ""


def trained(device: str, kv: Any, job: Job, options: dict[str, Any]) -> Trained:
    if device == "cpu":
        options = {name: value for name, value in options.items() if name != "precision"}
    lazy = "lazy" in options
    rng = np.random.default_rng(kv.rank)
    net = gk.Model({"y": network(lazy=lazy)}, name="net", seed=3)
    optimizer = gk.optim.SGD(0.1, momentum=0.9)
    trainer = gk.Trainer(
        net, "softmax_cross_entropy", optimizer, device=device, seed=1, kvstore=kv, threads=1,
        swap_memory=job.swaps, **options,
    )  # fmt: skip
    for number, count in enumerate(job.sizes[kv.rank]):
        if number and device != "cpu" and kv.rank == 1:
            end(job.ends, trainer)
        x = rng.integers(0, 20, (count, 3)) if lazy else rng.standard_normal((count, 4, 3, 3)).astype(np.float32)
        trainer.step(x, rng.integers(0, 5, count))
    trainer.flush()
    params = {name: np.array(array) for name, array in net.params.items()}
    total = sum(float(np.abs(params[name]).sum()) for name in trainer.trained)
    plans = [
        executor._choice.latest.plan for executor in trainer._stepper.executors if executor._choice.latest is not None
    ]
    kinds = sorted({s.kernel for plan in plans for s in plan.steps if s.op.endswith(("Start", "Wait"))})
    return Trained(params, total, trainer._stepper.skipped, kinds, plans[0].staging_reason)


def end(how: str, trainer: gk.Trainer) -> None:
    match how:
        case "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        case "stopped":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "stopped in a step":
            put = Communicator.launch

            def launch(*arguments: Any) -> None:
                os.kill(os.getpid(), signal.SIGSTOP)
                put(*arguments)

            Communicator.launch = launch  # type: ignore[method-assign]
        case "fails in a step":

            def fail(*_: Any) -> None:
                raise ValueError("a step that fails")

            Communicator.launch = fail  # type: ignore[method-assign]
        case "another order":
            launched_sum._order_checksum = lambda nodes: "another order"


def main(folder: str, kernels: str, *options: str) -> None:
    kv = gk.kvstore.create("dist_sync")
    emulator = Emulator(Path(kernels))
    for number, text in enumerate(options):
        print_facts(Path(folder) / str(number), emulator, json.loads(text), kv)


def print_facts(folder: Path, emulator: Emulator, given: dict[str, Any], kv: Any) -> None:
    """Train with the options of a Job and of a Trainer, and print a line of facts."""
    folder.mkdir(exist_ok=True)
    job = Job(**{name: given.pop(name) for name in Job._fields if name in given})
    if job.compression:
        kv.set_gradient_compression(job.compression)
    card = Card(emulator, place=job.places[kv.rank], early=job.early)
    cuda.device = cuda.card.device = lambda number=0: card
    cuda.cards = lambda: 1
    if job.swaps:
        swapping.MIN_BYTES = swapping.COPY_COST = 0
    library = Nccl([card], folder / "nccl")
    nccl.bindings = bindings_of(library if kv.rank in job.nccl else None)
    second = "cpu" if job.mixed and kv.rank == 0 else "cuda"
    here, there = (trained(device, kv, job, dict(given)) for device in ("cpu", second))
    apart = max(float(np.abs(there.params[name] - array).max()) for name, array in here.params.items())
    bits = hashlib.sha256(b"".join(there.params[name].tobytes() for name in sorted(there.params))).hexdigest()
    launched = [captured for made in library.made for captured, _ in made.launched]
    facts = {
        "rank": kv.rank, "job": int(folder.name),
        "apart": apart, "total": there.total, "skipped": there.skipped, "replays": card.replays,
        "kinds": there.kinds, "launched": sorted({*card.launched}), "bits": bits, "staging": card.staging,
        "eager": launched.count(False), "captured": launched.count(True), "groups": len(library.made),
        "because": there.because,
    }  # fmt: skip
    sys.stdout.write(json.dumps(facts) + "\n")


def bindings_of(library: Nccl | None) -> Any:
    def bindings() -> Nccl:
        if library is None:
            raise MissingDependency("CuPy finds no NCCL")
        return library

    return bindings


if __name__ == "__main__":
    main(*sys.argv[1:])
