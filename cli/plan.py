"""graphkit plan"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from graphkit.cli._limits import limit_options
from graphkit.cli._options import device_of, device_options, json_option, model_file_options, read_model
from graphkit.cli._output import log, print_json, print_table, show
from graphkit.cli._training import check_training, trainer_of, training_options
from graphkit.errors import UnsupportedError, UsageError
from graphkit.ir.atomic import write_whole
from graphkit.text import human

_PLANNERS = (("naive", False, False), ("in-place", True, False), ("co-share", False, True), ("both", True, True))


@click.command()
@click.argument("model")
@click.option(
    "--batch", type=click.IntRange(1), help="Size of the first dimension of every input, where it is symbolic."
)
@click.option("--shape", "shapes", multiple=True, metavar="NAME:SHAPE", help="Shape of one input; repeat.")
@training_options
@click.option(
    "--processes",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="With --training: the optimizer's states where so many processes divide them (train --shard-optimizer).",
)
@click.option("--steps", is_flag=True, help="Print every step with its offsets.")
@click.option("--compare", is_flag=True, help="Also without in-place and without sharing: the four-way table.")
@click.option(
    "--html", type=click.Path(dir_okay=False), help="Write a page that draws time against address to this file."
)
@click.option("--run/--no-run", "measured", default=True, help="Run and measure (the default), or only plan.")
@device_options
@model_file_options
@limit_options
@json_option
def command(
    model: str,
    batch: int | None,
    shapes: tuple[str, ...],
    training: bool,
    loss: str,
    optimizer: str,
    recompute: str | int | None,
    swap_memory: bool,
    processes: int,
    steps: bool,
    compare: bool,
    html: str | None,
    measured: bool,
    device: str,
    threads: int | None,
    external_root: str | None,
    as_json: bool,
) -> None:
    """Show how much memory a run of MODEL takes, and where the peak is.

    \b
    graphkit plan net.onnx --batch 64
    graphkit plan net.onnx --batch 64 --compare --no-run
    graphkit plan net.onnx --html memory.html
    graphkit plan net.onnx --training --batch 16 --recompute sqrt
    graphkit plan net.onnx --training --batch 16 --optimizer adam --processes 4
    """
    from graphkit.checks.inputs import concrete_shapes
    from graphkit.cli._inputs import parse_shapes
    from graphkit.dist.sums.joined import outlook
    from graphkit.executor.run.session import Executor

    net = read_model(model, external_root)
    check_training(training, recompute, swap_memory)
    if processes > 1 and not training:
        raise UsageError("--processes is for --training: inference has no optimizer's states to divide")
    switches: dict[str, Any] = {"device": device_of(device), "threads": threads}
    # A Trainer has a graph and plans it, as a model does.
    memory = {"recompute": recompute, "swap_memory": swap_memory}
    subject: Any = trainer_of(net, loss, optimizer, **memory, **switches) if training else net
    bound, guesses = concrete_shapes(subject, parse_shapes(shapes), batch)
    if guesses:
        log("guessed dimensions: " + ", ".join(f"{k}={v}" for k, v in guesses.items()))
    if training:
        plan, executor = subject.plan(bound), subject.executor
        graph = subject.graph
    else:
        executor = net.compile(shapes=bound, **switches)
        plan, graph = executor.plan, net.graph
    what = f"{net.name}, a training step" if training else net.name
    title = f"{what}: " + ", ".join(f"{n}{list(s)}" for n, s in bound.items())
    result = plan.to_dict() | {"model": net.name, "inputs": {n: list(s) for n, s in bound.items()}}
    result["parameter_bytes"] = sum(net.params.entry(n).nbytes for n in net.params)
    if training:
        result |= {"processes": processes, "optimizer_state_bytes": subject.slot_bytes(processes)}
        if processes > 1 and device.partition(":")[0] == "cuda":
            result["sums"] = outlook(processes)
    if html is not None:
        write_whole(Path(html), [plan.to_html(title).encode()])
        log(f"wrote {html}")
    if compare:
        result["compare"] = {
            label: Executor(graph, executor.params, inplace=inplace, share=share, **switches)
            .specialise(bound)
            .arena_bytes
            for label, inplace, share in _PLANNERS
        }
    if measured:
        result |= _measure(subject, executor, bound)
    if as_json:
        print_json("plan", result)
        return
    print_table(title, ["memory", ""], _rows(plan, result))
    if compare:
        print_table("arena with", ["planner", "bytes"], [(k, human(v)) for k, v in result["compare"].items()])
    if steps:
        show(str(plan))


def _measure(subject: Any, executor: Any, shapes: dict[str, tuple[int, ...]]) -> dict[str, int]:
    """A real run on random inputs beside the plan; nothing, and why, where there is no measuring."""
    from graphkit.checks.footprint import measure
    from graphkit.checks.inputs import make_feeds

    try:
        found = measure(executor, make_feeds(subject, shapes=shapes).arrays)
    except UnsupportedError as error:
        log(f"not measured: {error}")
        return {}
    return {
        "run_planned_bytes": found.planned_bytes,
        "run_measured_bytes": found.measured_bytes,
        "first_run_bytes": found.first_bytes,
    }


def _optimizer_states(result: dict[str, Any]) -> list[tuple[str, str]]:
    if "optimizer_state_bytes" not in result:
        return []
    among = f", of each of {result['processes']} processes" if result["processes"] > 1 else ""
    return [(f"optimizer states{among}", human(result["optimizer_state_bytes"]))]


def _rows(plan: Any, result: dict[str, Any]) -> list[tuple[str, Any]]:
    times = f" ({plan.naive_bytes / plan.arena_bytes:.1f} times the arena)" if plan.arena_bytes else ""
    rows = [
        ("parameters", human(result["parameter_bytes"])),
        *_optimizer_states(result),
        ("packed by kernels", human(plan.packed_bytes)),
        ("results", human(plan.result_bytes)),
        ("activations", human(plan.activation_bytes)),
        ("working memory of a step", human(plan.scratch_bytes)),
        ("arena", human(plan.arena_bytes)),
        ("lower bound of this schedule", human(plan.lower_bound)),
        ("lower bound of the plain order", human(plan.plain_lower_bound)),
        ("naive sum", human(plan.naive_bytes) + times),
        ("peak at node", plan.peak_node),
        ("steps", len(plan.steps)),
        ("interpreted steps", len(plan.fallbacks)),
    ]
    rows += [(f"copied, {way}", human(nbytes)) for way, nbytes in plan.copied_bytes().items()]
    if plan.examples is not None:
        rows.append(("examples at a time", f"{plan.examples[0]} of {plan.examples[1]}"))
    if "sums" in result:
        rows.append(("sums of gradients", result["sums"]))
    if "run_measured_bytes" in result:
        rows += [
            ("a run, planned", human(result["run_planned_bytes"])),
            ("a run, measured", human(result["run_measured_bytes"])),
            ("the first run, which prepares", human(result["first_run_bytes"])),
        ]
    return rows
