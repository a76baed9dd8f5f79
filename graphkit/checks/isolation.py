"""Run nodes alone on both sides of a comparison, with the same inputs, and judge the difference of their results."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from graphkit.checks.comparison import OutputReport, compare_outputs, errors, flattened
from graphkit.checks.findings import Divergence, ValueDifference
from graphkit.checks.judging import judged
from graphkit.checks.lower_precision import Precision, lower_of, precision_of_type
from graphkit.checks.noise import EPSILON
from graphkit.checks.nonfinite import counted
from graphkit.checks.pairing import Cut, Pair, Producers, pairs_of
from graphkit.checks.sides import Side, match
from graphkit.checks.trace import GraphTrace, Trace, trace_of
from graphkit.checks.walk import Walk
from graphkit.errors import GraphkitError, InvalidModel, RuntimeFailure, UsageError
from graphkit.ir.types import FLOATS, DType, TensorType, Type, dtype_of

# Functions with values up to 1. Engines approximate them with an absolute error of at most _STEPS epsilons, also where
# the values are tiny.
_BOUNDED = frozenset({"Sigmoid", "Tanh", "Erf", "Softmax", "HardSigmoid", "Sin", "Cos"})
_STEPS = 4.0


@dataclass(frozen=True)
class Case:
    """Nodes of both sides that compute the same values, and the inputs for them, by their names on the first side."""

    targets: tuple[Pair, ...]
    ours: Cut
    theirs: Cut
    given: Mapping[str, Any]


@dataclass(frozen=True)
class Found:
    """A divergence, with the case that shows it, and the position of the case's first target among the pairs."""

    divergence: Divergence
    case: Case
    index: int


class Comparer:
    """Two sides with the same inputs `arrays`: their values in pairs, and comparisons of them."""

    def __init__(
        self, first: Side, second: Side, arrays: Mapping[str, Any], rtol: float | None = None, atol: float | None = None
    ):
        self.first, self.second, self.arrays = first, second, arrays
        self.rtol, self.atol = rtol, atol
        self.feeds = second.feeds(arrays)
        self.ours, self.theirs = (
            Producers(trace_of(side, feeds)) for side, feeds in ((first, arrays), (second, self.feeds))
        )
        self.labels = (first.label, second.label)
        self.is_one_model = first.given is second.given
        inputs = second.inputs or [(name, name) for name in arrays]
        outputs, self.notes = self._outputs()
        self.pairs, by_structure = pairs_of(self.ours.trace, self.theirs.trace, inputs, outputs)
        if not self.pairs:
            raise UsageError(f"no value of {self.labels[0]} can be matched with one of {self.labels[1]}")
        if by_structure:
            self.notes += ("few values have equal names: the others are matched by structure",)
        self._lower = {} if self.is_one_model else self._lower_precisions()
        self.notes += tuple(self._notes_on_precisions())
        self.unmatched = sum(len(step.outputs) for step in self.ours.trace.steps) - len(self.pairs)
        self._to_theirs = dict(inputs) | {p.ours: p.theirs for p in self.pairs}
        self._to_ours = {theirs: ours for ours, theirs in self._to_theirs.items()}
        self._dtypes: dict[str, Any] = {}
        self._dropped: set[Pair] = set()

    def _outputs(self) -> tuple[list[tuple[str, str]], tuple[str, ...]]:
        """Pairs of values that the models return, and notes."""
        values = self.ours.trace.outputs, self.theirs.trace.outputs
        if self.is_one_model:
            return list(zip(*values, strict=True)), ()
        types = self.first.model.output_types, self._types_of_second()
        found = match("output", *types, self.labels, needed=False)
        ours, theirs = (dict(zip(kinds, names, strict=True)) for kinds, names in zip(types, values, strict=True))
        return [(ours[a], theirs[b]) for a, b in found.pairs], found.notes

    def _lower_precisions(self) -> dict[str, Precision]:
        """The lower precision of each pair whose values depend on different ones, by the name on the first side."""
        found = {
            p.ours: lower_of(_precision(self.first, p.ours), _precision(self.second, p.theirs)) for p in self.pairs
        }
        return {name: lower for name, lower in found.items() if lower is not None}

    def _notes_on_precisions(self) -> Iterator[str]:
        for lower, count in Counter(self._lower.values()).items():
            values = "" if count == len(self.pairs) else f" for {count} of {len(self.pairs)} values"
            yield f"the precisions differ{values}: the limits are those of {lower.name}"

    def _lower_of(self, name: str, ours: Any, theirs: Any) -> Precision | None:
        """The precision that determines the limits of a value; None: its element type does.

        ours, theirs: the value on both sides. If only their element types differ, the precision is that of both.
        """
        if (
            name in self._lower
            or self.is_one_model
            or not (isinstance(ours, np.ndarray) and isinstance(theirs, np.ndarray))
        ):
            return self._lower.get(name)
        both_floats = dtype_of(ours.dtype) in FLOATS and dtype_of(theirs.dtype) in FLOATS
        return self.first.precisions_of_values.get(name) if both_floats and ours.dtype != theirs.dtype else None

    def name_of_second(self, name: str) -> str | None:
        """The name that a value of the first side has on the second one; None if it is not matched."""
        return self._to_theirs.get(name)

    def _types_of_second(self) -> Mapping[str, Type]:
        """The types of the second model's outputs, of unknown rank if graphkit cannot read it."""
        try:
            return self.second.model.output_types
        except GraphkitError:
            return dict.fromkeys(self.theirs.trace.outputs, TensorType(DType.FLOAT32))

    def drop(self, pair: Pair) -> bool:
        """Leave out a pair whose nodes have different operators, unless the models return it. Say whether it was done.

        A program that quantises a model may give the name of a value to another one: it merges Relu into the range of
        the quantised value before it.
        """
        operators = tuple(
            side.trace.steps[side.of[name]].operator
            for side, name in ((self.ours, pair.ours), (self.theirs, pair.theirs))
        )
        if not self._lower or operators[0] == operators[1] or pair.ours in self.ours.trace.outputs:
            return False
        self._dropped.add(pair)
        del self._to_theirs[pair.ours], self._to_ours[pair.theirs]
        self.notes += (f"{pair.ours!r} is made by {' and by '.join(operators)}: it is not compared",)
        return True

    # --- values ------------------------------------------------------------------------------------

    def recomputed(self, names: Iterable[str]) -> dict[str, Any]:
        """Compute values of the first side from the inputs of the model."""
        wanted = list(dict.fromkeys(names))
        return Walk(self.ours, self.arrays, wanted).advance(wanted) if wanted else {}

    def nbytes(self, pair: Pair) -> int | None:
        """The size of a value; None if neither side knows it before a run."""
        for trace, name in ((self.ours.trace, pair.ours), (self.theirs.trace, pair.theirs)):
            if isinstance(trace, GraphTrace) and (size := trace.nbytes(name)) is not None:
                return size
        return None

    def saw(self, pair: Pair, theirs: Any) -> None:
        """Remember the element type of a value of the second side."""
        if isinstance(theirs, np.ndarray):
            self._dtypes[pair.theirs] = theirs.dtype

    def for_second(self, name: str, value: Any) -> Any:
        """Convert a value of the first side to the float type that the second side has for it, if it has that value."""
        theirs = self._to_theirs.get(name, "")
        dtype = self.feeds[theirs].dtype if isinstance(self.feeds.get(theirs), np.ndarray) else self._dtypes.get(theirs)
        if dtype is None or not isinstance(value, np.ndarray) or value.dtype == dtype:
            return value
        return value.astype(dtype) if dtype_of(value.dtype) in FLOATS and dtype_of(dtype) in FLOATS else value

    # --- cases -------------------------------------------------------------------------------------

    def case(self, targets: Sequence[Pair], stop: int | None, known: Mapping[str, Any]) -> Case:
        """Return the nodes that compute `targets` from the pairs before number `stop` (None: from all other pairs).

        known: values of the first side. Others are computed.
        """
        before = (
            p
            for p in (self.pairs if stop is None else self.pairs[:stop])
            if p not in targets and p not in self._dropped
        )
        names = set(self._inputs()) | {p.ours for p in before}
        ours = self.ours.cut([p.ours for p in targets], names)
        theirs = self.theirs.cut([p.theirs for p in targets], {self._to_theirs[name] for name in names})
        reads = dict.fromkeys((*ours.reads, *(self._to_ours[name] for name in theirs.reads)))
        missing = self.recomputed(name for name in reads if name not in known)
        given = {name: known[name] if name in known else missing[name] for name in reads}
        # Both sides get the same numbers, also if the second one has a narrower type.
        for name, value in given.items():
            if (other := self.for_second(name, value)) is not value:
                given[name] = other.astype(value.dtype)
        return Case(tuple(targets), ours, theirs, given)

    def whole(self) -> Case:
        """The whole models, from their inputs to their outputs."""
        returned = set(self.ours.trace.outputs)
        return self.case([p for p in self.pairs if p.ours in returned], 0, self.arrays)

    def _inputs(self) -> Iterable[str]:
        return (name for name in self.arrays if name in self._to_theirs)

    def given_to(self, case: Case) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the inputs of the nodes on the first side and on the second side, by their names there."""
        ours = {name: case.given[name] for name in case.ours.reads}
        theirs = {n: self.for_second(self._to_ours[n], case.given[self._to_ours[n]]) for n in case.theirs.reads}
        return ours, theirs

    def run(self, case: Case) -> tuple[OutputReport, ...]:
        """Run the nodes on both sides with the same inputs, and judge the results."""
        if not case.targets:
            return ()
        mine, theirs = self.results(case)
        return self.judged(case.targets, mine, theirs, case.given)

    def results(self, case: Case, other: Mapping[str, Any] | None = None) -> tuple[dict[str, Any], dict[str, Any]]:
        """Run the nodes on both sides; return the results by their names on the first side.

        other: inputs of the second side, by its names (default: those of the first side).
        """
        given = self.given_to(case)
        mine = self.ours.trace.run(case.ours.steps, given[0], [p.ours for p in case.targets])
        theirs = self.theirs.trace.run(case.theirs.steps, other or given[1], [p.theirs for p in case.targets])
        return mine, {p.ours: theirs[p.theirs] for p in case.targets}

    def failures(self, case: Case) -> tuple[bool, bool]:
        """Whether each of the two sides cannot run the nodes."""
        given = self.given_to(case)
        return (
            _fails(self.ours.trace, case.ours, given[0], [p.ours for p in case.targets]),
            _fails(self.theirs.trace, case.theirs, given[1], [p.theirs for p in case.targets]),
        )

    def agrees_alone(self, case: Case, values: Mapping[str, tuple[Any, Any]]) -> bool:
        """Whether the nodes alone return what they returned between the others, each side with its own inputs.

        values: of both sides, by their names on the first side.
        """
        own = {n: values[ours][1] for n in case.theirs.reads if (ours := self._to_ours[n]) in values}
        if len(own) < len(case.theirs.reads):
            return True  # the second side has not kept them
        alone = self.results(case, own)
        between = tuple({p.ours: values[p.ours][side] for p in case.targets} for side in (0, 1))
        return all(
            report.passed
            for one, other in zip(alone, between, strict=True)
            for report in compare_outputs(one, other, by_magnitude=True)
        )

    def compared(self, ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> tuple[OutputReport, ...]:
        """Compare values by the tolerances, under the names of the first side."""
        return tuple(
            report
            for (name, mine), other in zip(ours.items(), theirs.values(), strict=True)
            for report in compare_outputs(
                {name: mine}, {name: other}, self.rtol, self.atol, by_magnitude=True,
                lower=self._lower_of(name, mine, other),
            )
        )  # fmt: skip

    def judged(
        self, targets: Sequence[Pair], ours: Mapping[str, Any], theirs: Mapping[str, Any], given: Mapping[str, Any]
    ) -> tuple[OutputReport, ...]:
        """Compare the values of `targets`; measure rounding from the values `given` on if they fail the tolerances."""
        if self.rtol is not None or self.atol is not None:
            return self.compared(ours, theirs)
        rules = ((pair, self._rule(pair, ours[pair.ours], theirs[pair.ours])) for pair in targets)
        return tuple(
            report
            for (lower, exact_is_second), group in itertools.groupby(rules, key=lambda each: each[1])
            for report in self._judged_group([pair for pair, _ in group], ours, theirs, given, lower, exact_is_second)
        )

    def _rule(self, pair: Pair, ours: Any, theirs: Any) -> tuple[Precision | None, bool]:
        """The precision that determines the limits, and whether the second model is evaluated in double precision.

        It is the second one if the first one has the lower precision.
        """
        lower = self._lower_of(pair.ours, ours, theirs)
        return lower, pair.ours in self._lower and lower == _precision(self.first, pair.ours)

    def _judged_group(
        self,
        targets: Sequence[Pair],
        ours: Mapping[str, Any],
        theirs: Mapping[str, Any],
        given: Mapping[str, Any],
        lower: Precision | None,
        exact_is_second: bool,
    ) -> tuple[OutputReport, ...]:
        """See `judged`, for values with one rule."""
        ours, theirs = ({p.ours: values[p.ours] for p in targets} for values in (ours, theirs))
        reports = self.compared(ours, theirs)
        if all(report.passed for report in reports):
            return reports
        try:
            producers = self._exact_second if exact_is_second else self._exact_first
            part, feeds, own = self._part(producers, targets, given)
        except (GraphkitError, KeyError) as error:
            told = f"the rounding noise cannot be measured: {error}"
            return tuple(r if r.passed or r.reason else replace(r, reason=told) for r in reports)
        found = judged(
            part, feeds, ours, theirs, reports, labels=self.labels, own=own, lower=lower,
            with_runtime="onnxruntime" in (self.first.engine, self.second.engine),
        )  # fmt: skip
        found = self._accepted(targets, found)
        if lower is not None or all(report.passed for report in found):
            return found
        rounding = self._rounding(targets, given)
        if rounding is None:
            return found
        # Either side may round more often than the other: then both errors are compared with the measured rounding.
        by_rounding = judged(part, feeds, ours, theirs, reports, labels=self.labels, own=own, lower=rounding)
        by_rounding = self._accepted(targets, by_rounding)
        return by_rounding if all(report.passed for report in by_rounding) else found

    def _part(
        self, producers: Producers, targets: Sequence[Pair], given: Mapping[str, Any]
    ) -> tuple[Any, dict[str, Any], dict[str, str]]:
        """Return the part of a side's model that computes `targets` from `given`, its inputs, and names of targets."""
        is_first = producers is self._exact_first
        names = str if is_first else self._to_theirs.__getitem__
        arrays = self.arrays if is_first else self.feeds
        known = {names(n): value if is_first else self.for_second(n, value) for n, value in given.items()}
        own = {p.ours: names(p.ours) for p in targets}
        cut = producers.cut(list(own.values()), {*known, *arrays})
        feeds = {name: known[name] if name in known else arrays[name] for name in cut.reads}
        return producers.trace.part(cut.steps, feeds, list(own.values())), feeds, own

    def _rounding(self, targets: Sequence[Pair], given: Mapping[str, Any]) -> Precision | None:
        """The lowest precision in which either side computes `targets` from `given`; None for integers."""
        names = {self._to_theirs[name] for name in given if name in self._to_theirs}
        ours = self.ours.cut([p.ours for p in targets], {*given, *self.arrays})
        theirs = self.theirs.cut([p.theirs for p in targets], {*names, *self.feeds})
        found = [
            side.precision_of_node(name)
            for side, producers, cut in ((self.first, self.ours, ours), (self.second, self.theirs, theirs))
            for step in cut.steps
            for name in producers.trace.steps[step].outputs
        ]
        # The second side rounds what it gets if it has a narrower type for it.
        for name in theirs.reads:
            value = given.get(self._to_ours[name])
            if value is not None and (converted := self.for_second(self._to_ours[name], value)) is not value:
                found.append(precision_of_type(dtype_of(converted.dtype)))
        lowest = max(filter(None, found), key=lambda each: each.epsilon, default=None)
        return lowest if lowest is not None and lowest.name in map(str, FLOATS) else None

    @cached_property
    def _exact_first(self) -> Producers:
        found = self.ours
        return found if isinstance(found.trace, GraphTrace) else Producers(GraphTrace(self.first.model, self.arrays))

    @cached_property
    def _exact_second(self) -> Producers:
        found = self.theirs
        return found if isinstance(found.trace, GraphTrace) else Producers(GraphTrace(self.second.model, self.feeds))

    def _accepted(self, targets: Sequence[Pair], reports: Sequence[OutputReport]) -> tuple[OutputReport, ...]:
        """Let errors of a few epsilons pass if a bounded function made the value."""
        made = {p.ours: self.ours.trace.steps[self.ours.of[p.ours]].operator for p in targets}
        return tuple(
            replace(r, passed=True, reason="") if made.get(r.name) in _BOUNDED and _is_approximate(r) else r
            for r in reports
        )

    # --- descriptions ------------------------------------------------------------------------------

    def divergence(
        self, kind: str, targets: Sequence[Pair], values: Mapping[str, tuple[Any, Any]], isolated: Any, reason: str = ""
    ) -> Divergence:
        """Describe the node that makes `targets`. values: values of both sides by their names on the first side."""
        ours = self.ours.trace.steps[self.ours.of[targets[0].ours]]
        theirs = self.theirs.trace.steps[self.theirs.of[targets[0].theirs]]
        inputs = [
            difference(name, self._to_theirs[name], *values[name])
            for name in dict.fromkeys(ours.inputs)
            if name in values and name in self._to_theirs
        ]
        outputs = [difference(p.ours, p.theirs, *values[p.ours]) for p in targets if p.ours in values]
        failed = [r.reason for r in isolated if not r.passed and r.reason]
        return Divergence(
            kind, ours.name, ours.operator, theirs.name, theirs.operator, tuple(filter(None, inputs)),
            tuple(filter(None, outputs)), tuple(isolated), (ours.name,), reason=reason or "; ".join(failed[:1]),
            one_sided=self._one_sided(outputs), parameters=tuple(self._parameters(ours, theirs)),
        )  # fmt: skip

    def _one_sided(self, outputs: Iterable[ValueDifference | None]) -> str:
        for item in filter(None, outputs):
            for what, (ours, theirs) in (("NaN", item.nan), ("infinity", item.infinite)):
                if bool(ours) != bool(theirs):
                    return f"{what} in {item.name!r} only in {self.labels[0] if ours else self.labels[1]}"
        return ""

    def _parameters(self, ours: Any, theirs: Any) -> Iterable[str]:
        """Yield a text for each parameter at the same position that differs."""
        for name, other in zip(ours.inputs, theirs.inputs, strict=False):
            if name in self.ours.trace.stored and other in self.theirs.trace.stored:
                a, b = self.ours.trace.stored_array(name), self.theirs.trace.stored_array(other)
                if a is None or b is None or a.dtype.kind in "OSU":
                    continue
                if a.shape != b.shape:
                    yield f"parameter {name!r} has the shape {list(a.shape)}, and {list(b.shape)} on the other side"
                elif (count := int((errors(a, b, dtype_of(a.dtype))[0] > 0).sum())) and not self._lower:
                    yield f"parameter {name!r}: {count} of {a.size} elements differ"


def _precision(side: Side, name: str) -> Precision | None:
    """The lowest precision that a value depends on: that of the model if graphkit has no value of this name."""
    return side.precisions_of_values.get(name, side.precision)


def _fails(trace: Trace, cut: Cut, given: Mapping[str, Any], wanted: Sequence[str]) -> bool:
    try:
        trace.run(cut.steps, given, wanted)
    except (InvalidModel, RuntimeFailure):
        return True
    return False


def _is_approximate(report: OutputReport) -> bool:
    """Whether an error is at most a few epsilons of the range of a function with values up to 1."""
    return report.passed or report.max_abs <= _STEPS * EPSILON.get(dtype_of(report.dtype), 0.0)


def difference(name: str, other: str, ours: Any, theirs: Any) -> ValueDifference | None:
    """Return the difference of two tensors; None for other values, or if the shapes differ."""
    flat = list(flattened(name, ours, theirs))
    if len(flat) != 1:
        return None
    a, b = np.asarray(flat[0][1]), np.asarray(flat[0][2])
    dtype, other_dtype = dtype_of(a.dtype), dtype_of(b.dtype)
    infinite = float("inf")
    largest = relative = infinite
    if a.shape == b.shape:
        error, size = errors(a, b, dtype)
        with np.errstate(all="ignore"):
            ratio = np.where(error == 0, 0.0, error / size)
        largest, relative = (float(x.max()) if x.size else 0.0 for x in (error, ratio))
    (nan, inf), (other_nan, other_inf) = counted(a), counted(b)
    return ValueDifference(
        name, other, str(dtype), str(other_dtype), a.shape, largest, relative, (nan, other_nan), (inf, other_inf)
    )  # fmt: skip
