"""Options for the preprocessing of images."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from graphkit.cli._groups import IMAGES, option
from graphkit.cli._options import preprocessing_option
from graphkit.cli._output import log

if TYPE_CHECKING:
    from graphkit.data import Dataset
    from graphkit.data.images.feeding import Said
    from graphkit.model import Model


class _Numbers(click.ParamType):
    """Numbers separated by commas."""

    name = "X,..."

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[float, ...]:
        try:
            numbers = tuple(float(part) for part in value.split(",")) if isinstance(value, str) else tuple(value)
        except ValueError:
            self.fail(f"{value!r} is not a list of numbers such as 0.485,0.456,0.406", param, ctx)
        if not np.isfinite(numbers).all() or (param is not None and param.name == "image_std" and 0 in numbers):
            self.fail(f"{value!r}: every number must be finite, and those of --image-std not 0", param, ctx)
        return numbers


def image_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """--preprocessing, and --image-scale, --image-mean, --image-std, --image-layout for `images_of`."""
    command = option(
        "--image-layout", group=IMAGES, type=click.Choice(["NCHW", "NHWC"]),
        help="Order of the axes of images. Default: from the model's metadata, else from the shape of the input.",
    )(command)  # fmt: skip
    command = option(
        "--image-std", group=IMAGES, type=_Numbers(),
        help="Divisor after the mean: one number, or one per channel. Default: from the model's metadata, else 1.",
    )(command)  # fmt: skip
    command = option(
        "--image-mean", group=IMAGES, type=_Numbers(),
        help="Mean to subtract after scaling: one number, or one per channel. Default: from the model's metadata, "
        "else 0.",
    )(command)  # fmt: skip
    command = option(
        "--image-scale", group=IMAGES, type=float,
        help="Factor on pixel values (0 to 255), for floating-point inputs. Default: from the model's metadata, else "
        "1/255.",
    )(command)  # fmt: skip
    return preprocessing_option(command)


def images_of(options: dict[str, Any]) -> Said:
    """Return the values of the options that `image_options` adds."""
    from graphkit.data.images.feeding import Said

    return Said(options["image_scale"], options["image_mean"], options["image_std"], options["image_layout"])


def log_preprocessing(net: Model, data: Dataset, *, with_options: bool) -> None:
    """Log how labelled images become inputs of a model, and where this comes from. Other data log nothing.

    with_options: whether --data-option is given.
    """
    from graphkit.data import ImageDataset
    from graphkit.model import PREPROCESSING

    if isinstance(data, ImageDataset):
        known = PREPROCESSING in net.meta
        origin = "of the model's metadata" if known else "chosen by the input's shape, because the metadata have none"
        log(f"image preprocessing ({origin}{'; with --data-option' if with_options else ''}): {data.preprocess}")
