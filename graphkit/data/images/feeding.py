"""Convert images for an input of a model, in the layout, size and type that its metadata or the caller give."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from graphkit.data.preprocessing.decode import Picture, opened
from graphkit.data.preprocessing.image import OF_CHANNELS, Preprocess
from graphkit.errors import InputError, UsageError
from graphkit.ir.limits import require_memory
from graphkit.ir.types import DType, TensorType, Type
from graphkit.text import quantity


@dataclass(frozen=True)
class Said:
    """Options of the caller for the images of a model. None: use the metadata of the model, or the default.

    By default, the whole image is resized to the size of the input. A float input gets (pixel * scale - mean) / std
    with scale 1/255, mean 0 and std 1; a uint8 input gets the pixels unchanged.
    """

    scale: float | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    layout: str | None = None


def pictures_for(
    paths: Sequence[Path], name: str, kind: Type, known: Preprocess | None = None, said: Said | None = None
) -> np.ndarray:
    """Return the array of one image, or of several, for input `name` of that type. known: the model's metadata.

    Raises InputError, which names the file, if images and input do not match.
    """
    return reading(paths, name, kind, known, said).arrays()


def reading(
    paths: Sequence[Path], name: str, kind: Type, known: Preprocess | None = None, said: Said | None = None
) -> Reading:
    """Return how images are read for input `name`; arguments and errors are those of `pictures_for`."""
    tensor = _takes_pictures(paths[0], name, kind)
    _fits_batch(paths, name, tensor)
    return Reading(tuple(paths), conversion(paths[0], name, kind, known, said))


def conversion(
    first: Path, name: str, kind: Type, known: Preprocess | None = None, said: Said | None = None
) -> Conversion:
    """Return how one image is converted for input `name`, whatever its batch size.

    Args:
        first: The first image, for errors.
        name: Name of the input.
        kind: Its type.
        known: The preprocessing in the model's metadata.
        said: Options of the caller.

    Raises:
        InputError: Images and input do not match.
    """
    tensor = _takes_pictures(first, name, kind)
    try:
        wanted = _wanted(first, name, tensor, known, said or Said())
    except InputError:
        raise
    except UsageError as error:
        raise InputError(f"{first}: {error}") from None
    return Conversion(name, tensor, wanted, known is not None, said or Said())


def _arrays(paths: Sequence[Path], converted: Conversion) -> np.ndarray:
    first, name, tensor = paths[0], converted.name, converted.kind
    made: list[np.ndarray] = []
    for path in paths:
        with opened(path) as picture:
            array = converted.array(picture)
        if not made:
            require_memory(len(paths) * array.nbytes, f"{len(paths)} images")
        elif array.shape != made[0].shape:
            raise InputError(
                f"{path}: its shape is {list(array.shape)}, but that of {first} is {list(made[0].shape)}, and input "
                f"{name!r} has no fixed size"
            )
        made.append(array)
    return made[0] if tensor.rank == 3 else np.stack(made)


def picture_input(inputs: Mapping[str, Type]) -> str:
    """Return the name of the only input that takes images. Raises InputError if there is none, or several."""
    found = [name for name, kind in inputs.items() if _may_be_picture(kind)]
    if len(found) == 1:
        return found[0]
    listed = ", ".join(f"{name} {kind}" for name, kind in inputs.items())
    raise InputError(
        f"{'several inputs take' if found else 'no input takes'} images ({listed}); choose an input: NAME=FILE"
    )


def undescribed(kind: TensorType, layout: str) -> Preprocess:
    """Return the preprocessing for an input of this type if the model's metadata do not describe it.

    The whole image is resized to the size of the input. A float input gets pixel / 255; a uint8 input gets the pixels
    unchanged. If the input has no fixed size, `resize` is None.
    """
    sizes = dict(zip(layout[1:], kind.known_shape[-3:], strict=True))
    channels, height, width = (size if isinstance(size := sizes[axis], int) else None for axis in "CHW")
    whole = None if height is None or width is None else (height, width)
    return Preprocess(resize=whole, colours=OF_CHANNELS[channels or 3], layout=layout, dtype=str(kind.dtype))


def options_for(inputs: Mapping[str, Type], *, is_new: bool = False) -> dict[str, Any]:
    """Return options of `folders.load` for a model without preprocessing in its metadata; {} if no input is clear.

    For an input of fixed size, this is the preprocessing of `undescribed`. If the size is free, the data determine it.
    is_new: the network is not trained yet, so the data determine the arithmetic, too.
    """
    found = [kind for kind in inputs.values() if _may_be_picture(kind)]
    if len(found) != 1 or not isinstance(found[0], TensorType):
        return {}
    first, last = (size in OF_CHANNELS for size in found[0].known_shape[-3::2])
    if first == last:
        return {}
    made = undescribed(found[0], "NCHW" if first else "NHWC")
    if made.resize is not None and not is_new:
        return {"preprocess": made}
    options: dict[str, Any] = {"layout": made.layout, "colours": made.colours, "dtype": made.dtype}
    if made.dtype == "uint8" or not is_new:
        options |= {"mean": (), "std": ()}
    return options if made.resize is None else options | {"size": made.resize}


def _may_be_picture(kind: Type) -> bool:
    if not isinstance(kind, TensorType) or not _is_number(kind.dtype) or kind.rank not in (3, 4):
        return False
    ends = kind.known_shape[-3], kind.known_shape[-1]
    return any(not isinstance(size, int) or size in OF_CHANNELS for size in ends)


def _is_number(dtype: DType) -> bool:
    return dtype.is_float or dtype is DType.UINT8


def _takes_pictures(path: Path, name: str, kind: Type) -> TensorType:
    if not isinstance(kind, TensorType) or not _is_number(kind.dtype):
        raise InputError(f"{path}: an image needs an input of floats or uint8, but {name!r} is {kind}")
    if kind.rank not in (3, 4):
        raise InputError(
            f"{path}: an image needs an input of shape [N, C, H, W] or [N, H, W, C] (N may be missing), but "
            f"{name!r} is {kind}"
        )
    return kind


def _fits_batch(paths: Sequence[Path], name: str, kind: TensorType) -> None:
    size = 1 if kind.rank == 3 else kind.known_shape[0]
    if isinstance(size, int) and size != len(paths):
        given = "one image" if len(paths) == 1 else f"{len(paths)} images, from {paths[0]} to {paths[-1]}"
        raise InputError(f"{paths[0]}: {given}, but {name!r} is {kind}: give {size} images")


@dataclass(frozen=True)
class Conversion:
    """How an image is converted for an input. Its text describes the conversion, and where it comes from."""

    name: str
    kind: TensorType
    wanted: _Wanted
    by_metadata: bool
    said: Said

    def array(self, picture: Picture) -> np.ndarray:
        """Return the array of an opened image: [C, H, W] or [H, W, C]. Raises InputError if it is damaged."""
        return self.wanted.array(picture)

    def __str__(self) -> str:
        origin = (
            "by the model's metadata"
            if self.by_metadata
            else "chosen by the input's shape, because the model's metadata do not describe it"
        )
        fields = ("scale", "mean", "std", "layout")
        given = [f"--image-{field}" for field in fields if getattr(self.said, field) is not None]
        return f"{self.wanted} ({', '.join([origin, *given])})"


@dataclass(frozen=True)
class Reading:
    """How image files are converted for an input. Its text describes the conversion, and where it comes from."""

    paths: tuple[Path, ...]
    conversion: Conversion

    def arrays(self) -> np.ndarray:
        """Return the array of one image, or of several. Raises InputError, which names a file that does not match."""
        return _arrays(self.paths, self.conversion)

    def __str__(self) -> str:
        return f"{quantity(len(self.paths), 'image')} for input {self.conversion.name!r}: {self.conversion}"


@dataclass(frozen=True)
class _Wanted:
    """Requirements of an input for images. Height and width are None if any size works."""

    preprocess: Preprocess
    height: int | None
    width: int | None

    def __str__(self) -> str:
        if self.preprocess.size is not None or (self.height is None and self.width is None):
            return str(self.preprocess)
        height, width = ("own" if side is None else side for side in (self.height, self.width))
        return str(self.preprocess).replace("in its own size", f"resized to {height} x {width}")

    def array(self, picture: Picture) -> np.ndarray:
        if self.preprocess.size is not None or (self.height is None and self.width is None):
            return self.preprocess.array(picture)
        own = picture.size
        size = (own[1] if self.height is None else self.height, own[0] if self.width is None else self.width)
        return replace(self.preprocess, resize=size).array(picture)


def _wanted(path: Path, name: str, kind: TensorType, known: Preprocess | None, said: Said) -> _Wanted:
    layout = said.layout or (known.layout if known is not None else _layout(path, name, kind))
    sizes = dict(zip(layout[1:], kind.known_shape[-3:], strict=True))
    channels, height, width = (size if isinstance(size := sizes[axis], int) else None for axis in "CHW")
    if channels not in (None, *OF_CHANNELS):
        raise InputError(f"{path}: an image in {layout} has 1, 3 or 4 channels, but {name!r} is {kind}")
    dtype = str(kind.dtype)
    changes: dict[str, Any] = {"layout": layout, "dtype": dtype}
    changes |= {field: value for field in ("scale", "mean", "std") if (value := getattr(said, field)) is not None}
    if known is None:
        return _Wanted(replace(undescribed(kind, layout), **changes), height, width)
    made = known.size or (None, None)
    fits = all(
        have is None or want is None or have == want
        for have, want in zip((known.channels, *made), (channels, height, width), strict=True)
    )
    if not fits:
        size_of = "any size" if known.size is None else f"{made[0]} x {made[1]} pixels"
        raise InputError(
            f"{path}: the model's metadata describe {known.colours} images of {size_of}, but {name!r} is {kind}"
        )
    if dtype == "uint8" and known.dtype != "uint8":
        # The network itself scales and normalises the pixels.
        changes = {"scale": 1 / 255, "mean": (), "std": (), **changes}
    return _Wanted(replace(known, **changes), height, width)


def _layout(path: Path, name: str, kind: TensorType) -> str:
    first, last = kind.known_shape[-3], kind.known_shape[-1]
    if (first in OF_CHANNELS) == (last in OF_CHANNELS):
        raise InputError(
            f"{path}: the position of the channels is not clear from the shape of {name!r}, {kind}: "
            "add --image-layout NCHW or NHWC"
        )
    return "NCHW" if first in OF_CHANNELS else "NHWC"
