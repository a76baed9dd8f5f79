"""Default boxes of single-shot detectors: prediction layers, matching of objects, the loss, and detections.

Liu et al. 2016, "SSD: Single Shot MultiBox Detector", arXiv:1512.02325. Lengths are fractions of the image's, from 0 to
1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from graphkit.errors import InputError, UsageError
from graphkit.frontend import layers as nn
from graphkit.frontend.scopes import name_scope
from graphkit.ir.graph import Value
from graphkit.ir.types import DType
from graphkit.models._images import channels_of
from graphkit.ops import F
from graphkit.text import quantity

# Offsets of centres and logarithms of sizes are divided by these numbers, so that their deviations are near 1.
_VARIANCES = np.array([0.1, 0.1, 0.2, 0.2], np.float32)
# Largest logarithm of the ratio of a decoded size to the size of its default box.
_LARGEST = math.log(1000 / 16)
_NEGATIVES = 3  # number of background boxes in the loss per matched box


@dataclass(frozen=True)
class Tiling:
    """Default boxes of one feature map: two squares, and two rectangles per ratio.

    The sides of the squares are `scale`, and the geometric mean of `scale` and `next_scale`.

    rows, columns: size of the map. height, width: size of the image in cells of the map, not always integers.
    """

    rows: int
    columns: int
    height: float
    width: float
    scale: float
    next_scale: float
    ratios: tuple[int, ...]

    @property
    def shapes(self) -> list[tuple[float, float]]:
        """Return (width, height) of the boxes at each position."""
        mean = math.sqrt(self.scale * self.next_scale)
        shapes = [(self.scale, self.scale), (mean, mean)]
        for ratio in self.ratios:
            long, short = self.scale * math.sqrt(ratio), self.scale / math.sqrt(ratio)
            shapes += [(long, short), (short, long)]
        return shapes

    def boxes(self) -> np.ndarray:
        """Return the boxes, float32 [rows * columns * shapes, 4]: centre x and y, width, height. Row by row."""
        y, x = np.meshgrid(
            (np.arange(self.rows) + 0.5) / self.height, (np.arange(self.columns) + 0.5) / self.width, indexing="ij"
        )
        sizes = np.clip(np.array(self.shapes), 0.0, 1.0)
        centres = np.repeat(np.stack([x, y], axis=-1).reshape(-1, 2), len(sizes), axis=0)
        return np.concatenate([centres, np.tile(sizes, (self.rows * self.columns, 1))], axis=1).astype(np.float32)


# --- heads ------------------------------------------------------------------------------------------


def multibox_heads(maps: Sequence[Value], tilings: Sequence[Tiling], classes: int) -> tuple[Value, Value]:
    """Return logits [N, boxes, classes] and offsets [N, boxes, 4], from two 3x3 convolutions on every feature map."""
    logits, offsets = [], []
    for number, (h, tiling) in enumerate(zip(maps, tilings, strict=True), 1):
        count = len(tiling.shapes)
        with name_scope(f"map{number}"):
            scores, places = (
                nn.conv2d(h, count * each, 3, pad=1, init="xavier_uniform", bias_init="zeros", name=name)
                for name, each in (("scores", classes), ("offsets", 4))
            )
            logits.append(by_box(scores, count))
            offsets.append(by_box(places, count))
    return F.concat(*logits, axis=1, name="logits"), F.concat(*offsets, axis=1, name="offsets")


def by_box(h: Value, count: int) -> Value:
    """Reshape [N, count * K, rows, columns] to [N, rows * columns * count, K]."""
    each = channels_of(h) // count
    return F.reshape(F.transpose(h, perm=(0, 2, 3, 1)), np.array([0, -1, each]))


# --- training ---------------------------------------------------------------------------------------


def match(
    boxes: Sequence[np.ndarray], labels: Sequence[np.ndarray], defaults: np.ndarray, threshold: float = 0.5
) -> tuple[np.ndarray, np.ndarray]:
    """Match objects to default boxes. Returns the targets of a detector for these images: (classes, offsets).

    Each default box takes the object that it overlaps most, if by at least `threshold` (intersection over union). Each
    object also takes the default box that overlaps it most.

    Args:
        boxes: For each image [objects, 4], x1, y1, x2, y2 as fractions of the image's size.
        labels: For each image the classes of its objects [objects], from 1; 0 is the background.
        defaults: [A, 4] of `default_boxes`.

    Returns:
        classes, int64 [N, A], and offsets, float32 [N, A, 4], which are 0 at the background.

    Raises:
        InputError: A box is not finite or has no area, a label is not a positive integer, or the numbers of boxes and
            labels differ.
    """
    if len(boxes) != len(labels):
        raise InputError(f"boxes for {quantity(len(boxes), 'image')}, but labels for {len(labels)}")
    classes = np.zeros((len(boxes), len(defaults)), np.int64)
    offsets = np.zeros((len(boxes), len(defaults), 4), np.float32)
    corners = _corners(defaults)
    for image, (objects, names) in enumerate(zip(boxes, labels, strict=True)):
        found, kinds = _checked(image, objects, names)
        if not len(found):
            continue
        overlap = _overlaps(found, corners)
        best = overlap.argmax(axis=0)
        matched = overlap.max(axis=0) >= threshold
        # If several objects want the same default box, the last one gets it.
        wanted = overlap.argmax(axis=1)
        best[wanted], matched[wanted] = np.arange(len(found)), True
        classes[image, matched] = kinds[best[matched]]
        offsets[image, matched] = _encoded(found[best[matched]], defaults[matched])
    return classes, offsets


def _checked(image: int, boxes: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    found, kinds = np.asarray(boxes, np.float32), np.asarray(labels)
    found = found.reshape(0, 4) if found.size == 0 else found
    if found.ndim != 2 or found.shape[1] != 4 or kinds.shape != (len(found),):
        raise InputError(
            f"image {image}: expected boxes [objects, 4] and labels [objects], not {found.shape} and {kinds.shape}"
        )
    if len(kinds) and not (kinds.dtype.kind in "iu" and kinds.min() >= 1):
        raise InputError(f"image {image}: labels must be integers from 1, not {kinds.tolist()}")
    for number, (x1, y1, x2, y2) in enumerate(found.tolist()):
        if not (math.isfinite(x1 + y1 + x2 + y2) and x1 < x2 and y1 < y2):
            raise InputError(f"image {image}, box {number}: expected x1 < x2 and y1 < y2, not {[x1, y1, x2, y2]}")
    return found, kinds.astype(np.int64)


def _corners(boxes: np.ndarray) -> np.ndarray:
    return np.concatenate([boxes[:, :2] - boxes[:, 2:] / 2, boxes[:, :2] + boxes[:, 2:] / 2], axis=1)


def _overlaps(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the intersection over union [A, B] of boxes [A, 4] and [B, 4]."""
    sides = np.minimum(a[:, None, 2:], b[None, :, 2:]) - np.maximum(a[:, None, :2], b[None, :, :2])
    shared = np.prod(np.maximum(sides, 0), axis=2)
    areas = [np.prod(boxes[:, 2:] - boxes[:, :2], axis=1) for boxes in (a, b)]
    overlaps: np.ndarray = shared / (areas[0][:, None] + areas[1][None] - shared)
    return overlaps


def _encoded(boxes: np.ndarray, defaults: np.ndarray) -> np.ndarray:
    """Return the offsets of boxes from default boxes: the inverse of `decoded`."""
    centres, sizes = (boxes[:, :2] + boxes[:, 2:]) / 2, boxes[:, 2:] - boxes[:, :2]
    places = [(centres - defaults[:, :2]) / defaults[:, 2:], np.log(sizes / defaults[:, 2:])]
    return np.concatenate(places, axis=1) / _VARIANCES


def multibox_loss(logits: Value, offsets: Value, target_classes: Value, target_offsets: Value) -> Value:
    """Loss of SSD: cross entropy of the classes plus smooth L1 of the offsets, divided by the number of matched boxes.

    Equation 1 of the paper. logits: [N, A, classes], offsets: [N, A, 4]; target_classes: int64 [N, A], target_offsets:
    [N, A, 4], both of `match`. Offsets count only at matched default boxes. Classes count there and, image by image, at
    three times as many background boxes: those with the largest cross entropy. Without any match the loss is 0.
    """
    boxes, classes = logits.tensor.known_shape[1:]
    if not isinstance(boxes, int) or not isinstance(classes, int):
        raise UsageError(f"multibox_loss needs a fixed number of boxes and classes, not {logits}")
    matched = F.greater(target_classes, np.int64(0), name="matched")
    entropy = F.softmax_cross_entropy_loss(
        F.reshape(logits, np.array([-1, classes])), F.reshape(target_classes, np.array([-1])), reduction="none"
    )[0]
    entropy = F.reshape(entropy, np.array([-1, boxes]), name="entropy")
    counted = F.or_(matched, _hardest(entropy, matched, boxes))
    zero = F.cast_like(np.float32(0), logits)
    of_classes = F.reduce_sum(F.where(counted, entropy, zero), keepdims=False)
    difference = F.abs(F.sub(offsets, target_offsets))
    inside = F.min(difference, F.cast_like(np.float32(1), offsets))
    smooth = F.add(F.mul(0.5, F.mul(inside, inside)), F.sub(difference, inside))
    of_offsets = F.reduce_sum(F.where(F.unsqueeze(matched, np.array([2])), smooth, zero), keepdims=False)
    count = F.reduce_sum(F.cast(matched, to=DType.INT64), keepdims=False)
    return F.div(F.add(of_classes, of_offsets), F.cast_like(F.max(count, np.int64(1)), logits), name="multibox")


def _hardest(entropy: Value, matched: Value, boxes: int) -> Value:
    """Return a mask [N, A] of the unmatched boxes with the largest entropy: three per matched box of the image."""
    hard = F.where(matched, F.cast_like(np.float32(-1), entropy), entropy)
    every = np.array([boxes])
    order = F.top_k(hard, every, axis=1)[1]
    rank = F.top_k(order, every, axis=1, largest=False)[1]
    count = F.reduce_sum(F.cast(matched, to=DType.INT64), np.array([1]), keepdims=True)
    return F.less(rank, F.mul(count, np.int64(_NEGATIVES)), name="hardest")


# --- detection --------------------------------------------------------------------------------------


def decoded(offsets: Value, defaults: np.ndarray) -> Value:
    """Return boxes [N, A, 4] from their offsets [N, A, 4] to default boxes: x1, y1, x2, y2, clipped to the image."""
    scaled = F.mul(offsets, _VARIANCES)
    moved, grown = F.split(scaled, np.array([2, 2]), axis=2)
    centres = F.add(F.mul(moved, defaults[:, 2:]), defaults[:, :2])
    halves = F.mul(F.exp(F.min(grown, np.float32(_LARGEST))), defaults[:, 2:] / 2)
    corners = F.concat(F.sub(centres, halves), F.add(centres, halves), axis=2)
    return F.clip(corners, np.float32(0), np.float32(1), name="decoded")


@dataclass(frozen=True)
class Detection:
    """Settings of non-maximum suppression."""

    most: int  # largest number of boxes per image
    candidates: int  # largest number of boxes per class that are considered
    overlap: float  # largest intersection over union of two boxes of a class
    score: float  # boxes with this score or less are ignored

    def detect(self, logits: Value, offsets: Value, defaults: np.ndarray) -> dict[str, Value]:
        """Return boxes [N, most, 4], labels int64 [N, most] and scores [N, most], the best first, padded with zeros.

        The graph computes softmax, decoding, NonMaxSuppression by class, and the best of all classes.
        """
        boxes = decoded(offsets, defaults)
        scores = F.transpose(F.softmax(logits, axis=-1), perm=(0, 2, 1))
        classes, count = logits.tensor.known_shape[2] - 1, len(defaults)
        scores = F.slice(scores, np.array([1]), np.array([classes + 1]), np.array([1]))
        if count > self.candidates:
            best = F.top_k(scores, np.array([self.candidates]), axis=2)[0]
            least = F.slice(best, np.array([self.candidates - 1]), np.array([self.candidates]), np.array([2]))
            scores = F.where(F.greater_or_equal(scores, least), scores, np.float32(0))
        limits = np.array([self.most]), np.array([self.overlap], np.float32), np.array([self.score], np.float32)
        selected = F.non_max_suppression(boxes, scores, *limits, name="selected")
        kept = F.scatter_nd(F.constant_of_shape(F.shape(scores)), selected, F.gather_nd(scores, selected))
        best, place = F.top_k(F.reshape(kept, np.array([0, -1])), np.array([self.most]), axis=1)
        found = F.greater(best, np.float32(0), name="found")
        labels = F.add(F.div(place, np.int64(count)), np.int64(1))
        chosen = F.gather_nd(boxes, F.unsqueeze(F.mod(place, np.int64(count)), np.array([2])), batch_dims=1)
        return {
            "boxes": F.where(F.unsqueeze(found, np.array([2])), chosen, np.float32(0)),
            "labels": F.where(found, labels, np.int64(0)),
            "scores": best,
        }
