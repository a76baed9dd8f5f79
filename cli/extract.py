"""graphkit extract"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from graphkit.cli._groups import NETWORK, OUTPUT, GroupedCommand, option
from graphkit.cli._images import image_options, images_of
from graphkit.cli._limits import limit_options
from graphkit.cli._options import (
    input_options,
    json_option,
    model_file_options,
    opset_option,
    read_model,
    verify_option,
)
from graphkit.cli._output import log, print_json
from graphkit.cli.verify import print_report
from graphkit.errors import UsageError
from graphkit.loading import load
from graphkit.model import Model
from graphkit.text import listed

if TYPE_CHECKING:
    from graphkit.checks.verify import Report
    from graphkit.data.images.feeding import Said


@click.command(cls=GroupedCommand)
@click.argument("model")
@input_options
@option(
    "--input", "cuts", group=NETWORK, multiple=True, metavar="NAME",
    help="Input of the part: an input, parameter or internal value of MODEL. If you give this option, name all data "
    "inputs of the part. Default: the inputs of MODEL that the outputs need. Repeatable.",
)  # fmt: skip
@option(
    "--output", "results", group=NETWORK, multiple=True, metavar="NAME",
    help="Output of the part: an output or internal value of MODEL. Default: all outputs of MODEL that depend on "
    "--input. Repeatable.",
)  # fmt: skip
@option("-o", "file", group=OUTPUT, type=click.Path(dir_okay=False), required=True, help="Output file, .onnx or .json.")
@partial(opset_option, what="part")
@partial(verify_option, text="Read the file again, run it in ONNX Runtime, and compare the outputs.")
@image_options
@model_file_options
@limit_options
@json_option
def command(
    model: str, inputs: tuple[str, ...], fill: str, seed: int, cuts: tuple[str, ...], results: tuple[str, ...],
    file: str, opset: int | None, check: bool, external_root: str | None, as_json: bool, **image: Any,
) -> int:  # fmt: skip
    """Write the part of MODEL (.json, .onnx or a run folder) that computes --output from --input.

    `graphkit inspect MODEL --text` lists the names of values. Parameters keep their names, values and roles. If the
    outputs need further inputs, the error names them.

    The part is verified with real values: graphkit runs MODEL on its own inputs, which are given or generated (--fill),
    to compute the inputs of the part. Exit code 1 if the outputs differ.

    \b
    graphkit extract net.onnx --output features -o backbone.onnx
    graphkit extract net.onnx --input features -o head.onnx
    graphkit extract net.onnx --input encoder_out --input mask --output logits -o decoder.json
    """
    from graphkit.transforms.extract import extract, lost_updates

    if not file.endswith((".onnx", ".json")):
        raise UsageError(f"-o {file}: the name of the output file must end in .onnx or .json")
    if opset is not None and not file.endswith(".onnx"):
        raise UsageError(f"--opset only works with an .onnx file, not with {file}")
    if not cuts and not results:
        raise UsageError(
            "give --input NAME, --output NAME, or both; graphkit inspect MODEL --text lists the names of values"
        )
    net = read_model(model, external_root, best=True)
    part = extract(net, list(results) or None, list(cuts) or None)
    if file.endswith(".onnx"):
        part.save(Path(file), opset=opset)
    else:
        part.save(Path(file))
    log(f"wrote {file}: {part!r}")
    lost = lost_updates(net, part)
    if lost:
        log(f"not updated in the part, because their new values need other inputs: {listed(lost, len(lost), 8)}")
    result = {
        "file": file,
        "inputs": {name: str(kind) for name, kind in part.input_types.items()},
        "outputs": {name: str(kind) for name, kind in part.output_types.items()},
        "nodes": len(part.graph.nodes),
        "nodes_of_model": len(net.graph.nodes),
        "not_updated": list(lost),
        "verified": False,
    }
    if not check:
        if as_json:
            print_json("extract", result)
        return 0
    report = _verified(net, part, file, inputs, fill, seed, images_of(image))
    if as_json:
        print_json("extract", result | {"verified": report.passed} | report.as_dict())
    else:
        print_report(report, as_json)
    return 0 if report.passed else 1


def _verified(net: Model, part: Model, file: str, texts: tuple[str, ...], fill: str, seed: int, images: Said) -> Report:
    """Compare the written file in ONNX Runtime with graphkit, on inputs that the whole model computes."""
    from graphkit.checks.verify import verify
    from graphkit.cli._inputs import feeds_for

    feeds = _part_feeds(net, part, feeds_for(net, texts, fill, seed, images).arrays)
    if file.endswith(".onnx"):
        return verify(part, feeds, against=file)
    return verify(load(file), feeds)


def _part_feeds(net: Model, part: Model, feeds: Mapping[str, Any]) -> dict[str, Any]:
    """Return arrays for the inputs of the part: inputs of the model, and internal values that a run of it computes."""
    cut = {name: net.graph.find(name, inputs_first=True) for name in part.inputs if name not in feeds}
    if not cut:
        return {name: feeds[name] for name in part.inputs}
    before = Model(cut, name=net.name)
    computed = before.run({name: feeds[name] for name in before.inputs})
    return {name: feeds[name] if name in feeds else computed[name] for name in part.inputs}
