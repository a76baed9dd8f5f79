"""ONNX round trips: an export at the newest opset is read as the same operator with the same results."""

from __future__ import annotations

from cases import each_case
from representative import with_a_new_feature

from graphkit.checks.samples import Case, dtypes_of, make_case, samples_of
from graphkit.checks.verify import compare, compare_outputs
from graphkit.onnx_io.compare import OnnxRuntimeModel
from graphkit.onnx_io.downgrade import Site, rewritten
from graphkit.onnx_io.exporter import export
from graphkit.onnx_io.importer import import_model
from graphkit.ops import registry
from graphkit.ops.evaluate import evaluate
from graphkit.ops.optim.preview import DOMAIN as PREVIEW

CASES = [
    make_case(cls, number, dtype).as_stored()
    for cls in registry
    if cls.onnx is not None or cls.expand is not None
    for number, sample in enumerate(samples_of(cls))
    for dtype in dtypes_of(cls, sample)[:1]
]
OPSET = 28
DIFFERENT = with_a_new_feature(CASES)


@each_case(CASES, group=lambda c: c.op.name[0], full=lambda c: c.name not in DIFFERENT)
def test_onnx(case: Case) -> None:
    graph = case.graph()
    imported = import_model(export(graph, {}, opset=OPSET).SerializeToString())
    assert imported.graph.output_names == graph.output_names
    if case.op.random and case.op.domain == "":
        assert any(node.op.name == case.op.name for node in imported.graph.nodes)
        return
    if case.op.onnx is not None and case.op.domain != PREVIEW and not case.op.subgraphs():
        # Some are always written in another form, the one that ONNX Runtime has.
        (node,) = (n for n in graph.nodes if n.op is case.op)
        if rewritten(Site(node, case.op, node.inputs, OPSET)) is None:
            assert case.op in [node.op for node in imported.graph.nodes]
    names = dict(zip(graph.input_names, case.feeds(), strict=True)) | imported.params
    feeds = [names[imported.graph.name_of(v)] for v in imported.graph.inputs]
    ours, expected = evaluate(imported.graph, feeds), evaluate(graph, case.feeds())
    outputs = graph.output_names
    for report in compare_outputs(dict(zip(outputs, ours, strict=True)), dict(zip(outputs, expected, strict=True))):
        assert report.passed, str(report)


# Case name -> why ONNX Runtime cannot be asked.
RUNTIME_REFUSES = {"Scan-4-float32": "it refuses to scan an empty axis"}


@each_case([c for c in CASES if c.op.subgraphs() and c.name not in RUNTIME_REFUSES], group=lambda c: c.op.name[0])
def test_control_flow_in_onnx_runtime(case: Case) -> None:
    """Operators with subgraphs have no single-node oracle: the exporter writes them, ONNX Runtime runs them."""
    graph = case.graph()
    results = OnnxRuntimeModel(export(graph, {}), threads=1).run(
        dict(zip(graph.input_names, case.feeds(), strict=True))
    )
    for ours, theirs in zip(evaluate(graph, case.feeds()), results.values(), strict=True):
        report = compare(case.name, ours, theirs)
        assert report.passed, str(report)
