"""Attributes on import: convert a node's attributes to the fields of an operator.

onnx's schemas say which attributes a standard operator has, and their default values.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from graphkit.errors import InvalidModel, UnsupportedError
from graphkit.ir.tensor import Tensor
from graphkit.onnx_io import functions, upgrade
from graphkit.onnx_io.codes import AttributeType
from graphkit.onnx_io.external_data import ExternalData
from graphkit.onnx_io.scopes import RawNode
from graphkit.onnx_io.tensors import densify, dtype_of_code, to_array, type_from_proto
from graphkit.onnx_io.validate import tell
from graphkit.ops import Op

if TYPE_CHECKING:
    from onnx import AttributeProto


def bound(raw: RawNode, outer: Mapping[str, AttributeProto]) -> dict[str, AttributeProto]:
    """The node's attributes. References get their values from `outer`, the attributes of the function's call."""
    found: dict[str, AttributeProto] = {}
    for name, proto in raw.attributes.items():
        if not proto.ref_attr_name:
            found[name] = proto
        elif proto.ref_attr_name in outer:
            found[name] = outer[proto.ref_attr_name]
    return found


def value_of(proto: AttributeProto, where: str, external: ExternalData) -> Any:
    """The value of an attribute that is not a graph: a number, text, Tensor, type, or tuple of numbers or texts."""
    match proto.type:
        case AttributeType.FLOAT:
            return proto.f
        case AttributeType.INT:
            return proto.i
        case AttributeType.STRING:
            return _text(proto.s, where)
        case AttributeType.TENSOR:
            return Tensor(to_array(proto.t, where, external))
        case AttributeType.SPARSE_TENSOR:
            return Tensor(densify(proto.sparse_tensor, where, external))
        case AttributeType.FLOATS:
            return tuple(proto.floats)
        case AttributeType.INTS:
            return tuple(proto.ints)
        case AttributeType.STRINGS:
            return tuple(_text(s, where) for s in proto.strings)
        case AttributeType.TYPE_PROTO:
            return type_from_proto(proto.tp, where)
    raise UnsupportedError(f"{where}: attributes of type {proto.type} are not supported")


def _text(data: bytes, where: str) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise InvalidModel(f"{where}: not UTF-8 text") from None


def constant_value(protos: Mapping[str, AttributeProto], where: str, external: ExternalData) -> Tensor:
    """The tensor of a Constant node, in any of the forms that the attribute may have."""
    forms = [name for name in protos if name.startswith(("value", "sparse_value"))]
    if len(forms) != 1:
        raise InvalidModel(f"{where}: a Constant has exactly one value, this one has {len(forms)}")
    name = forms[0]
    value = value_of(protos[name], f"{where}: attribute {name!r}", external)
    if isinstance(value, Tensor):
        return value
    dtype = {"value_float": np.float32, "value_int": np.int64}.get(name.removesuffix("s"), object)
    return Tensor(np.asarray(value, dtype))


def fields(cls: type[Op], view: upgrade.NodeView) -> dict[str, Any]:
    """Attribute values by the operator's field names. Attributes without a field must have their default values."""
    renames = {} if cls.onnx is None else {theirs: ours for ours, theirs in cls.onnx.renames.items()}
    found: dict[str, Any] = {}
    for name, value in view.attrs.items():
        field = renames.get(name, name)
        spec = cls.fields.get(field)
        if spec is None:
            if not _is_default(view, name, value) and not ignored(view.domain, view.op_type, name, view.label):
                raise UnsupportedError(f"attribute {name}={value!r} is not supported")
            continue
        if spec.kind == "DType" and isinstance(value, int):
            if value == 0 and spec.default is None:
                continue
            value = dtype_of_code(value, f"attribute {name!r}")
        found[field] = value
    return found


def _is_default(view: upgrade.NodeView, name: str, value: Any) -> bool:
    import onnx

    try:
        schema = onnx.defs.get_schema(view.op_type, view.version, view.domain)
    except onnx.defs.SchemaError:
        return False
    spec = schema.attributes.get(name)
    if spec is None or not spec.default_value.name:
        return False
    default = onnx.helper.get_attribute_value(spec.default_value)
    return bool(value == (default.decode() if isinstance(default, bytes) else default))


def ignored(domain: str, operator: str, name: str, where: str) -> bool:
    """Whether no version of a standard operator has this attribute. Warns in this case that it has no effect."""
    known = functions.known_attributes(domain, operator)
    if known is None or name in known:
        return False
    tell(f"{where}: the operator has no attribute {name!r}; it is ignored")
    return True
