"""graphkit evaluate"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from graphkit.cli._adapters import adapter_option, folder_of, with_adapters
from graphkit.cli._groups import DATA, LOSS, NETWORK, OUTPUT, REPORTING, GroupedCommand, option
from graphkit.cli._images import log_preprocessing
from graphkit.cli._limits import limit_options
from graphkit.cli._options import (
    batch_axis_option,
    data_option,
    device_of,
    device_options,
    engine_option,
    json_option,
    key_values,
    model_file_options,
    page_file,
    preprocessing_option,
    read_model,
    source_options,
    tokenizer_option,
    with_files_beside,
    with_tokenizer,
)
from graphkit.cli._output import log, print_json, print_table, show
from graphkit.cli._ranges import IntRange
from graphkit.ir.atomic import write_whole
from graphkit.text import quantity
from graphkit.train import defaults

if TYPE_CHECKING:
    from graphkit.data import Dataset
    from graphkit.inference.evaluation import Evaluation
    from graphkit.model import Model

# With more classes, the confusion matrix is printed as a list of the most frequent confusions.
_MATRIX = 12
_PAIRS = 10


@click.command(cls=GroupedCommand)
@click.argument("model")
@option(
    "--data", "spec", group=DATA, required=True, metavar="DATA",
    help="Labelled data, in any form that graphkit train takes: digits (built in), a folder of images or of MNIST idx "
    "files, an .npz, .csv, .tsv, .parquet or .rec file, cifar:FOLDER, sentences:FOLDER, text:FILE, or "
    "FILE.py:FUNCTION, which returns the data. For a model with a tokenizer: a .csv, .tsv, .jsonl or .parquet file of "
    "texts and labels.",
)  # fmt: skip
@option(
    "--part", group=DATA, type=click.Choice(["all", "train", "test"]),
    help="Part of the data. For data without a test part, train and test are the two parts that graphkit train makes. "
    "Default: the test part if the data have one, otherwise all samples.",
)  # fmt: skip
@data_option
@tokenizer_option
@option(
    "--batch-size", group=DATA, type=IntRange(1), default=defaults.BATCH_SIZE, show_default=True,
    help="Samples per batch. If the model has a fixed batch size, batches are split and padded; padding is not "
    "counted.",
)  # fmt: skip
@batch_axis_option
@option(
    "--workers", group=DATA, type=IntRange(0),
    help="Number of processes that load samples of data that are not in memory. Default: one per two cores.",
)  # fmt: skip
@option(
    "--recurrent-state", "carries", group=NETWORK, multiple=True, metavar="INPUT=OUTPUT",
    help="Recurrent state: feed OUTPUT of each batch to INPUT of the next one. Repeatable.",
)  # fmt: skip
@option(
    "--output-name", "output", group=LOSS, metavar="NAME",
    help="Output that is compared with the targets. Needed if several outputs can be compared with them.",
)  # fmt: skip
@option(
    "--loss", group=LOSS, metavar="NAME",
    help="Loss function, such as mse. Default: softmax_cross_entropy, sigmoid_binary_cross_entropy or mse, by targets "
    "and output.",
)  # fmt: skip
@option(
    "--metric", "metric_names", group=LOSS, multiple=True, metavar="NAME",
    help="Metric to report: accuracy, top<k>, f1, auc, perplexity, mse, rmse or mae. Default: those that fit the "
    "task. Repeatable.",
)  # fmt: skip
@option(
    "--probabilities/--logits", default=None, group=LOSS,
    help="Whether the output contains probabilities or logits. Default: probabilities if it comes from a Softmax or "
    "Sigmoid, or if the rows of the first batch have sum 1; otherwise logits.",
)  # fmt: skip
@engine_option
@option(
    "--worst", group=REPORTING, type=IntRange(0), default=10, show_default=True, metavar="K",
    help="Number of samples with the largest losses to show.",
)  # fmt: skip
@option(
    "--html", group=OUTPUT, type=click.Path(dir_okay=False), callback=page_file, metavar="FILE",
    help="Write an HTML page with tables, confusion matrix, reliability diagram and the worst samples. It needs no "
    "other files.",
)  # fmt: skip
@adapter_option
@device_options
@preprocessing_option
@model_file_options
@limit_options
@json_option
def command(
    model: str, spec: str, part: str | None, data_options: tuple[str, ...], tokenizer: str | None, batch_size: int,
    batch_axes: tuple[str, ...], workers: int | None, carries: tuple[str, ...], output: str | None, loss: str | None,
    metric_names: tuple[str, ...], probabilities: bool | None, engine: str, worst: int, html: str | None, device: str,
    threads: int | None, adapters: tuple[str, ...], external_root: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Compute loss, metrics and a confusion matrix of MODEL (.onnx, .json or a run folder) on labelled data.

    Targets and outputs decide what is compared. Class numbers or one-hot rows, with one score per class: a
    classification. Targets 0 and 1, with one score each: a binary classification. Other targets of the shape of the
    output: a regression.

    The model's metadata determine the preprocessing of images, the vocabulary of texts and the encoding of table
    columns; --data-option and --tokenizer replace them. For an .onnx file of Hugging Face, tokenizer.json and the class
    names of config.json in its folder are used. If the model and the data have class names, classes are matched by
    name.

    \b
    graphkit evaluate run/ --data digits --part test
    graphkit evaluate net.onnx --data photos/ --html report.html
    graphkit evaluate net.onnx --data photos/ --engine onnxruntime
    graphkit evaluate net.onnx --data houses.csv --loss l1 --json
    graphkit evaluate base.onnx --data digits --adapter tuned/
    graphkit evaluate bert/model.onnx --data reviews.jsonl --data-option text=review
    """
    from graphkit.cli.train import data as train_data
    from graphkit.inference.evaluate import evaluate

    net = with_adapters(with_files_beside(read_model(model, external_root, best=True), model), adapters)
    options = with_tokenizer(source_options(data_options), spec, tokenizer, rows=True)
    origins = (model, *map(str, map(folder_of, adapters)))
    data = _read(net, origins, spec, part, options, train_data.axis_options(batch_axes))
    found = evaluate(
        net, data, loss=loss, metrics=metric_names or None, output=output, probabilities=probabilities,
        batch_size=batch_size, worst=worst, engine=engine,
        file=model if model.endswith(".onnx") and not adapters else None,
        device=device_of(device), threads=threads, carry=key_values(carries, "--recurrent-state", "INPUT=OUTPUT"),
        workers=train_data.workers(workers, data), progress=None,
    )  # fmt: skip
    for note in found.notes:
        log(note)
    if html is not None:
        from graphkit.report.evaluation_page import evaluation_page

        write_whole(Path(html), [evaluation_page(found, f"Evaluation of {model} on {found.data}").encode()])
        log(f"wrote {html}")
    if as_json:
        print_json("evaluate", found.as_dict())
    else:
        _print(found, model)


def _read(
    net: Model, origins: Sequence[str], spec: str, part: str | None, options: dict[str, Any],
    axes: dict[str, int | None],
) -> Dataset:  # fmt: skip
    """Return the data, and log how many samples there are and how images become inputs.

    net: the model. origins: its file, and the folders of its adapters. Other arguments: options of the command line.
    """
    from graphkit.data import ImageDataset, TokenStream
    from graphkit.inference.labelled_data import read_labelled

    found, chosen = read_labelled(net, spec, part=part, axes=axes, **options)
    noun = "image" if isinstance(found, ImageDataset) else "token" if isinstance(found, TokenStream) else "sample"
    line = f"{found.name}: {quantity(len(found), noun)}"
    if part is None and chosen == "all":
        line += " (all; --part test takes only those that graphkit train holds out for validation)"
    log(line)
    trained = [origin for origin in origins if _trained_on(origin, spec)]
    if part is None and chosen == "all" and trained:
        log(
            f"note: {trained[0]} was trained on {spec}, so these samples include its training samples. To evaluate "
            "only the others: --part test"
        )
    log_preprocessing(net, found, with_options=bool(options))
    return found


def _trained_on(model: str, spec: str) -> bool:
    """Return whether a model or its adapters are in a run folder, and its run was trained on a data set."""
    from graphkit.train.run_folder import CONFIG

    folder = Path(model) if Path(model).is_dir() else Path(model).parent
    try:
        data = tomllib.loads((folder / CONFIG).read_text()).get("data")
    except (OSError, ValueError, RecursionError):  # no run folder, or its configuration cannot be read
        return False
    return data == spec or (
        isinstance(data, str) and Path(data).exists() and Path(data).resolve() == Path(spec).resolve()
    )


def _print(found: Evaluation, model: str) -> None:
    """Print tables: metrics, classes, confusions, calibration, the worst samples. model: name of the file."""
    from graphkit.data import TokenStream

    if isinstance(found.dataset, TokenStream):
        found = _with_quoted_tokens(found)
    print_table(
        f"{model} on {found.data}: {found.task}, output {found.output}, {quantity(found.samples, 'sample')} in "
        f"{found.seconds:.2f} s by {found.engine}",
        ["metric", "value"],
        _metrics(found),
    )
    if found.nonfinite:
        show(f"the output contains NaN or infinity for {found.nonfinite:,} of {quantity(found.samples, 'sample')}")
    _print_classes(found)
    if found.worst:
        columns = ["sample", "loss", "target", "predicted", "probability"]
        print_table("largest losses", columns, (
            (s.name or s.index, f"{s.loss:.4g}", _cell(s.target), _cell(s.predicted), _cell(s.probability))
            for s in found.worst
        ))  # fmt: skip


def _with_quoted_tokens(found: Evaluation) -> Evaluation:
    """Return the evaluation with classes in quotes: tokens may be spaces."""
    worst = (replace(s, target=repr(s.target), predicted=repr(s.predicted)) for s in found.worst)
    return replace(found, classes=tuple(map(repr, found.classes)), worst=tuple(worst))


def _metrics(found: Evaluation) -> list[tuple[str, str]]:
    rows = [(f"loss ({found.loss})" if name == "loss" else name, f"{v:.6g}") for name, v in found.metrics.items()]
    if found.calibration is not None:
        rows.append(("expected calibration error", f"{found.calibration_error:.6g}"))
    return rows


def _print_classes(found: Evaluation) -> None:
    """Print the table of classes, and the confusion matrix or the most frequent confusions."""
    from graphkit.inference.class_scores import most_confused

    if found.confusion is None:
        if found.classes:
            show(f"no confusion matrix: the model has {len(found.classes):,} classes, more than 1,000")
        return
    seen = [score for score in found.class_scores if score.count or score.predicted]
    print_table("classes", ["class", "precision", "recall", "F1", "samples", "predicted"], (
        (s.name, _cell(s.precision), _cell(s.recall), _cell(s.f1), s.count, s.predicted) for s in seen
    ))  # fmt: skip
    if hidden := len(found.classes) - len(seen):
        verb = "occurs" if hidden == 1 else "occur"
        show(f"{hidden:,} more class{'es' * (hidden != 1)} {verb} neither in the targets nor in the predictions")
    if len(found.classes) <= _MATRIX:
        rows = ((name, *row) for name, row in zip(found.classes, found.confusion.tolist(), strict=True))
        print_table("confusion matrix (rows: targets, columns: predictions)", ["", *found.classes], rows)
    elif pairs := most_confused(found.confusion, _PAIRS):
        named = ((found.classes[t], found.classes[p], count) for t, p, count in pairs)
        print_table("most frequent confusions", ["target", "predicted", "samples"], named)


def _cell(value: str | float | None) -> str:
    """Return a name, or a number with four digits; "-" if there is none."""
    if value is None or value != value:
        return "-"
    return value if isinstance(value, str) else f"{value:.4g}"
