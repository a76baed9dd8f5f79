"""graphkit bench"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click
import numpy as np

from graphkit.cli._options import device_options, external_root_option, input_options, json_option, read_model
from graphkit.cli._output import log, print_json, print_table

# Rounds that are compared pairwise; without --runs each engine has about SECONDS of timed runs.
_ROUNDS = 20
_SECONDS = 3.0
_TITLES = {"graphkit": "graphkit", "onnxruntime": "ONNX Runtime"}


@click.command()
@click.argument("model")
@input_options
@click.option(
    "--against", type=click.Choice(["onnxruntime", "nothing"]), default="onnxruntime", show_default=True,
    help="The engine to compare with, run by run in turns.",
)  # fmt: skip
@click.option("--batch", type=click.IntRange(1), help="Size of the first dimension of inputs, where it is symbolic.")
@click.option(
    "--runs", type=click.IntRange(1), help="Timed runs of each engine, at least (default: as many as take 3 seconds)."
)
@click.option("--rtol", type=click.FloatRange(min=0), default=None, help="Relative tolerance of the outputs.")
@click.option("--atol", type=click.FloatRange(min=0), default=None, help="Absolute tolerance of the outputs.")
@device_options
@external_root_option
@json_option
def command(
    model: str, inputs: tuple[str, ...], fill: str, seed: int, against: str, batch: int | None, runs: int | None,
    rtol: float | None, atol: float | None, device: str, threads: int | None, external_root: str | None, as_json: bool,
) -> int:  # fmt: skip
    """Time MODEL: percentiles of graphkit's runs and of ONNX Runtime's, and how many times as fast graphkit is.

    The engines take turns in rounds, each warmed up before it is timed; the ratio is the median over rounds of paired
    medians, with its 95% interval. Outputs are compared first. Exit code 1: they differ.

    \b
    graphkit bench net.onnx --batch 16 --threads 4
    graphkit bench net.onnx x:1,3,224,224 --against nothing --runs 200
    """
    from graphkit import config
    from graphkit.checks import timing
    from graphkit.checks.inputs import concrete_shapes, make_feeds
    from graphkit.checks.verify import compare_outputs, random_nodes
    from graphkit.cli._inputs import parse_inputs

    net = read_model(model, external_root)
    threads = threads or config.num_threads()
    given, shapes = parse_inputs(net, inputs)
    known = shapes | {name: np.shape(array) for name, array in given.items()}
    shapes, guesses = concrete_shapes(net, known, batch)
    if guesses:
        log("guessed dimensions: " + ", ".join(f"{k}={v}" for k, v in guesses.items()))
    shapes = {name: shape for name, shape in shapes.items() if name not in given}
    feeds = make_feeds(net, fill, given=given, shapes=shapes, seed=seed).arrays

    executor = net.compile(device, threads=threads)
    outputs = executor.run(feeds)
    calls: dict[str, Callable[[], object]] = {"graphkit": lambda: executor.run(feeds)}
    result: dict[str, Any] = {"model": net.name, "device": device, "threads": threads}
    result["inputs"] = {n: list(a.shape) for n, a in feeds.items() if isinstance(a, np.ndarray)}
    result["fallbacks"] = executor.plan.fallbacks
    if executor.plan.fallbacks:
        log(f"without a native kernel: {', '.join(executor.plan.fallbacks)}")
    if against == "onnxruntime":
        from graphkit.onnx_io.compare import OnnxRuntimeModel, runtime_version

        other = OnnxRuntimeModel(model if model.endswith(".onnx") else net.to_onnx(), threads)
        calls["onnxruntime"] = other.bound(feeds)
        result["onnxruntime"] = runtime_version()
        if drawing := random_nodes(net):
            log(f"outputs are not compared, because random numbers are drawn: {', '.join(drawing)}")
            result["outputs"] = None
        else:
            result["outputs"] = compare_outputs(outputs, other.run(feeds), rtol, atol)

    per_round = {"seconds": _SECONDS / _ROUNDS} if runs is None else {"runs": -(-runs // _ROUNDS)}
    rounds = _ROUNDS if runs is None else -(-runs // per_round["runs"])
    times = timing.interleave(calls, rounds, **per_round)  # type: ignore[arg-type]
    result["rounds"] = rounds
    result["seconds"] = {name: timing.summarise(t) for name, t in times.items()}
    if against == "onnxruntime":
        result["ratio"] = timing.paired_ratio([timing.quotients(times["onnxruntime"], times["graphkit"])])
    _report(result, as_json)
    return 1 if any(not o.passed for o in result.get("outputs") or ()) else 0


def _report(result: dict[str, Any], as_json: bool) -> None:
    reports = result.get("outputs")
    if as_json:
        from dataclasses import asdict

        plain = result | {"seconds": {name: s.as_dict() for name, s in result["seconds"].items()}}
        if "ratio" in result:
            plain["ratio"] = result["ratio"].as_dict()
        if reports is not None:
            plain["outputs"] = [asdict(o) for o in reports]
        print_json("bench", plain)
        return
    shapes = ", ".join(f"{n}{s}" for n, s in result["inputs"].items())
    rows = [
        (_TITLES[name], *(f"{1e3 * t:.4g}" for t in (s.p50, s.p90, s.p99, s.best)), s.runs)
        for name, s in result["seconds"].items()
    ]
    threads = result["threads"]
    title = f"{result['model']}: {shapes}; {threads} thread{'s' * (threads > 1)} on {result['device']}"
    print_table(title, ["milliseconds", "p50", "p90", "p99", "best", "runs"], rows)
    if "ratio" in result:
        ratio = result["ratio"]
        click.echo(f"graphkit is {ratio.median:.2f} times as fast (95% interval {ratio.low:.2f} to {ratio.high:.2f})")
    for report in reports or ():
        click.echo(f"output {report}")
