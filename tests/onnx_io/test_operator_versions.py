"""Every version of every operator of the standard: a file at that opset gives what others give for it.

The nodes come from the samples of the operator's class, where they fit the schema of that version, and from
operator_versions.txt, where the form was another. ONNX Runtime is asked first, onnx's evaluator where it has no
kernel, and then either at the next version of the operator that they know (ANSWERED_ELSEWHERE says why).
"""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import pytest
from cases import each_case
from onnx import helper
from onnx.reference import ReferenceEvaluator

import graphkit as gk
from graphkit.checks.oracle import single_node_model
from graphkit.checks.samples import dtypes_of, has_doubles, make_case, samples_of
from graphkit.checks.verify import compare_outputs
from graphkit.errors import GraphkitError, UnsupportedError
from graphkit.onnx_io.compare import OnnxRuntimeModel
from graphkit.onnx_io.uses import implements
from graphkit.ops import registry

# Opset of ai.onnx in models of other domains.
_BESIDE_OTHERS = 21
# Operators that draw random numbers: generators differ, types and shapes do not.
RANDOM = frozenset(
    {"Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"}
)
# Operator and version -> why it is asked of another version.
ANSWERED_ELSEWHERE = {
    "GlobalLpPool-22": "ONNX Runtime's kernels stop at 21, onnx's evaluator has none; only element types were added",
    "MaxRoiPool-22": "ONNX Runtime's kernels stop at 21, onnx's evaluator has none; only element types were added",
    "Multinomial-22": "ONNX Runtime's kernels stop at 21, onnx's evaluator has none; only element types were added",
    "Split-1": "older than both know; the operand of sizes that it could also have is asked in test_onnx_upgrade.py",
}
# Operator -> why onnx's evaluator is asked, although ONNX Runtime answers.
RUNTIME_WRONG = {
    "MaxUnpool": "takes indices as places in output_shape, as PyTorch; the standard's are in what it enlarges",
}
# Operator and version -> what they answer otherwise, and why graphkit does not.
DIFFERENT = {
    "Dropout-7": "a mask of zeros in inference, of which the text says nothing; since 12 it is ones",
    "Dropout-10": "a mask of zeros in inference, of which the text says nothing; since 12 it is ones",
    "OneHot-9": "negative indices from the end; until 11 the text has them select nothing",
}


class Question(NamedTuple):
    """A model of the operator, its feeds, and the model with the expected results (usually the same one)."""

    model: onnx.ModelProto
    feeds: dict[str, Any]
    asked: onnx.ModelProto


HISTORY = onnx.defs.get_all_schemas_with_history()
SCHEMAS = [s for s in HISTORY if implements(s.domain, s.name, s.since_version)]
MISSING = {s.name for s in HISTORY} - {s.name for s in SCHEMAS}
# So many samples are asked of each version.
SAMPLES = 2


def label(schema: Any) -> str:
    return f"{schema.domain}.{schema.name}-{schema.since_version}".removeprefix(".")


# --- questions from text --------------------------------------------------------------------------


def rows() -> dict[str, list[tuple[str, int, str]]]:
    """Operator and version -> (graph, opset of the asked graph, the asked graph)."""
    found: dict[str, list[tuple[str, int, str]]] = defaultdict(list)
    for line in Path(__file__).with_name("operator_versions.txt").read_text().splitlines():
        if not line or line.startswith("#"):
            continue
        head, graph = line.split(": ", 1)
        name, *versions = head.split()
        graph, _, asked = graph.partition(" same as ")
        opset, _, other = asked.partition(": ")
        for version in versions:
            found[f"{name}-{version}"].append((graph, int(opset or version), other or graph))
    return found


ROWS = rows()


def model_of(graph: onnx.GraphProto, domain: str, version: int) -> onnx.ModelProto:
    imports = [helper.make_opsetid(domain, version)]
    if domain:
        imports.append(helper.make_opsetid("", _BESIDE_OTHERS))
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def written(schema: Any) -> Iterator[Question]:
    for text, opset, other in ROWS[label(schema)]:
        graph = onnx.parser.parse_graph(f"g {text}")
        asked = onnx.parser.parse_graph(f"g {other}")
        model = model_of(graph, schema.domain, schema.since_version)
        feeds = {info.name: fed(info.type, np.random.default_rng(i)) for i, info in enumerate(graph.input)}
        domain = schema.domain if schema.domain and schema.domain in other else ""
        yield Question(model, feeds, model_of(asked, domain, opset))


def fed(kind: onnx.TypeProto, rng: np.random.Generator) -> Any:
    if kind.HasField("map_type"):
        keys = ["a", "b"] if kind.map_type.key_type == onnx.TensorProto.STRING else [0, 2]
        return {key: np.float32(rng.standard_normal()) for key in keys}
    tensor = kind.tensor_type
    shape = [d.dim_value for d in tensor.shape.dim]
    dtype = helper.tensor_dtype_to_np_dtype(tensor.elem_type)
    if dtype.kind == "O":
        return np.array(["a", "b", "cd"], object)[rng.integers(0, 3, shape)]
    if dtype.kind == "f":
        return rng.standard_normal(shape).astype(dtype)
    return np.asarray(rng.integers(0, 2 if dtype.kind == "b" else 9, shape)).astype(dtype)


# --- questions from samples -----------------------------------------------------------------------


def sampled(schema: Any) -> Iterator[Question]:
    cls = registry.find(schema.domain, schema.name)
    samples = () if cls is None or cls.onnx is None else samples_of(cls)
    order = sorted(range(len(samples)), key=lambda number: not samples[number].onnx)
    for number in order:
        case = make_case(cls, number, dtypes_of(cls, samples[number])[0]).as_stored()
        try:
            proto = single_node_model(case, schema.since_version)
        except UnsupportedError:  # an operator with subgraphs
            continue
        if fitted(proto.graph, schema):
            arrays = {f"x{i}": array for i, array in enumerate(case.arrays)}
            model = model_of(proto.graph, schema.domain, schema.since_version)
            yield Question(model, {info.name: arrays[info.name] for info in model.graph.input}, model)


def fitted(graph: onnx.GraphProto, schema: Any) -> bool:
    """Whether the only node is valid for the schema after optional parts are removed."""
    (node,) = graph.node
    if not schema.min_input <= len(node.input) <= schema.max_input:
        return False
    del node.output[schema.max_output :]
    del graph.output[len(node.output) :]
    newest = onnx.defs.get_schema(schema.name, schema.domain).attributes
    for attribute in list(node.attribute):
        if attribute.name in schema.attributes:
            if schema.attributes[attribute.name].type.value != attribute.type:
                return False
        elif attribute.name in newest and is_default(attribute, newest[attribute.name]):
            node.attribute.remove(attribute)
        else:
            return False
    given = {attribute.name for attribute in node.attribute}
    if any(a.required and name not in given for name, a in schema.attributes.items()):
        return False
    allowed = {c.type_param_str: set(c.allowed_type_strs) for c in schema.type_constraints}
    types = {info.name: info.type.tensor_type.elem_type for info in graph.input}
    for position, name in enumerate(node.input):
        kind = schema.inputs[min(position, len(schema.inputs) - 1)].type_str
        if name and f"tensor({onnx.TensorProto.DataType.Name(types[name]).lower()})" not in allowed.get(kind, {kind}):
            return False
    for info in graph.output:
        info.ClearField("type")
    return True


def is_default(attribute: onnx.AttributeProto, declared: Any) -> bool:
    default = declared.default_value
    given = helper.get_attribute_value(attribute)
    return bool(default.name and helper.get_attribute_value(default) == given)


# --- answers --------------------------------------------------------------------------------------


def onnx_runtime(question: Question) -> dict[str, Any] | None:
    try:
        return OnnxRuntimeModel(question.asked, threads=1, optimize=False).run(question.feeds)
    except GraphkitError:  # it refuses the model, or fails in it
        return None


def onnx_evaluator(question: Question) -> dict[str, Any] | None:
    try:
        with np.errstate(all="ignore"):
            evaluator = ReferenceEvaluator(question.asked)
            return dict(zip(evaluator.output_names, evaluator.run(None, question.feeds), strict=True))
    except Exception:  # noqa: BLE001 - whatever it raises, it has no answer
        return None


def answers(questions: list[Question], operator: str) -> list[tuple[Question, dict[str, Any]]]:
    """Return ONNX Runtime's results, or else those of onnx's evaluator, which ignores some attributes and operands."""
    found = []
    if operator not in RUNTIME_WRONG:
        found = [(q, results) for q in questions if (results := onnx_runtime(q)) is not None]
    if not found:
        found = [(q, results) for q in questions[:8] if (results := onnx_evaluator(q)) is not None][:1]
    return found


def at_other_versions(schema: Any, questions: list[Question]) -> Iterator[list[Question]]:
    """The same nodes under the later versions of the operator, nearest first, and under earlier ones."""
    of_name = [s for s in SCHEMAS if (s.domain, s.name) == (schema.domain, schema.name) and s != schema]
    mine = schema.since_version
    for other in sorted(of_name, key=lambda s: (s.since_version < mine, abs(s.since_version - mine))):
        yield [
            question._replace(asked=model_of(question.model.graph, schema.domain, other.since_version))
            for question in questions
        ]


@each_case(SCHEMAS, group=lambda schema: schema.name[0], name=label)
def test_version(schema: Any) -> None:
    questions = [*written(schema), *itertools.islice(sampled(schema), SAMPLES)]
    assert questions, "neither a sample nor a row of operator_versions.txt has this form"
    found = answers(questions, schema.name)
    assert (not found) == (label(schema) in ANSWERED_ELSEWHERE), f"{len(found)} answers; see ANSWERED_ELSEWHERE"
    if not found:
        elsewhere = (answers(others, schema.name) for others in at_other_versions(schema, questions))
        found = next(filter(None, elsewhere), [])
        assert found, "nobody answers"
    reports = []
    for question, expected in found:
        results = computed(question)
        if schema.name in RANDOM:
            for ours, theirs in zip(results.values(), expected.values(), strict=True):
                assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
            continue
        # ONNX Runtime computes some operators in float32 whatever the element type.
        loose = (1e-4, 1e-5) if any(map(has_doubles, expected.values())) else (None, None)
        reports += compare_outputs(results, expected, *loose)
    if label(schema) in DIFFERENT:
        assert not all(report.passed for report in reports), "remove the entry of DIFFERENT"
    else:
        assert all(report.passed for report in reports), "\n".join(map(str, reports))


def computed(question: Question) -> dict[str, Any]:
    try:
        return gk.load(question.model).run(question.feeds)
    except UnsupportedError as error:
        # The standard's own definition of an operator may need operators that are not there.
        if any(name in str(error) for name in MISSING):
            pytest.skip(str(error))
        raise


def test_rows_name_versions() -> None:
    known = {label(schema) for schema in HISTORY}
    assert set(ROWS) <= known
    assert {*ANSWERED_ELSEWHERE, *DIFFERENT} <= known


def test_rows_are_graphs() -> None:
    """Also those of operators that are not implemented."""
    for name, found in ROWS.items():
        operator = re.sub(r"-\d+$", "", name).rpartition(".")[2]
        for text, _, other in found:
            graphs = [onnx.parser.parse_graph(f"g {part}") for part in (text, other)]
            assert any(node.op_type == operator for node in graphs[0].node)
