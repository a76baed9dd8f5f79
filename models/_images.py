"""What networks for images share."""

from __future__ import annotations

from collections.abc import Sequence

from graphkit.errors import UsageError


def image_shape(network: str, image: Sequence[int]) -> tuple[int, int, int]:
    """(channels, height, width), checked."""
    sizes = tuple(image) if isinstance(image, Sequence) and not isinstance(image, str) else (image,)
    if len(sizes) != 3 or any(not isinstance(d, int) or d < 1 for d in sizes):
        raise UsageError(f"{network}: image is (channels, height, width), not {image!r}")
    return sizes


def positive(network: str, **options: int) -> None:
    """Raise UsageError for an option that is not a positive integer."""
    for name, value in options.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise UsageError(f"{network}: {name} must be a positive integer, not {value!r}")
