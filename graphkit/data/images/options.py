"""Convert options for images, as texts of the command line or as values, to Preprocess and Augment."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any, TypeAlias

from graphkit.data.images.augment import Augment
from graphkit.data.preprocessing.image import Preprocess
from graphkit.errors import UsageError

# A side, (height, width), or one of them as text: 64, 48x64.
Size: TypeAlias = "int | tuple[int, int] | str"
# Numbers, or text with commas between them.
Numbers: TypeAlias = "float | tuple[float, ...] | str"

_SIZES = re.compile(r"(\d{1,9})(?:x(\d{1,9}))?")


def preprocess_of(
    base: Preprocess, *, size: Size | None = None, resize: Size | None = None, crop: Size | None = None,
    mean: Numbers | None = None, std: Numbers | None = None, scale: float | str | None = None, **fields: str | None,
) -> Preprocess:  # fmt: skip
    """Return `base` with the given options. `size` sets resize and crop to the usual values for that size.

    resize and crop also accept "none". Raises UsageError.
    """
    if not isinstance(base, Preprocess):
        raise UsageError(f"preprocess of images: expected a gk.data.Preprocess, not {base!r}")
    changes: dict[str, Any] = {name: value for name, value in fields.items() if value is not None}
    if size is not None:
        usual = Preprocess.of_size(*_pair(_size("size", size)))
        changes |= {"resize": usual.resize, "crop": usual.crop}
    for name, given in (("resize", resize), ("crop", crop)):
        if given is not None:
            found = None if given == "none" else _size(name, given)
            changes[name] = found if name == "resize" or found is None else _pair(found)
    for name, numbers in (("mean", mean), ("std", std)):
        if numbers is not None:
            changes[name] = _numbers(name, numbers)
    if scale is not None:
        (changes["scale"],) = _numbers("scale", scale)
    return replace(base, **changes)


def augment_of(given: Augment | str | None) -> Augment | None:
    """Return the Augment of a text (see Augment.parse)."""
    return Augment.parse(given) if isinstance(given, str) else given


def _size(name: str, given: Any) -> int | tuple[int, int]:
    if isinstance(given, str):
        found = _SIZES.fullmatch(given)
        if found is None:
            raise UsageError(f"{name} of images: expected a size such as 64, or 48x64 (height, width), not {given!r}")
        return int(found[1]) if found[2] is None else (int(found[1]), int(found[2]))
    return given if isinstance(given, int) else tuple(given)


def _pair(size: int | tuple[int, int]) -> tuple[int, int]:
    return size if isinstance(size, tuple) else (size, size)


def _numbers(name: str, given: Any) -> tuple[float, ...]:
    parts = given.split(",") if isinstance(given, str) else given if isinstance(given, (tuple, list)) else (given,)
    try:
        numbers = tuple(float(part) for part in parts)
    except (TypeError, ValueError):
        raise UsageError(
            f"{name} of images: expected a number, or a list such as 0.485,0.456,0.406, not {given!r}"
        ) from None
    if name == "scale" and len(numbers) != 1:
        raise UsageError(f"scale of images: expected one number, not {given!r}")
    return numbers
