"""graphkit records"""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import click
import numpy as np

from graphkit.cli._options import json_option
from graphkit.cli._output import log, print_json, print_table
from graphkit.cli._ranges import IntRange
from graphkit.text import human, quantity


@click.group("records")
def command() -> None:
    """Pack images into a RecordIO file (.rec, the format of MXNet), list its records, or check it.

    \b
    graphkit records pack photos/ -o photos.rec --resize 256
    graphkit records list photos.rec --first 10
    graphkit records check photos.rec --decode
    """


@command.command("pack")
@click.argument("source", type=click.Path(exists=True, path_type=Path))
@click.option(
    "-o", "--output", type=click.Path(dir_okay=False, path_type=Path), required=True, help="Output file, .rec."
)
@click.option("--resize", type=IntRange(1), help="Resize larger images so that the shorter side has this many pixels.")
@click.option(
    "--encoding", type=click.Choice(["jpg", "png"]),
    help="Encode all images in this format. Default: only encode images that are resized.",
)  # fmt: skip
@click.option("--quality", type=IntRange(1, 100), default=95, show_default=True, help="JPEG quality.")
@click.option("--shuffle", is_flag=True, help="Write the records in random order, by --seed.")
@click.option("--seed", type=IntRange(0), default=0, show_default=True, help="Seed of --shuffle.")
@click.option(
    "--on-damaged", type=click.Choice(["raise", "skip"]), default="raise", show_default=True,
    help="If an image cannot be read: raise stops with an error, skip leaves it out and logs its name.",
)  # fmt: skip
@json_option
def _pack(source: Path, output: Path, on_damaged: str, as_json: bool, **options: Any) -> int:
    """Write images to a .rec file with an index.

    For -o NAME.rec, the index is written to NAME.idx, and the class names to NAME.classes.txt.

    SOURCE has one of three forms. A folder contains one folder of images per class. A list has a path, a tab and a
    class in each line. A .lst file of MXNet's im2rec has a number, labels and a path in each line. Images are copied
    byte for byte unless --resize or --encoding changes them.
    """
    from graphkit.data.records.packing import pack_images

    packed = pack_images(source, output, skip_damaged=on_damaged == "skip", **options)
    for message in packed.damaged:
        log(f"left out: {message}")
    if as_json:
        print_json("records", {"file": str(output), "records": packed.records, "bytes": packed.bytes,
                               "damaged": packed.damaged})  # fmt: skip
    else:
        left_out = f", {len(packed.damaged)} left out" if packed.damaged else ""
        log(f"wrote {output}: {quantity(packed.records, 'record')}, {human(packed.bytes)}{left_out}")
    return 0


@command.command("list")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--first", type=IntRange(1), help="Number of records to show. Default: all.")
@json_option
def _list(file: Path, first: int | None, as_json: bool) -> int:
    """List key, label, id and size of records.

    The records of FILE are listed in the order of its index.
    """
    from graphkit.data.records import RecordFile, unpack

    records = RecordFile(file)
    rows = []
    for number in islice(range(len(records)), first):
        header, data = unpack(records[number])
        label = header.label.tolist() if isinstance(header.label, np.ndarray) else header.label
        rows.append({"key": int(records.keys[number]), "label": label, "id": header.id, "bytes": len(data)})
    if as_json:
        print_json("records", {"file": str(file), "count": len(records), "records": rows})
        return 0
    print_table(
        f"{file}: {quantity(len(records), 'record')}",
        ("key", "label", "id", "bytes"),
        [tuple(r.values()) for r in rows],
    )
    return 0


@command.command("check")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--decode", is_flag=True, help="Also decode every image.")
@json_option
def _check(file: Path, decode: bool, as_json: bool) -> int:
    """Check a record file and its index.

    Reads all of FILE. Reports damaged records, wrong headers, and an index that belongs to another file. Exit code 1 if
    there are problems.
    """
    from graphkit.data.records.checking import check

    found = check(file, decode=decode)
    if as_json:
        print_json("records", found._asdict() | {"file": str(file)})
    else:
        for problem in found.problems:
            click.echo(problem)
        click.echo(
            f"{file}: {quantity(found.records, 'record')}, {human(found.bytes)}, "
            f"{quantity(len(found.problems), 'problem')}"
        )
    return int(bool(found.problems))
