"""graphkit simplify"""

from __future__ import annotations

from functools import partial
from typing import Any

import click

from graphkit.cli._groups import NETWORK, GroupedCommand, option
from graphkit.cli._images import image_options, images_of
from graphkit.cli._limits import Memory, limit_options
from graphkit.cli._options import (
    input_options,
    json_option,
    model_file_options,
    read_model,
    set_model_shapes,
    shape_option,
    shapes_of,
    tolerance_options,
    verify_option,
)
from graphkit.cli._output import log, print_json, print_table, show
from graphkit.errors import UsageError
from graphkit.loading import is_mxnet
from graphkit.text import human
from graphkit.transforms.simplify import FOLD_LIMIT, Simplified, simplify_onnx


class FoldLimit(Memory):
    """An amount of memory that may be 0."""

    def convert(self, value: str | int, param: click.Parameter | None, ctx: click.Context | None) -> int:
        return 0 if value in ("0", 0) else super().convert(value, param, ctx)


@click.command(cls=GroupedCommand)
@click.argument("model")
@click.argument("output")
@input_options
@partial(
    shape_option,
    text="Fix the shape of an input, such as x:1,3,224,224. Shape arithmetic that depends on it becomes constant.",
)
@option(
    "--fold-limit", group=NETWORK, type=FoldLimit(), default=FOLD_LIMIT, metavar="SIZE",
    help="Bytes that constants may add to the file. Values that would add more stay computed. Default: 1MB.",
)  # fmt: skip
@partial(verify_option, text="Run the original and the result in ONNX Runtime, and compare the outputs.")
@tolerance_options
@image_options
@partial(model_file_options, shapes=False)
@limit_options
@json_option
def command(
    model: str, output: str, inputs: tuple[str, ...], fill: str, seed: int, shapes: tuple[str, ...], fold_limit: int,
    check: bool, rtol: float | None, atol: float | None, external_root: str | None, as_json: bool, **image: Any,
) -> int:  # fmt: skip
    """Write MODEL (.onnx or .json) with fewer nodes to OUTPUT, and verify the result in ONNX Runtime.

    Constants and shape arithmetic are folded, equal nodes are merged, nodes that do nothing are removed, and batch
    normalisation is folded into the weights before it. OUTPUT contains standard operators of the same opset, and has no
    more nodes than MODEL.

    The comparison uses the given inputs; those that you do not give are generated (--fill). If the outputs differ,
    nothing is written, and the exit code is 1.

    \b
    graphkit simplify net.onnx small.onnx
    graphkit simplify net.onnx small.onnx --shape image:1,3,224,224
    graphkit simplify net.onnx small.onnx tokens=tokens.npy
    """
    if not output.endswith((".onnx", ".json")):
        raise UsageError(f"{output}: the name of the output file must end in .onnx or .json")
    if is_mxnet(model):
        set_model_shapes(click.get_current_context(), shapes_of(shapes, symbols=True))
    net = read_model(model, external_root)
    source = model if model.endswith(".onnx") else net
    found = simplify_onnx(source, shapes=shapes_of(shapes), fold_limit=fold_limit, external_root=external_root)
    verification = _verified(found, inputs, fill, seed, rtol, atol, image) if check else None
    passed = verification is None or verification.passed
    if passed:
        found.save(output)
    if as_json:
        result = {"file": output if passed else None, **found.as_dict()}
        result["verification"] = None if verification is None else verification.as_dict()
        print_json("simplify", result)
        return 0 if passed else 1
    _print_contents(found)
    if verification is not None:
        for item in verification.outputs:
            show(f"{item.name}: max error {item.max_abs:.3e}, {item.verdict}")
    if passed:
        log(f"wrote {output}" + ("" if check else "; not verified (--no-verify)"))
    else:
        log(f"{output} was not written: the outputs of the original and of the simplified model differ in ONNX Runtime")
    return 0 if passed else 1


def _verified(
    found: Simplified, inputs: tuple[str, ...], fill: str, seed: int, rtol: float | None, atol: float | None,
    image: dict[str, Any],
) -> Any:  # fmt: skip
    from graphkit.checks.simplified import verify_simplified
    from graphkit.checks.verify import random_nodes
    from graphkit.cli._inputs import feeds_for

    net = found.model
    if drawing := random_nodes(net):
        raise UsageError(
            f"a model that draws random numbers cannot be compared: {', '.join(drawing[:5])}; use --no-verify"
        )
    feeds = feeds_for(net, inputs, fill, seed, images_of(image))
    return verify_simplified(found, feeds.arrays, model=net, rtol=rtol, atol=atol)


def _print_contents(found: Simplified) -> None:
    """Print the number of nodes by operator, of initialisers, and of bytes, before and after."""
    before, after = found.before, found.after
    operators = sorted({*before.nodes, *after.nodes}, key=lambda name: (-before.nodes.get(name, 0), name))
    rows: list[tuple[str, Any, Any]] = [(o, before.nodes.get(o, 0), after.nodes.get(o, 0)) for o in operators]
    rows.append(("all nodes", before.node_count, after.node_count))
    rows.append(("initialisers", before.initializers, after.initializers))
    rows.append(("size", human(before.nbytes), human(after.nbytes)))
    print_table("Content of the model", ["", "before", "after"], rows)
