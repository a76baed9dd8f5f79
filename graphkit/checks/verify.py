"""Verification of an export: compare graphkit's outputs with those of ONNX Runtime on the same inputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from graphkit.checks.inputs import make_feeds
from graphkit.checks.maps import as_table
from graphkit.checks.noise import EPSILON, Noise, Spreads, judge, measurable
from graphkit.checks.rounding import in_double_precision, spreads
from graphkit.errors import CheckFailed, GraphkitError, ReferenceEnded, RuntimeFailure, UsageError
from graphkit.ir.types import FLOATS, DType, dtype_of
from graphkit.model import Model
from graphkit.signatures import typed
from graphkit.text import listed, quantity, short_repr

# Default (rtol, atol) by the element type of an output. Types that are not listed must be equal.
TOLERANCES: Mapping[DType, tuple[float, float]] = {
    DType.FLOAT64: (1e-7, 1e-9),
    DType.FLOAT32: (1e-4, 1e-5),
    DType.FLOAT16: (1e-2, 1e-3),
    DType.BFLOAT16: (4e-2, 1e-2),
}


@dataclass(frozen=True)
class OutputReport:
    """Comparison of one output: errors over all elements, and the tolerances that would have passed.

    `needed_atol` is the smallest atol that passes with the given rtol; `needed_rtol` the smallest rtol with the given
    atol (infinite if a reference element is zero, or if NaNs or shapes differ). `criterion` is the test that decided:
    "tolerance", or "noise" if that failed and both engines were compared with double precision (`noise`).
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    passed: bool
    max_abs: float
    mean_abs: float
    max_rel: float
    rtol: float
    atol: float
    needed_rtol: float
    needed_atol: float
    mismatches: int
    reason: str = ""
    criterion: str = "tolerance"
    noise: Noise | None = None
    # Why nothing was compared: it has no elements, or they are all NaN in both engines.
    untested: str = ""

    @property
    def verdict(self) -> str:
        """The verdict: "PASSED", "FAILED", or "NOT TESTED" if there was nothing to compare."""
        return "FAILED" if not self.passed else "NOT TESTED" if self.untested else "PASSED"

    @property
    def formula(self) -> str:
        return f"|a-b| <= {self.atol:g} + {self.rtol:g} * |b|"

    def __repr__(self) -> str:
        return short_repr(self, lambda: [str(self)])

    def __str__(self) -> str:
        line = f"{self.name} {self.dtype}{list(self.shape)}: max {self.max_abs:.3g} mean {self.mean_abs:.3g} "
        line += f"rel {self.max_rel:.3g}  {self.formula}  {self.verdict}"
        if self.noise is not None:
            line += f" by noise: {self.noise}" if self.passed else f"; {self.noise}"
        if self.untested:
            line += f" ({self.untested})"
        if not self.passed:
            line += (
                f" ({self.reason or quantity(self.mismatches, 'element')}; would pass with atol={self.needed_atol:.3g}"
            )
            line += f" or rtol={self.needed_rtol:.3g})"
        return line


@dataclass(frozen=True)
class Report:
    """Result of `gk.verify`. `passed` is true if something was compared and every output passed.

    `outputs` are in the model's order; `guesses` are the sizes that were chosen for unknown dimensions.
    """

    outputs: tuple[OutputReport, ...]
    opset: int
    guesses: Mapping[str, int] = field(default_factory=dict)

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
                "nothing was compared with ONNX Runtime: "
                + "; ".join(f"{o.name}: {o.untested}" for o in self.outputs)
                + "; give inputs that make the outputs contain numbers"
            )
        if not self.passed:
            raise CheckFailed(
                "outputs differ from ONNX Runtime: " + "; ".join(str(o) for o in self.outputs if not o.passed)
            )

    def as_dict(self) -> dict[str, Any]:
        """Return the report as plain data, for JSON."""
        return {
            "passed": self.passed,
            "verdict": self.verdict,
            "opset": self.opset,
            "guesses": dict(self.guesses),
            "outputs": [{**asdict(o), "formula": o.formula} for o in self.outputs],
        }

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
    strict_tolerance: bool | None = None,
) -> Report:
    """Run a Model in graphkit and, exported to ONNX, in ONNX Runtime, and compare every output.

    There are up to three checks. An output must pass one of them:

    1. Tolerance: an element passes if |a - b| <= atol + rtol * |b|, with a from graphkit and b from ONNX Runtime. NaNs
       and infinities must be in the same places. Integers, booleans and strings must be equal.
    2. Double precision, for float outputs that fail check 1: the graph is also computed in double precision. The error
       of an engine is its distance from this result. graphkit's error may be at most twice that of ONNX Runtime. ONNX
       Runtime's error may be at most 16 times that of graphkit. Both limits must hold in the mean, and at every element
       that failed check 1 (see `graphkit.checks.noise` for the exact rule).
    3. Measured rounding: graphkit measures how much rounding can change the output. This can raise the limit for ONNX
       Runtime in check 2; in quantised models, it can raise both limits.

    Args:
        model: The model.
        inputs: Arrays by name. Missing ones are generated.
        rtol: Relative tolerance. Default: 1e-7 for float64, 1e-4 for float32, 1e-2 for float16, 4e-2 for bfloat16.
        atol: Absolute tolerance. Default: 1e-9 for float64, 1e-5 for float32, 1e-3 for float16, 1e-2 for bfloat16; but
            at most rtol times the largest |b| of the output, so that outputs with only small elements are compared,
            too.
        opset: Opset of the export (default: 21, or the first later one that has all operators of the model).
        fill: Contents of generated inputs: "random" (standard normal; indices stay within their axis), "ones", "zeros"
            or "arange".
        shapes: Input name to shape, for generated inputs with unknown sizes.
        seed: Seed of generated inputs.
        threads: Number of CPU threads of both engines (default: GRAPHKIT_NUM_THREADS, else one per core).
        device: Device that graphkit runs the model on: "cpu" or "cuda".
        against: An ONNX file (a path or a ModelProto) that ONNX Runtime runs instead of a new export: the file that the
            model was read from, or written to.
        strict_tolerance: Leave out checks 2 and 3. The default is True if rtol or atol is given, else False.

    Returns:
        A report with the verdict, and one line per output.

    Raises:
        UsageError: The model draws random numbers (the engines draw different ones), or there is no file `against`.
        InputError: An input is unknown, or does not fit the model.
    """
    from graphkit.onnx_io.runtime_process import prepare, running
    from graphkit.onnx_io.validate import opset_version

    if isinstance(against, (str, Path)) and not Path(against).exists():
        raise UsageError(f"{against}: no such file")
    if drawing := random_nodes(model):
        raise UsageError(f"a model that draws random numbers cannot be compared: {', '.join(drawing[:5])}")
    prepare()
    feeds = make_feeds(model, fill, given=inputs or {}, shapes=shapes, seed=seed)
    proto = model.to_onnx(opset=opset) if against is None else against
    with running(proto, feeds.arrays, threads) as pending:
        mine = model.compile(device=device, threads=threads).run(feeds.arrays)
        try:
            theirs = pending.results()
        except ReferenceEnded as error:
            lines = tuple(_without_reference(name, value, str(error)) for name, value in mine.items())
            return Report(lines, opset_version(proto), feeds.guesses)
    reports = judge_outputs(model, feeds.arrays, mine, theirs, rtol, atol, strict_tolerance)
    return Report(reports, opset_version(proto), feeds.guesses)


def judge_outputs(
    model: Model,
    feeds: Mapping[str, Any],
    ours: Mapping[str, Any],
    reference: Mapping[str, Any],
    rtol: float | None = None,
    atol: float | None = None,
    strict_tolerance: bool | None = None,
) -> tuple[OutputReport, ...]:
    """Compare outputs by the checks of `verify`. `model` computes them in double precision, for checks 2 and 3."""
    reports = compare_outputs(ours, reference, rtol, atol, by_magnitude=True)
    if strict_tolerance is None:
        strict_tolerance = rtol is not None or atol is not None
    if not strict_tolerance and any(is_doubtful(report) for report in reports):
        return with_noise(model, feeds, ours, reference, reports)
    return reports


def _without_reference(name: str, value: Any, reason: str) -> OutputReport:
    """The report of an output without a reference."""
    inf = float("inf")
    array = np.asarray(value) if isinstance(value, (np.ndarray, np.generic)) else None
    kind, shape = ("", ()) if array is None else (str(dtype_of(array.dtype)), array.shape)
    return OutputReport(name, kind, shape, False, inf, inf, inf, 0.0, 0.0, inf, inf, 0, reason)


def is_doubtful(report: OutputReport) -> bool:
    """Return whether rounding may be the reason why an output failed."""
    return not report.passed and not report.reason and dtype_of(report.dtype) in EPSILON


def with_noise(
    model: Any,
    feeds: Mapping[str, Any],
    ours: Mapping[str, Any],
    reference: Mapping[str, Any],
    reports: Sequence[OutputReport],
) -> tuple[OutputReport, ...]:
    """The reports. Outputs that may have failed because of rounding are judged again, in double precision."""
    try:
        truth = in_double_precision(model, feeds)
    except GraphkitError as error:
        reason = f"the rounding noise cannot be measured in double precision: {error}"
        return tuple(replace(r, reason=reason) if is_doubtful(r) else r for r in reports)
    true = {name: t for key, value in ours.items() for name, _, t in _flat(key, value, truth[key])}
    pairs = zip(ours.items(), reference.values(), strict=True)
    arrays = [(np.asarray(x), np.asarray(y)) for (name, a), b in pairs for _, x, y in _flat(name, a, b)]

    def measured(found: Mapping[str, Spreads]) -> tuple[OutputReport, ...]:
        return tuple(
            _measured(r, a, b, true.get(r.name), found.get(r.name)) if is_doubtful(r) else r
            for r, (a, b) in zip(reports, arrays, strict=True)
        )

    judged = measured({})
    # Measuring the effect of rounding takes several more runs in double precision, so it comes last.
    return judged if all(report.passed for report in judged) else measured(spreads(model, feeds, truth))


def _measured(
    report: OutputReport, ours: np.ndarray, reference: np.ndarray, truth: Any, spread: Spreads | None
) -> OutputReport:
    if not measurable(ours, truth):
        return replace(
            report,
            reason="the output has another shape in double precision, because its shape depends on rounded values",
        )
    error, size = errors(ours, reference, dtype_of(ours.dtype))
    found = judge(ours, reference, truth, ~(error <= report.atol + report.rtol * size), spread)
    return replace(report, passed=found.passed, criterion="noise", noise=found, reason=found.reason)


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


def compare_outputs(
    ours: Mapping[str, Any],
    reference: Mapping[str, Any],
    rtol: float | None = None,
    atol: float | None = None,
    *,
    by_magnitude: bool = False,
    sides: tuple[str, str] = ("graphkit", "the reference"),
) -> tuple[OutputReport, ...]:
    """Compare outputs in order, under the names in `ours`; sequences element by element. See `compare`."""
    if len(ours) != len(reference):
        raise RuntimeFailure(f"{sides[0]} returned {quantity(len(ours), 'output')}, {sides[1]} {len(reference)}")
    pairs = zip(ours.items(), reference.values(), strict=True)
    flat = [item for (name, a), b in pairs for item in _flat(name, a, b)]
    return tuple(compare(n, x, y, rtol, atol, by_magnitude=by_magnitude, sides=sides) for n, x, y in flat)


def compare(
    name: str,
    ours: Any,
    reference: Any,
    rtol: float | None = None,
    atol: float | None = None,
    *,
    by_magnitude: bool = False,
    sides: tuple[str, str] = ("graphkit", "the reference"),
) -> OutputReport:
    """Compare one array with its reference by |a-b| <= atol + rtol*|b|.

    by_magnitude: the default of atol is at most rtol times the largest finite |b|, so that small arrays are compared.
    sides: how an error calls the two.
    """
    a, b = np.asarray(ours), np.asarray(reference)
    dtype = dtype_of(a.dtype)
    default = TOLERANCES.get(dtype, (0.0, 0.0))
    rtol = default[0] if rtol is None or dtype not in FLOATS else rtol
    scaled = by_magnitude and atol is None
    atol = default[1] if atol is None or dtype not in FLOATS else atol
    if a.shape != b.shape or dtype is not dtype_of(b.dtype):
        reason = f"{sides[0]} returned {dtype}{list(a.shape)}, {sides[1]} {dtype_of(b.dtype)}{list(b.shape)}"
        inf = float("inf")
        return OutputReport(
            name, str(dtype), a.shape, False, inf, inf, inf, rtol, atol, inf, inf, max(a.size, 1), reason
        )
    error, size = errors(a, b, dtype)
    if scaled:
        atol = min(atol, rtol * _largest(size))
    with np.errstate(all="ignore"):
        excess = error - rtol * size
        relative = np.where(error == 0, 0.0, error / size)
        needed_rtol = np.where(error <= atol, 0.0, (error - atol) / size)
    mismatches = int(np.sum(~(excess <= atol)))
    return OutputReport(
        name,
        str(dtype),
        a.shape,
        mismatches == 0,
        _largest(error),
        float(error.mean()) if error.size else 0.0,
        _largest(relative),
        rtol,
        atol,
        _largest(needed_rtol),
        max(_largest(excess), 0.0),
        mismatches,
        untested=_untested(b),
    )


def _untested(reference: np.ndarray) -> str:
    """Why comparing with these elements proves nothing; "" if it proves something."""
    if not reference.size:
        return "it has no elements"
    if reference.dtype.kind in "fc" and np.isnan(reference).all():
        return "all elements are NaN in both engines"
    return ""


def errors(a: np.ndarray, b: np.ndarray, dtype: DType) -> tuple[np.ndarray, np.ndarray]:
    """|a-b| and |b| in float64 (magnitudes of complex numbers); |a-b| is infinite where NaNs or infinities differ."""
    if dtype is DType.STRING or dtype is DType.BOOL:
        unequal = (a != b).astype(np.float64)
        return unequal, np.zeros_like(unequal)
    wide = np.complex128 if dtype in (DType.COMPLEX64, DType.COMPLEX128) else np.float64
    x, y = a.astype(wide), b.astype(wide)
    with np.errstate(all="ignore"):
        same = (x == y) | (np.isnan(x) & np.isnan(y))
        if dtype.is_integer:
            same = a == b
        error = np.where(same, 0.0, np.abs(x - y))
        # Integers beyond 2**53 may differ although they are equal as float64.
        error = np.where(~same & (error == 0), 1.0, error)
        error = np.where(np.isfinite(x) & np.isfinite(y) | same, error, np.inf)
        size = np.where(np.isfinite(y), np.abs(y), 0.0)
    return error, size


def _largest(values: np.ndarray) -> float:
    return float(np.max(values)) if values.size else 0.0


def _flat(name: str, ours: Any, reference: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield (name, ours, reference): sequences element by element, as `name[i]`; maps as their keys and values."""
    tables = as_table(ours), as_table(reference)
    if tables[0] is not None and tables[1] is not None:
        yield f"{name} (keys)", tables[0].keys, tables[1].keys
        if np.array_equal(tables[0].keys, tables[1].keys):
            yield name, tables[0].values, tables[1].values
    elif ours is None or reference is None:
        yield f"{name} (present)", np.array(ours is not None), np.array(reference is not None)
    elif isinstance(ours, (list, tuple)) or isinstance(reference, (list, tuple)):
        a, b = list(ours), list(reference)
        if len(a) != len(b):
            yield f"{name} (length)", np.array(len(a)), np.array(len(b))
        for i, (x, y) in enumerate(zip(a, b, strict=False)):
            yield from _flat(f"{name}[{i}]", x, y)
    else:
        yield name, ours, reference
