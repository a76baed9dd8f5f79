"""Run two models on the same inputs, and compare their outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from graphkit.checks.comparison import OutputReport, compare_outputs
from graphkit.checks.differences.ports import Ports
from graphkit.checks.differences.result import Behaviour
from graphkit.checks.inputs import Feeds, make_feeds
from graphkit.checks.judging import judged
from graphkit.checks.verify import random_nodes
from graphkit.errors import GraphkitError, InputError, TypeMismatch, UsageError
from graphkit.ir.types import TensorType
from graphkit.model import Model

_SIDES = ("B", "A")


def compared_outputs(
    a: Model,
    b: Model,
    ports: Ports,
    feeds: Feeds,
    *,
    fill: str,
    seed: int,
    rtol: float | None,
    atol: float | None,
    threads: int | None,
) -> Behaviour:
    """Run both models on `feeds`, arrays for the inputs of `a`, and compare the outputs of `b` with those of `a`.

    Inputs that only `b` has are generated. Raises UsageError if a model draws random numbers.
    """
    for side, model in (("A", a), ("B", b)):
        if drawing := random_nodes(model):
            raise UsageError(f"{side} draws random numbers, so that its outputs differ in each run: {drawing[0]}")
    outputs = {a.outputs[i]: b.outputs[j] for i, j in ports.outputs if i is not None and j is not None}
    if not outputs:
        return Behaviour((), feeds.guesses, "no output of A corresponds to an output of B")
    names = {b.inputs[j]: a.inputs[i] for i, j in ports.inputs if i is not None and j is not None}
    shared = {name: feeds.arrays[same] for name, same in names.items()}
    try:
        other = make_feeds(b, fill, given=shared, seed=seed)
        _check_fit(b, shared)
    except (InputError, TypeMismatch) as error:
        return Behaviour((), feeds.guesses, f"B cannot be run on the inputs of A: {error}")
    before = _ran("A", a, feeds.arrays, list(outputs), threads)
    after = _ran("B", b, other.arrays, list(outputs.values()), threads)
    reference = {name: before[name] for name in outputs}
    ours = {name: after[same] for name, same in outputs.items()}
    reports = compare_outputs(ours, reference, rtol, atol, by_magnitude=True, sides=_SIDES)
    if rtol is None and atol is None:
        reports = tuple(map(_named, judged(a, feeds.arrays, ours, reference, reports, labels=_SIDES)))
    return Behaviour(reports, {**other.guesses, **feeds.guesses})


def _ran(
    side: str, model: Model, arrays: Mapping[str, Any], outputs: Sequence[str], threads: int | None
) -> dict[str, Any]:
    try:
        return model.compile(threads=threads).run(arrays, outputs)
    except GraphkitError as error:
        raise type(error)(f"model {side}: {error}") from error


def _named(report: OutputReport) -> OutputReport:
    """Return the report of two models for a report that names two engines."""
    if report.noise is None:
        return report
    reason = "" if report.passed else "A and B differ by more than rounding explains"
    return replace(report, reason=reason, noise=replace(report.noise, reason=reason))


def _check_fit(model: Model, arrays: Mapping[str, Any]) -> None:
    """Raise InputError if the element type of an array is not that of its input."""
    for name, kind in model.input_types.items():
        array = arrays.get(name)
        if isinstance(kind, TensorType) and isinstance(array, np.ndarray) and array.dtype != kind.dtype.numpy:
            raise InputError(f"input {name!r} is {kind}, the input of A {array.dtype}")
