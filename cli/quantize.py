"""graphkit quantize"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from graphkit.cli._groups import COMPARISON, DATA, LOSS, NETWORK, GroupedCommand, option
from graphkit.cli._images import image_options, images_of
from graphkit.cli._limits import limit_options
from graphkit.cli._options import (
    data_option,
    input_options,
    json_option,
    model_file_options,
    read_model,
    source_options,
    threads_option,
    tolerance_options,
    verify_option,
)
from graphkit.cli._output import log, print_json, print_table, show
from graphkit.cli._ranges import FloatRange, IntRange
from graphkit.errors import UsageError
from graphkit.onnx_io.quantise.scales import GRIDS
from graphkit.quantisation.quantize import BATCH_SIZE, BLOCK_SIZE, MODES, PERCENTILE, SAMPLES, Quantized, quantize
from graphkit.quantisation.ranges import METHODS
from graphkit.text import human, quantity

if TYPE_CHECKING:
    from graphkit.data import Dataset
    from graphkit.data.images.feeding import Said
    from graphkit.inference.evaluation import Evaluation
    from graphkit.model import Model
    from graphkit.quantisation.calibration import Samples
    from graphkit.quantisation.difference import OutputDifference

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
@option(
    "--part", group=DATA, type=click.Choice(["all", "train", "test"]),
    help="Part of the data for the evaluation. Default: the test part if the data have one, otherwise all samples.",
)  # fmt: skip
@data_option
@option(
    "--batch-axis", "batch_axes", group=DATA, multiple=True, metavar="INPUT=AXIS",
    help="AXIS is the batch dimension of INPUT, if that is not 0. INPUT=none: INPUT has no batch dimension. Only for "
    ".npz files. Repeatable.",
)  # fmt: skip
@option(
    "--samples", group=DATA, type=IntRange(1), default=SAMPLES, show_default=True,
    help="Largest number of samples for calibration and for the difference of the outputs. They are evenly spaced.",
)  # fmt: skip
@option("--batch-size", group=DATA, type=IntRange(1), default=BATCH_SIZE, show_default=True, help="Samples per batch.")
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
@option(
    "--output-name", "output_name", group=LOSS, metavar="NAME",
    help="Output that the evaluation compares with the targets. Needed if several outputs can be compared with them.",
)  # fmt: skip
@option(
    "--max-drop", group=COMPARISON, type=FloatRange(0, 1), metavar="SHARE",
    help="Write nothing, with exit code 1, if the accuracy on DATA falls by more than this, such as 0.01.",
)  # fmt: skip
@option(
    "--search", "searches", group=COMPARISON, is_flag=True,
    help="If the accuracy falls by more than --max-drop, find the layers that must stay in float. Each layer is "
    "quantised alone once, and the model is evaluated several times.",
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
    check: bool, rtol: float | None, atol: float | None, threads: int | None, external_root: str | None, as_json: bool,
    **image: Any,
) -> int:  # fmt: skip
    """Quantise MODEL (.onnx, .json or a run folder) after training, and write it to OUTPUT (.onnx or .json).

    Convolutions and matrix products get int8 weights. With --mode static, they and the operators between them also run
    on 8-bit integers, with scales from calibration on DATA. Batch normalisation is folded first. Other nodes, names and
    metadata of an .onnx file stay.

    The command prints size, metrics on labelled DATA, and the difference of the outputs. It runs the result in graphkit
    and in ONNX Runtime. If the outputs differ, nothing is written, and the exit code is 1. Without --data, the inputs
    are used for this; those that you do not give are generated (--fill).

    \b
    graphkit quantize net.onnx small.onnx --data photos/
    graphkit quantize run/ small.onnx --data digits --method entropy --max-drop 0.01
    graphkit quantize bert.onnx small.onnx --mode dynamic
    graphkit quantize gpt.onnx small.onnx --mode weights --bits 4
    """
    if not output.endswith((".onnx", ".json")):
        raise UsageError(f"{output}: the name of the output file must end in .onnx or .json")
    if not Path(output).parent.is_dir():
        raise UsageError(f"{output}: there is no folder {Path(output).parent}")
    if spec is None and (max_drop is not None or part is not None):
        raise UsageError("--max-drop and --part need labelled data (--data)")
    net = read_model(model, external_root, best=True)
    images = images_of(image)
    data = _Data.read(net, spec, part, data_options, batch_axes, samples, batch_size, images)
    if max_drop is not None and data.labelled is None:
        raise UsageError(f"--max-drop: {spec} has no targets, so there is no accuracy")
    if searches and max_drop is None:
        raise UsageError("--search needs the largest drop of the accuracy that is allowed (--max-drop)")

    compared = data.compared(net, inputs, fill, seed, images)

    def make(included: Sequence[str], excluded: Sequence[str]) -> Quantized:
        return quantize(
            model if model.endswith((".onnx", ".json")) else net, data.samples if mode == "static" else None, mode=mode,
            method=method, percentile=percentile, activations=activations, per_channel=per_channel, bits=int(bits),
            block_size=block_size, standard=standard, include=included or include, exclude=[*exclude, *excluded],
            threads=threads, external_root=external_root, progress=None,
        )  # fmt: skip

    results = _Results(net, make((), ()), compared, threads)
    results.generated = data.samples is None
    results.measure(data.labelled, output_name)
    if searches and max_drop is not None and results.drop() > max_drop:
        from graphkit.quantisation.search import search_layers

        found = search_layers(
            results.found, make, lambda each: results.like(each).sqnr(),
            lambda each: results.like(each).evaluated(data.labelled, output_name).drop() <= max_drop, progress=None,
        )  # fmt: skip
        results = results.like(found)
        results.measure(data.labelled, output_name)
    for note in results.found.notes:
        log(f"{model}: {note}")
    if check:
        results.verify(rtol, atol)
    passed = results.passes(max_drop)
    if passed:
        results.found.save(output)
    if as_json:
        print_json("quantize", {"file": output if passed else None, **results.as_dict()})
    else:
        results.print(model)
    if passed:
        log(f"wrote {output}" + ("" if check else "; not verified (--no-verify)"))
    else:
        log(f"{output} was not written: {results.reason}")
    return 0 if passed else 1


class _Data:
    """The samples for calibration, and the labelled data for the evaluation; None without data."""

    def __init__(self, samples: Samples | None, labelled: Dataset | None):
        self.samples, self.labelled = samples, labelled

    @classmethod
    def read(
        cls, net: Model, spec: str | None, part: str | None, options: tuple[str, ...], batch_axes: tuple[str, ...],
        count: int, batch_size: int, images: Said,
    ) -> _Data:  # fmt: skip
        from graphkit.cli.train.data import axis_options
        from graphkit.data import LazyDataset
        from graphkit.data.images.feeding import Said
        from graphkit.inference.labelled_data import read_labelled
        from graphkit.quantisation.calibration import is_for_predict, read_samples

        if spec is None:
            return cls(None, None)
        if is_for_predict(spec):
            if part is not None or options or batch_axes:
                raise UsageError(f"--part, --data-option and --batch-axis are for labelled data, but not for {spec}")
            return cls(read_samples(net, spec, count, batch_size, images=images), None)
        if images != Said():
            raise UsageError(f"--image-scale and similar options are not for labelled data ({spec}): use --data-option")
        axes, choices = axis_options(batch_axes), source_options(options)
        found, chosen = read_labelled(net, spec, part=part, axes=axes, **choices)
        train = found
        if chosen == "test":
            train = read_labelled(net, spec, part="train", axes=axes, **choices).data
        samples = read_samples(net, train, count, batch_size)
        has_targets = found.targets is not None or isinstance(found, LazyDataset)
        log(f"{train.name}: {quantity(samples.count, 'sample')} of {len(train):,} for calibration")
        return cls(samples, found if has_targets else None)

    def compared(self, net: Model, inputs: tuple[str, ...], fill: str, seed: int, images: Said) -> Samples:
        """Return the samples on which outputs are compared: those of the data, else one batch of the inputs."""
        from graphkit.cli._inputs import feeds_for
        from graphkit.quantisation.calibration import Feed, Samples

        if self.samples is not None:
            if inputs:
                raise UsageError(f"give either inputs ({inputs[0]}) or --data, not both")
            return self.samples
        arrays = feeds_for(net, inputs, fill, seed, images).arrays
        return Samples([Feed(arrays, 1)], dict.fromkeys(arrays))


class _Results:
    """What is known of a quantised model: metrics, differences of outputs, and the comparison with ONNX Runtime."""

    def __init__(self, net: Model, found: Quantized, samples: Samples, threads: int | None):
        self.net, self.found, self.samples, self.threads = net, found, samples, threads
        self.generated = False
        self.before: Evaluation | None = None
        self.after: Evaluation | None = None
        self.differences: tuple[OutputDifference, ...] = ()
        self.verification: Any = None
        self.reason = ""

    def like(self, found: Quantized) -> _Results:
        """Return the same for another form of the model, which is not measured yet."""
        made = _Results(self.net, found, self.samples, self.threads)
        made.before, made.generated = self.before, self.generated
        return made

    def measure(self, labelled: Dataset | None, output: str | None) -> None:
        """Compare the outputs with those of the float model, and evaluate both on labelled data."""
        from graphkit.quantisation.difference import output_differences

        self.differences = output_differences(self.net, self.found.model, self.samples, threads=self.threads)
        self.evaluated(labelled, output)

    def evaluated(self, labelled: Dataset | None, output: str | None) -> _Results:
        """Evaluate the quantised model, and the float model if that was not done before."""
        if labelled is not None:
            self.before = self.before or self._evaluate(self.net, labelled, output)
            self.after = self._evaluate(self.found.model, labelled, output)
        return self

    def _evaluate(self, net: Model, labelled: Dataset, output: str | None) -> Evaluation:
        from graphkit.inference.evaluate import evaluate

        return evaluate(net, labelled, output=output, worst=0, threads=self.threads, progress=None)

    def sqnr(self) -> float:
        """Return the lowest signal-to-noise ratio of an output."""
        self.measure(None, None)
        return min((d.sqnr for d in self.differences), default=math.inf)

    def verify(self, rtol: float | None, atol: float | None) -> None:
        """Compare graphkit with ONNX Runtime on the first batch."""
        from graphkit.checks.verify import verify

        quantised = self.found.model
        self.verification = verify(
            quantised, self.samples.first(quantised), source=self.found.message, rtol=rtol, atol=atol,
            threads=self.threads,
        )  # fmt: skip

    def passes(self, max_drop: float | None) -> bool:
        """Return whether the file may be written; if not, `reason` says why."""
        drop = self.drop() if max_drop is not None else None
        if self.verification is not None and not self.verification.passed:
            self.reason = f"the comparison of graphkit and ONNX Runtime: {self.verification.verdict}"
        elif max_drop is not None and drop is not None and drop > max_drop:
            self.reason = f"the accuracy falls by {drop:.4f}, more than {max_drop:g} (--max-drop)"
        return not self.reason

    def drop(self) -> float:
        """Return by how much the accuracy falls."""
        assert self.before is not None
        assert self.after is not None
        if "accuracy" not in self.before.metrics:
            raise UsageError(f"--max-drop needs an accuracy, but the data are for a {self.before.task}")
        return self.before.metrics["accuracy"] - self.after.metrics["accuracy"]

    def as_dict(self) -> dict[str, Any]:
        """Return everything as plain data, for JSON."""
        evaluations = (
            None
            if self.before is None or self.after is None
            else {
                "data": self.before.data, "samples": self.before.samples,
                "before": dict(self.before.metrics), "after": dict(self.after.metrics),
            }
        )  # fmt: skip
        return {
            **self.found.as_dict(),
            "samples": None if self.generated else self.samples.count,
            "evaluation": evaluations,
            "differences": [difference.as_dict() for difference in self.differences],
            "verification": None if self.verification is None else self.verification.as_dict(),
        }

    @property
    def _compared(self) -> str:
        """The samples on which outputs are compared."""
        return "one batch of inputs" if self.generated else quantity(self.samples.count, "sample")

    def print(self, model: str) -> None:
        """Print tables: size and metrics, differences of outputs, layers that stay in float."""
        found = self.found
        total = len(found.layers) + len(found.kept)
        rows: list[tuple[str, str, str]] = [("size", human(found.before.nbytes), human(found.after.nbytes))]
        rows.append(("nodes", str(found.before.node_count), str(found.after.node_count)))
        title = f"{model}: {len(found.layers)} of {quantity(total, 'layer')} quantised ({found.mode})"
        if self.before is not None and self.after is not None:
            title += f"; {quantity(self.before.samples, 'sample')} of {self.before.data}"
            rows += [(k, f"{v:.6g}", f"{self.after.metrics[k]:.6g}") for k, v in self.before.metrics.items()]
        print_table(title, ["", "before", "after"], rows)
        if self.differences:
            print_table(
                f"difference of the outputs, {self._compared}",
                ["output", "SQNR", "largest difference", "largest output"],
                [(d.name, _decibels(d.sqnr), f"{d.max_abs:.4g}", f"{d.largest:.4g}") for d in self.differences],
            )
            for d in self.differences:
                if d.nonfinite:
                    show(f"{d.name}: {quantity(d.nonfinite, 'element')} finite in only one of the models")
        else:
            show("no output is a tensor of floats with elements: the difference was not measured")
        if found.kept:
            print_table("layers in float", ["layer", "operator", "reason"], found.kept[:_KEPT])
            if len(found.kept) > _KEPT:
                show(f"and {len(found.kept) - _KEPT} more")
        if self.verification is not None:
            for item in self.verification.outputs:
                show(f"{item.name}: graphkit against ONNX Runtime: max error {item.max_abs:.3e}, {item.verdict}")


def _decibels(value: float) -> str:
    return f"{value:.1f} dB" if math.isfinite(value) else "equal" if value > 0 else "no signal"
