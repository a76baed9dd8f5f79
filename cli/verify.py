"""graphkit verify"""

from __future__ import annotations

from typing import Any

import click

from graphkit.cli._images import image_options, images_of
from graphkit.cli._limits import limit_options
from graphkit.cli._options import external_root_option, input_options, json_option, read_model
from graphkit.cli._output import print_json, print_table, show


@click.command()
@click.argument("model")
@input_options
@image_options
@click.option("--rtol", type=click.FloatRange(min=0), default=None, help="Relative tolerance.")
@click.option("--atol", type=click.FloatRange(min=0), default=None, help="Absolute tolerance.")
@click.option(
    "--strict-tolerance",
    is_flag=True,
    help="Let the tolerances alone decide. Where --rtol or --atol is given they do so anyway.",
)
@click.option("--opset", type=int, default=None, help="Export at this opset for ONNX Runtime.")
@external_root_option
@limit_options
@json_option
def command(
    model: str, inputs: tuple[str, ...], fill: str, seed: int, rtol: float | None, atol: float | None,
    strict_tolerance: bool, opset: int | None, external_root: str | None, as_json: bool,
    **image: Any,
) -> int:  # fmt: skip
    """Run MODEL in graphkit and in ONNX Runtime on the same inputs and compare every output.

    Exit code 1: they differ, or no output had a number to compare.

    An output that is not within the tolerances (1e-4 relative, 1e-5 absolute for float32) is held against double
    precision: it passes when graphkit is no more than twice as far from that as ONNX Runtime is.

    \b
    graphkit verify net.onnx
    graphkit verify net.json x:4,1,8,8 --fill arange --rtol 1e-5
    """
    from graphkit.checks.verify import verify
    from graphkit.cli._inputs import feeds_for

    net = read_model(model, external_root, best=True)
    # A file is proved as it is: ONNX Runtime runs it, not a new export of what was read from it.
    against = model if model.endswith(".onnx") and opset is None else None
    feeds = feeds_for(net, inputs, fill, seed, images_of(image))
    report = verify(
        net, feeds.arrays, rtol=rtol, atol=atol, opset=opset, against=against,
        strict_tolerance=strict_tolerance or None,
    )  # fmt: skip
    print_report(report, as_json)
    return 0 if report.passed else 1


def print_report(report: Any, as_json: bool) -> None:
    """Per output: errors, verdict, formula, the tolerances that pass; then the verdict on all."""
    if as_json:
        print_json("verify", report.as_dict())
        return
    rows = [
        (
            o.name, f"{o.max_abs:.3e}", f"{o.mean_abs:.3e}", f"{o.max_rel:.3e}", o.verdict, o.criterion, o.formula,
            f"atol {o.needed_atol:.1e} or rtol {o.needed_rtol:.1e}",
        )
        for o in report.outputs
    ]  # fmt: skip
    print_table(
        "graphkit against ONNX Runtime",
        ["output", "max error", "mean error", "max relative", "result", "by", "formula", "passes with"],
        rows,
    )
    for o in report.outputs:
        if told := [str(part) for part in (o.noise, o.reason, o.untested) if part]:
            show(f"{o.name}: {'; '.join(told)}")
    if report.verdict == "NOT TESTED":
        show("nothing was compared: give inputs for which the outputs have numbers")
    click.echo(f"opset {report.opset}: {report.verdict}")
