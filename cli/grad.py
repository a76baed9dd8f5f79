"""graphkit grad"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from graphkit.cli._groups import GRADIENT, NETWORK, OUTPUT, GroupedCommand, option
from graphkit.cli._images import image_options, images_of
from graphkit.cli._inputs import Batch
from graphkit.cli._limits import limit_options
from graphkit.cli._options import input_options, json_option, model_file_options, read_model
from graphkit.cli._output import log, print_json, print_table, show
from graphkit.cli._training_step import SAMPLES, check_files, check_step_options, step_options, write_step
from graphkit.errors import UsageError
from graphkit.model import Model


@step_options
@click.command(cls=GroupedCommand)
@click.argument("model")
@input_options
@option(
    "--loss", "loss_specs", group=GRADIENT, multiple=True, metavar="NAME | OUTPUT=NAME",
    help="Add this loss function (softmax_cross_entropy, mse, ...) to the model, with an input `target` and an output "
    "`loss`. With --training-step: as for graphkit train, one OUTPUT=NAME for each of several outputs.",
)  # fmt: skip
@option(
    "--of", "of", group=GRADIENT, multiple=True, metavar="NAME",
    help="Output to differentiate; several are summed. Default: the loss (--loss), else all outputs. Repeatable.",
)  # fmt: skip
@option(
    "--wrt", "wrt", group=GRADIENT, multiple=True, metavar="NAME",
    help="Differentiate with respect to this input, parameter or internal value. Default: all trainable parameters; "
    "with --check, also all float inputs. Repeatable.",
)  # fmt: skip
@option(
    "--suffix", group=GRADIENT, default="_grad", show_default=True,
    help="Suffix of the names of gradients: the gradient of NAME is called NAME_grad.",
)  # fmt: skip
@option(
    "--straight-through", group=GRADIENT, is_flag=True,
    help="Straight-through estimator: give rounding (Round, Floor, Ceil, Sign, casts to integers and back) the "
    "gradient of the identity.",
)  # fmt: skip
@option(
    "-o", "--output", group=OUTPUT, type=click.Path(dir_okay=False),
    help="Write the gradient graph to this .json or .onnx file, or the training step to this .onnx file.",
)  # fmt: skip
@option(
    "--constants", group=NETWORK, is_flag=True,
    help="Also treat weights as parameters if the file stores them as Constant nodes.",
)  # fmt: skip
@option(
    "--joint-directions", "--together", "together", group=GRADIENT, is_flag=True,
    help="With --check: perturb all of --wrt at once, along random directions, instead of one after the other. Faster "
    "for many parameters.",
)  # fmt: skip
@option(
    "--check", group=GRADIENT, is_flag=True,
    help="Compare the gradients with numeric differentiation in float64. Exit code 1 if they differ.",
)  # fmt: skip
@image_options
@model_file_options
@limit_options
@json_option
def command(
    model: str, inputs: tuple[str, ...], fill: str, seed: int, loss_specs: tuple[str, ...], of: tuple[str, ...],
    wrt: tuple[str, ...], suffix: str, straight_through: bool, output: str | None, constants: bool, together: bool,
    check: bool, training_step: bool, external_root: str | None, as_json: bool, **further: Any,
) -> int:  # fmt: skip
    """Write the graph that computes the gradients of MODEL, or check them numerically.

    With --training-step, write a whole training step, with which other runtimes train. The arguments after MODEL are
    then the inputs and targets of the comparison with graphkit, and --seed is also the seed of dropout.

    \b
    graphkit grad net.json --loss softmax_cross_entropy -o grad.onnx
    graphkit grad net.onnx --wrt x --check
    graphkit grad net.onnx --training-step --optimizer adam --lr 1e-3 -o step.onnx
    """
    check_step_options(training_step)
    if training_step:
        if output is None:
            raise UsageError("--training-step also needs a file: -o step.onnx")
        check_files(output, model)
        net = read_model(model, external_root)
        if constants:
            net = _with_constants(net)
        # With inputs of the user, the sizes of generated ones must fit them.
        batch = Batch(inputs, images_of(further), None if inputs else SAMPLES, fill, seed)
        return write_step(net, output, batch, click.get_current_context().params)
    loss = _single_loss(loss_specs)
    return _gradients(
        model, inputs, fill, seed, loss, of, wrt, suffix, straight_through, output, constants, together, check,
        external_root, as_json, further,
    )  # fmt: skip


def _with_constants(net: Model) -> Model:
    from graphkit.train.imported import constants_to_parameters

    return constants_to_parameters(net)


def _single_loss(specs: tuple[str, ...]) -> str | None:
    """Return the loss of a gradient graph, or None."""
    if len(specs) > 1 or any("=" in spec for spec in specs):
        raise UsageError("--loss OUTPUT=NAME, and several losses, only work with --training-step; give one --loss NAME")
    return specs[0] if specs else None


def _gradients(
    model: str, inputs: tuple[str, ...], fill: str, seed: int, loss: str | None, of: tuple[str, ...],
    wrt: tuple[str, ...], suffix: str, straight_through: bool, output: str | None, constants: bool, together: bool,
    check: bool, external_root: str | None, as_json: bool, image: dict[str, Any],
) -> int:  # fmt: skip
    """Write or check a gradient graph. The arguments are those of the command."""
    from graphkit.cli._compression import check_output
    from graphkit.train.losses import with_loss
    from graphkit.transforms.gradients import grad

    if output is None and not check:
        raise UsageError("nothing to do: give -o FILE to write the gradient graph, --check to check it, or both")
    if check and straight_through:
        raise UsageError(
            "--check and --straight-through contradict each other: numeric differentiation finds the true derivative "
            "of rounding, which is 0. Leave out one of them"
        )
    if output is not None:
        check_output(output, model)
    net = read_model(model, external_root)
    if constants:
        net = _with_constants(net)
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
        heads = ["value", "max error", "max relative error", "result"]
        print_table("gradients against central differences in float64", heads, rows)
        if report.verdict == "NOT TESTED":
            show("no gradient was compared, because the inputs have no elements: give other shapes, as NAME:SHAPE")
    return 0 if report.passed else 1
