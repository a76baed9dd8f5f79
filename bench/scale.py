"""Estimate training with 1 to 1,024 ranks: few ranks are measured on this machine, more are simulated.

    python bench/scale.py [--workload lenet] [--ranks 1,2,4] [--bucket-mb 25] [--cv 0.05] [--name scale] [--quick]

Three things are measured: when the backward pass writes each gradient (one rank, one thread); all-reduces over 1 and 2
processes, to which alpha and beta are fitted; and steps of 1, 2 and 4 ranks, with which the simulation
(`simulation.py`) is compared. Networks between hosts are parameters; none is measured. Writes NAME.md and NAME.svg.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import date
from statistics import median
from typing import Any

import numpy as np
from curves import Curve, chart
from engines import versions
from processes import TIMEOUT, add_output, log, machine
from simulation import TOPOLOGIES, Cluster, Gradient, Link, Program, Setting, fitted, halving, step_seconds
from tables import table
from training_workloads import LEARNING_RATE, MOMENTUM, WORKLOADS, Workload

import graphkit as gk
from graphkit.config import num_threads
from graphkit.dist.job import launch
from graphkit.executor.run.profile import profile
from graphkit.text import human

# Between hosts, per rank count of the curves. Line rates are those of the standards, with all of it used; alphas are
# assumptions: TCP for 10 Gbit/s, RDMA for the others.
NETWORKS = {
    "10 Gbit/s Ethernet": Link(30e-6, 8 / 10e9),
    "25 Gbit/s Ethernet": Link(10e-6, 8 / 25e9),
    "100 Gbit/s InfiniBand": Link(2e-6, 8 / 100e9),
}
RANKS = tuple(2**k for k in range(11))
# Four GPUs of a host behind PCI Express 3.0 x16; an assumption.
PCIE = Link(10e-6, 1 / 10e9)
# Horovod's: 128 hosts of 4 P100 at 25 Gbit/s, batches of 64. Its documentation has 1656.82 images a second for
# ResNet-101 on 16 of them; the rate of VGG-16 is an assumption.
_IMAGES = {"x": (2, 3, 224, 224)}
PUBLISHED = (
    ("resnet101", "ResNet-101", Workload("", "", "resnet", _IMAGES, {"layers": 101}), 1656.82 / 16, 0.90),
    ("vgg16", "VGG-16", Workload("", "", "vgg", _IMAGES, {}), 150.0, 0.68),
)
# Of sums. Ranks beyond the cores wait for their turns on a core in every message: large arrays would take minutes.
_SMALL = "4,1KiB,16KiB,64KiB"
_SIZES = f"{_SMALL},256KiB,1MiB,4MiB,16MiB"
_WORKER_ROUNDS = {True: 8, False: 30}


# --- measured -------------------------------------------------------------------------------------------


def trainer(workload: Workload, **options: Any) -> gk.Trainer:
    optimizer = gk.optim.SGD(LEARNING_RATE, momentum=MOMENTUM)
    return gk.Trainer(workload.net(), workload.loss, optimizer, threads=1, **options)


def recorded(workload: Workload, runs: int) -> Program:
    """Measure when each gradient is written, with one rank and one thread. Times are medians of `runs` runs."""
    local, (feeds, target) = trainer(workload, accumulate=1 << 30), workload.feeds()
    for _ in range(2):
        local.step(feeds, target)
        local.flush()
    written: dict[str, list[float]] = {}
    passes, updates, sizes = [], [], {}
    for _ in range(runs):
        with profile() as found:
            local.step(feeds, target)
        (run,) = found._runs
        passes.append((run.end - run.start) / 1e9)
        graph, ends = run.program.lowered.graph, {name: end for name, _, end in run.events}
        for state, value in graph.updates:
            name, _, kind = graph.name_of(state).rpartition("/")
            if kind == "gradient_sum":
                written.setdefault(name, []).append((ends[graph.node_name(value.node)] - run.start) / 1e9)
                sizes[name] = value.tensor.nbytes
        start = time.perf_counter()
        local.flush()
        updates.append(time.perf_counter() - start)
    if missing := set(local.trained) - set(written):
        raise RuntimeError(f"{workload.network}: no time is known of the gradients of {', '.join(sorted(missing))}")
    gradients = tuple(Gradient(n, sizes[n], median(t)) for n, t in written.items())
    return Program(workload.name, gradients, median(passes), median(updates))


def worker(workload: Workload, rounds: int) -> dict[str, Any]:
    """Measure in each process of a job: seconds of computing without communication, and of a data-parallel step."""
    store = gk.kvstore.create("dist_sync")
    local, (feeds, target) = trainer(workload, accumulate=1 << 30), workload.feeds()
    shared = trainer(workload, kvstore=store)
    computing, steps = [], []
    for turn in range(rounds + 2):
        store.barrier()
        start = time.perf_counter()
        local.step(feeds, target)
        local.flush()
        computing.append(time.perf_counter() - start)
        store.barrier()
        start = time.perf_counter()
        shared.step(feeds, target)
        steps.append(time.perf_counter() - start)
        if turn < 2:
            computing.clear()
            steps.clear()
    found = np.zeros((store.num_workers, 2, rounds))
    found[store.rank] = computing, steps
    found = store.pushpull("times", found)
    return {"compute": found[:, 0].tolist(), "step": found[:, 1].max(axis=0).tolist()}


def job(ranks: int, arguments: Sequence[str]) -> dict[str, Any]:
    """The JSON that rank 0 of a job prints."""
    log(f"{ranks} processes: {' '.join(arguments)}")
    command = [launch.find_mpiexec(), "-n", str(ranks), sys.executable, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIMEOUT)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}: {done.stderr[-500:]}")
    measured: dict[str, Any] = json.loads(done.stdout)
    return measured


def sums(ranks: int, rounds: int) -> dict[str, Any]:
    sizes = _SIZES if ranks <= num_threads() else _SMALL
    options = ["--sizes", sizes, "--rounds", str(rounds), "--json"]
    return job(ranks, ["-P", "-m", "graphkit", "bench", "allreduce", *options])


def calibrated(one: Mapping[str, Any], two: Mapping[str, Any]) -> tuple[Link, float]:
    """Return the link between two ranks of this machine, and the seconds that a call takes longer than MPI's.

    The link's beta includes gamma. Two ranks use recursive halving and doubling: 2 alpha + n beta. An all-reduce with
    one rank is only a copy; its time is subtracted.
    """
    sizes = [row["bytes"] for row in two["rows"]]
    a, b = fitted(sizes, [row["median"]["mpi"] for row in two["rows"]])
    beyond = [row["median"]["graphkit"] - row["median"]["mpi"] for row in two["rows"] if row["bytes"] <= 1 << 16]
    copied, _ = fitted(sizes, [row["median"]["graphkit"] for row in one["rows"]])
    return Link(a / 2, b), max(copied, median(beyond))


# --- what is reported -----------------------------------------------------------------------------------


def calibration(link: Link, call: float, measured: Mapping[int, Mapping[str, Any]]) -> str:
    body = []
    for ranks, found in measured.items():
        for row in found["rows"]:
            model = halving(ranks, row["bytes"], link)
            mpi, ours = row["median"]["mpi"], row["median"]["graphkit"]
            cells = [mpi, model, ours, model + call if ranks > 1 else 0.0]
            body.append([f"{ranks}", human(row["bytes"]), *(f"{1e6 * t:.1f}" for t in cells)])
    head = ["ranks", "array", "MPI us", "model us", "graphkit us", "model with the call, us"]
    fit = f"alpha {1e6 * link.alpha:.2f} us, beta {1e9 * link.beta:.3f} ns per byte ({1e-9 / link.beta:.1f} GB/s), "
    return f"Fitted to 2 ranks: {fit}{1e6 * call:.1f} us for a call of pushpull beyond MPI's.\n\n" + table(head, body)


def steps(
    program: Program, cluster: Cluster, measured: Mapping[int, Mapping[str, Any]], found_sums: Mapping[int, Any]
) -> str:
    """Return a table of measured steps, and of steps simulated with the measured compute times of the ranks.

    There are two simulations: with the link of 2 ranks, and with a line fitted to all-reduces of the same number of
    ranks.
    """
    body = []
    for ranks, found in measured.items():
        times = np.asarray(found["compute"])
        typical = float(np.median(times))
        # In every round the slowest rank was as late as this.
        slowest = times.max(axis=0) / typical
        cost = lambda n, ranks=ranks: cluster.sum_seconds("halving", ranks, n)  # noqa: E731 - a function of bytes
        simulated = step_seconds(program.scaled(typical), cost, slowest, 0, overlap=False)
        rows = found_sums[ranks]["rows"]
        a, b = fitted([r["bytes"] for r in rows], [r["median"]["graphkit"] for r in rows])
        own = step_seconds(program.scaled(typical), lambda n, a=a, b=b: a + b * n, slowest, 0, overlap=False)
        with_own = float(np.median(own))
        step, model = median(found["step"]), float(np.median(simulated))
        spread = float((times.std(axis=1) / times.mean(axis=1)).mean())
        both = (f"{1e3 * t:.2f}" for t in (step, model))
        body.append([str(ranks), f"{1e3 * typical:.2f}", f"{spread:.2f}", *both, f"{model / step:.2f}"])
        body[-1] += [f"{1e3 * with_own:.2f}", f"{with_own / step:.2f}"]
    head = [
        "ranks",
        "computing, ms",
        "its variation",
        "step, ms",
        "simulated, ms",
        "of measured",
        "with its own sums, ms",
        "of measured",
    ]
    return table(head, body)


def curves(program: Program, options: argparse.Namespace, call: float, inside: Link) -> tuple[str, list[Curve]]:
    """Return the efficiency by number of ranks, for each network and topology."""
    body, drawn = [], []
    ways = {
        "each gradient, after backward": Setting("ring", 0, False, options.cv),
        **{f"{t}, overlapped": Setting(t, options.bucket_mb * 1e6, True, options.cv) for t in TOPOLOGIES},
    }
    for network, link in NETWORKS.items():
        cluster = Cluster(inside, link, options.per_host, call)
        for way, setting in ways.items():
            found = [setting.efficiency(program, cluster, ranks) for ranks in RANKS]
            body.append([f"{network}: {way}", *(f"{e:.2f}" for e in found)])
            if way.startswith(("each", "two-level")):
                drawn.append(Curve(f"{network}, {way}", RANKS, found))
    return table(["network and sums", *map(str, RANKS)], body), drawn


def published(options: argparse.Namespace, programs: Mapping[str, Program]) -> tuple[str, list[Curve]]:
    """Simulate the networks that Horovod published, on its hardware; return them with its figures for 512 GPUs."""
    body, drawn = [], []
    for key, title, _, rate, theirs in PUBLISHED:
        program = programs[key].scaled(64 / rate)
        for use in (1.0, 0.5):
            link = NETWORKS["25 Gbit/s Ethernet"]
            cluster = Cluster(PCIE, Link(link.alpha, link.beta / use), 4)
            for topology in ("ring", "two-level"):
                setting = Setting(topology, options.bucket_mb * 1e6, True, options.cv)
                found = [setting.efficiency(program, cluster, ranks) for ranks in RANKS]
                name = f"{title}, {topology}, {use:.0%} of the line"
                body.append([name, *(f"{e:.2f}" for e in found), f"{theirs:.0%}"])
                if topology == "two-level":
                    drawn.append(Curve(name, RANKS, found, (512, theirs)))
    return table(["network and sums", *map(str, RANKS), "Horovod, 512"], body), drawn


def report(options: argparse.Namespace, parts: Mapping[str, str], program: Program, mpi: str) -> str:
    facts = machine()
    about = (
        f"`python bench/scale.py {' '.join(sys.argv[1:])}`, {date.today()}; {facts['cpu']}, {facts['cores']} cores, "
        f"Python {facts['python']}; graphkit {versions()['graphkit']}, numpy {np.__version__}, {mpi}. Load average "
        f"{facts['load']:.1f} at the end. {WORKLOADS[options.workload].title}: {len(program.gradients)} gradients, "
        f"{human(program.bytes)}; one rank with one thread: {1e3 * program.passes:.2f} ms forward and backward, "
        f"{1e3 * program.update:.2f} ms update. Buckets of {options.bucket_mb:g} MB, variation of compute times "
        f"{options.cv:g}, {options.per_host} ranks per host, seed 0, 400 steps."
    )
    links = [[n, f"{1e6 * k.alpha:g}", f"{8e-9 / k.beta:g}"] for n, k in (*NETWORKS.items(), ("inside (PCIe)", PCIE))]
    sections = [f"## {title}\n\n{text}" for title, text in parts.items()]
    assumed = "## Networks, assumed\n\n" + table(["network", "alpha, us", "Gbit/s"], links)
    return "\n\n".join(["# From 1 to 1,024 ranks, simulated", about, *sections, assumed]) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", choices=list(WORKLOADS), default="lenet")
    parser.add_argument("--ranks", type=lambda text: [int(n) for n in text.split(",")], default=[1, 2, 4])
    parser.add_argument("--bucket-mb", type=float, default=25.0)
    parser.add_argument("--cv", type=float, default=0.05, help="standard deviation of compute times, over their mean")
    parser.add_argument("--per-host", type=int, default=4, help="ranks of a host, in the curves of this machine")
    parser.add_argument("--quick", action="store_true", help="few rounds")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    add_output(parser, "scale")
    options = parser.parse_args()
    workload, rounds = WORKLOADS[options.workload], _WORKER_ROUNDS[options.quick]
    if options.worker:
        found = worker(workload, rounds)
        if gk.kvstore.create("dist_sync").rank == 0:
            print(json.dumps(found))
        return 0
    program = recorded(workload, rounds)
    measured = {ranks: sums(ranks, 3 if options.quick else 9) for ranks in sorted({1, 2, *options.ranks})}
    link, call = calibrated(measured[1], measured[2])
    arguments = [__file__, "--worker", "--workload", options.workload, *(["--quick"] if options.quick else [])]
    shared = {ranks: job(ranks, arguments) for ranks in options.ranks}
    here, drawn = curves(program, options, call, link)
    programs = {}
    for key, title, net, _, _ in PUBLISHED:
        log(f"a profile of {title}")
        programs[key] = recorded(net, 1 if options.quick else 2)
    theirs, beside = published(options, programs)
    parts = {
        "Sums in this machine": calibration(link, call, measured),
        "Steps in this machine": steps(program, Cluster(link, link, 1 << 20, call), shared, measured),
        f"Efficiency, {workload.title}": here,
        "Efficiency on Horovod's cluster": theirs,
    }
    text = report(options, parts, program, measured[2]["library"])
    (options.output / f"{options.name}.md").write_text(text)
    (options.output / f"{options.name}.svg").write_text(chart("Scaling efficiency, simulated", [*drawn, *beside]))
    print(text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
