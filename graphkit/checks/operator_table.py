"""Determine what each operator supports, by differentiating each sample twice and planning it on the CPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from graphkit.autodiff.reverse_mode import gradient
from graphkit.checks.samples import Case, dtypes_of, make_case, samples_of, tensor_within
from graphkit.errors import MissingGradient, UnsupportedError
from graphkit.executor.run.params import ParamStore
from graphkit.executor.run.session import Executor
from graphkit.ir.graph import Graph, Value
from graphkit.ir.types import DType
from graphkit.ops import DOMAIN, Op, registry
from graphkit.ops.sequence.elements import holds_floats

YES, PARTLY, NO, REFERENCE, ZERO, NOTHING = "yes", "partly", "no", "interpreted", "zero", "-"


@dataclass(frozen=True)
class OperatorRow:
    """A row of the table: the support for one operator.

    since: version of its domain that introduced its present form; None for graphkit's own operators.
    first, second: whether it has a derivative of that order: yes, no, zero (it vanishes wherever it exists), or - (no
        float result depends on a float operand).
    native: yes if no sample needs the Python reference (views and folded constants count as native), partly if some
        need it.
    exports: whether it can be exported with standard operators.
    """

    name: str
    domain: str
    since: int | None
    first: str
    second: str
    native: str
    file: str
    exports: bool


def operator_rows() -> list[OperatorRow]:
    """Return a row for each operator of the package, standard operators first."""
    own = (cls for cls in registry if cls.__module__.startswith("graphkit.ops."))
    return [_row(cls) for cls in sorted(own, key=lambda c: (c.domain, c.name))]


def markdown(rows: Sequence[OperatorRow]) -> str:
    """Return the rows as a Markdown page with a table for each domain: standard first, graphkit's own last."""
    by_domain: dict[str, list[OperatorRow]] = {}
    for row in rows:
        by_domain.setdefault(row.domain, []).append(row)
    own = by_domain.pop(DOMAIN, [])
    tables = [f"## {domain or 'ai.onnx'}: {_counted(of)}\n\n{_table(of)}" for domain, of in by_domain.items()]
    return _PAGE.format(standard="\n\n".join(tables), others=_counted(own), own=_table(own, own=True))


_PAGE = """\
# Operators at a glance

This table shows which derivatives and native kernels each operator has. To see the operators of your model, run
`graphkit ops net.onnx`. `graphkit ops --markdown` writes this page: it tries every operator on its samples. A test
keeps the page up to date.

- **since**: the version of the domain in which the operator got its present form. Older forms are converted on import.
- **first**, **second**: whether the operator has a derivative of that order. `zero` means a step function, see
  [rounding](training.md#rounding). `-` means that no float result depends on a float operand.
- **native**: `yes` if all samples run in the native engine: as a kernel, as an expansion, as a view, or folded.
  `partly` if some samples do; the others have element types or sizes that are interpreted. `interpreted` if none do.

{standard}

## ai.graphkit: {others}

These are gradient kernels, optimizers, fused operators and linear algebra. **export**: `yes` if the operator is
exported as standard operators.

{own}
"""


def _counted(rows: Sequence[OperatorRow]) -> str:
    return f"{len(rows)} operator{'s' if len(rows) != 1 else ''}"


def _table(rows: Sequence[OperatorRow], own: bool = False) -> str:
    lines = [f"| operator | {'export' if own else 'since'} | first | second | native | file |", "|---" * 6 + "|"]
    for row in rows:
        form = ("yes" if row.exports else "no") if own else row.since
        lines.append(f"| {row.name} | {form} | {row.first} | {row.second} | {row.native} | {row.file} |")
    return "\n".join(lines)


def _row(cls: type[Op]) -> OperatorRow:
    cases = list(_cases(cls))
    first, second = _derivatives(cls, cases)
    since = cls.onnx.since if cls.onnx is not None and cls.domain != DOMAIN else None
    return OperatorRow(
        cls.name, cls.domain, since, first, second, _native(cases), cls.__module__.rpartition(".")[2] + ".py",
        cls.onnx is not None or cls.expand is not None,
    )  # fmt: skip


def _cases(cls: type[Op]) -> Iterator[Case]:
    """Return each sample in its first element type."""
    for number, sample in enumerate(samples_of(cls)):
        for dtype in dtypes_of(cls, sample)[:1]:
            yield make_case(cls, number, dtype)


# --- derivatives ----------------------------------------------------------------------------------


def _derivatives(cls: type[Op], cases: Sequence[Case]) -> tuple[str, str]:
    """Return the best result among the samples for the first derivative, and for the second."""
    found = [_derivatives_of(case) for case in cases] or [(NOTHING, NOTHING)]
    order = (YES, NO, ZERO, NOTHING)
    return min((f for f, _ in found), key=order.index), min((s for _, s in found), key=order.index)


def _derivatives_of(case: Case) -> tuple[str, str]:
    graph = case.graph()
    outputs, wrt = [v for v in graph.outputs if _is_float(v)], [v for v in graph.inputs if _is_float(v)]
    if not outputs or not wrt:
        return NOTHING, NOTHING
    seeds = [Value(v.type, f"dy{i}") for i, v in enumerate(outputs)]
    try:
        gradients = gradient(outputs, wrt, seeds, allow_unused=True)
    except (MissingGradient, UnsupportedError):
        return NO, NO
    if not _reached(gradients, seeds):
        return ZERO, ZERO
    again = [Value(v.type, f"ddx{i}") for i, v in enumerate(gradients)]
    try:
        gradient(gradients, [*wrt, *seeds], again, allow_unused=True)
    except (MissingGradient, UnsupportedError):
        return YES, NO
    return YES, YES


def _is_float(value: Value) -> bool:
    return holds_floats(value.type)


def _reached(values: Sequence[Value], sources: Sequence[Value]) -> bool:
    """Return whether one of `values` depends on one of `sources`."""
    graph = Graph([*sources, *_inputs_of(values, sources)], values)
    active = set(sources)
    for node in graph.nodes:
        if any(v in active for v in node.operands):
            active.update(node.outputs)
    return any(v in active for v in values)


def _inputs_of(values: Sequence[Value], sources: Sequence[Value]) -> list[Value]:
    """Return the graph inputs, except `sources`, that values depend on."""
    found: dict[Value, None] = {}
    seen: set[Value] = set()
    stack = list(values)
    while stack:
        value = stack.pop()
        if value in seen:
            continue
        seen.add(value)
        if value.node is None:
            if value not in sources:
                found[value] = None
        else:
            stack.extend(value.node.operands)
    return list(found)


# --- kernels --------------------------------------------------------------------------------------


def _native(cases: Sequence[Case]) -> str:
    runs = [_runs_natively(case) for case in cases if DType.STRING not in _dtypes(case)]
    if not runs or all(runs):
        return YES
    return PARTLY if any(runs) else REFERENCE


def _runs_natively(case: Case) -> bool:
    """Return whether no step of the plan is interpreted. Parameters and constants are given as inputs."""
    executor = Executor(case.graph(), ParamStore({}), threads=1)
    return all(step.kernel != "interpreted" for step in executor.plan.steps)


def _dtypes(case: Case) -> set[DType]:
    graph = case.graph()
    return {tensor_within(v.type).dtype for v in (*graph.inputs, *graph.outputs)}
