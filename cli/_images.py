"""Options that say how pictures become numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click
import numpy as np

if TYPE_CHECKING:
    from graphkit.data.images.feeding import Said


class _Numbers(click.ParamType):
    """Numbers with commas between them."""

    name = "X,..."

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[float, ...]:
        try:
            numbers = tuple(float(part) for part in value.split(",")) if isinstance(value, str) else tuple(value)
        except ValueError:
            self.fail(f"{value!r} is not a list of numbers such as 0.485,0.456,0.406", param, ctx)
        if not np.isfinite(numbers).all() or (param is not None and param.name == "image_std" and 0 in numbers):
            self.fail(f"{value!r} holds a number that cannot be used", param, ctx)
        return numbers


def image_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """--image-scale, --image-mean, --image-std, --image-layout as image_... arguments: see `images_of`."""
    command = click.option(
        "--image-layout", type=click.Choice(["NCHW", "NHWC"]),
        help="Layout of pictures, where neither the model's metadata nor the shape say it.",
    )(command)  # fmt: skip
    command = click.option("--image-std", type=_Numbers(), help="Divide by this, per channel (default: 1).")(command)
    command = click.option(
        "--image-mean", type=_Numbers(), help="Then subtract this, one number or one per channel (default: 0)."
    )(command)
    return click.option(
        "--image-scale", type=float,
        help="Multiply pixels (0 to 255) of pictures by this, for inputs of floats (default: what the model's metadata "
        "say, as for the other options of pictures; else 1/255).",
    )(command)  # fmt: skip


def images_of(options: dict[str, Any]) -> Said:
    """What `image_options` gave."""
    from graphkit.data.images.feeding import Said

    return Said(options["image_scale"], options["image_mean"], options["image_std"], options["image_layout"])
