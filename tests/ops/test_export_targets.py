"""Every operator at every target opset: the written file runs elsewhere with graphkit's results, or is a named error.

ONNX Runtime runs files up to the newest opset that it reads. It also runs files of later opsets if the operators are
not newer; onnx's evaluator runs the others. export_targets.toml lists the exceptions, and why. The default lane tests
the first sample of each operator at some targets; `-m full` tests all samples at all targets.
"""

from __future__ import annotations

import fnmatch
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from cases import each_case
from onnx.reference import ReferenceEvaluator

from graphkit.checks.samples import Case, dtypes_of, has_doubles, make_case, samples_of
from graphkit.checks.verify import compare_outputs
from graphkit.errors import GraphkitError, UnsupportedError
from graphkit.onnx_io.codes import NEWEST_OPSET
from graphkit.onnx_io.compare import OnnxRuntimeModel
from graphkit.onnx_io.exporter import OLDEST_TARGET, export
from graphkit.ops import registry
from graphkit.ops.evaluate import evaluate

LEDGER: dict[str, dict[str, Any]] = tomllib.loads(Path(__file__).with_name("export_targets.toml").read_text())
# ONNX Runtime reads no newer files.
RUNTIME_OPSET = 26
TARGETS = tuple(range(OLDEST_TARGET, NEWEST_OPSET + 1))
CASES = [
    make_case(cls, number, dtypes_of(cls, sample)[0]).as_stored()
    for cls in registry
    if cls.onnx is not None or cls.expand is not None
    for number, sample in enumerate(samples_of(cls))
]


def meaning(proto: onnx.ModelProto) -> tuple[Any, ...]:
    """Return a key that is equal for equivalent files: their nodes, and the version of each operator."""
    opsets = {o.domain: o.version for o in proto.opset_import}
    versions = {(n.domain, n.op_type, since_version(n.op_type, opsets[n.domain], n.domain)) for n in nodes(proto.graph)}
    return proto.graph.SerializeToString(), tuple(sorted(versions))


def since_version(name: str, opset: int, domain: str) -> int:
    """The version of an operator in an opset; that of the opset for an operator that is not the standard's."""
    if not onnx.defs.has(name, domain=domain):
        return opset
    version: int = onnx.defs.get_schema(name, opset, domain).since_version
    return version


def nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from nodes(attribute.g)


def written(case: Case, targets: Sequence[int]) -> Iterator[tuple[int, onnx.ModelProto]]:
    """Return the different files, each with the first target that it is written for."""
    graph, name = case.graph(), case.op.name
    known: set[tuple[Any, ...]] = set()
    complete, _ = LEDGER["not_expressed"].get(name, (OLDEST_TARGET, ""))
    for target in targets:
        try:
            proto = export(graph, {}, opset=target)
        except UnsupportedError as error:
            if target < complete and f"opset {target}" in str(error):
                continue
            raise
        said = meaning(proto)
        if said not in known:
            known.add(said)
            yield target, proto


def ask(proto: onnx.ModelProto, feeds: dict[str, Any]) -> dict[str, Any] | None:
    """ONNX Runtime's results, or those of onnx's evaluator for a valid file; None when neither runs it."""
    try:
        return OnnxRuntimeModel(proto, threads=1, optimize=False).run(feeds)
    except GraphkitError:
        onnx.checker.check_model(proto)
    try:
        with np.errstate(all="ignore"):
            evaluator = ReferenceEvaluator(proto)
            return dict(zip(evaluator.output_names, evaluator.run(None, feeds), strict=True))
    except Exception:  # noqa: BLE001 - whatever it raises, it has no answer
        return None


def problems(case: Case, targets: Sequence[int]) -> list[str]:
    graph = case.graph()
    expected = dict(zip(graph.output_names, evaluate(graph, case.feeds()), strict=True))
    arrays = dict(zip(graph.input_names, case.feeds(), strict=True))
    found = []
    for target, proto in written(case, targets):
        feeds = {info.name: arrays[info.name] for info in proto.graph.input}
        results = ask(proto, feeds)
        if results is None:
            found.append(f"opset {target}: neither runs it")
        elif case.op.random:
            same = [(np.shape(a), np.asarray(a).dtype) for a in expected.values()]
            if same != [(np.shape(b), np.asarray(b).dtype) for b in results.values()]:
                found.append(f"opset {target}: {same} was expected")
        else:
            # ONNX Runtime computes some operators in float32 whatever the element type.
            wide = any(map(has_doubles, expected.values()))
            reports = compare_outputs(results, expected, *((1e-4, 1e-5) if wide else (None, None)))
            found += [f"opset {target}: {report}" for report in reports if not report.passed]
    return found


def check(case: Case, targets: Sequence[int]) -> None:
    listed = any(fnmatch.fnmatchcase(case.name, pattern) for pattern in LEDGER["otherwise"])
    found = problems(case, targets)
    assert bool(found) == listed, "\n".join(found) or "remove the entry of export_targets.toml"


@each_case([c for c in CASES if c.number == 0], group=lambda c: c.op.domain or "ai.onnx")
def test_first_samples(case: Case) -> None:
    check(case, TARGETS[::5])


@pytest.mark.full
@each_case(CASES, group=lambda c: c.op.name[0])
def test_every_target(case: Case) -> None:
    check(case, TARGETS)


@pytest.mark.full
@pytest.mark.parametrize("name", LEDGER["not_expressed"])
def test_missing_below(name: str) -> None:
    """For some sample, the last target of an entry lacks the feature that the entry names."""
    target = LEDGER["not_expressed"][name][0] - 1
    (cls,) = (cls for cls in registry if cls.name == name)
    refused = 0
    for number, sample in enumerate(samples_of(cls)):
        try:
            export(make_case(cls, number, dtypes_of(cls, sample)[0]).as_stored().graph(), {}, opset=target)
        except UnsupportedError:
            refused += 1
    assert refused


def test_entries_name_cases() -> None:
    names = [case.name for case in CASES]
    for pattern in LEDGER["otherwise"]:
        assert fnmatch.filter(names, pattern), f"no case is called {pattern}"
