"""mixup and CutMix: mix the samples of a batch with other samples of the batch, and mix their losses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from graphkit.errors import InputError
from graphkit.train.losses import MIX, SECOND


@dataclass(frozen=True)
class Mixing:
    """Mixes the samples x of a batch with x', the same samples in another order.

    mixup: inputs are m x + (1 - m) x', with m from Beta(mixup, mixup) (Zhang et al., 2018). cutmix: a box of x is
    replaced by the same box of x'. The box has the share 1 - m of the image's area, with m from Beta(cutmix, cutmix)
    (Yun et al., 2019). With both, each batch uses one of them, with probability 1/2. m is one number per batch.
    """

    mixup: float | None
    cutmix: float | None

    def mixed(
        self, inputs: Mapping[str, Any], targets: Mapping[str, Any], size: int | None, key: Sequence[int]
    ) -> dict[str, Any]:
        """Return the feeds of a program with a mixed loss.

        They are the mixed inputs, the targets of both samples, and the share of the first samples.

        size: number of samples; None: the length of the first input. Arrays of other lengths are not mixed. key: seed.
        """
        generator = np.random.default_rng(key)
        size = len(next(iter(inputs.values()))) if size is None else size
        use_mixup = self.mixup is not None and (self.cutmix is None or generator.random() < 0.5)
        alpha = self.mixup if use_mixup else self.cutmix
        assert alpha is not None, "at least one of mixup and cutmix is set"
        share = float(generator.beta(alpha, alpha))
        order = generator.permutation(size)
        if use_mixup:
            found = {name: _mixup(name, array, order, share) for name, array in inputs.items()}
        else:
            found, share = _cutmix(inputs, order, share, generator)
        second = {f"{name}{SECOND}": _reordered(array, order) for name, array in targets.items()}
        return {**found, **targets, **second, MIX: np.float32(share)}


def _mixup(name: str, given: Any, order: np.ndarray, share: float) -> Any:
    array = np.asarray(given)
    if not _has_samples(array, len(order)):
        return given
    if array.dtype.kind in "biu":
        raise InputError(f"mixup needs inputs of floats, but input {name!r} is {array.dtype}")
    kind = array.dtype
    return array * kind.type(share) + array[order] * kind.type(1.0 - share)


def _cutmix(
    inputs: Mapping[str, Any], order: np.ndarray, share: float, generator: np.random.Generator
) -> tuple[dict[str, Any], float]:
    """Replace one box in all images. Return the images, and the share of the area outside of the box."""
    images = {
        n: np.asarray(a) for n, a in inputs.items() if np.ndim(a) == 4 and _has_samples(np.asarray(a), len(order))
    }
    if not images:
        raise InputError(f"cutmix needs images [N, channels, height, width]; the inputs are {', '.join(inputs)}")
    side = np.sqrt(1.0 - share)
    center_y, center_x = generator.random(2)
    for name, array in inputs.items():
        if name not in images and _has_samples(np.asarray(array), len(order)):
            raise InputError(f"cutmix needs images with 4 axes, but input {name!r} has {np.ndim(array)}")
    found = dict(inputs)
    for name, array in images.items():
        height, width = array.shape[2:]
        (top, bottom), (left, right) = _span(center_y, side, height), _span(center_x, side, width)
        mixed = array.copy()
        mixed[:, :, top:bottom, left:right] = array[order, :, top:bottom, left:right]
        found[name], share = mixed, 1.0 - (bottom - top) * (right - left) / (height * width)
    return found, share


def _span(center: float, share: float, size: int) -> tuple[int, int]:
    middle, half = int(center * size), int(share * size) // 2
    return max(middle - half, 0), min(middle + half, size)


def _reordered(array: Any, order: np.ndarray) -> Any:
    return array[order] if _has_samples(np.asarray(array), len(order)) else array


def _has_samples(array: np.ndarray, size: int) -> bool:
    return array.ndim > 0 and array.shape[0] == size
