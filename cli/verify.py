"""graphkit verify"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from graphkit.cli._adapters import adapter_option, with_adapters
from graphkit.cli._groups import COMPARISON, OUTPUT, GroupedCommand, option
from graphkit.cli._images import image_options, images_of
from graphkit.cli._limits import limit_options
from graphkit.cli._options import ENGINES, input_options, json_option, model_file_options, read_model, tolerance_options
from graphkit.cli._output import log, print_json, print_table, rounding_bar, show
from graphkit.errors import UsageError
from graphkit.loading import is_onnx_file
from graphkit.model import Model
from graphkit.text import quantity

if TYPE_CHECKING:
    from graphkit.checks.findings import Bisection, ValueDifference


@click.command(cls=GroupedCommand)
@click.argument("model")
@input_options
@image_options
@tolerance_options
@option(
    "--strict-tolerance", group=COMPARISON, is_flag=True,
    help="Decide by the tolerances only, without double precision. --rtol and --atol imply it.",
)  # fmt: skip
@option(
    "--opset", group=COMPARISON, type=int, default=None,
    help="Export MODEL with this opset for ONNX Runtime. Default: if MODEL is an .onnx file, ONNX Runtime runs "
    "that file itself. Any other MODEL is exported with the opset that graphkit export chooses.",
)  # fmt: skip
@option(
    "--against", group=COMPARISON, metavar="MODEL", default=None,
    help="Compare MODEL with this model (.onnx, .json or a run folder), not with itself in another engine.",
)  # fmt: skip
@option(
    "--engine", group=COMPARISON, type=click.Choice(ENGINES), default=None,
    help="Engine that runs MODEL. Default: graphkit.",
)  # fmt: skip
@option(
    "--against-engine", group=COMPARISON, type=click.Choice(ENGINES), default=None,
    help="Engine that runs the other side. Default: onnxruntime for an ONNX file, graphkit for a .json file or a run "
    "folder; without --against, the engine that does not run MODEL.",
)  # fmt: skip
@option(
    "--bisect", "bisects", group=COMPARISON, is_flag=True,
    help="Find the first node whose results differ beyond measured noise.",
)  # fmt: skip
@option(
    "-o", "--output", group=OUTPUT, type=click.Path(dir_okay=False), default=None,
    help="With --bisect: write the nodes that differ to this .onnx file, and their inputs to an .npz file next to it.",
)  # fmt: skip
@adapter_option
@model_file_options
@limit_options
@json_option
def command(
    model: str, inputs: tuple[str, ...], fill: str, seed: int, rtol: float | None, atol: float | None,
    strict_tolerance: bool, opset: int | None, against: str | None, engine: str | None, against_engine: str | None,
    bisects: bool, output: str | None, adapters: tuple[str, ...], external_root: str | None, as_json: bool,
    **image: Any,
) -> int:  # fmt: skip
    """Run MODEL in graphkit and in ONNX Runtime on the same inputs, and compare all outputs.

    If an output is not within the tolerances, both engines are compared with the result in double precision. The output
    passes if the error of graphkit is at most twice that of ONNX Runtime, and the error of ONNX Runtime is at most 16
    times that of graphkit. graphkit also measures how much rounding alone can change the output. A large change raises
    the limit for ONNX Runtime; in quantised models, it raises both limits.

    With --against, two models are compared. Inputs and outputs are matched by name, else by position. If the precisions
    of the models differ, the limits come from the lower precision. This also holds for one file whose nodes compute in
    float16 and whose outputs are float32, as graphkit export --precision fp16 writes it.

    With --bisect, the values of all nodes are compared in topological order. The command names the first node that
    differs, and says whether it differs given equal inputs or whether the error grew on the way.

    Exit code 1 if the outputs differ, or nothing can be compared because all outputs are empty or NaN.

    \b
    graphkit verify net.onnx
    graphkit verify net.json x:4,1,8,8 --fill arange --rtol 1e-5
    graphkit verify net.onnx --against net_float16.onnx
    graphkit verify net.onnx --against tuned/ --engine graphkit --against-engine graphkit
    graphkit verify net.onnx --bisect -o suspect.onnx
    graphkit verify base.onnx --adapter tuned/ --against merged.onnx
    """
    from graphkit.cli._inputs import feeds_for

    if output is not None and not bisects:
        raise UsageError(f"-o {output}: only --bisect writes a file")
    if bisects and strict_tolerance:
        raise UsageError("--strict-tolerance cannot be combined with --bisect; give --rtol or --atol")
    net = with_adapters(read_model(model, external_root, best=True), adapters)
    other = None if against is None else read_model(against, external_root, best=True)
    feeds = feeds_for(net, inputs, fill, seed, images_of(image), other).arrays
    if against is not None and against_engine is None and is_onnx_file(against):
        against_engine = "onnxruntime"
    # ONNX Runtime runs the given files themselves, not new exports of them. A model with adapters is exported.
    settings: dict[str, Any] = dict(
        rtol=rtol, atol=atol, opset=opset, engine=engine, against_engine=against_engine, against=other,
        source=None if adapters else _file(model, opset), against_source=_file(against, opset),
    )  # fmt: skip
    if bisects:
        return _bisect(net, feeds, output, as_json, settings)
    from graphkit.checks.verify import verify

    with rounding_bar() as progress:
        report = verify(net, feeds, strict_tolerance=strict_tolerance or None, progress=progress, **settings)
    print_report(report, as_json)
    return 0 if report.passed else 1


def _file(model: str | None, opset: int | None) -> str | None:
    """Return the path of a model; None if it came from stdin, or is exported with another opset."""
    return None if model in (None, "-") or opset is not None else model


def _bisect(net: Model, feeds: Mapping[str, Any], output: str | None, as_json: bool, settings: dict[str, Any]) -> int:
    from graphkit.checks.bisect import bisect
    from graphkit.train.progress import ProgressBar

    with ProgressBar() as bar:
        done = 0

        def progress(compared: int, total: int) -> None:
            nonlocal done
            if done == 0:
                bar.start("values compared", total, transient=True)
            for _ in range(compared - done):
                bar.advance()
            done = compared

        result = bisect(net, feeds, output=output, progress=progress, **settings)
    print_bisection(result, as_json)
    return 0 if result.passed else 1


def print_bisection(result: Bisection, as_json: bool) -> None:
    """Print the node that differs, its inputs and outputs, and the files that were written."""
    if as_json:
        print_json("bisect", result.as_dict())
        return
    for note in result.notes:
        show(note)
    for file in result.files:
        log(f"wrote {file}")
    found = result.found
    if found is not None:
        print_table(
            f"node {found.node} ({found.operator}): {result.sides[0]} against {result.sides[1]}",
            ["value", "name", "dtype", "shape", "max error", "max relative error", "NaN", "infinite"],
            [
                *(_difference("input", value) for value in found.inputs),
                *(_difference("output", value) for value in found.outputs),
            ],
        )  # fmt: skip
        for line in found.explanation():
            show(line)
        if result.command:
            show(f"shown by: {result.command}")
    if result.unmatched:
        show(f"{quantity(result.unmatched, 'result')} of nodes without a counterpart on the other side: not compared")
    if result.verdict == "NOT TESTED":
        show("nothing was compared: give inputs for which the values have elements that are not NaN")
    click.echo(f"{quantity(result.compared, 'value')} compared: {result.verdict}")


def _difference(kind: str, value: ValueDifference) -> tuple[str, ...]:
    types = value.dtype if value.dtype == value.other_dtype else f"{value.dtype}, {value.other_dtype}"
    counts = (" and ".join(map(str, pair)) if any(pair) else "" for pair in (value.nan, value.infinite))
    return (kind, value.name, types, str(list(value.shape)), f"{value.max_abs:.3e}", f"{value.max_rel:.3e}", *counts)


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
    for note in report.notes:
        show(note)
    print_table(
        f"{report.sides[0]} against {report.sides[1]}",
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
    click.echo(report.verdict if report.opset is None else f"opset {report.opset}: {report.verdict}")


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
