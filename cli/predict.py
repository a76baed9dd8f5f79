"""graphkit predict"""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from graphkit.cli._adapters import adapter_option, with_adapters
from graphkit.cli._groups import INPUTS, OUTPUT, GroupedCommand, option
from graphkit.cli._images import image_options, images_of
from graphkit.cli._limits import limit_options
from graphkit.cli._options import (
    data_option,
    device_of,
    device_options,
    engine_option,
    json_option,
    key_values,
    model_file_options,
    read_model,
    tokenizer_option,
    with_files_beside,
)
from graphkit.cli._output import log, print_json
from graphkit.cli._ranges import IntRange
from graphkit.errors import UsageError
from graphkit.text import quantity

if TYPE_CHECKING:
    from graphkit.inference.writing import Written


@click.command(cls=GroupedCommand)
@click.argument("model")
@click.argument("inputs", nargs=-1, required=True, metavar="IMAGE | FOLDER | FILE | @LIST | -...")
@option(
    "-o", "--output", group=OUTPUT, type=click.Path(dir_okay=False), required=True,
    help="Write the predictions to this file: .csv (one row per sample), .jsonl (one JSON object per sample) or .npz "
    "(the outputs as arrays).",
)  # fmt: skip
@option(
    "--batch-size", group=INPUTS, type=IntRange(1), default=32, show_default=True,
    help="Samples per batch. If MODEL fixes its batch size, batches are split and the last one is padded.",
)  # fmt: skip
@option(
    "--top", group=OUTPUT, type=IntRange(1), metavar="K",
    help="Write the K most probable classes of each sample. Default: 1 if the model has class names, else none.",
)  # fmt: skip
@option(
    "--output-name", "names", group=OUTPUT, multiple=True, metavar="NAME",
    help="Compute only this output, or this internal value. Repeatable.",
)  # fmt: skip
@option(
    "--skip-errors", group=INPUTS, is_flag=True,
    help="If an image cannot be read, write a row with the error, and continue. The exit code is then 1. Default: "
    "stop, and write no file.",
)  # fmt: skip
@partial(data_option, text="Option of a table: delimiter, encoding, decimal or header, such as decimal=,. Repeatable.")
@tokenizer_option
@engine_option
@image_options
@adapter_option
@device_options
@model_file_options
@limit_options
@json_option
def command(
    model: str, inputs: tuple[str, ...], output: str, batch_size: int, top: int | None, names: tuple[str, ...],
    skip_errors: bool, data_options: tuple[str, ...], tokenizer: str | None, engine: str, device: str,
    threads: int | None, adapters: tuple[str, ...], external_root: str | None, as_json: bool, **image: Any,
) -> int:  # fmt: skip
    """Apply MODEL (.json, .onnx or a run folder) to many samples, and write the predictions to a file.

    Samples are images: files, folders with all subfolders, glob patterns, @LIST (a file with one name per line), or -
    for names on stdin. Instead of images, you can give one file: a table (.csv, .tsv, .parquet), arrays (.npy or .npz,
    whose first axis counts samples), a text (.txt, one sample per line), texts in a column (.jsonl, or a table for a
    model with a tokenizer) or records (.rec).

    Images, columns of tables and texts are converted to inputs by the model's metadata, as in training. A line on
    stderr describes the conversion. --tokenizer replaces the vocabulary of texts. For an .onnx file of Hugging Face,
    tokenizer.json and the class names of config.json in its folder are used.

    Each row of the result contains the name of the file, or the number of the sample (from 0), and the most probable
    classes with their probabilities. If no output scores classes, it contains the values of the outputs.

    Exit code 1 if an image was skipped (--skip-errors).

    \b
    graphkit predict net.onnx photos/ -o classes.csv
    graphkit predict net.onnx "photos/**/*.jpg" --top 3 -o classes.jsonl
    find photos -name "*.jpg" | graphkit predict net.onnx - -o classes.csv --skip-errors
    graphkit predict net.onnx customers.csv -o scores.csv
    graphkit predict net.onnx kunden.csv --data-option decimal=, -o scores.csv
    graphkit predict bert.onnx reviews.txt --tokenizer tokenizer.json -o classes.csv
    graphkit predict net.onnx samples.npy --batch-size 256 -o outputs.npz
    graphkit predict base.onnx photos/ --adapter tuned/ -o classes.csv
    """
    from graphkit.inference.predict import predict
    from graphkit.inference.writing import check_target, write_predictions
    from graphkit.train.progress import ProgressBar

    check_target(output)
    if model == "-":
        raise UsageError("graphkit predict cannot read MODEL from stdin; give its file")
    net = with_adapters(with_files_beside(read_model(model, external_root, best=True), model), adapters)
    stream = predict(
        net, _named(inputs), batch_size=batch_size, engine=engine, device=device_of(device), threads=threads, top=top,
        outputs=names or None, skip_errors=skip_errors, images=images_of(image), tokenizer=tokenizer,
        data_options=key_values(data_options, "--data-option"),
    )  # fmt: skip
    if stream.preprocessing is not None:
        log(stream.preprocessing)
    if stream.fixed_batch_size is not None:
        log(f"the model fixes its batch size to {stream.fixed_batch_size}")
    with ProgressBar() as bar:
        bar.start("predicting", len(stream), transient=True)
        written = write_predictions(stream, Path(output), advance=bar.advance)
    size = stream.fixed_batch_size or stream.batch_size
    _report(output, written, as_json, model=net.name, class_output=stream.class_output, batch_size=size)
    return 1 if written.failed else 0


def _named(inputs: tuple[str, ...]) -> list[str]:
    """Replace `-` by the names on stdin, one per line."""
    found: list[str] = []
    for name in inputs:
        if name != "-":
            found.append(name)
            continue
        # Bytes, because names of files need not be UTF-8.
        lines = [os.fsdecode(line.removesuffix(b"\r")) for line in sys.stdin.buffer.read().split(b"\n") if line.strip()]
        if not lines:
            raise UsageError("-: there is no name on stdin; write one name of a file per line")
        found += lines
    return found


def _report(output: str, written: Written, as_json: bool, **facts: Any) -> None:
    rate = written.samples / written.seconds if written.seconds else float("nan")
    for error in written.errors:
        log(f"skipped: {error}")
    if len(written.errors) < written.failed:
        log(f"skipped {written.failed - len(written.errors):,} more; their errors are in {output}")
    if as_json:
        counts = {"samples": written.samples, "failed": written.failed, "errors": written.errors}
        print_json("predict", {**facts, "output": output, **counts, "seconds": written.seconds, "per_second": rate})
        return
    skipped = f", {written.failed:,} of them with an error" if written.failed else ""
    count = quantity(written.samples, "sample")
    click.echo(f"wrote {output}: {count}{skipped}, in {written.seconds:.1f} s ({rate:,.0f} per second)")
