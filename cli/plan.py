"""graphkit plan"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import click

from graphkit.cli._groups import INPUTS, OUTPUT, PROCESSES, REPORTING, GroupedCommand, option
from graphkit.cli._limits import limit_options
from graphkit.cli._options import (
    backend_option,
    device_of,
    device_options,
    json_option,
    model_file_options,
    read_model,
    set_model_shapes,
)
from graphkit.cli._output import log, print_json, print_table, show
from graphkit.cli._ranges import IntRange
from graphkit.cli._training import check_training, trainer_of, training_options
from graphkit.errors import UnsupportedError, UsageError
from graphkit.ir.atomic import write_whole
from graphkit.loading import is_mxnet
from graphkit.text import human

# Name in JSON, name in the table, whether steps work in place, whether values reuse buffers.
_PLANNERS = (
    ("naive", "none", False, False), ("in-place", "in-place steps", True, False),
    ("co-share", "buffer reuse", False, True), ("both", "both", True, True),
)  # fmt: skip


@click.command(cls=GroupedCommand)
@click.argument("model")
@option(
    "--batch",
    group=INPUTS,
    type=IntRange(1),
    help="Batch size: the first dimension of inputs, if it is symbolic.",
)
@option("--shape", "shapes", group=INPUTS, multiple=True, metavar="NAME:SHAPE", help="Shape of an input. Repeatable.")
@training_options
@option(
    "--processes", group=PROCESSES, type=IntRange(1), default=1, show_default=True,
    help="With --training: number of processes over which the optimizer states are sharded (--shard-optimizer of "
    "graphkit train).",
)  # fmt: skip
@option(
    "--steps",
    group=REPORTING,
    is_flag=True,
    help="Print every step, and the offsets of its values in the arena (the memory block of all activations).",
)
@option(
    "--compare", group=REPORTING, is_flag=True,
    help="Also print the size of the arena for four settings: neither in-place steps nor buffer reuse, only in-place "
    "steps, only buffer reuse (a value gets the memory of values that are no longer needed), and both.",
)  # fmt: skip
@option(
    "--html", group=OUTPUT, type=click.Path(dir_okay=False),
    help="Write an HTML page with a picture of memory addresses over time to this file.",
)  # fmt: skip
@option(
    "--run/--no-run", "measured", group=REPORTING, default=True, show_default=True,
    help="Also run the model, and measure its memory (--run), or only plan (--no-run).",
)  # fmt: skip
@device_options
@backend_option
@partial(model_file_options, shapes=False)
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
    backends: Any,
    external_root: str | None,
    as_json: bool,
) -> None:
    """Show how much memory a run of MODEL needs, and at which node the peak is.

    \b
    graphkit plan net.onnx --batch 64
    graphkit plan net.onnx --batch 64 --compare --no-run
    graphkit plan net.onnx --html memory.html
    graphkit plan net.onnx --backend onnxruntime
    graphkit plan net.onnx --training --batch 16 --recompute sqrt
    graphkit plan net.onnx --training --batch 16 --optimizer adam --processes 4
    """
    from graphkit.checks.inputs import concrete_shapes
    from graphkit.cli._inputs import parse_shapes
    from graphkit.dist.collectives.gpu import sum_route
    from graphkit.executor.run.session import Executor

    if is_mxnet(model):
        set_model_shapes(click.get_current_context(), parse_shapes(shapes))
    net = read_model(model, external_root)
    check_training(training)
    if processes > 1 and not training:
        raise UsageError("--processes only works with --training: inference has no optimizer states to shard")
    switches: dict[str, Any] = {"device": device_of(device), "threads": threads, "backends": backends}
    # The subject is a Model or a Trainer: both have a graph.
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
        result |= {"processes": processes, "optimizer_state_bytes": subject.optimizer_state_bytes(processes)}
        if processes > 1 and device.partition(":")[0] == "cuda":
            result["sums"] = sum_route(processes)
    if html is not None:
        write_whole(Path(html), [plan.to_html(title).encode()])
        log(f"wrote {html}")
    if compare:
        result["compare"] = {
            label: Executor(graph, executor.params, inplace=inplace, share=share, **switches)
            .specialise(bound)
            .arena_bytes
            for label, _, inplace, share in _PLANNERS
        }
    if measured:
        result |= _measure(subject, executor, bound)
    if backends:
        result["backends"] = [decision._asdict() for decision in executor.backend_decisions]
    if as_json:
        print_json("plan", result)
        return
    print_table(title, ["quantity", "value"], _rows(plan, result))
    if compare:
        rows = [(shown, human(result["compare"][label])) for label, shown, *_ in _PLANNERS]
        print_table("size of the arena", ["setting", "size"], rows)
    if steps:
        show(str(plan))
    if backends:
        show(_explained(executor))


def _explained(executor: Any) -> str:
    from graphkit.backend import explain

    return explain(executor)


def _measure(subject: Any, executor: Any, shapes: dict[str, tuple[int, ...]]) -> dict[str, int]:
    """Run on random inputs and measure the memory. Returns {} and logs the reason if that is not possible."""
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
    among = f", per process of {result['processes']}" if result["processes"] > 1 else ""
    return [(f"optimizer states{among}", human(result["optimizer_state_bytes"]))]


def _rows(plan: Any, result: dict[str, Any]) -> list[tuple[str, Any]]:
    times = f" ({plan.naive_bytes / plan.arena_bytes:.1f} times the arena)" if plan.arena_bytes else ""
    rows = [
        ("parameters and running statistics", human(result["parameter_bytes"])),
        *_optimizer_states(result),
        ("weights packed for kernels", human(plan.packed_bytes)),
        ("outputs", human(plan.result_bytes)),
        ("activations", human(plan.activation_bytes)),
        ("working memory of a step", human(plan.scratch_bytes)),
        ("arena", human(plan.arena_bytes)),
        ("lower bound, in this order of steps", human(plan.lower_bound)),
        ("lower bound, in the order of the graph", human(plan.plain_lower_bound)),
        ("naive sum, without buffer reuse", human(plan.naive_bytes) + times),
        ("peak at node", plan.peak_node),
        ("steps", len(plan.steps)),
        ("interpreted steps", len(plan.fallbacks)),
    ]
    rows += [(f"copied, {way}", human(nbytes)) for way, nbytes in plan.copied_bytes().items()]
    if plan.examples is not None:
        rows.append(("examples at a time", f"{plan.examples[0]} of {plan.examples[1]}"))
    if "sums" in result:
        rows.append(("all-reduce of gradients", result["sums"]))
    if "run_measured_bytes" in result:
        rows += [
            ("one run, planned", human(result["run_planned_bytes"])),
            ("one run, measured", human(result["run_measured_bytes"])),
            ("first run with preparation, measured", human(result["first_run_bytes"])),
        ]
    return rows
