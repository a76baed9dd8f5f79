"""graphkit diff"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import click

from graphkit.cli._groups import COMPARISON, REPORTING, GroupedCommand, option
from graphkit.cli._images import image_options, images_of
from graphkit.cli._limits import limit_options
from graphkit.cli._options import (
    external_root_option,
    input_options,
    json_option,
    model_shape_option,
    read_model,
    tolerance_options,
    trust_option,
)
from graphkit.cli._output import print_json, print_table, show
from graphkit.errors import UsageError

if TYPE_CHECKING:
    from graphkit.checks.differences.result import Behaviour, ModelDiff

# Rows of each table without --all.
_ROWS = 20


@click.command(cls=GroupedCommand)
@click.argument("a")
@click.argument("b")
@input_options
@option(
    "--run", "ran", group=COMPARISON, is_flag=True,
    help="Also run both models on the same inputs, and compare the outputs.",
)  # fmt: skip
@partial(tolerance_options, where="With --run, where A is the reference: ")
@option(
    "--all", "whole", group=REPORTING, is_flag=True,
    help=f"Show all rows of each table, not only the first {_ROWS}.",
)  # fmt: skip
@image_options
@model_shape_option
@external_root_option
@partial(trust_option, folder="given as A or B", expose=False)
@limit_options
@json_option
def command(
    a: str, b: str, inputs: tuple[str, ...], fill: str, seed: int, ran: bool, rtol: float | None, atol: float | None,
    whole: bool, external_root: str | None, as_json: bool, **image: Any,
) -> int:  # fmt: skip
    """Compare two models A and B (.json, .onnx or run folders): structure, weights and metadata.

    Nodes are matched by structure and names, so that one inserted node is one difference. Names of inputs and outputs
    count. Other names of nodes, internal values and weights are listed, but are not a difference; nor are Identity
    nodes, and opset and producer of an .onnx file.

    With --run, both models get the same inputs (see graphkit run). Without --rtol and --atol, an output that is not
    within the default tolerances is also compared with A in double precision, as in graphkit verify.

    Exit code 0 if the models are equal, 1 if they differ, or if --run compares nothing because all outputs are empty or
    NaN.

    \b
    graphkit diff before.onnx after.onnx
    graphkit diff net.json net.onnx --run
    graphkit diff run1/ run2/ --json
    """
    from graphkit.checks.diff import diff

    if not ran and (inputs or rtol is not None or atol is not None):
        raise UsageError("inputs, --rtol and --atol only work with --run")
    if a == b == "-":
        raise UsageError("only one of both models can be read from stdin")
    one, other = read_model(a, external_root, best=True), read_model(b, external_root, best=True)
    given = None
    if ran:
        from graphkit.cli._inputs import feeds_for

        given = feeds_for(one, inputs, fill, seed, images_of(image), other).arrays
    found = diff(one, other, run=ran, inputs=given, fill=fill, seed=seed, rtol=rtol, atol=atol)
    if as_json:
        print_json("diff", {"a": a, "b": b, **found.as_dict()})
    else:
        _print(found, a, b, None if whole else _ROWS)
    return 0 if found.equal else 1


def _print(found: ModelDiff, a: str, b: str, most: int | None) -> None:
    show(f"A: {a}, {found.nodes[0]:,} nodes\nB: {b}, {found.nodes[1]:,} nodes, {found.matched:,} matched")
    for table in found.tables():
        if not table.rows:
            continue
        print_table(table.title, table.columns, table.rows[:most])
        if most is not None and len(table.rows) > most:
            show(f"... and {len(table.rows) - most:,} more (--all)")
    if found.behaviour is not None:
        _print_outputs(found.behaviour)
    show(found.summary)


def _print_outputs(ran: Behaviour) -> None:
    rows = [
        (o.name, f"{o.max_abs:.3e}", f"{o.mean_abs:.3e}", f"{o.max_rel:.3e}", o.verdict, o.criterion, o.formula)
        for o in ran.outputs
    ]
    heads = ("output", "max error", "mean error", "max relative error", "result", "decided by", "tolerance")
    if rows:
        print_table("outputs of B against A", heads, rows)
    for o in ran.outputs:
        if told := [str(part) for part in (o.noise, o.reason, o.untested) if part]:
            show(f"{o.name}: {'; '.join(told)}")
    if ran.reason:
        show(ran.reason)
