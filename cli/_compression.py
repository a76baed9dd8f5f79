"""Data for `graphkit quantize` and `graphkit prune`, and the comparison of the model before and after."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from graphkit.cli._groups import COMPARISON, DATA, LOSS, option
from graphkit.cli._images import log_preprocessing
from graphkit.cli._options import source_options
from graphkit.cli._output import log, print_json, print_table, rounding_bar, show
from graphkit.cli._ranges import FloatRange, IntRange
from graphkit.errors import UsageError
from graphkit.quantisation.quantize import BATCH_SIZE
from graphkit.text import human, quantity

if TYPE_CHECKING:
    from graphkit.data import Dataset
    from graphkit.data.images.feeding import Said
    from graphkit.inference.evaluation import Evaluation
    from graphkit.model import Model
    from graphkit.quantisation.calibration import Samples
    from graphkit.quantisation.difference import OutputDifference
    from graphkit.transforms.rewritten import Rewritten

# Rounds of timing, and seconds of each turn.
_ROUNDS, _SECONDS = 7, 0.05


def check_output(output: str, model: str) -> None:
    """Raise UsageError if the name of the output file is wrong, its folder does not exist, or it is the input file."""
    if not output.endswith((".onnx", ".json")):
        raise UsageError(f"{output}: the name of the output file must end in .onnx or .json")
    if not Path(output).parent.is_dir():
        raise UsageError(f"{output}: there is no folder {Path(output).parent}")
    if Path(output).exists() and Path(model).exists() and Path(output).samefile(model):
        raise UsageError(f"{output} is MODEL itself: give another name for the output file")


def check_merged(net: Model, path: str) -> None:
    """Raise UsageError if the model has LoRA adapters, whose matrices must not be changed one by one."""
    from graphkit.train.adapter_marks import has_adapters

    if has_adapters(net.graph):
        raise UsageError(
            f"{path}: the model has LoRA adapters; merge them into the weights first: graphkit export {path} -o "
            "merged.onnx"
        )


def comparison_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """--batch-size, --output-name, --max-drop, --time: options of the comparison before and after."""
    command = option(
        "--time", "times", group=COMPARISON, is_flag=True,
        help="Time one batch in graphkit and in ONNX Runtime, before and after.",
    )(command)  # fmt: skip
    command = option(
        "--max-drop", group=COMPARISON, type=FloatRange(0, 1), metavar="SHARE",
        help="Write nothing, with exit code 1, if the accuracy on DATA falls by more than this, such as 0.01.",
    )(command)  # fmt: skip
    command = option(
        "--output-name", "output_name", group=LOSS, metavar="NAME",
        help="Output that the evaluation compares with the targets. Needed if several outputs can be compared with "
        "them.",
    )(command)  # fmt: skip
    return option(
        "--batch-size", group=DATA, type=IntRange(1), default=BATCH_SIZE, show_default=True, help="Samples per batch."
    )(command)


class CompressionData:
    """The data of one command.

    Attributes:
        samples: Samples for calibration and for the difference of the outputs; None without data.
        labelled: Labelled data for the evaluation, or None.
        train: Labelled data for fine-tuning; None if the command does not fine-tune.
    """

    def __init__(self, samples: Samples | None, labelled: Dataset | None, train: Dataset | None = None):
        self.samples, self.labelled, self.train = samples, labelled, train

    @classmethod
    def read(
        cls, net: Model, spec: str | None, part: str | None, options: tuple[str, ...], batch_axes: tuple[str, ...],
        count: int, batch_size: int, images: Said, *, finetunes: bool, max_drop: float | None,
        purpose: str,
    ) -> CompressionData:  # fmt: skip
        """Read --data.

        finetunes: whether the model is trained. Then the test part is only for the evaluation. purpose: of the samples,
        for the log. Other arguments: options of the command line.
        """
        from graphkit.cli.train.data import axis_options
        from graphkit.data import LazyDataset
        from graphkit.data.images.feeding import Said
        from graphkit.inference.labelled_data import read_labelled
        from graphkit.quantisation.calibration import is_for_predict, read_samples

        if finetunes and (spec is None or is_for_predict(spec)):
            raise UsageError(f"--finetune needs labelled data (--data){'' if spec is None else f', but not {spec}'}")
        if finetunes and part in ("all", "train"):
            raise UsageError(f"--finetune trains on the training part, so the evaluation uses --part test, not {part}")
        if spec is None:
            if max_drop is not None or part is not None:
                raise UsageError("--max-drop and --part need labelled data (--data)")
            return cls(None, None)
        if is_for_predict(spec):
            if max_drop is not None:
                raise UsageError(f"--max-drop: {spec} has no targets, so there is no accuracy")
            if part is not None or options or batch_axes:
                raise UsageError(f"--part, --data-option and --batch-axis are for labelled data, but not for {spec}")
            return cls(read_samples(net, spec, count, batch_size, images=images), None)
        if images != Said():
            raise UsageError(f"--image-scale and similar options are not for labelled data ({spec}): use --data-option")
        axes, choices = axis_options(batch_axes), source_options(options)
        found, chosen = read_labelled(net, spec, part="test" if finetunes else part, axes=axes, **choices)
        train = found
        if chosen == "test":
            train = read_labelled(net, spec, part="train", axes=axes, **choices).data
        samples = read_samples(net, train, count, batch_size)
        has_targets = found.targets is not None or isinstance(found, LazyDataset)
        if not has_targets and (finetunes or max_drop is not None):
            raise UsageError(f"{'--finetune' if finetunes else '--max-drop'}: {spec} has no targets")
        log_preprocessing(net, train, with_options=bool(options))
        log(f"{train.name}: {quantity(samples.count, 'sample')} of {len(train):,} for {purpose}")
        return cls(samples, found if has_targets else None, train if finetunes else None)

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


class Comparison(ABC):
    """Compares a model before and after: metrics, differences of outputs, times, and ONNX Runtime's outputs.

    Attributes:
        net: The model before.
        found: The model after.
        samples: Samples on which outputs are compared.
        generated: Whether these samples are one batch of generated or given inputs.
        untuned: The evaluation before fine-tuning, if the model was fine-tuned.
        reason: After `passes`: why nothing may be written, or "".
    """

    def __init__(self, net: Model, found: Rewritten, samples: Samples, threads: int | None):
        self.net, self.found, self.samples, self.threads = net, found, samples, threads
        self.generated = False
        self.before: Evaluation | None = None
        self.untuned: Evaluation | None = None
        self.after: Evaluation | None = None
        self.differences: tuple[OutputDifference, ...] = ()
        self.verification: Any = None
        self.times: dict[str, tuple[float, float]] = {}
        self.reason = ""

    def like(self, found: Rewritten) -> Self:
        """Return the same for another form of the model, which is not measured yet."""
        made = type(self)(self.net, found, self.samples, self.threads)
        made.before, made.generated = self.before, self.generated
        return made

    def tuned(self, found: Rewritten) -> Self:
        """Return the same for the fine-tuned model. The present evaluation is that before fine-tuning."""
        made = self.like(found)
        made.untuned = self.after
        return made

    def measure(self, labelled: Dataset | None, output: str | None) -> None:
        """Compare the outputs with those of the model before, and evaluate both on labelled data."""
        from graphkit.quantisation.difference import output_differences

        self.differences = output_differences(self.net, self.found.model, self.samples, threads=self.threads)
        self.evaluated(labelled, output)

    def evaluated(self, labelled: Dataset | None, output: str | None) -> Self:
        """Evaluate the new model, and the model before if that was not done yet."""
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

    def measure_times(self) -> None:
        """Time one batch before and after, in graphkit and in ONNX Runtime. The engines take turns."""
        from graphkit.checks.timing import interleave, summarise
        from graphkit.onnx_io.compare import OnnxRuntimeModel

        calls: dict[str, Callable[[], object]] = {}
        for key, net, message in (
            ("before", self.net, self.found.original), ("after", self.found.model, self.found.message),
        ):  # fmt: skip
            feeds = self.samples.first(net)
            executor = net.compile(threads=self.threads)
            calls[f"graphkit {key}"] = partial(executor.run, feeds)
            other = OnnxRuntimeModel(message, self.threads)
            calls[f"ONNX Runtime {key}"] = other.bound(feeds)
        found = {k: summarise(t).p50 for k, t in interleave(calls, _ROUNDS, seconds=_SECONDS).items()}
        self.times = {e: (found[f"{e} before"], found[f"{e} after"]) for e in ("graphkit", "ONNX Runtime")}

    def verify(self, rtol: float | None, atol: float | None) -> None:
        """Compare graphkit with ONNX Runtime on the first batch."""
        from graphkit.checks.verify import verify

        new = self.found.model
        with rounding_bar() as progress:
            self.verification = verify(
                new, self.samples.first(new), source=self.found.message, rtol=rtol, atol=atol, threads=self.threads,
                progress=progress,
            )  # fmt: skip

    def passes(self, max_drop: float | None) -> bool:
        """Return whether the file may be written; if not, `reason` says why."""
        drop = self.drop() if max_drop is not None else None
        if self.verification is not None and not self.verification.passed:
            self.reason = f"the comparison of the outputs: {self.verification.verdict}"
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
        evaluations = None
        if self.before is not None and self.after is not None:
            evaluations = {
                "data": self.before.data, "samples": self.before.samples,
                "before": dict(self.before.metrics), "after": dict(self.after.metrics),
            }  # fmt: skip
            if self.untuned is not None:
                evaluations["before_finetuning"] = dict(self.untuned.metrics)
        return {
            **self.found.as_dict(),
            "samples": None if self.generated else self.samples.count,
            "evaluation": evaluations,
            "differences": [difference.as_dict() for difference in self.differences],
            "seconds": {engine: {"before": a, "after": b} for engine, (a, b) in self.times.items()},
            "verification": None if self.verification is None else self.verification.as_dict(),
        }

    @property
    def _compared(self) -> str:
        """The samples on which outputs are compared."""
        return "one batch of inputs" if self.generated else quantity(self.samples.count, "sample")

    def finish(
        self, command: str, model: str, output: str, notes: Sequence[str], *, check: bool, as_json: bool,
        max_drop: float | None = None, rtol: float | None = None, atol: float | None = None, times: bool = False,
    ) -> int:  # fmt: skip
        """Verify the result, write the file if everything passes, print the results, and return the exit code.

        notes: about the new model. The other arguments are options of the command line.
        """
        for note in notes:
            log(f"{model}: {note}")
        if check:
            self.verify(rtol, atol)
        if times:
            self.measure_times()
        passed = self.passes(max_drop)
        if passed:
            self.found.save(output)
        if as_json:
            print_json(command, {"file": output if passed else None, **self.as_dict()})
        else:
            self.report(model)
        if passed:
            log(f"wrote {output}" + ("" if self.verification is not None else "; not verified (--no-verify)"))
        else:
            log(f"{output} was not written: {self.reason}")
        return 0 if passed else 1

    @abstractmethod
    def report(self, model: str) -> None:
        """Print all tables. model: MODEL of the command line."""

    def print(self, title: str, name: str) -> None:
        """Print tables: size, metrics and times, and differences of outputs.

        Args:
            title: Title of the first table.
            name: Heading of the column before fine-tuning, if the model was fine-tuned.
        """
        found = self.found
        rows: list[list[str]] = [["size", human(found.before.nbytes), human(found.after.nbytes)]]
        rows.append(["nodes", str(found.before.node_count), str(found.after.node_count)])
        if self.before is not None and self.after is not None:
            title += f"; {quantity(self.before.samples, 'sample')} of {self.before.data}"
            rows += [[k, f"{v:.6g}", f"{self.after.metrics[k]:.6g}"] for k, v in self.before.metrics.items()]
        rows += [[f"{engine}, ms", f"{1e3 * a:.4g}", f"{1e3 * b:.4g}"] for engine, (a, b) in self.times.items()]
        columns = ["", "before", "after"]
        if self.untuned is not None:
            columns = ["", "before", name, "fine-tuned"]
            metrics = self.untuned.metrics
            for row in rows:
                row.insert(2, f"{metrics[row[0]]:.6g}" if row[0] in metrics else "")
        print_table(title, columns, rows)
        self._print_differences()

    def _print_differences(self) -> None:
        if not self.differences:
            show("no output is a tensor of floats with elements: the difference was not measured")
            return
        print_table(
            f"difference of the outputs, {self._compared}",
            ["output", "SQNR", "largest difference", "largest output"],
            [(d.name, _decibels(d.sqnr), f"{d.max_abs:.4g}", f"{d.largest:.4g}") for d in self.differences],
        )
        for d in self.differences:
            if d.nonfinite:
                show(f"{d.name}: {quantity(d.nonfinite, 'element')} finite in only one of the models")

    def print_verification(self) -> None:
        """Print one line for each output that was compared with ONNX Runtime."""
        if self.verification is not None:
            for item in self.verification.outputs:
                show(f"{item.name}: graphkit against ONNX Runtime: max error {item.max_abs:.3e}, {item.verdict}")


def _decibels(value: float) -> str:
    return f"{value:.1f} dB" if math.isfinite(value) else "equal" if value > 0 else "no signal"
