"""Verification of a simplified file: ONNX Runtime runs it and the original on the same inputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from graphkit.checks.comparison import compare_outputs
from graphkit.checks.judging import judged
from graphkit.checks.verify import Report, random_nodes
from graphkit.errors import GraphkitError, ReferenceEnded, RuntimeFailure, UsageError
from graphkit.model import Model
from graphkit.transforms.simplify import Simplified

_SIDES = ("the simplified model", "the original")


def verify_simplified(
    simplified: Simplified,
    feeds: Mapping[str, Any],
    *,
    model: Model | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    threads: int | None = None,
) -> Report:
    """Run the original and the simplified message in ONNX Runtime, and compare every output.

    Args:
        simplified: The result of `simplify_onnx`.
        feeds: An array for every input.
        model: The simplified model, if the caller has read it already.
        rtol: Relative tolerance, as in `verify`.
        atol: Absolute tolerance, as in `verify`.
        threads: Number of CPU threads.

    Raises:
        UsageError: The model draws random numbers, so that no two runs are equal.
        RuntimeFailure: ONNX Runtime cannot run the original.
    """
    from graphkit.onnx_io.runtime_process import running
    from graphkit.onnx_io.validate import opset_version

    model = model or simplified.model
    if drawing := random_nodes(model):
        raise UsageError(f"a model that draws random numbers cannot be compared: {', '.join(drawing[:5])}")
    try:
        with running(simplified.original, feeds, threads) as pending:
            reference = pending.results()
    except (GraphkitError, ReferenceEnded) as error:
        raise RuntimeFailure(
            f"the original cannot be run for the comparison: {error}. Give inputs that it accepts, or do not verify"
        ) from error
    with running(simplified.message, feeds, threads) as pending:
        ours = pending.results()
    reports = compare_outputs(ours, reference, rtol, atol, by_magnitude=True, sides=_SIDES)
    if rtol is None and atol is None:
        reports = judged(model, feeds, ours, reference, reports, labels=_SIDES)
    return Report(reports, opset_version(simplified.message))
