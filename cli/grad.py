"""graphkit grad"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from graphkit.cli._images import image_options, images_of
from graphkit.cli._limits import limit_options
from graphkit.cli._options import external_root_option, input_options, json_option, read_model
from graphkit.cli._output import log, print_json, print_table, show
from graphkit.errors import UsageError


@click.command()
@click.argument("model")
@input_options
@click.option(
    "--loss", help="Attach this loss (softmax_cross_entropy, mse, ...) with an input `target`; its output is `loss`."
)
@click.option(
    "--of", "of", multiple=True, help="Outputs to differentiate (default: the loss, else all outputs, summed)."
)
@click.option(
    "--wrt", "wrt", multiple=True, help="Inputs, parameters or internal values (default: trainable parameters)."
)
@click.option(
    "--suffix", default="_grad", show_default=True, help="The gradient in NAME is called NAME and this suffix."
)
@click.option(
    "--straight-through",
    is_flag=True,
    help="Give rounding (Round, Floor, Ceil, Sign, casts to integers and back) the gradient of the identity.",
)
@click.option("-o", "--output", type=click.Path(dir_okay=False), help="Write the gradient graph: .json or .onnx.")
@click.option("--constants", is_flag=True, help="Take the weights that the file has as Constant nodes as parameters.")
@click.option(
    "--together",
    is_flag=True,
    help="With --check: all of --wrt along common directions at once, for networks of many parameters.",
)
@click.option(
    "--check", is_flag=True, help="Compare with numeric differentiation in float64. Exit code 1: they differ."
)
@image_options
@external_root_option
@limit_options
@json_option
def command(
    model: str, inputs: tuple[str, ...], fill: str, seed: int, loss: str | None, of: tuple[str, ...],
    wrt: tuple[str, ...], suffix: str, straight_through: bool, output: str | None, constants: bool, together: bool,
    check: bool, external_root: str | None, as_json: bool, **image: Any,
) -> int:  # fmt: skip
    """Write the graph that computes the gradients of MODEL, or check them numerically.

    \b
    graphkit grad net.json --loss softmax_cross_entropy -o grad.onnx
    graphkit grad net.onnx --wrt x --check
    """
    from graphkit.model import grad
    from graphkit.train.imported import constants_to_parameters
    from graphkit.train.losses import with_loss

    if output is None and not check:
        raise UsageError("nothing to do: give -o FILE, --check, or both")
    if check and straight_through:
        raise UsageError("--check compares with the true derivative of rounding, which --straight-through replaces")
    net = read_model(model, external_root)
    if constants:
        net = constants_to_parameters(net)
    if loss is not None:
        net = with_loss(net, loss)
        of = of or net.outputs[:1]
    gradients = grad(
        net,
        of=list(of) or None,
        wrt=list(wrt) or None,
        with_outputs=True,
        straight_through=straight_through,
        suffix=suffix,
    )
    if output is not None:
        gradients.save(Path(output))
        log(f"wrote {output}: {gradients!r}")
    result = {"file": output, "outputs": {n: str(t) for n, t in gradients.output_types.items()}}
    if not check:
        if as_json:
            print_json("grad", result)
        return 0
    from graphkit.checks.gradcheck import check_gradient
    from graphkit.cli._inputs import feeds_for

    feeds = feeds_for(net, inputs, fill, seed, images_of(image))
    report = check_gradient(net, feeds.arrays, of=list(of) or None, wrt=list(wrt) or None, together=together)
    if as_json:
        print_json("grad", result | asdict(report) | {"passed": report.passed, "verdict": report.verdict})
    else:
        rows = [(e.name, f"{e.max_abs:.2e}", f"{e.max_rel:.2e}", e.verdict) for e in report.entries]
        print_table(
            "gradients against central differences in float64", ["value", "max error", "max relative", "result"], rows
        )
        if report.verdict == "NOT TESTED":
            show("no gradient was compared: the inputs have no elements")
    return 0 if report.passed else 1
