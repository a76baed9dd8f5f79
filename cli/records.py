"""graphkit records"""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import click
import numpy as np

from graphkit.cli._options import json_option
from graphkit.cli._output import log, print_json, print_table
from graphkit.text import human


@click.group("records")
def command() -> None:
    """Record files of MXNet's: pack pictures into one, list what is in it, check it.

    \b
    graphkit records pack photos/ -o photos.rec --resize 256
    graphkit records list photos.rec --first 10
    graphkit records check photos.rec --decode
    """


@command.command("pack")
@click.argument("source", type=click.Path(exists=True, path_type=Path))
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), required=True, help="The .rec file.")
@click.option("--resize", type=click.IntRange(1), help="The shorter side, of pictures that are larger.")
@click.option("--encoding", type=click.Choice(["jpg", "png"]), help="Write pictures anew (default: only resized ones).")
@click.option("--quality", type=click.IntRange(1, 100), default=95, show_default=True, help="Of jpg.")
@click.option("--shuffle", is_flag=True, help="In an order that the seed decides.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True)
@click.option(
    "--on-damaged", type=click.Choice(["raise", "skip"]), default="raise", show_default=True,
    help="Pictures that cannot be read: end, or leave them out, named.",
)  # fmt: skip
@json_option
def _pack(source: Path, output: Path, on_damaged: str, as_json: bool, **options: Any) -> int:
    """Write SOURCE to a .rec file with its .idx, and class names to NAME.classes.txt.

    SOURCE is a folder with a folder of pictures for each class, a list of paths and classes with tabs between them, or
    a .lst of im2rec's: a number, labels and a path in each line. Files go in byte for byte unless they are resized.
    """
    from graphkit.data.records.packing import pack_pictures

    packed = pack_pictures(source, output, skip_damaged=on_damaged == "skip", **options)
    for message in packed.damaged:
        log(f"left out: {message}")
    if as_json:
        print_json("records", {"file": str(output), "records": packed.records, "bytes": packed.bytes,
                               "damaged": packed.damaged})  # fmt: skip
    else:
        left_out = f", {len(packed.damaged)} left out" if packed.damaged else ""
        log(f"wrote {output}: {packed.records} records, {human(packed.bytes)}{left_out}")
    return 0


@command.command("list")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--first", type=click.IntRange(1), help="So many of them.")
@json_option
def _list(file: Path, first: int | None, as_json: bool) -> int:
    """Show key, label and size of the records in FILE, in the order of its index."""
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
    print_table(f"{file}: {len(records)} records", ("key", "label", "id", "bytes"), [tuple(r.values()) for r in rows])
    return 0


@command.command("check")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--decode", is_flag=True, help="Decode every picture as well.")
@json_option
def _check(file: Path, decode: bool, as_json: bool) -> int:
    """Read all of FILE: damaged places, headers, whether the index is its own. Exit code 1 where not all is well."""
    from graphkit.data.records.checking import check

    found = check(file, decode=decode)
    if as_json:
        print_json("records", found._asdict() | {"file": str(file)})
    else:
        for problem in found.problems:
            click.echo(problem)
        click.echo(f"{file}: {found.records} records, {human(found.bytes)}, {len(found.problems)} problems")
    return int(bool(found.problems))
