"""Pack folders and lists of images into a record file, as MXNet's im2rec does."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from graphkit.data import order
from graphkit.data.images.folders import Found, find, listed
from graphkit.data.preprocessing.decode import Picture, opened
from graphkit.data.preprocessing.geometry import shorter_side
from graphkit.data.records.dataset import classes_file
from graphkit.data.records.header import pack
from graphkit.data.records.writing import RecordWriter
from graphkit.errors import InputError, UsageError
from graphkit.ir.atomic import write_whole
from graphkit.named_tuples import NamedTuple

# Encodings -> Pillow's names of the formats. _BILINEAR: Pillow's constant of the filter for resizing.
ENCODINGS = {"jpg": "JPEG", "png": "PNG"}
_BILINEAR = 2


class Item(NamedTuple):
    """An image to pack: its number in the list, its labels, and its path."""

    number: int
    label: float | list[float]
    path: Path


@dataclass
class Packed:
    """Result of packing: the number of records, their bytes, and the skipped images with the reasons."""

    records: int = 0
    bytes: int = 0
    damaged: list[str] = field(default_factory=list)


def items_of(source: Path) -> tuple[list[Item], tuple[str, ...] | None]:
    """Return (images, class names) of a folder with one folder per class, of a list of paths and classes, or of a
    .lst.

    A line of a .lst contains a number, one or several labels, and a path relative to the list, separated by tabs.
    """
    if source.suffix == ".lst":
        return list(_lst(source)), None
    found: Found = find(source) if source.is_dir() else listed(source)
    places = range(len(found.store))
    return [Item(n, float(found.targets[n]), found.store.path(n)) for n in places], found.classes


def pack_images(
    source: Path, output: Path, *, resize: int | None = None, quality: int = 95, encoding: str | None = None,
    shuffle: bool = False, seed: int = 0, skip_damaged: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Packed:  # fmt: skip
    """Write the images of a source to output.rec and .idx, and class names to .classes.txt.

    Each file is complete, or not written at all. Images are stored byte for byte, unless they are resized or encoded
    again.

    Args:
        source: A folder or list, see `items_of`.
        output: Path of the .rec file.
        resize: Length of the shorter side, for images that are larger.
        encoding: jpg, with a quality from 1 to 100, or png.
        quality: Quality of jpg.
        shuffle: Store the images in an order that the seed determines.
        skip_damaged: Skip images that cannot be read.
        progress: Called after each packed image with the number of images done and the total.

    Raises:
        InputError: An image cannot be packed. The message names it.
        UsageError: An option is not valid.
    """
    if encoding is not None and encoding not in ENCODINGS:
        raise UsageError(f"encoding must be one of {', '.join(ENCODINGS)}, not {encoding!r}")
    if not 1 <= quality <= 100 or (resize is not None and resize < 1):
        raise UsageError(f"quality must be from 1 to 100, and resize positive, not {quality} and {resize}")
    items, classes = items_of(source)
    if shuffle:
        items = [items[i] for i in order.permutation(len(items), seed, 0)]
    packed = Packed()
    with RecordWriter(output) as writer:
        for done, item in enumerate(items, 1):
            try:
                data = _content(item.path, resize, quality, encoding)
            except InputError as error:
                if not skip_damaged:
                    raise
                packed.damaged.append(str(error))
                continue
            record = pack((0, item.label, item.number, 0), data)
            writer.write(record, item.number)
            packed.records, packed.bytes = packed.records + 1, packed.bytes + len(record)
            if progress is not None:
                progress(done, len(items))
        if not packed.records:
            raise InputError(f"{source}: there is no image to pack")
        # Remove old class names before the new records replace the old ones: class names must never describe other
        # records.
        classes_file(output).unlink(missing_ok=True)
    if classes is not None:
        write_whole(classes_file(output), ["".join(f"{name}\n" for name in classes).encode()])
    return packed


def _content(path: Path, resize: int | None, quality: int, encoding: str | None) -> bytes:
    """Return the bytes to pack for an image. Raises InputError if its header cannot be read."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from None
    with opened(data, str(path)) as picture:
        smaller = resize is not None and min(picture.size) > resize
        if not smaller and encoding is None:
            return data
        return _encoded(picture, resize if smaller else None, quality, encoding or "jpg")


def _encoded(picture: Picture, resize: int | None, quality: int, encoding: str) -> bytes:
    mode = "L" if picture.mode in ("1", "L") else "RGBA" if encoding == "png" and picture.mode == "RGBA" else "RGB"
    wanted = picture.size if resize is None else shorter_side(picture.size, resize)
    image = picture.decoded(mode, None if resize is None else (float(wanted[0]), float(wanted[1]))).image
    if image.size != wanted:
        image = image.resize(wanted, _BILINEAR)
    made = io.BytesIO()
    image.save(made, ENCODINGS[encoding], **({"quality": quality} if encoding == "jpg" else {}))
    return made.getvalue()


def _label(text: str) -> float:
    """Convert a label: to int if it is written as one, so that it is packed exactly or rejected; else to float."""
    return int(text) if text.strip().lstrip("+-").isdigit() else float(text)


def _lst(path: Path) -> Iterator[Item]:
    try:
        lines = path.read_text("utf-8-sig").split("\n")
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: not a list of images: {error}") from None
    for number, line in enumerate(lines, 1):
        cells = line.removesuffix("\r").split("\t")
        if cells == [""]:
            continue
        try:
            key, *labels, name = cells
            values = [_label(label) for label in labels]
            yield Item(int(key), values[0] if len(values) == 1 else values, path.parent / name)
        except (ValueError, IndexError):
            raise InputError(
                f"{path}, line {number}: expected a number, labels and a path, separated by tabs, not {line[:80]!r}"
            ) from None
