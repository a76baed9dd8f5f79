"""graphkit export"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import click

from graphkit.cli._adapters import adapter_option, with_adapters
from graphkit.cli._groups import DATA, OUTPUT, PRECISION, GroupedCommand, option
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
from graphkit.cli._output import log, print_json, rounding_bar
from graphkit.cli._ranges import IntRange
from graphkit.cli._reduced_precision import check_options, export
from graphkit.cli.verify import print_report
from graphkit.errors import UsageError
from graphkit.loading import is_mxnet
from graphkit.model import Model
from graphkit.passes.training.to_training import to_inference
from graphkit.quantisation.reduced_precision import PRECISIONS, SAMPLES
from graphkit.text import human, quantity
from graphkit.train.adapter_marks import has_adapters


@click.command(cls=GroupedCommand)
@click.argument("model")
@input_options
@option(
    "-o", "--output", group=OUTPUT, type=click.Path(dir_okay=False), required=True,
    help="Output file, .onnx; or .gkp, a program for libgraphkit.so.",
)  # fmt: skip
@option(
    "--also", group=OUTPUT, multiple=True, metavar="INPUTS",
    help="With a .gkp file: other inputs, such as x:8,64, separated by spaces. The file gets one more program, for "
    "their sizes. Repeatable.",
)  # fmt: skip
@option(
    "--batch", "sizes", group=OUTPUT, metavar="N,...",
    help="With a .gkp file: numbers of rows, such as 1,8,32. The file gets a program for each of them, and runs "
    "batches of any size in parts. The rows must be independent. Default: 1,8,32, if no inputs are given and the rows "
    "of MODEL are independent.",
)  # fmt: skip
@option(
    "--any-size", group=OUTPUT, is_flag=True,
    help="With a .gkp file: also write a program for any sizes of symbolic axes, such as the length of texts. Not all "
    "operators allow it. The file then has the weights twice.",
)  # fmt: skip
@partial(opset_option, what="model")
@option(
    "--for", "purpose", group=OUTPUT, type=click.Choice(["inference"]), default=None,
    help="inference: switch BatchNormalization and Dropout to inference mode. Default: keep the mode that they have in "
    "MODEL.",
)  # fmt: skip
@adapter_option
@option(
    "--merge-adapters/--keep-adapters", "merge", group=OUTPUT, default=True, show_default=True,
    help="If the model has LoRA adapters: merge them into the weights, or write them as separate nodes.",
)  # fmt: skip
@option(
    "--precision", group=PRECISION, type=click.Choice(list(PRECISIONS)),
    help="Let most nodes compute in float16 or bfloat16, and store weights in 2 bytes. Inputs, outputs, sums, "
    "normalisations, loops and branches stay float32; with fp16, also nodes whose values on DATA or the inputs are too "
    "large or too small for float16.",
)  # fmt: skip
@option(
    "--keep-float32", group=PRECISION, multiple=True, metavar="PATTERN",
    help="With --precision: nodes whose name or operator fits stay in float32. Repeatable.",
)  # fmt: skip
@option(
    "--data", "spec", group=DATA, metavar="DATA",
    help="With --precision: samples on which values are measured, in any form that graphkit evaluate or graphkit "
    "predict takes. If they have targets, the command also evaluates the model before and after.",
)  # fmt: skip
@option(
    "--samples", group=DATA, type=IntRange(1), default=SAMPLES, show_default=True,
    help="Largest number of samples for measuring. They are evenly spaced.",
)  # fmt: skip
@partial(
    verify_option,
    text="Run the file in ONNX Runtime, and compare the outputs. A .gkp file is run by libgraphkit.so, and all bits "
    "must be equal.",
)
@image_options
@model_file_options
@limit_options
@json_option
def command(
    model: str, inputs: tuple[str, ...], fill: str, seed: int, output: str, also: tuple[str, ...], sizes: str | None,
    any_size: bool, opset: int | None, purpose: str | None, adapters: tuple[str, ...], merge: bool,
    precision: str | None, keep_float32: tuple[str, ...], spec: str | None, samples: int, check: bool,
    external_root: str | None, as_json: bool, **image: Any,
) -> int:  # fmt: skip
    """Write MODEL as standard ONNX, and verify the file in ONNX Runtime; or write a compiled program for C.

    MODEL is a .json or .onnx file, a run folder, or a file of MXNet: net-symbol.json, which is read with the newest
    net-0010.params of its folder, or the .params file of an epoch. A .params file after a symbol has its parameters.

    The command compares the outputs of the model and the file for the given inputs. Inputs that you do not give are
    generated (--fill). Exit code 1 if the outputs differ. Merged adapters are compared with the model before merging.
    With --precision, a file whose outputs differ is not written.

    A .gkp file is a program for the sizes of the given inputs, and for CPUs of the kind of this one. libgraphkit.so
    runs it from C, without Python; see graphkit build --c-runtime. With --also, it has programs for several sizes; with
    --batch, it runs batches of any size; with --any-size, inputs of any size.

    \b
    graphkit export run/ -o net.onnx
    graphkit export net.json -o net.onnx --opset 17
    graphkit export in_training.onnx -o net.onnx --for inference
    graphkit export base.onnx -o net.onnx --adapter run/
    graphkit export net.onnx -o half.onnx --precision fp16 --data photos/ --keep-float32 head
    graphkit export run/ audio:1,576 rate=rate.npy -o net.onnx
    graphkit export resnet-symbol.json -o resnet.onnx --shape data:N,3,224,224
    graphkit export run/ image:1,3,224,224 --also image:8,3,224,224 -o net.gkp
    graphkit export net.onnx -o net.gkp --batch 1,8,32
    """
    _check_output(output, precision, opset, {"--also": also, "--batch": sizes, "--any-size": any_size})
    check_options(precision)
    original = net = read_model(model, external_root, best=True)
    if purpose == "inference":
        net = Model.from_graph(to_inference(net.graph), net.params.entries())
    written = net = with_adapters(net, adapters)
    if not merge and not has_adapters(net.graph):
        raise UsageError(f"--keep-adapters: the model {net.name!r} has no adapters; leave out this option")
    if merge and has_adapters(net.graph):
        from graphkit.train.adapters.merge import merge_lora

        written = merge_lora(net)
        log("merged the adapters into the weights; --keep-adapters writes them as nodes of their own")
    if precision is not None:
        is_file = written is original and opset is None and model.endswith((".onnx", ".json")) and not is_mxnet(model)
        return export(written, model if is_file else written, images_of(image), click.get_current_context().params)
    from graphkit.cli._inputs import feeds_for

    is_program = output.endswith(".gkp")
    given = [inputs, *(tuple(each.split()) for each in also)] if check or is_program else []
    feeds = [feeds_for(net, each, fill, seed, images_of(image)).arrays for each in given]
    if is_program:
        batch = _batch_sizes(written, output, sizes, is_default=not any(given))
        save = {"batch": batch, "any_size": any_size}
        return _export_program(written, output, feeds, save, check, as_json)
    return _export_onnx(net, written, output, feeds[0] if check else None, opset, as_json)


def _export_onnx(
    net: Model, written: Model, output: str, feeds: dict[str, Any] | None, opset: int | None, as_json: bool
) -> int:
    """Write an .onnx file of `written`. If `feeds` are given, compare its outputs with those of `net`."""
    from graphkit.checks.verify import verify
    from graphkit.onnx_io.validate import opset_version

    written.save(Path(output), opset=opset)
    log(f"wrote {output}: {written!r}")
    if feeds is not None:
        with rounding_bar() as progress:
            report = verify(net, feeds, against=output, progress=progress)
        print_report(report, as_json)
        return 0 if report.passed else 1
    if as_json:
        print_json("export", {"file": output, "opset": opset or opset_version(output), "verified": False})
    return 0


def _batch_sizes(net: Model, output: str, sizes: str | None, *, is_default: bool) -> list[int] | None:
    """Return the numbers of rows of the programs. None: those of the inputs.

    is_default: No inputs are given, so the model decides.
    """
    from graphkit.executor.run.saved_batch import DEFAULT_SIZES, find_batch, has_batch_axis

    if sizes is not None:
        try:
            return [int(each) for each in sizes.split(",")]
        except ValueError:
            raise UsageError(f"--batch {sizes}: numbers of rows are expected, such as 1,8,32") from None
    if not is_default or not has_batch_axis(net.graph):
        return None
    batched, why = find_batch(net.graph, [{}])
    if batched:
        return list(DEFAULT_SIZES)
    log(f"{output}: only for the sizes of the inputs, not for batches of any size: {why}")
    return None


def _export_program(
    net: Model, output: str, feeds: list[dict[str, Any]], save: dict[str, Any], check: bool, as_json: bool
) -> int:
    """Write a .gkp file with a program for the shapes of each entry of `feeds`.

    save: The arguments `batch` and `any_size` of save_program.
    check: Whether the outputs are compared with Python's.
    """
    from graphkit.executor.run.saved_program import save_program

    shapes = [{name: array.shape for name, array in each.items() if hasattr(array, "shape")} for each in feeds]
    options = {"graph": net.graph, "params": net.params}
    facts = save_program(options, Path(output), shapes, feeds if check else [], **save)
    log(f"wrote {output}: {quantity(facts.steps, 'step')}, {human(facts.nbytes)}")
    if facts.inputs:
        log(f"{output}: runs inputs of the shapes {'; '.join(facts.sizes)}")
    if check:
        log(f"{output}: libgraphkit.so computes the same bits as Python")
    if as_json:
        print_json("export", {"file": output, "verified": check})
    return 0


def _check_output(output: str, precision: str | None, opset: int | None, programs: dict[str, Any]) -> None:
    """Raise UsageError for an output file of an unknown format, and for options that its format lacks.

    programs: The options of .gkp files, by name.
    """
    if not output.endswith((".onnx", ".gkp")):
        raise UsageError(f"-o {output}: the name of the output file must end in .onnx or .gkp")
    if output.endswith(".gkp") and (precision is not None or opset is not None):
        raise UsageError(f"-o {output}: --precision and --opset are for .onnx files; first write one of these")
    given = [name for name, value in programs.items() if value]
    if given and not output.endswith(".gkp"):
        raise UsageError(f"-o {output}: {given[0]} is for .gkp files")
