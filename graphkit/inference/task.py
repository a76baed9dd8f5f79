"""Find out what a model predicts: classes, yes or no, several labels, or numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from graphkit.checks.maps import as_table
from graphkit.errors import InputError, UsageError
from graphkit.ir.types import dtype_of
from graphkit.signatures import shown
from graphkit.train import losses
from graphkit.train.losses import Loss
from graphkit.train.targets import aligned, is_one_hot

CLASSES, BINARY, LABELS, REGRESSION = "classification", "binary classification", "multi-label", "regression"

# Largest difference of a sum of probabilities from 1.
_ROUNDING = 1e-2


@dataclass(frozen=True)
class Task:
    """How an output is compared with targets.

    Attributes:
        kind: CLASSES (one score per class), BINARY (one score for each target 0 or 1, such as one per sample or per
            pixel), LABELS (a row of scores per sample, each for a label that is 0 or 1, or a probability) or
            REGRESSION.
        loss: The loss.
        probabilities: Whether the scores are probabilities, and not logits.
        class_axis: For CLASSES, the axis of the output that counts classes: -1 or 1.
        one_hot: Whether targets are one-hot rows instead of class numbers.
        by_values: Whether `probabilities` is only known because the rows of the first batch have sum 1.
    """

    kind: str
    loss: Loss
    probabilities: bool
    class_axis: int = -1
    one_hot: bool = False
    by_values: bool = False

    @property
    def of_classes(self) -> bool:
        return self.kind in (CLASSES, BINARY)

    def scores(self, name: str, output: Any) -> np.ndarray:
        """Return an output as float32 or float64, with the classes along the last axis."""
        array = scores_of(output)
        if array is None:
            raise InputError(f"output {name!r} has no numbers for each sample: {shown(output)}")
        moved = array if self.class_axis == -1 else np.moveaxis(array, self.class_axis, -1)
        if self.by_values and not (np.isnan(moved).any(axis=-1).all() or _sum_to_one(moved)):
            raise InputError(
                f"the rows of output {name!r} have sum 1 in the first batch, but not in all batches: pass "
                "probabilities=True or False (--probabilities, --logits)"
            )
        return moved

    def targets(self, name: str, given: np.ndarray) -> np.ndarray:
        """Return the targets of a batch, as class numbers if they are one-hot rows."""
        if not self.one_hot:
            return given
        if not is_one_hot(given):
            raise InputError(
                f"the targets of output {name!r} are one-hot rows in the first batch, but not in all batches: give "
                "class numbers, or choose a loss (--loss)"
            )
        return np.asarray(given.argmax(axis=-1 if self.class_axis == -1 else self.class_axis))


def scores_of(output: Any) -> np.ndarray | None:
    """Return an output as float32 or float64. A list of maps becomes an array with a column per key, in their order.

    None if the output contains no floating-point numbers.
    """
    if isinstance(output, (list, tuple)):
        table = as_table(output)
        if table is None or table.values.ndim != 2:
            return None
        output = table.values
    if not isinstance(output, np.ndarray) or output.dtype == object or not dtype_of(output.dtype).is_float:
        return None
    return output if output.dtype in (np.float32, np.float64) else output.astype(np.float32)


def recognise(
    output: np.ndarray, target: np.ndarray, loss: Any, *, bounded: bool, probabilities: bool | None, named: bool
) -> Task | None:
    """Return the task of an output, or None if it cannot be compared with the targets.

    Args:
        output: The output for a batch, from `scores_of`.
        target: The targets, of this batch or of all data.
        loss: A name of a loss or a Loss, which decides the kind of the task. None: targets and shapes decide.
        bounded: Whether the output comes from a Softmax or Sigmoid.
        probabilities: Whether scores are probabilities. None: if `bounded`, or if all rows are positive with sum 1.
        named: Whether the data have names of classes, so that targets are class numbers.

    Raises:
        UsageError: The loss is unknown, or is a function.
    """
    chosen = None if loss is None else _named(loss)
    if chosen is None or chosen.classes:
        found = _classes(output, target, chosen or losses.get("softmax_cross_entropy"), bounded, probabilities)
        if found is not None or chosen is not None:
            return found
    if aligned(np.empty((len(output), *target.shape[1:]), np.bool_), output.shape) is None:
        return None
    binary = losses.get("sigmoid_binary_cross_entropy")
    if chosen is None:
        zero_or_one = bool(np.isin(target, (0, 1)).all())
        chosen = binary if zero_or_one or (named and bounded) else losses.get("mse")
    if not chosen.probabilities:
        return Task(REGRESSION, chosen, False)
    given = bounded if probabilities is None else probabilities
    single = output.ndim != 2 or output.shape[1] == 1
    return Task(BINARY if single and bool(np.isin(target, (0, 1)).all()) else LABELS, chosen, given)


def _named(loss: Any) -> Loss:
    if not isinstance(loss, (str, Loss)):
        what = "a loss for each of several outputs" if isinstance(loss, Mapping) else shown(loss)
        raise UsageError(
            f"evaluate: loss must be a name ({', '.join(losses.names())}) or a result of gk.losses.get, not {what}. "
            "Choose one output with output= (--output-name)"
        )
    return losses.get(loss)


def _classes(
    output: np.ndarray, target: np.ndarray, loss: Loss, bounded: bool, probabilities: bool | None
) -> Task | None:
    """Return the task if the output has a score for each class, and the targets are class numbers or one-hot rows."""
    whole = target.dtype.kind in "biu" or bool(target.dtype.kind == "f" and np.all(target == np.floor(target)))
    if not whole or output.ndim < 2:
        return None
    for axis in (-1, 1):
        moved = output if axis == -1 else np.moveaxis(output, axis, -1)
        if moved.shape[-1] < 2:
            continue
        shape = (len(output), *target.shape[1:])
        numbers = aligned(np.empty(shape, np.bool_), moved.shape[:-1]) is not None
        along = target if axis == -1 else np.moveaxis(target, axis, -1) if target.ndim > 1 else target
        rows = not numbers and shape == output.shape and is_one_hot(along)
        if rows or numbers:
            if probabilities is None and not bounded:
                found = _sum_to_one(moved)
                return Task(CLASSES, loss, found, axis, one_hot=rows, by_values=found)
            return Task(CLASSES, loss, bounded if probabilities is None else probabilities, axis, one_hot=rows)
    return None


def _sum_to_one(scores: np.ndarray) -> bool:
    """Whether all rows along the last axis are probabilities. Rows with NaN are left out."""
    sums = scores.sum(axis=-1, dtype=np.float64)
    known = ~np.isnan(sums)
    return bool(known.any() and (scores[known] >= 0).all() and np.allclose(sums[known], 1.0, rtol=0, atol=_ROUNDING))
