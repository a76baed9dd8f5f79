"""The form of one node in the target opset: operator, attributes, operands."""

from __future__ import annotations

from collections.abc import Set
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, NodeProto

from graphkit.errors import UnsupportedError
from graphkit.ir.graph import Graph, Node, Value
from graphkit.ir.tensor import Tensor
from graphkit.ir.types import DType, MapType, OptionalType, SequenceType, Type
from graphkit.onnx_io import downgrade
from graphkit.onnx_io.tensors import CODES, to_proto, type_to_proto
from graphkit.ops import Op, operator


def spelled(node: Node, inputs: list[Value | None], target: int) -> tuple[NodeProto, list[Value | None]]:
    """The node in the form of the target opset: operator and attributes, and the operands to write."""
    op = operator(node, Op)
    form = op.onnx
    assert form is not None, "what has no form in ONNX is expanded before it is written"
    hidden = form.hidden
    kept: list[Value | None] = []
    for position, value in enumerate(inputs):
        formal = op.formals[min(position, len(op.formals) - 1)]
        if formal.name not in hidden:
            kept.append(value)
    if "captures" in hidden and hasattr(op, "captures") and op.captures:
        kept = inputs[: len(inputs) - op.captures]
    while kept and kept[-1] is None:
        kept.pop()
    visible = {k: v for k, v in op.__dict__.items() if k not in hidden and not isinstance(v, Graph)}
    attrs = {form.renames.get(k, k): v for k, v in visible.items()}
    spelling = downgrade.Spelling(node, form.name, kept, attrs, target)
    downgrade.spell(spelling)
    proto = NodeProto(op_type=spelling.op_type, domain=form.domain)
    schema = target_schema(spelling.op_type, target, form.domain)
    if schema is not None:  # required inputs may be absent, such as the condition of a Loop
        spelling.inputs += [None] * (schema.min_input - len(spelling.inputs))
    if form.domain == "ai.onnx.ml" and schema is None:
        raise spelling.fail(f"operator {spelling.op_type}")
    fields = {form.renames.get(k, k): spec for k, spec in op.fields.items()}
    for key, value in sorted(spelling.attrs.items()):
        spec = None if schema is None else schema.attributes.get(key)
        optional = spec is None or not spec.required
        if value is None or (optional and key in fields and value == fields[key].default and _omissible(spec, value)):
            continue
        if schema is not None and spec is None:
            raise spelling.fail(f"attribute {key}={value!r}")
        proto.attribute.append(_attribute(key, value))
    if schema is not None:
        _check_types(spelling, schema)
    return proto, spelling.inputs


def _omissible(spec: Any, value: Any) -> bool:
    """Whether the file means the same without this attribute."""
    if spec is None or not spec.default_value.name:
        return True
    default = onnx.helper.get_attribute_value(spec.default_value)
    if isinstance(default, bytes):
        default = default.decode()
    return bool(value == default) if not isinstance(default, float) else bool(np.float32(value) == np.float32(default))


def target_schema(name: str, target: int, domain: str) -> Any:
    """The schema of an operator in opset `target`, None for a custom one."""
    if domain == "":
        return onnx.defs.get_schema(name, target)
    try:
        return onnx.defs.get_schema(name, domain_version(domain, target, {name}), domain)
    except onnx.defs.SchemaError:
        return None


# Operators that version 5 of ai.onnx.ml replaced by TreeEnsemble.
_UP_TO_4 = frozenset({"TreeEnsembleRegressor", "TreeEnsembleClassifier"})


def domain_version(domain: str, target: int, operators: Set[str]) -> int:
    """The version of another domain to declare in a file for opset `target` that has these operators of the domain.

    Raises UnsupportedError if no version has all of them.
    """
    if domain != "ai.onnx.ml":
        return 1
    current = max((row[3] for row in onnx.helper.VERSION_TABLE if row[2] <= target), default=1)
    older = sorted(_UP_TO_4 & operators)
    if older and "TreeEnsemble" in operators:
        raise UnsupportedError(f"no version of {domain} has both TreeEnsemble and {', '.join(older)}")
    return min(current, 4) if older else current


def _check_types(spelling: downgrade.Spelling, schema: Any) -> None:
    """Check the number of operands, and all element types, against the target's schema. Raises UnsupportedError."""
    formals = schema.inputs
    constraints = {c.type_param_str: set(c.allowed_type_strs) for c in schema.type_constraints}
    variadic = bool(formals) and formals[-1].option == onnx.defs.OpSchema.FormalParameterOption.Variadic
    if len(spelling.inputs) > len(formals) and not variadic:
        raise spelling.fail(f"{len(spelling.inputs)} operands")
    for position, value in enumerate(spelling.inputs):
        if value is None:
            continue
        formal = formals[min(position, len(formals) - 1)]
        allowed = constraints.get(formal.type_str, {formal.type_str})
        if _type_text(value.type) not in allowed:
            raise spelling.fail(f"operand {formal.name!r} of type {value.type}")
    for formal, value in zip(schema.outputs, spelling.node.outputs, strict=False):
        optional = formal.option == onnx.defs.OpSchema.FormalParameterOption.Optional
        if not optional and _type_text(value.type) not in constraints.get(formal.type_str, {formal.type_str}):
            raise spelling.fail(f"result {formal.name!r} of type {value.type}")


def _type_text(kind: Type) -> str:
    if isinstance(kind, SequenceType):
        return f"seq({_type_text(kind.element)})"
    if isinstance(kind, OptionalType):
        return f"optional({_type_text(kind.element)})"
    if isinstance(kind, MapType):
        # In schemas, value types of maps are scalars: "map(string, float)", without "tensor".
        element = _type_text(kind.element).removeprefix("tensor(").removesuffix(")")
        return f"map({_element_text(kind.key)}, {element})"
    return f"tensor({_element_text(kind.dtype)})"


def _element_text(dtype: DType) -> str:
    name: str = onnx.TensorProto.DataType.Name(CODES[dtype])
    return name.lower()


def _attribute(name: str, value: Any) -> AttributeProto:
    if isinstance(value, DType):
        return onnx.helper.make_attribute(name, CODES[value])
    if isinstance(value, Type):
        return onnx.helper.make_attribute(name, type_to_proto(value))
    if isinstance(value, Tensor):
        return onnx.helper.make_attribute(name, to_proto(value.array))
    if isinstance(value, bool):
        return onnx.helper.make_attribute(name, int(value))
    if isinstance(value, (tuple, list)) and not value:
        return AttributeProto(name=name, type=AttributeProto.INTS)
    return onnx.helper.make_attribute(name, list(value) if isinstance(value, tuple) else value)
