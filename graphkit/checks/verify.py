"""Comparison of a model in two engines, or of two models, on the same inputs."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from graphkit.checks.comparison import OutputReport, compare, compare_outputs
from graphkit.checks.inputs import fixed_sizes, make_feeds
from graphkit.checks.judging import judged
from graphkit.checks.limits import Limits, PartOfModel, limits_by_output, notes_on_limits
from graphkit.checks.lower_precision import TOLERANCES
from graphkit.checks.noise import ENGINES
from graphkit.checks.sides import Side, input_pairs, match, match_inputs, renamed, sides_of
from graphkit.errors import CheckFailed, ReferenceEnded, UsageError
from graphkit.ir.types import TensorType, dtype_of
from graphkit.model import Model
from graphkit.signatures import typed
from graphkit.text import listed, quantity, short_repr

__all__ = ["TOLERANCES", "OutputReport", "Report", "compare", "compare_outputs", "random_nodes", "verify"]


@dataclass(frozen=True)
class Report:
    """Result of `gk.verify`. `passed` is true if something was compared and every output passed.

    `outputs` are in the model's order; `guesses` are the sizes that were chosen for unknown dimensions. `opset` is that
    of the file that ONNX Runtime ran; None if graphkit ran both sides. `sides` are the titles of the two sides. `notes`
    say which inputs and outputs were matched by position or not compared, and which precision determined the limits.
    """

    outputs: tuple[OutputReport, ...]
    opset: int | None
    guesses: Mapping[str, int] = field(default_factory=dict)
    sides: tuple[str, str] = ENGINES
    notes: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        return self.verdict == "PASSED"

    @property
    def verdict(self) -> str:
        """The verdict: "PASSED", "FAILED", or "NOT TESTED" if no output has an element that could be compared."""
        if not all(output.passed for output in self.outputs):
            return "FAILED"
        return "NOT TESTED" if all(output.untested for output in self.outputs) else "PASSED"

    def raise_if_failed(self) -> None:
        """Raise CheckFailed if an output differs, or if nothing was compared. The message names these outputs."""
        if self.verdict == "NOT TESTED":
            raise CheckFailed(
                f"nothing was compared with {self.sides[1]}: "
                + "; ".join(f"{o.name}: {o.untested}" for o in self.outputs)
                + "; give inputs that make the outputs contain numbers"
            )
        if not self.passed:
            raise CheckFailed(
                f"outputs differ from {self.sides[1]}: " + "; ".join(str(o) for o in self.outputs if not o.passed)
            )

    def as_dict(self) -> dict[str, Any]:
        """Return the report as plain data, for JSON."""
        outputs = [{**asdict(o), "formula": o.formula} for o in self.outputs]
        for output in outputs:
            if output["noise"] is not None:
                del output["noise"]["names"]
        found = {
            "passed": self.passed,
            "verdict": self.verdict,
            "opset": self.opset,
            "guesses": dict(self.guesses),
            "outputs": outputs,
        }
        if self.sides != ENGINES or self.notes:
            found |= {"sides": list(self.sides), "notes": list(self.notes)}
        return found

    def __repr__(self) -> str:
        return short_repr(self, self._facts)

    def _facts(self) -> Iterator[str]:
        yield self.verdict
        yield quantity(len(self.outputs), "output")
        failed = [item.name for item in self.outputs if not item.passed]
        if failed:
            yield f"failed: {listed(failed, len(failed))}"

    def __str__(self) -> str:
        return "\n".join([*map(str, self.outputs), self.verdict])


@typed("gk.verify")
def verify(
    model: Model,
    inputs: Mapping[str, Any] | None = None,
    *,
    rtol: float | None = None,
    atol: float | None = None,
    opset: int | None = None,
    fill: str = "random",
    shapes: Mapping[str, Sequence[int]] | None = None,
    seed: int = 0,
    threads: int | None = None,
    device: str = "cpu",
    against: Any = None,
    engine: str | None = None,
    against_engine: str | None = None,
    source: Any = None,
    against_source: Any = None,
    strict_tolerance: bool | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Report:
    """Run a model in graphkit and in ONNX Runtime, or two models, on the same inputs, and compare every output.

    There are up to three checks. An output must pass one of them:

    1. Tolerance: an element passes if |a - b| <= atol + rtol * |b|, with a from graphkit and b from ONNX Runtime. NaNs
       and infinities must be in the same places. Integers, booleans and strings must be equal.
    2. Double precision, for float outputs that fail check 1: the graph is also computed in double precision. The error
       of an engine is its distance from this result. graphkit's error may be at most twice that of ONNX Runtime. ONNX
       Runtime's error may be at most 16 times that of graphkit. Both limits must hold in the mean, and at every element
       that failed check 1 (see `graphkit.checks.noise` for the exact rule).
    3. Measured rounding: graphkit measures how much rounding can change the output, in up to 4 runs in double precision
       (8 in quantised models). This can raise the limit for ONNX Runtime in check 2; in quantised models, it can raise
       both limits.

    If `against` is another model, a and b are the results of `model` and of `against`. If the precisions of the two
    models differ, the limits come from the lower precision: its tolerances in check 1; then the error of both models
    may be at most 4 times the measured effect of rounding to the lower precision. This second rule also applies to
    outputs of a wider type that depend on nodes in float16 or bfloat16. The precision of each output is that of the
    nodes that it depends on.

    Args:
        model: The model.
        inputs: Arrays by name. Missing ones are generated.
        rtol: Relative tolerance. Default: 1e-7 for float64, 1e-4 for float32, 1e-2 for float16, 4e-2 for bfloat16, 0.08
            for a model that is quantised to 8 bits and compared with another precision.
        atol: Absolute tolerance. Default: 1e-9 for float64, 1e-5 for float32, 1e-3 for float16, 1e-2 for bfloat16, 0.08
            for 8 bits; but at most rtol times the largest |b| of the output, so that outputs with only small elements
            are compared, too.
        opset: Opset of exports (default: 21, or the first later one that has all operators of the model).
        fill: Contents of generated inputs: "random" (standard normal; indices stay within their axis), "ones", "zeros"
            or "arange".
        shapes: Input name to shape, for generated inputs with unknown sizes.
        seed: Seed of generated inputs.
        threads: Number of CPU threads of both engines (default: GRAPHKIT_NUM_THREADS, else one per core).
        device: Device that graphkit runs models on: "cpu" or "cuda".
        against: The other model: a Model, a ModelProto, or the path of an ONNX file, a JSON file or a run folder. Its
            inputs and outputs are matched by name. Those without an equal name are matched by position, if their number
            and ranks agree (see `Report.notes`). Default: `model` itself, in the other engine.
        engine: Engine of `model`: "graphkit" or "onnxruntime" (default: "graphkit").
        against_engine: Engine of `against` (default: "onnxruntime" for an ONNX file or ModelProto, "graphkit" for a
            Model, a JSON file or a run folder).
        source: The ONNX file (or ModelProto) that `model` was read from. If `engine` is "onnxruntime", it runs this
            file instead of an export.
        against_source: The ONNX file (or ModelProto) that `against` was read from, if it is a Model.
        strict_tolerance: Leave out checks 2 and 3. The default is True if rtol or atol is given, else False.
        progress: Called in check 3 with the numbers of finished runs, and of all runs at most.

    Returns:
        A report with the verdict, and one line per output.

    Raises:
        UsageError: The model draws random numbers (the engines draw different ones), there is no file `against`, or no
            output of the two models belongs together.
        InputError: An input is unknown, or does not fit the model.
    """
    from graphkit.onnx_io.runtime_process import prepare

    first, second = sides_of(
        model, against, engine, against_engine, source=source, against_source=against_source, opset=opset,
        threads=threads, device=device,
    )  # fmt: skip
    if drawing := [*random_nodes(model), *(random_nodes(against) if isinstance(against, Model) else ())]:
        raise UsageError(f"a model that draws random numbers cannot be compared: {', '.join(drawing[:5])}")
    if "onnxruntime" in (first.engine, second.engine):
        prepare()
    fixed = {} if against is None else fixed_sizes(input_pairs(first, second))
    feeds = make_feeds(model, fill, given=inputs or {}, shapes=shapes, fixed=fixed, seed=seed)
    arrays, notes = (feeds.arrays, ()) if against is None else match_inputs(first, second, feeds.arrays)
    opset_run = _opset(first, second)
    labels = (first.label, second.label)
    with second.started(second.feeds(arrays)) as results_of_second, first.started(arrays) as results_of_first:
        mine = results_of_first()
        try:
            theirs = results_of_second()
        except ReferenceEnded as error:
            lines = tuple(_without_reference(name, value, str(error)) for name, value in mine.items())
            return Report(lines, opset_run, feeds.guesses, labels, notes)
    if strict_tolerance is None:
        strict_tolerance = rtol is not None or atol is not None
    settings = _Settings(rtol, atol, strict_tolerance, progress)
    reports, more = _compared(first, second, arrays, mine, theirs, settings)
    return Report(reports, opset_run, feeds.guesses, labels, (*notes, *more))


@dataclass(frozen=True)
class _Settings:
    rtol: float | None
    atol: float | None
    strict: bool
    progress: Callable[[int, int], None] | None


def _compared(
    first: Side, second: Side, arrays: Mapping[str, Any], mine: Mapping[str, Any], theirs: Mapping[str, Any],
    settings: _Settings,
) -> tuple[tuple[OutputReport, ...], tuple[str, ...]]:  # fmt: skip
    """Compare the results of two sides. Return the reports, and notes."""
    notes: tuple[str, ...] = ()
    labels = (first.label, second.label)
    # An export has the outputs of its model in the same order, possibly under other names.
    pairs = list(zip(mine, theirs, strict=False))
    if first.given is not second.given:
        found = match("output", _kinds(mine), _kinds(theirs), labels, needed=False)
        pairs, notes = found.pairs, found.notes
        mine, theirs = {name: mine[name] for name, _ in pairs}, renamed(theirs, pairs)
    reports = compare_outputs(mine, theirs, settings.rtol, settings.atol, by_magnitude=True)
    if all(report.passed for report in reports):
        return reports, notes
    groups = limits_by_output(first, second, pairs, mine)
    judged_by_output: dict[str, tuple[OutputReport, ...]] = {}
    for limits, group in groups.items():
        judged_by_output |= _within(limits, first, second, arrays, mine, theirs, group, settings)
    ordered = tuple(report for name in mine for report in judged_by_output[name])
    return ordered, (*notes, *notes_on_limits(groups))


def _within(
    limits: Limits, first: Side, second: Side, arrays: Mapping[str, Any], mine: Mapping[str, Any],
    theirs: Mapping[str, Any], pairs: Sequence[tuple[str, str]], settings: _Settings,
) -> dict[str, tuple[OutputReport, ...]]:  # fmt: skip
    """Compare outputs that have the same limits. Return the reports by output.

    mine, theirs: results in the same order. pairs: names of the outputs on both sides.
    """
    names = [own for own, _ in pairs]
    other = dict(zip(mine, theirs.values(), strict=False))
    tolerances = None if limits.is_measured and not settings.strict else limits.lower
    parts = [
        compare_outputs(
            {name: mine[name]}, {name: other[name]}, settings.rtol, settings.atol, by_magnitude=True, lower=tolerances
        )
        for name in names
    ]  # fmt: skip
    reports = tuple(report for part in parts for report in part)
    if not settings.strict:
        exact = second if limits.exact_is_second else first
        own = dict(pairs) if exact is second and first.given is not second.given else {name: name for name in names}
        reports = judged(
            PartOfModel.of(exact.model, list(own.values())), second.feeds(arrays) if exact is second else arrays,
            {name: mine[name] for name in names}, {name: other[name] for name in names}, reports,
            labels=(first.label, second.label), own=own, lower=limits.lower,
            with_runtime="onnxruntime" in (first.engine, second.engine), progress=settings.progress,
        )  # fmt: skip
    left = iter(reports)
    return {name: tuple(itertools.islice(left, len(part))) for name, part in zip(names, parts, strict=True)}


def _kinds(results: Mapping[str, Any]) -> dict[str, Any]:
    """The types of results. A value that is not a tensor stands for its own type."""
    return {
        name: TensorType(dtype_of(value.dtype), value.shape) if isinstance(value, np.ndarray) else value
        for name, value in results.items()
    }


def _opset(*sides: Side) -> int | None:
    """The opset of the file that ONNX Runtime runs, of the second side if there are two."""
    from graphkit.onnx_io.validate import opset_version

    files = [side.file for side in sides if side.engine == "onnxruntime"]
    return opset_version(files[-1]) if files else None


def _without_reference(name: str, value: Any, reason: str) -> OutputReport:
    """The report of an output without a reference."""
    inf = float("inf")
    array = np.asarray(value) if isinstance(value, (np.ndarray, np.generic)) else None
    kind, shape = ("", ()) if array is None else (str(dtype_of(array.dtype)), array.shape)
    return OutputReport(name, kind, shape, False, inf, inf, inf, 0.0, 0.0, inf, inf, 0, reason)


def random_nodes(model: Any) -> list[str]:
    """Return the names of nodes that draw random numbers. Their outputs cannot be compared with another engine's."""
    return [model.graph.node_name(n) for n in model.graph.nodes if _draws(n)]


def _draws(node: Any) -> bool:
    """Whether a node or one of its subgraphs draws random numbers. Dropout does so only in training mode."""
    if any(_draws(inner) for graph in node.op.subgraphs().values() for inner in graph.nodes):
        return True
    if not getattr(node.op, "random", False):
        return False
    mode = node.inputs[2] if len(node.inputs) > 2 else None
    return node.op.name != "Dropout" or (mode is not None and mode.tensor.constants != (0,))
