"""graphkit quantize"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import click

from graphkit.cli._compression import (
    Comparison,
    CompressionData,
    check_merged,
    check_output,
    comparison_options,
)
from graphkit.cli._finetuning import Finetuning, finetuning_options
from graphkit.cli._groups import COMPARISON, DATA, NETWORK, OPTIMISATION, GroupedCommand, option
from graphkit.cli._images import image_options, images_of
from graphkit.cli._limits import limit_options
from graphkit.cli._options import (
    batch_axis_option,
    check_needed,
    data_option,
    input_options,
    json_option,
    model_file_options,
    part_option,
    read_model,
    threads_option,
    tolerance_options,
    verify_option,
)
from graphkit.cli._output import log, print_table, show
from graphkit.cli._ranges import FloatRange, IntRange
from graphkit.errors import UsageError
from graphkit.onnx_io.quantise.scales import GRIDS
from graphkit.quantisation.aware import SCALES, as_quantized, has_quantised_weights
from graphkit.quantisation.quantize import BLOCK_SIZE, MODES, PERCENTILE, SAMPLES, Quantized, quantize
from graphkit.quantisation.ranges import METHODS
from graphkit.text import quantity

# Rows of the table of layers that stay in float.
_KEPT = 20


@click.command(cls=GroupedCommand)
@click.argument("model")
@click.argument("output")
@input_options
@option(
    "--data", "spec", group=DATA, metavar="DATA",
    help="Samples for calibration, in any form that graphkit evaluate takes (digits, a folder of images, .npz, .csv, "
    "...), or an .npy file, an image or a folder of images for graphkit predict. Needed for --mode static. If the data "
    "have a training part and a test part, the training part is used. If they have targets, the command also evaluates "
    "the model before and after.",
)  # fmt: skip
@part_option
@data_option
@batch_axis_option
@option(
    "--samples", group=DATA, type=IntRange(1), default=SAMPLES, show_default=True,
    help="Largest number of samples for calibration and for the difference of the outputs. They are evenly spaced.",
)  # fmt: skip
@option(
    "--mode", group=NETWORK, type=click.Choice(MODES), default="static", show_default=True,
    help="static: QDQ form, with scales of activations from calibration. dynamic: scales of activations are computed "
    "in each run. weights: only weights are quantised.",
)  # fmt: skip
@option(
    "--method", group=NETWORK, type=click.Choice(METHODS), default="minmax", show_default=True,
    help="How calibration finds the range of an activation: smallest and largest value, smallest KL divergence, or "
    "--percentile.",
)  # fmt: skip
@option(
    "--percentile", group=NETWORK, type=FloatRange(50, 100, min_open=True), default=PERCENTILE, show_default=True,
    help="For --method percentile: percentage of the values that the range contains.",
)  # fmt: skip
@option(
    "--activations", group=NETWORK, type=click.Choice(list(GRIDS)), default="uint8", show_default=True,
    help="For --mode static: type of activations. uint8 is asymmetric, int8 symmetric.",
)  # fmt: skip
@option(
    "--per-channel/--per-tensor", group=NETWORK, default=True, show_default=True,
    help="Whether each output channel of a weight has a scale, or each weight.",
)  # fmt: skip
@option(
    "--bits", group=NETWORK, type=click.Choice(["4", "8"]), default="8", show_default=True,
    help="For --mode weights: bits of a weight. 4 bits need blocks.",
)  # fmt: skip
@option(
    "--block-size", group=NETWORK, type=int,
    help="For --mode weights: number of weights of MatMul and Gemm that share a scale, a power of 2 of at least 16. "
    f"Default: {BLOCK_SIZE} for 4 bits, no blocks for 8 bits.",
)  # fmt: skip
@option(
    "--standard", group=NETWORK, is_flag=True,
    help="For --mode weights: write blocks with DequantizeLinear of opset 21, not with MatMulNBits of com.microsoft.",
)  # fmt: skip
@option(
    "--include", group=NETWORK, multiple=True, metavar="PATTERN",
    help="Quantise only layers whose name or operator fits, such as 'layer1*' or Conv. Repeatable.",
)  # fmt: skip
@option(
    "--exclude", group=NETWORK, multiple=True, metavar="PATTERN",
    help="Leave nodes in float whose name or operator fits. Repeatable.",
)  # fmt: skip
@comparison_options
@option(
    "--search", "searches", group=COMPARISON, is_flag=True,
    help="If the accuracy falls by more than --max-drop, find the layers that must stay in float. Each layer is "
    "quantised alone once, and the model is evaluated several times.",
)  # fmt: skip
@finetuning_options
@option(
    "--scales", group=OPTIMISATION, type=click.Choice(SCALES), default="fixed", show_default=True,
    help="For --finetune: keep all scales, or train them with the weights.",
)  # fmt: skip
@option(
    "--keep-zeros", group=OPTIMISATION, is_flag=True,
    help="For --finetune: weights that are 0 stay 0, as after graphkit prune.",
)  # fmt: skip
@partial(verify_option, text="Run the result in graphkit and in ONNX Runtime, and compare the outputs.")
@tolerance_options
@image_options
@threads_option
@model_file_options
@limit_options
@json_option
def command(
    model: str, output: str, inputs: tuple[str, ...], fill: str, seed: int, spec: str | None, part: str | None,
    data_options: tuple[str, ...], batch_axes: tuple[str, ...], samples: int, batch_size: int, mode: str, method: str,
    percentile: float, activations: str, per_channel: bool, bits: str, block_size: int | None, standard: bool,
    include: tuple[str, ...], exclude: tuple[str, ...], output_name: str | None, max_drop: float | None, searches: bool,
    times: bool, finetune: int | None, scales: str, keep_zeros: bool, check: bool, rtol: float | None,
    atol: float | None, threads: int | None, external_root: str | None, as_json: bool, **image: Any,
) -> int:  # fmt: skip
    """Quantise MODEL (.onnx, .json or a run folder) after training, and write it to OUTPUT (.onnx or .json).

    Convolutions and matrix products get int8 weights. With --mode static, they and the operators between them also run
    on 8-bit integers, with scales from calibration on DATA. Batch normalisation is folded first. Other nodes, names and
    metadata of an .onnx file stay.

    The command prints size, metrics on labelled DATA, and the difference of the outputs. It runs the result in graphkit
    and in ONNX Runtime. If the outputs differ, nothing is written, and the exit code is 1. Without --data, it uses the
    given inputs; those that you do not give are generated (--fill).

    \b
    graphkit quantize net.onnx small.onnx --data photos/
    graphkit quantize run/ small.onnx --data digits --method entropy --max-drop 0.01
    graphkit quantize bert.onnx small.onnx --mode dynamic
    graphkit quantize gpt.onnx small.onnx --mode weights --bits 4
    """
    finetuning = Finetuning.of(image, finetune)
    check_needed("--finetune", finetuning is not None, ("scales", "keep_zeros"))
    if finetuning is not None and mode == "dynamic":
        raise UsageError("--finetune does not work with --mode dynamic: use --mode static or --mode weights")
    check_output(output, model)
    if searches and (finetuning is not None or max_drop is None):
        raise UsageError(
            "--search needs the largest drop of the accuracy that is allowed (--max-drop), and works without --finetune"
        )
    net = read_model(model, external_root, best=True)
    check_merged(net, model)
    images = images_of(image)
    data = CompressionData.read(
        net, spec, part, data_options, batch_axes, samples, batch_size, images, finetunes=finetuning is not None,
        max_drop=max_drop, purpose="calibration",
    )  # fmt: skip
    compared = data.compared(net, inputs, fill, seed, images)

    source = model if model.endswith((".onnx", ".json")) else net

    def make(included: Sequence[str], excluded: Sequence[str]) -> Quantized:
        return quantize(
            source, data.samples if mode == "static" else None, mode=mode,
            method=method, percentile=percentile, activations=activations, per_channel=per_channel, bits=int(bits),
            block_size=block_size, standard=standard, include=included or include, exclude=[*exclude, *excluded],
            threads=threads, external_root=external_root, progress=None,
        )  # fmt: skip

    tunes_integers = finetuning is not None and has_quantised_weights(net.graph)
    if tunes_integers:
        log(f"{model}: the model has quantised weights, so it is fine-tuned and not quantised again")
    results = _Quantisation(
        net, as_quantized(source, external_root) if tunes_integers else make((), ()), compared, threads
    )
    results.generated = data.samples is None
    results.measure(data.labelled, output_name)
    if finetuning is not None:
        results = _finetuned(results, finetuning, data, output_name, scales, keep_zeros)
    elif searches and max_drop is not None and results.drop() > max_drop:
        results = _searched(results, make, data, output_name, max_drop)
    return results.finish(
        "quantize", model, output, results.found.notes, check=check, as_json=as_json, max_drop=max_drop, rtol=rtol,
        atol=atol, times=times,
    )  # fmt: skip


class _Quantisation(Comparison):
    """The comparison of a model before and after quantisation."""

    found: Quantized

    def report(self, model: str) -> None:
        """Print all tables."""
        found = self.found
        total = len(found.layers) + len(found.kept)
        title = f"{model}: {len(found.layers)} of {quantity(total, 'layer')} quantised ({found.mode})"
        self.print(title, "quantised")
        if found.kept:
            print_table("layers in float", ["layer", "operator", "reason"], found.kept[:_KEPT])
            if len(found.kept) > _KEPT:
                show(f"and {len(found.kept) - _KEPT} more")
        self.print_verification()


def _searched(
    results: _Quantisation, make: Callable[[Sequence[str], Sequence[str]], Quantized], data: CompressionData,
    output: str | None, max_drop: float,
) -> _Quantisation:  # fmt: skip
    """Return the model with the layers in float that the search finds."""
    from graphkit.quantisation.search import search_layers

    found = search_layers(
        results.found, make, lambda each: results.like(each).sqnr(),
        lambda each: results.like(each).evaluated(data.labelled, output).drop() <= max_drop, progress=None,
    )  # fmt: skip
    chosen = results.like(found)
    chosen.measure(data.labelled, output)
    return chosen


def _finetuned(
    results: _Quantisation, finetuning: Finetuning, data: CompressionData, output: str | None, scales: str,
    keep_zeros: bool,
) -> _Quantisation:  # fmt: skip
    """Return the fine-tuned model."""
    from graphkit.quantisation.aware import quantization_aware
    from graphkit.train.masks import zero_masks

    assert data.train is not None
    assert results.before is not None
    aware = quantization_aware(results.found, scales=scales)
    masks = zero_masks(aware.model) if keep_zeros else None
    finetuning.train(aware.model, data.train, results.before, threads=results.threads, masks=masks)
    tuned = results.tuned(aware.quantized())
    tuned.measure(data.labelled, output)
    return tuned
