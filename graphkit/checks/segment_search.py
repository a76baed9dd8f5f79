"""Find the smallest group of nodes that differs. Inner values are not outputs, because that might hide the error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from graphkit.checks.comparison import OutputReport
from graphkit.checks.isolation import Case, Comparer, Found
from graphkit.checks.pairing import Pair


def smallest_segment(comparer: Comparer, found: Found) -> Found:
    """Extend the case of a divergence backwards until it differs given equal inputs; return the smallest such case."""
    targets = found.case.targets
    good, bad = found.index, None
    step = 1
    while bad is None and good > 0:
        start = max(0, found.index - step)
        if _differs(comparer, targets, start) is not None:
            bad = start
        else:
            good, step = start, 2 * step
    if bad is None:
        return found
    while good - bad > 1:
        middle = (good + bad) // 2
        if _differs(comparer, targets, middle) is not None:
            bad = middle
        else:
            good = middle
    case, isolated = _differs(comparer, targets, bad) or (found.case, found.divergence.isolated)
    return replace(
        found, case=case, divergence=replace(found.divergence, nodes=_names(comparer, case), isolated=isolated)
    )


def hidden_segment(comparer: Comparer) -> Found:
    """Return the smallest group of nodes that differs if their inner values are not observed."""
    low, high = 0, len(comparer.pairs)
    targets: Sequence[Pair] = comparer.whole().targets
    while high - low > 1:
        middle = (low + high) // 2
        ends = _ends(comparer, middle)
        if _differs(comparer, ends, 0) is not None:
            high, targets = middle, ends
        else:
            low = middle
    case = comparer.case(targets, 0, {})
    isolated = comparer.run(case)
    wrong = {report.name.split("[")[0] for report in isolated if not report.passed}
    last = [pair for pair in targets if pair.ours in wrong][-1:] or list(targets[-1:])
    reason = next((report.reason for report in isolated if not report.passed and report.reason), "")
    divergence = comparer.divergence("segment", last, {}, isolated, reason)
    divergence = replace(divergence, nodes=_names(comparer, case))
    found = Found(divergence, case, comparer.pairs.index(last[0]))
    return smallest_segment(comparer, replace(found, case=replace(case, targets=tuple(last))))


def _differs(comparer: Comparer, targets: Sequence[Pair], stop: int) -> tuple[Case, tuple[OutputReport, ...]] | None:
    """Return the case of the nodes after pair number `stop`, and its comparison, if its results differ."""
    case = comparer.case(targets, stop, {})
    reports = comparer.run(case)
    return None if all(report.passed for report in reports) else (case, reports)


def _ends(comparer: Comparer, count: int) -> list[Pair]:
    """Those of the first `count` pairs that later nodes read, or that the model returns."""
    inside = comparer.pairs[:count]
    trace = comparer.ours.trace
    done = set(comparer.ours.cut([p.ours for p in inside], ()).steps)
    read = {name for i, step in enumerate(trace.steps) if i not in done for name in step.inputs}
    return [p for p in inside if p.ours in read or p.ours in trace.outputs] or list(inside[-1:])


def _names(comparer: Comparer, case: Case) -> tuple[str, ...]:
    return tuple(comparer.ours.trace.steps[i].name for i in case.ours.steps)
