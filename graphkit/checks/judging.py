"""Judge outputs that are not within the tolerances: measure the rounding errors of both sides in double precision."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from graphkit.checks.comparison import OutputReport, errors, flattened
from graphkit.checks.lower_precision import Precision
from graphkit.checks.noise import ENGINES, EPSILON, Spreads, judge, judge_lower, measurable
from graphkit.checks.rounding import DRAWS, Progress, in_double_precision, spreads
from graphkit.errors import GraphkitError
from graphkit.ir.types import FLOATS, dtype_of
from graphkit.text import quantity


def judged(
    model: Any,
    feeds: Mapping[str, Any],
    ours: Mapping[str, Any],
    other: Mapping[str, Any],
    reports: Sequence[OutputReport],
    *,
    labels: tuple[str, str] = ENGINES,
    own: Mapping[str, str] | None = None,
    lower: Precision | None = None,
    with_runtime: bool = False,
    progress: Progress | None = None,
) -> tuple[OutputReport, ...]:
    """Return the reports. Outputs that may have failed because of rounding are judged again, in double precision.

    Args:
        model: The model to evaluate in double precision.
        feeds: Its inputs.
        ours: Results of the first side by name.
        other: Results of the other side, in the same order.
        reports: A report for each result, or for each of its elements if it is a sequence.
        labels: Titles of the two sides.
        own: The name of each result in `model`, if it has another one there.
        lower: The lower precision of two models.
        with_runtime: Whether ONNX Runtime computes one of the sides, with its absolute errors.
        progress: See `spreads`.
    """
    judge_one = _Judge(labels, lower)
    if not any(map(judge_one.is_doubtful, reports)):
        return tuple(reports)
    names = dict.fromkeys(ours) if own is None else own
    try:
        truth = in_double_precision(model, feeds)
        true = {n: t for key, v in ours.items() for n, _, t in flattened(key, v, truth[names[key] or key])}
    except GraphkitError as error:
        reason = f"the rounding noise cannot be measured in double precision: {error}"
        return tuple(replace(r, reason=reason) if judge_one.is_doubtful(r) else r for r in reports)
    pairs = zip(ours.items(), other.values(), strict=True)
    arrays = [(np.asarray(x), np.asarray(y)) for (name, a), b in pairs for _, x, y in flattened(name, a, b)]

    def measured(found: Mapping[str, Spreads]) -> tuple[OutputReport, ...]:
        return tuple(
            judge_one(r, a, b, true.get(r.name), found.get(names.get(r.name) or r.name))
            if judge_one.is_doubtful(r)
            else r
            for r, (a, b) in zip(reports, arrays, strict=True)
        )

    found = measured({}) if lower is None else tuple(reports)
    if lower is None and all(report.passed for report in found):
        return found
    epsilon = None if lower is None else lower.epsilon
    doubtful = list(map(judge_one.is_doubtful, reports))
    limits = spreads(model, feeds, truth, epsilon, lower is None and with_runtime, progress)
    return _measured(map(measured, limits), doubtful)


def _measured(runs: Iterator[tuple[OutputReport, ...]], doubtful: Sequence[bool]) -> tuple[OutputReport, ...]:
    """Return the first reports in which every doubtful output passes, else the last ones.

    A run in double precision takes long, and more runs only raise the limits.
    """
    found: tuple[OutputReport, ...] = ()
    count = 0
    for found in runs:
        count += 1
        if all(report.passed for report, is_doubtful in zip(found, doubtful, strict=True) if is_doubtful):
            return found
    if count == DRAWS:
        return found
    note = f" (rounding was measured in {quantity(count, 'run')} instead of {DRAWS}, because the model is large)"
    return tuple(replace(r, reason=r.reason + note) if r.noise and not r.passed else r for r in found)


class _Judge:
    def __init__(self, labels: tuple[str, str], lower: Precision | None):
        self.labels = labels
        self.lower = lower

    def is_doubtful(self, report: OutputReport) -> bool:
        """Whether rounding may be the reason why an output failed."""
        if report.passed or report.reason:
            return False
        dtype = dtype_of(report.dtype)
        return dtype in EPSILON or (self.lower is not None and dtype in FLOATS)

    def __call__(
        self, report: OutputReport, ours: np.ndarray, other: np.ndarray, truth: Any, spread: Spreads | None
    ) -> OutputReport:
        is_array = isinstance(truth, np.ndarray) and truth.shape == ours.shape
        if not (is_array if self.lower is not None else measurable(ours, truth)):
            return replace(
                report,
                reason="the output has another shape in double precision, because its shape depends on rounded values",
            )
        error, size = errors(ours, other, dtype_of(ours.dtype))
        suspects = ~(error <= report.atol + report.rtol * size)
        if self.lower is None:
            found = judge(ours, other, truth, suspects, spread, self.labels)
        else:
            if spread is None:
                return replace(report, reason="the effect of rounding on this output cannot be measured")
            found = judge_lower(ours, other, truth, suspects, spread.tensors, self.lower.epsilon, self.labels)
        return replace(report, passed=found.passed, criterion="noise", noise=found, reason=found.reason)
