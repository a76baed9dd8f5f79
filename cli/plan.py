"""graphkit plan"""

from __future__ import annotations

import click

from graphkit.cli._options import external_root_option, json_option, read_model
from graphkit.cli._output import human_bytes, log, print_json, print_table

_PLANNERS = (("naive", False, False), ("in-place", True, False), ("co-share", False, True), ("both", True, True))


@click.command()
@click.argument("model")
@click.option(
    "--batch", type=click.IntRange(1), help="Size of the first dimension of every input, where it is symbolic."
)
@click.option("--shape", "shapes", multiple=True, metavar="NAME:SHAPE", help="Shape of one input; repeat.")
@click.option("--steps", is_flag=True, help="Print every step with its offsets.")
@click.option("--compare", is_flag=True, help="Also without in-place and without sharing: the four-way table.")
@external_root_option
@json_option
def command(
    model: str,
    batch: int | None,
    shapes: tuple[str, ...],
    steps: bool,
    compare: bool,
    external_root: str | None,
    as_json: bool,
) -> None:
    """Show how much memory a run of MODEL takes, and where the peak is.

    \b
    graphkit plan net.onnx --batch 64
    graphkit plan net.onnx --batch 64 --compare
    """
    from graphkit.checks.inputs import concrete_shapes
    from graphkit.cli._inputs import parse_shapes

    net = read_model(model, external_root)
    bound, guesses = concrete_shapes(net, parse_shapes(shapes), batch)
    if guesses:
        log("guessed dimensions: " + ", ".join(f"{k}={v}" for k, v in guesses.items()))
    plan = net.compile(shapes=bound).plan
    result = plan.to_dict() | {"model": net.name, "inputs": {n: list(s) for n, s in bound.items()}}
    result["parameter_bytes"] = sum(net.params[n].nbytes for n in net.params)
    if compare:
        result["compare"] = {
            label: net.compile(shapes=bound, inplace=inplace, share=share).plan.arena_bytes
            for label, inplace, share in _PLANNERS
        }
    if as_json:
        print_json("plan", result)
        return
    rows = [
        ("parameters", human_bytes(result["parameter_bytes"])),
        ("arena", human_bytes(plan.arena_bytes)),
        ("lower bound of this schedule", human_bytes(plan.lower_bound)),
        ("naive sum", human_bytes(plan.naive_bytes)),
        ("peak at node", plan.peak_node),
        ("steps", len(plan.steps)),
    ]
    print_table(f"{net.name}: " + ", ".join(f"{n}{list(s)}" for n, s in bound.items()), ["memory", ""], rows)
    if compare:
        print_table("arena with", ["planner", "bytes"], [(k, human_bytes(v)) for k, v in result["compare"].items()])
    if steps:
        click.echo(str(plan))
