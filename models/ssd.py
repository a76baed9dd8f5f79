"""SSD (Liu et al. 2016) on VGG16, as torchvision defines it.

Train it with `default_boxes`, `match` and `multibox_loss`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from graphkit.errors import UsageError
from graphkit.frontend import layers as nn
from graphkit.ir.graph import Value
from graphkit.model import Model
from graphkit.models._images import HE_NORMAL, channels_of, image_shape, positive
from graphkit.models._multibox import Detection, Tiling, match, multibox_heads, multibox_loss
from graphkit.models._registry import network
from graphkit.ops import F

__all__ = ["default_boxes", "match", "multibox_loss", "ssd"]

# Stages of VGG16: number of convolutions, and channels as a multiple of `width`.
_STAGES = ((2, 1), (2, 2), (3, 4), (3, 8), (3, 8))
_RATIOS = ((2,), (2, 3), (2, 3), (2, 3), (2,), (2,))
_SCALES = (0.07, 0.15, 0.33, 0.51, 0.69, 0.87, 1.05)
_STEPS = (8, 16, 32, 64)  # pixels between boxes on the padded maps; the last two maps divide the image evenly
_SMALLEST = 268  # pixels per side: the last feature map then has one pixel


@network
def ssd(image: tuple[int, ...] = (3, 300, 300), classes: int = 21, width: int = 64, detections: int = 0) -> Model:
    """Boxes and classes of objects, from six feature maps of VGG16 and of the convolutions after it.

    Inputs: x is float32 [N, *image], at least 268 pixels per side.

    Outputs: With `detections` = 0, for training, logits is [N, A, classes] and offsets is [N, A, 4], for each of A
    default boxes: 8,732 at 300x300. Otherwise, the graph returns the best `detections` of each image: boxes float32 [N,
    detections, 4], labels int64 [N, detections] and scores [N, detections]. Boxes are x1, y1, x2, y2 as fractions of
    the image size. Unused rows are 0.

    Options: `classes` includes the background, class 0. `width` is the number of channels of the first convolution. All
    others are in proportion.

    Detection: boxes with scores above 0.01, at most the best 400 of each class, go through non-maximum suppression with
    an IoU threshold of 0.45.

    Training: Use `multibox_loss`, with targets from `match`.

    Parameters: conv1_1_weight, ..., norm_weight, fc6_weight, ..., conv11_2_bias, map1/scores_weight,
    map1/offsets_weight, ... 26,285,486 with 21 classes, 35,641,826 with the 91 of COCO.
    """
    channels, rows, columns = image_shape("ssd", image)
    positive("ssd", width=width)
    if classes < 2 or detections < 0:
        raise UsageError(f"ssd: classes must be 2 or more, detections 0 or more, not {classes} and {detections}")
    tilings = _tilings(rows, columns)
    maps = _feature_maps(nn.input("x", ["N", channels, rows, columns]), width)
    assert [m.tensor.known_shape[2:] for m in maps] == [(t.rows, t.columns) for t in tilings]
    logits, offsets = multibox_heads(maps, tilings, classes)
    if not detections:
        return Model({"logits": logits, "offsets": offsets}, name="ssd")
    defaults = default_boxes(image)
    if detections > (most := (classes - 1) * len(defaults)):
        raise UsageError(
            f"ssd: detections={detections} is above {most}, for {len(defaults)} boxes of {classes - 1} classes"
        )
    detection = Detection(detections, candidates=400, overlap=0.45, score=0.01)
    return Model(detection.detect(logits, offsets, defaults), name="ssd")


def default_boxes(image: tuple[int, ...] = (3, 300, 300)) -> np.ndarray:
    """Return the default boxes, float32 [A, 4]: centre x and y, width and height, as fractions of the image's size.

    They are in the order of the network's outputs.
    """
    _, rows, columns = image_shape("ssd", image)
    return np.concatenate([tiling.boxes() for tiling in _tilings(rows, columns)])


def _tilings(rows: int, columns: int) -> list[Tiling]:
    if min(rows, columns) < _SMALLEST:
        raise UsageError(f"ssd: images must have at least {_SMALLEST} pixels a side, not {rows}x{columns}")
    found = []
    for k, (height, width) in enumerate(zip(_sizes(rows), _sizes(columns), strict=True)):
        padded = k < len(_STEPS)
        vertical, horizontal = (rows / _STEPS[k], columns / _STEPS[k]) if padded else (height, width)
        found.append(Tiling(height, width, vertical, horizontal, _SCALES[k], _SCALES[k + 1], _RATIOS[k]))
    return found


def _sizes(pixels: int) -> tuple[int, ...]:
    """Return the size of each feature map along one axis."""
    first = (pixels // 4 + 1) // 2
    second = first // 2
    third = (second + 1) // 2
    fourth = (third + 1) // 2
    return first, second, third, fourth, fourth - 2, fourth - 4


def _feature_maps(x: Value, width: int) -> list[Value]:
    h, maps = x, []
    for stage, (count, times) in enumerate(_STAGES, 1):
        if stage > 1:
            h = nn.max_pool2d(h, 2, ceil_mode=stage == 4, name=f"pool{stage - 1}")
        for i in range(1, count + 1):
            h = _conv(h, times * width, 3, f"conv{stage}_{i}", pad=1, init=HE_NORMAL)
        if stage == 4:
            maps.append(_normalised(h))
    h = nn.max_pool2d(h, 3, stride=1, pad=1, name="pool5")
    h = _conv(h, 16 * width, 3, "fc6", pad=6, dilation=6)
    h = _conv(h, 16 * width, 1, "fc7")
    maps.append(h)
    for number, times, stride in ((8, 4, 2), (9, 2, 2), (10, 2, 1), (11, 2, 1)):
        h = _conv(h, times * width, 1, f"conv{number}_1")
        h = _conv(h, 2 * times * width, 3, f"conv{number}_2", stride=stride, pad=stride - 1)
        maps.append(h)
    return maps


def _conv(
    x: Value, channels: int, kernel: int, name: str, *, stride: int = 1, pad: int = 0, dilation: int = 1,
    init: Any = "xavier_uniform",
) -> Value:  # fmt: skip
    h = nn.conv2d(
        x, channels, kernel, stride=stride, pad=pad, dilation=dilation, init=init, bias_init="zeros", name=name
    )
    return F.relu(h, name=f"{name}_relu")


def _normalised(x: Value) -> Value:
    """Divide x by its norm over the channels, and multiply each channel by a factor, initially 20 (ParseNet)."""
    channels = channels_of(x)
    length = F.reduce_l2(x, np.array([1]), keepdims=True, name="length")
    scale = nn.parameter("norm_weight", (channels,), 20.0)
    direction = F.div(x, F.max(length, np.float32(1e-12)))
    return F.mul(direction, F.reshape(scale, np.array([1, channels, 1, 1])), name="norm")
