"""Required parts of every registered operator, and its declaration compared with ONNX's schema."""

from __future__ import annotations

import inspect
from pathlib import Path

import numpy as np
import onnx
import pytest
from cases import each_case
from interrupted_imports import run_in_new_process

import graphkit as gk
from graphkit.checks.samples import samples_of
from graphkit.errors import UsageError
from graphkit.ir.names import snake_case
from graphkit.ops import DOMAIN, Op, registry
from graphkit.ops._op import function_name
from graphkit.ops.nn.conv import Conv

OPSET = 28
OPERATORS = list(registry)
STANDARD = [cls for cls in OPERATORS if cls.onnx is not None and cls.onnx.domain == ""]

# Attributes of the schema that graphkit leaves out, and why.
LEFT_OUT = {
    ("Constant", key): "constants are tensors"
    for key in (
        "sparse_value",
        "value_float",
        "value_floats",
        "value_int",
        "value_ints",
        "value_string",
        "value_strings",
    )
}
# Fields of graphkit that the schema lacks, and why.
ADDED: dict[tuple[str, str], str] = {}


def domain_of(cls: type[Op]) -> str:
    return cls.domain or "ai.onnx"


def name_of(cls: type[Op]) -> str:
    return cls.name


@each_case(OPERATORS, group=domain_of, name=name_of)
def test_complete(cls: type[Op]) -> None:
    assert inspect.getdoc(cls), "no docstring"
    assert cls.__doc__, "the docstring is inherited"
    assert cls.infer is not Op.infer, "no infer"
    assert cls.reference is not Op.reference, "no reference"
    assert samples_of(cls), "no samples"


def test_an_interrupted_import_is_repeated() -> None:
    run_in_new_process("""
from graphkit.ops import F, registry
from graphkit.ops._index import OPERATORS

for share in (0.5, 1):
    interrupt("graphkit.ops.nn.activation", share)
relu = registry.get("", "Relu")
assert relu is sys.modules["graphkit.ops.nn.activation"].Relu
assert registry.function("relu").op is relu
assert [(cls.domain, cls.name) for cls in registry] == list(OPERATORS)
assert all(getattr(sys.modules[cls.__module__], cls.__name__, cls) is cls for cls in registry)
""")


def test_a_class_is_registered_once() -> None:
    with pytest.raises(UsageError, match=r"operator ai\.onnx\.Conv is registered already"):
        registry.add(Conv)


def test_former_names(tmp_path: Path) -> None:
    """Files and callers that know an operator by a former name find it; lists have the new one alone."""
    former = {name: cls for cls in OPERATORS for name in cls.former_names}
    assert {"LSTMWalk", "GRUWalkGrad", "ChannelsLastMaxPoolTaps"} <= former.keys()
    for name, cls in former.items():
        assert registry.find(cls.domain, name) is cls
        assert getattr(gk, snake_case(name)).op is cls
        assert snake_case(name) not in registry.function_names()
    x, w, r = (gk.input(n, shape) for n, shape in (("x", [3, 2, 4]), ("w", [1, 20, 4]), ("r", [1, 20, 5])))
    path = tmp_path / "net.json"
    gk.Model({"y": gk.lstm_walk(x, w, r)[0]}).save(path)
    text = path.read_text()
    assert "LSTMRecurrence" in text
    path.write_text(text.replace("LSTMRecurrence", "LSTMWalk"))
    assert [node.op.name for node in gk.load(path).graph.nodes] == ["LSTMRecurrence"]


@each_case(OPERATORS, group=domain_of, name=name_of)
def test_domain(cls: type[Op]) -> None:
    assert cls.domain in ("", DOMAIN, *([cls.onnx.domain] if cls.onnx else []))
    if cls.domain == "":
        assert cls.onnx is not None, "a standard operator says how it is written in ONNX"
    if cls.domain == DOMAIN:
        assert cls.onnx is None, "an own operator has no ONNX form"


def test_function_names_are_unique() -> None:
    names = [function_name(cls) for cls in OPERATORS]
    assert len(names) == len(set(names))


@each_case(STANDARD, group=domain_of, name=name_of)
def test_schema_attributes(cls: type[Op]) -> None:
    schema = onnx.defs.get_schema(cls.onnx.name, OPSET)
    assert schema.since_version == cls.onnx.since, "the canonical version"
    hidden = set(cls.onnx.hidden)
    ours = {cls.onnx.renames.get(key, key): field for key, field in cls.fields.items() if key not in hidden}
    for key in ours:
        assert key in schema.attributes or (cls.name, key) in ADDED, f"the schema has no attribute {key}"
    for key, attribute in schema.attributes.items():
        if (cls.name, key) in LEFT_OUT:
            continue
        assert key in ours, f"attribute {key} is missing"
        if attribute.required:
            continue
        if attribute.default_value.type:
            theirs = onnx.helper.get_attribute_value(attribute.default_value)
            theirs = theirs.decode() if isinstance(theirs, bytes) else theirs
            if ours[key].kind == "DType" and theirs == onnx.TensorProto.UNDEFINED:
                theirs = None
            assert_default(ours[key].default, theirs, key)


def assert_default(ours: object, theirs: object, key: str) -> None:
    number = getattr(ours, "value", None)
    if isinstance(number, str):
        ours = onnx.TensorProto.DataType.Value({"float32": "FLOAT", "float64": "DOUBLE"}.get(number, number.upper()))
    if isinstance(theirs, float):
        assert ours == pytest.approx(theirs, rel=1e-6), key
    elif isinstance(theirs, list):
        assert list(ours) == [item.decode() if isinstance(item, bytes) else item for item in theirs], key
    else:
        assert ours == theirs, key


@each_case(STANDARD, group=domain_of, name=name_of)
def test_schema_operands(cls: type[Op]) -> None:
    schema = onnx.defs.get_schema(cls.onnx.name, OPSET)
    formals = [formal for formal in cls.formals if formal.name not in cls.onnx.hidden]
    assert len(formals) == len(schema.inputs)
    option = onnx.defs.OpSchema.FormalParameterOption
    for ours, theirs in zip(formals, schema.inputs, strict=True):
        assert ours.variadic == (theirs.option == option.Variadic), theirs.name
        if not ours.variadic:
            assert ours.optional == (theirs.option == option.Optional), theirs.name
    assert len(cls.outputs) <= len(schema.outputs)
    for text in cls.inputs[:-1]:
        assert not text.endswith("*"), "only the last operand can be variadic"


# Own operators that no exported graph holds, and why.
NOT_EXPORTED = {
    "RngFoldIn": "it derives generator states, which ONNX's random operators do not take",
    "CoupledProbabilities": "it is a part of SVMClassifier, which files have whole",
    **dict.fromkeys(
        ("Cofactor", "Gelqf", "Inverse", "Potrf", "Potri", "Slogdet", "Solve", "Syevd", "Trsm"),
        "of what solves or factorises matrices, ONNX has the determinant only",
    ),
    **dict.fromkeys(
        ("AbsoluteMaxima", "ScaledFloat8", "Float8MatMul"),
        "an executor makes it for a card, behind what can be exported",
    ),
}


@each_case([c for c in OPERATORS if c.domain == DOMAIN and c.name not in NOT_EXPORTED], group=domain_of, name=name_of)
def test_own_operators_can_be_exported(cls: type[Op]) -> None:
    """An own operator stands in gradient graphs or optimizers; an exported graph has only standard ones."""
    assert cls.expand is not None


@each_case(OPERATORS, group=domain_of, name=name_of)
def test_operand_declarations(cls: type[Op]) -> None:
    names = [formal.name for formal in cls.formals]
    outputs = [text.rstrip("?*") for text in cls.outputs]
    for name in (*cls.types, *cls.shape_only):
        assert name in names, f"{name} is not an operand"
    for first, second in (*cls.inplace, *cls.views):
        assert first < len(names)
        assert second < len(outputs) or cls.outputs[-1].endswith("*")


def test_changed_attributes_are_checked_and_the_others_kept() -> None:
    conv = Conv(pads=[1, 1], strides=(2,))
    changed = conv.replace(strides=[3])
    assert (changed.pads, changed.strides, conv.strides) == ((1, 1), (3,), (2,))
    assert changed == Conv(pads=(1, 1), strides=(3,))
    assert hash(changed) == hash(Conv(pads=(1, 1), strides=(3,)))
    with pytest.raises(UsageError, match="Conv has no attribute 'stride'; did you mean 'strides'"):
        conv.replace(stride=(1,))
    with pytest.raises(UsageError, match=r"Conv: attribute strides=1 must be a list of integers"):
        conv.replace(strides=1)
    assert all(type(n) is int for n in conv.replace(strides=np.array([True, 2])).strides)
