"""graphkit bench"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from graphkit.cli._groups import COMPARISON, INPUTS, REPORTING, GroupedCommand, option
from graphkit.cli._images import image_options, images_of
from graphkit.cli._inputs import Batch
from graphkit.cli._limits import limit_options
from graphkit.cli._options import (
    backend_option,
    device_of,
    device_options,
    input_options,
    json_option,
    log_backends,
    model_file_options,
    read_model,
    trace_file,
)
from graphkit.cli._output import log, print_json, print_table
from graphkit.cli._ranges import FloatRange, IntRange
from graphkit.cli._training import check_training, training_options, training_step
from graphkit.errors import UsageError
from graphkit.model import Model
from graphkit.text import human

if TYPE_CHECKING:
    from graphkit.executor.run.profile import Profile

# Number of rounds. The two medians of each round are compared. Without --runs, each engine is timed for about _SECONDS
# in all.
_ROUNDS = 20
_SECONDS = 3.0
_TITLES = {"graphkit": "graphkit", "onnxruntime": "ONNX Runtime"}

Calls = dict[str, Callable[[], object]]


# First argument that selects the benchmark of the all-reduce instead of a model.
_ALLREDUCE = "allreduce"


class _Bench(GroupedCommand):
    """The benchmark of a model, or of the all-reduce if that is the first argument."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        if args[:1] != [_ALLREDUCE]:
            return super().make_context(info_name, args, parent, **extra)
        from graphkit.cli._allreduce import command as allreduce

        return allreduce.make_context(f"{info_name} {_ALLREDUCE}", args[1:], parent, **extra)


@click.command(cls=_Bench)
@click.argument("model")
@input_options
@option(
    "--against", group=COMPARISON, type=click.Choice(["onnxruntime", "nothing"]), default=None,
    help="Engine to compare with. Default: onnxruntime; with --training: nothing.",
)  # fmt: skip
@option(
    "--batch",
    group=INPUTS,
    type=IntRange(1),
    help="Batch size: the first dimension of inputs, if it is symbolic.",
)
@option(
    "--runs", group=COMPARISON, type=IntRange(1),
    help="Minimum number of timed runs of each engine. Default: as many as fit into about 3 seconds.",
)  # fmt: skip
@training_options
@option(
    "--profile", "trace", group=REPORTING, type=click.Path(dir_okay=False), callback=trace_file,
    help="Also record one run as a trace for Perfetto or Chrome in this .json file, and print the time per operator.",
)  # fmt: skip
@option(
    "--rtol", group=COMPARISON, type=FloatRange(min=0), default=None,
    help="Relative tolerance for the comparison of outputs. Default: by element type, 1e-4 for float32.",
)  # fmt: skip
@option(
    "--atol", group=COMPARISON, type=FloatRange(min=0), default=None,
    help="Absolute tolerance for the comparison of outputs. Default: by element type, 1e-5 for float32.",
)  # fmt: skip
@image_options
@device_options
@backend_option
@model_file_options
@limit_options
@json_option
def command(
    model: str, inputs: tuple[str, ...], fill: str, seed: int, against: str | None, batch: int | None,
    runs: int | None, training: bool, loss: str, optimizer: str, recompute: str | int | None, swap_memory: bool,
    trace: str | None, rtol: float | None, atol: float | None, device: str, threads: int | None,
    backends: Any, external_root: str | None, as_json: bool, **image: Any,
) -> int:  # fmt: skip
    """Time MODEL in graphkit and in ONNX Runtime; print percentiles of both, and the ratio of their speeds.

    The outputs are compared first. Exit code 1 if they differ. With --backend, the outputs with the backend are
    compared with those of graphkit alone. Then the engines take turns in rounds, with a warm-up before each timing. In
    each round, the median time of ONNX Runtime is divided by that of graphkit. The ratio is the median of these
    quotients, with its 95% confidence interval.

    With --training, a run is a training step on one batch: forward, backward and update.

    `graphkit bench allreduce` times the all-reduce over processes; it has its own options and --help.

    \b
    graphkit bench net.onnx --batch 16 --threads 4
    graphkit bench net.onnx x:1,3,224,224 --against nothing --runs 200
    graphkit bench net.onnx --training --batch 64 --profile trace.json
    """
    from graphkit import config

    if training and against == "onnxruntime":
        raise UsageError("--training only times graphkit: leave out --against onnxruntime")
    check_training(training)
    memory = {"recompute": recompute, "swap_memory": swap_memory}
    net = read_model(model, external_root)
    threads = config.num_threads(threads)
    result: dict[str, Any] = {"model": net.name, "device": device, "threads": threads}
    result["backends"] = [backend.name for backend in backends]
    given = Batch(inputs, images_of(image), batch, fill, seed)
    if training:
        calls = _training(net, result, given, loss, optimizer, memory)
    else:
        calls = _inference(net, result, given, None if against == "nothing" else model, rtol, atol)
    if result["fallbacks"]:
        log(f"interpreted, without a native kernel: {', '.join(result['fallbacks'])}")
    recorded = _time(calls, result, runs, trace)
    _report(result, recorded, as_json)
    return 1 if any(not o.passed for o in result.get("outputs") or ()) else 0


def _inference(
    net: Model, result: dict[str, Any], batch: Batch, other_source: str | None, rtol: float | None, atol: float | None
) -> Calls:
    """Return a run of each engine. Adds the inputs and the comparison of outputs to `result`."""
    from graphkit.checks.verify import compare_outputs, random_nodes

    feeds = batch.arrays(net, net.inputs)
    executor = net.compile(device_of(result["device"]), threads=result["threads"], backends=result["backends"])
    outputs = executor.run(feeds)
    log_backends(executor, result["backends"])
    calls: Calls = {"graphkit": lambda: executor.run(feeds)}
    result["inputs"] = {n: list(a.shape) for n, a in feeds.items() if isinstance(a, np.ndarray)}
    result["fallbacks"] = executor.plan.fallbacks
    if other_source is not None:
        from graphkit.onnx_io.compare import OnnxRuntimeModel, runtime_version

        other = OnnxRuntimeModel(other_source if other_source.endswith(".onnx") else net.to_onnx(), result["threads"])
        calls["onnxruntime"] = other.bound(feeds)
        result["onnxruntime"] = runtime_version()
        if drawing := random_nodes(net):
            log(f"outputs are not compared, because these nodes draw random numbers: {', '.join(drawing)}")
            result["outputs"] = None
        else:
            reference = other.run(feeds)
            result["compared_with"] = "onnxruntime"
            if result["backends"]:
                # The backend may be ONNX Runtime, too.
                alone = net.compile(device_of(result["device"]), threads=result["threads"])
                reference, result["compared_with"] = alone.run(feeds), "graphkit"
            result["outputs"] = compare_outputs(outputs, reference, rtol, atol, by_magnitude=True)
    return calls


def _training(
    net: Model, result: dict[str, Any], batch: Batch, loss: str, optimizer: str, memory: dict[str, Any]
) -> Calls:
    """Return a training step, and add its settings to `result`. memory: options of a Trainer that reduce memory."""
    switches = {key: result[key] for key in ("threads", "backends")} | {"seed": batch.seed, **memory}
    switches["device"] = device_of(result["device"])
    step = training_step(net, loss, optimizer, batch, **switches)
    result["inputs"] = {n: list(a.shape) for n, a in step.feeds.items()}
    result["fallbacks"] = step.plan.fallbacks
    result["training"] = {
        "loss": loss,
        "optimizer": optimizer,
        **memory,
        "samples": step.samples,
        "arena_bytes": step.plan.arena_bytes,
        "activation_bytes": step.plan.activation_bytes,
    }
    # Warm-up: the first step also allocates memory.
    step.run()
    return {"graphkit": step.run}


def _time(calls: Calls, result: dict[str, Any], runs: int | None, trace: str | None) -> Profile | None:
    """Add the times to `result`. trace: file in which one more run of graphkit is recorded."""
    from graphkit.checks import timing
    from graphkit.executor.run.profile import profile

    rounds, per_round = _ROUNDS, None
    if runs is not None:
        per_round = -(-runs // _ROUNDS)
        rounds = -(-runs // per_round)
    times = timing.interleave(calls, rounds, seconds=_SECONDS / _ROUNDS, runs=per_round)
    result["rounds"] = rounds
    result["seconds"] = {name: timing.summarise(t) for name, t in times.items()}
    if "onnxruntime" in times:
        result["ratio"] = timing.paired_ratio([timing.quotients(times["onnxruntime"], times["graphkit"])])
    if "training" in result:
        result["training"]["samples_per_second"] = result["training"]["samples"] / result["seconds"]["graphkit"].p50
    if trace is None:
        return None
    with profile(trace) as recorded:
        calls["graphkit"]()
    log(f"wrote {trace}")
    return recorded


def _report(result: dict[str, Any], recorded: Profile | None, as_json: bool) -> None:
    reports = result.get("outputs")
    if as_json:
        plain = result | {"seconds": {name: s.as_dict() for name, s in result["seconds"].items()}}
        if "ratio" in result:
            plain["ratio"] = result["ratio"].as_dict()
        if reports is not None:
            plain["outputs"] = [asdict(o) for o in reports]
        if recorded is not None:
            plain["operators"] = [asdict(o) for o in recorded.operators]
        print_json("bench", plain)
        return
    shapes = ", ".join(f"{n}{s}" for n, s in result["inputs"].items())
    backends = f" with {', '.join(result['backends'])}" if result["backends"] else ""
    titles = _TITLES | {"graphkit": f"graphkit{backends}"}
    rows = [
        (titles[name], *(f"{1e3 * t:.4g}" for t in (s.p50, s.p90, s.p99, s.best)), s.runs)
        for name, s in result["seconds"].items()
    ]
    threads = result["threads"]
    training = result.get("training")
    what = result["model"] if training is None else f"{result['model']}, a training step"
    title = f"{what}: {shapes}; {threads} thread{'s' * (threads > 1)} on {result['device']}"
    print_table(title, ["milliseconds", "p50", "p90", "p99", "best", "runs"], rows)
    if "ratio" in result:
        ratio = result["ratio"]
        click.echo(
            f"{titles['graphkit']} runs at {ratio.median:.2f} times the speed of ONNX Runtime (95% interval "
            f"{ratio.low:.2f} to {ratio.high:.2f})"
        )
    if training is not None:
        speed, arena = training["samples_per_second"], human(training["arena_bytes"])
        click.echo(f"{speed:.4g} samples per second; arena {arena}")
    if reports and backends:
        click.echo(f"outputs of {titles['graphkit']}, compared with graphkit without backends:")
    for report in reports or ():
        click.echo(f"output {report}")
    if recorded is not None:
        print_table("time per operator", *recorded.table())
