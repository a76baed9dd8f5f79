"""graphkit prune"""

from __future__ import annotations

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
from graphkit.cli._groups import DATA, NETWORK, OUTPUT, GroupedCommand, option
from graphkit.cli._images import image_options, images_of
from graphkit.cli._limits import limit_options
from graphkit.cli._options import (
    batch_axis_option,
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
from graphkit.cli._output import print_table, show
from graphkit.cli._ranges import FloatRange, IntRange
from graphkit.quantisation.quantize import SAMPLES
from graphkit.text import quantity
from graphkit.transforms.prune import SCOPES, Pruned, prune

# Rows of each table of layers.
_ROWS = 40


@click.command(cls=GroupedCommand)
@click.argument("model")
@input_options
@option(
    "-o", "--output", group=OUTPUT, required=True, type=click.Path(dir_okay=False), help="Output file, .onnx or .json."
)
@option(
    "--sparsity", group=NETWORK, type=FloatRange(0, 1, min_open=True, max_open=True), metavar="SHARE",
    help="Share of the weights that become 0, such as 0.5.",
)  # fmt: skip
@option(
    "--pattern", group=NETWORK, metavar="N:M",
    help="Instead of --sparsity: of M consecutive weights along the axis that the layer sums over, the N largest stay, "
    "such as 2:4.",
)  # fmt: skip
@option(
    "--scope", group=NETWORK, type=click.Choice(SCOPES), default="global", show_default=True,
    help="Whether --sparsity is the share of all weights together, or of the weight of each layer.",
)  # fmt: skip
@option(
    "--include", group=NETWORK, multiple=True, metavar="PATTERN",
    help="Prune only layers whose name or operator fits, such as 'layer1*' or Conv. Repeatable.",
)  # fmt: skip
@option(
    "--exclude", group=NETWORK, multiple=True, metavar="PATTERN",
    help="Do not prune layers whose name or operator fits. Repeatable.",
)  # fmt: skip
@option(
    "--data", "spec", group=DATA, metavar="DATA",
    help="Samples on which outputs are compared, in any form that graphkit evaluate or graphkit predict takes. If they "
    "have targets, the command also evaluates the model before and after. Needed for --finetune.",
)  # fmt: skip
@part_option
@data_option
@batch_axis_option
@option(
    "--samples", group=DATA, type=IntRange(1), default=SAMPLES, show_default=True,
    help="Largest number of samples for the difference of the outputs. They are evenly spaced.",
)  # fmt: skip
@comparison_options
@finetuning_options
@partial(verify_option, text="Run the result in graphkit and in ONNX Runtime, and compare the outputs.")
@tolerance_options
@image_options
@threads_option
@model_file_options
@limit_options
@json_option
def command(
    model: str, inputs: tuple[str, ...], fill: str, seed: int, output: str, sparsity: float | None, pattern: str | None,
    scope: str, include: tuple[str, ...], exclude: tuple[str, ...], spec: str | None, part: str | None,
    data_options: tuple[str, ...], batch_axes: tuple[str, ...], samples: int, batch_size: int, output_name: str | None,
    max_drop: float | None, times: bool, finetune: int | None, check: bool, rtol: float | None, atol: float | None,
    threads: int | None, external_root: str | None, as_json: bool, **image: Any,
) -> int:  # fmt: skip
    """Set the smallest weights of MODEL (.onnx, .json or a run folder) to 0. With --finetune, train the others.

    Weights of convolutions and matrix products are pruned. Biases, other nodes, names and metadata of an .onnx file
    stay. --finetune trains on DATA, and pruned weights stay 0.

    The command prints the zeros of each layer, metrics on labelled DATA, and the difference of the outputs. It runs the
    result in graphkit and in ONNX Runtime. If the outputs differ, nothing is written, and the exit code is 1. Without
    --data, it uses the given inputs; those that you do not give are generated (--fill).

    \b
    graphkit prune net.onnx -o sparse.onnx --sparsity 0.5 --data digits
    graphkit prune run/ -o sparse.onnx --sparsity 0.8 --scope layer --data digits --finetune 5 --max-drop 0.01
    graphkit prune net.onnx -o sparse.onnx --pattern 2:4 --include 'fc*'
    """
    finetuning = Finetuning.of(image, finetune)
    check_output(output, model)
    net = read_model(model, external_root, best=True)
    check_merged(net, model)
    source = model if model.endswith((".onnx", ".json")) else net
    found = prune(
        source, sparsity, pattern=pattern, scope=scope, include=include, exclude=exclude, external_root=external_root
    )
    images = images_of(image)
    data = CompressionData.read(
        net, spec, part, data_options, batch_axes, samples, batch_size, images, finetunes=finetuning is not None,
        max_drop=max_drop, purpose="the difference of the outputs",
    )  # fmt: skip
    results = _Pruning(net, found, data.compared(net, inputs, fill, seed, images), threads)
    results.generated = data.samples is None
    results.measure(data.labelled, output_name)
    if finetuning is not None:
        assert data.train is not None
        assert results.before is not None
        finetuning.train(found.model, data.train, results.before, threads=threads, masks=found.masks)
        results = results.tuned(found.trained())
        results.measure(data.labelled, output_name)
    return results.finish(
        "prune", model, output, results.found.notes, check=check, as_json=as_json, max_drop=max_drop, rtol=rtol,
        atol=atol, times=times,
    )  # fmt: skip


class _Pruning(Comparison):
    """The comparison of a model before and after pruning."""

    found: Pruned

    def report(self, model: str) -> None:
        """Print all tables."""
        found = self.found
        size, before = (sum(getattr(w, name) for w in found.weights) for name in ("size", "zeros_before"))
        self.print(
            f"{model}: {quantity(len(found.weights), 'weight')} pruned; zeros: {before / size:.1%} before, "
            f"{found.sparsity:.1%} after",
            "pruned",
        )
        print_table(
            "zeros of each weight", ["weight", "layers", "elements", "before", "after"],
            [
                (w.name, ", ".join(w.layers), f"{w.size:,}", *(f"{n / w.size:.1%}" for n in (w.zeros_before, w.zeros)))
                for w in found.weights[:_ROWS]
            ],
        )  # fmt: skip
        if len(found.weights) > _ROWS:
            show(f"and {len(found.weights) - _ROWS} more")
        if found.kept:
            print_table("layers that are not pruned", ["layer", "operator", "reason"], found.kept[:_ROWS])
            if len(found.kept) > _ROWS:
                show(f"and {len(found.kept) - _ROWS} more")
        self.print_verification()
