"""graphkit verify"""

from __future__ import annotations

import math
from typing import Any

import click

from graphkit.cli._groups import COMPARISON, GroupedCommand, option
from graphkit.cli._images import image_options, images_of
from graphkit.cli._limits import limit_options
from graphkit.cli._options import input_options, json_option, model_file_options, read_model
from graphkit.cli._output import print_json, print_table, show
from graphkit.cli._ranges import FloatRange


@click.command(cls=GroupedCommand)
@click.argument("model")
@input_options
@image_options
@option(
    "--rtol", group=COMPARISON, type=FloatRange(min=0), default=None,
    help="Relative tolerance. Default: by element type, 1e-4 for float32.",
)  # fmt: skip
@option(
    "--atol", group=COMPARISON, type=FloatRange(min=0), default=None,
    help="Absolute tolerance. Default: by element type, 1e-5 for float32.",
)  # fmt: skip
@option(
    "--strict-tolerance", group=COMPARISON, is_flag=True,
    help="Decide by the tolerances only, without double precision. --rtol and --atol imply it.",
)  # fmt: skip
@option(
    "--opset", group=COMPARISON, type=int, default=None,
    help="Export MODEL with this opset for ONNX Runtime. Default: if MODEL is an .onnx file, ONNX Runtime runs "
    "that file itself. Any other MODEL is exported with the opset that graphkit export chooses.",
)  # fmt: skip
@model_file_options
@limit_options
@json_option
def command(
    model: str, inputs: tuple[str, ...], fill: str, seed: int, rtol: float | None, atol: float | None,
    strict_tolerance: bool, opset: int | None, external_root: str | None, as_json: bool,
    **image: Any,
) -> int:  # fmt: skip
    """Run MODEL in graphkit and in ONNX Runtime on the same inputs, and compare all outputs.

    If an output is not within the tolerances, both engines are compared with the result in double precision. The output
    passes if the error of graphkit is at most twice that of ONNX Runtime, and the error of ONNX Runtime is at most 16
    times that of graphkit. graphkit also measures how much rounding alone can change the output. A large change raises
    the limit for ONNX Runtime; in quantised models, it raises both limits.

    Exit code 1 if the outputs differ, or nothing can be compared because all outputs are empty or NaN.

    \b
    graphkit verify net.onnx
    graphkit verify net.json x:4,1,8,8 --fill arange --rtol 1e-5
    """
    from graphkit.checks.verify import verify
    from graphkit.cli._inputs import feeds_for

    net = read_model(model, external_root, best=True)
    # ONNX Runtime runs the given file itself, not a new export of it.
    against = model if model.endswith(".onnx") and opset is None else None
    feeds = feeds_for(net, inputs, fill, seed, images_of(image))
    report = verify(
        net, feeds.arrays, rtol=rtol, atol=atol, opset=opset, against=against,
        strict_tolerance=strict_tolerance or None,
    )  # fmt: skip
    print_report(report, as_json)
    return 0 if report.passed else 1


def print_report(report: Any, as_json: bool) -> None:
    """Print a row per output (errors, result, formula, smallest tolerances that pass), then the result of all."""
    if as_json:
        print_json("verify", report.as_dict())
        return
    rows = [
        (
            o.name, f"{o.max_abs:.3e}", f"{o.mean_abs:.3e}", f"{o.max_rel:.3e}", o.verdict, o.criterion, o.formula,
            _needed(o),
        )
        for o in report.outputs
    ]  # fmt: skip
    print_table(
        "graphkit against ONNX Runtime",
        [
            "output",
            "max error",
            "mean error",
            "max relative error",
            "result",
            "decided by",
            "tolerance",
            "needed tolerance",
        ],
        rows,
    )  # fmt: skip
    for o in report.outputs:
        if told := [str(part) for part in (o.noise, o.reason, o.untested) if part]:
            show(f"{o.name}: {'; '.join(told)}")
    if report.verdict == "NOT TESTED":
        show("nothing was compared: give inputs for which the outputs have elements that are not NaN")
    click.echo(f"opset {report.opset}: {report.verdict}")


def _needed(output: Any) -> str:
    """Return the smallest tolerances that pass: an atol with the rtol of the formula, or an rtol with its atol."""
    if output.max_abs == 0:
        return "none"
    enough = [name for name, other in (("rtol", output.needed_atol), ("atol", output.needed_rtol)) if other == 0]
    if len(enough) == 2:
        return "either rtol or atol"
    if enough:
        return f"only {enough[0]}"
    needed = (("atol", output.needed_atol), ("rtol", output.needed_rtol))
    found = " or ".join(f"{name} {value:.1e}" for name, value in needed if math.isfinite(value))
    return found or "no tolerance is enough"
