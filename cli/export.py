"""graphkit export"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from graphkit.cli._images import image_options, images_of
from graphkit.cli._limits import limit_options
from graphkit.cli._options import external_root_option, input_options, json_option, read_model
from graphkit.cli._output import log, print_json
from graphkit.cli.verify import print_report
from graphkit.errors import UsageError
from graphkit.model import Model
from graphkit.passes.training.to_training import to_inference


@click.command()
@click.argument("model")
@input_options
@click.option("-o", "--output", type=click.Path(dir_okay=False), required=True, help="The .onnx file to write.")
@click.option(
    "--opset", type=int, default=None, help="Target opset, 13 or newer (default: the first from 21 on that is enough)."
)
@click.option(
    "--for",
    "purpose",
    type=click.Choice(["inference"]),
    default=None,
    help="inference: put BatchNormalization and Dropout into inference mode (default: as they are in MODEL).",
)
@click.option(
    "--verify/--no-verify", "check", default=True, show_default=True, help="Compare the file with ONNX Runtime."
)
@image_options
@external_root_option
@limit_options
@json_option
def command(
    model: str, inputs: tuple[str, ...], fill: str, seed: int, output: str, opset: int | None, purpose: str | None,
    check: bool, external_root: str | None, as_json: bool, **image: Any,
) -> int:  # fmt: skip
    """Write MODEL (.json, .onnx or a training folder) as standard ONNX, and prove that it computes the same.

    The inputs are those of the proof; what is not given is filled.

    \b
    graphkit export run/ -o net.onnx
    graphkit export net.json -o net.onnx --opset 17
    graphkit export in_training.onnx -o net.onnx --for inference
    graphkit export run/ audio:1,576 rate=rate.npy -o net.onnx
    """
    if not output.endswith(".onnx"):
        raise UsageError(f"{output}: the file to export to ends in .onnx")
    net = read_model(model, external_root, best=True)
    if purpose == "inference":
        net = Model.from_graph(to_inference(net.graph), net.params.entries())
    net.save(Path(output), opset=opset)
    log(f"wrote {output}: {net!r}")
    if check:
        from graphkit.checks.verify import verify
        from graphkit.cli._inputs import feeds_for

        report = verify(net, feeds_for(net, inputs, fill, seed, images_of(image)).arrays, against=output)
        print_report(report, as_json)
        return 0 if report.passed else 1
    if as_json:
        from graphkit.onnx_io.validate import opset_version

        print_json("export", {"file": output, "opset": opset or opset_version(output), "verified": False})
    return 0
