"""Functions, model-local ones and those that define standard operators. Their bodies replace nodes that call them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from graphkit.errors import InvalidModel
from graphkit.named_tuples import NamedTuple
from graphkit.onnx_io.codes import NEWEST_OPSET
from graphkit.onnx_io.scopes import RawNode, Reader, Region
from graphkit.onnx_io.validate import check_opset, opsets_of

if TYPE_CHECKING:
    from onnx import AttributeProto, FunctionProto, NodeProto, TypeProto

MAX_CALL_DEPTH = 32


class Function(NamedTuple):
    """A function's body, the opsets that its nodes are written for, and its attribute parameters."""

    label: str
    region: Region
    opsets: Mapping[str, int]
    required: tuple[str, ...]
    defaults: Mapping[str, AttributeProto]

    def bind(self, given: Mapping[str, AttributeProto], where: str) -> dict[str, AttributeProto]:
        """Attribute values of one call. Raises InvalidModel for an attribute that the function does not have."""
        unknown = next((name for name in given if name not in self.required and name not in self.defaults), None)
        if unknown is not None:
            raise InvalidModel(f"{where}: {self.label} has no attribute {unknown!r}")
        return {**self.defaults, **given}


class Library:
    """The model-local functions of one file, read when first used."""

    def __init__(self, protos: Iterable[FunctionProto], opsets: Mapping[str, int], reader: Reader):
        self._reader = reader
        self._opsets = opsets
        self._read: dict[tuple[str, str, str], Function] = {}
        self._protos: dict[tuple[str, str, str], FunctionProto] = {}
        for proto in protos:
            key = ("" if proto.domain == "ai.onnx" else proto.domain, proto.name, proto.overload)
            if key in self._protos:
                raise InvalidModel(f"{reader.label}: function {proto.domain}.{proto.name} is defined twice")
            self._protos[key] = proto

    def find(self, node: RawNode) -> Function | None:
        """The function that `node` calls, or None."""
        key = (node.domain, node.op_type, node.overload)
        if key in self._protos and key not in self._read:
            self._read[key] = self._function(self._protos[key])
        return self._read.get(key)

    def _function(self, proto: FunctionProto) -> Function:
        label = f"function {proto.domain}.{proto.name}"
        opsets = {**self._opsets, **opsets_of(proto.opset_import, f"{self._reader.label}: {label}", warn=True)}
        if "" in opsets:
            check_opset(opsets[""], f"{self._reader.label}: {label}")
        defaults = {a.name: a for a in proto.attribute_proto}
        return Function(label, self._reader.function(proto), opsets, tuple(proto.attribute), defaults)


def unfolded_nodes(top: Function, called: Callable[[RawNode, Mapping[str, int]], Function | None]) -> int:
    """The number of nodes of `top` after all calls are expanded, including the calls. called: the function of a node.

    The time is linear in the size of the file, however often functions call each other. Raises InvalidModel for
    recursion.
    """
    counts: dict[int, int] = {}
    inside: set[int] = set()
    # Depth-first search. A function is on the stack twice: its calls are added up after the functions that it calls.
    stack: list[tuple[Function, list[Function] | None]] = [(top, None)]
    while stack:
        function, calls = stack.pop()
        key = id(function.region)
        if calls is not None:
            inside.remove(key)
            counts[key] += sum(counts[id(other.region)] for other in calls)
        elif key in inside:
            raise InvalidModel(f"{function.label} calls itself")
        elif key not in counts:
            found = [called(raw, function.opsets) for _, raw in function.region.walk()]
            counts[key] = len(found)
            inside.add(key)
            calls = [other for other in found if other is not None]
            stack.append((function, calls))
            stack.extend((other, None) for other in calls)
    return counts[id(top.region)]


def has_standard_body(domain: str, name: str, version: int) -> bool:
    """Whether the standard defines the operator as a function."""
    schema = _schema(domain, name, version)
    return schema is not None and (schema.has_function or schema.has_context_dependent_function)


def standard_function(
    domain: str, name: str, version: int, node: NodeProto, types: Sequence[TypeProto]
) -> Function | None:
    """The standard's function body of an operator at `version`; None if there is none for these operands.

    `node` has the attributes and absent operands, `types` the operands' types: some bodies depend on them.
    """
    schema = _schema(domain, name, version)
    if schema is None:
        return None
    data = b""
    if schema.has_function:
        data = schema.get_function_with_opset_version(_body_version(schema.function_opset_versions, version))
    if not data and schema.has_context_dependent_function:
        written = _body_version(schema.context_dependent_function_opset_versions, version)
        serialized = [t.SerializeToString() for t in types]
        data = schema.get_context_dependent_function_with_opset_version(written, node.SerializeToString(), serialized)
    if not data:
        return None
    from onnx import FunctionProto

    proto = FunctionProto()
    proto.ParseFromString(data)
    label = f"the standard's definition of {name}"
    opsets = {"": version, **opsets_of(proto.opset_import, label)}
    defaults = {a.name: a.default_value for a in schema.attributes.values() if a.default_value.name}
    required = tuple(schema.attributes)
    return Function(label, Reader(label).function(proto, standard=True), opsets, required, defaults)


def _body_version(available: Sequence[int], version: int) -> int:
    """The version of the body to use: the newest up to `version`, or else the oldest one."""
    return max((v for v in available if v <= version), default=min(available))


@cache
def known_attributes(domain: str, name: str) -> frozenset[str] | None:
    """The attributes of all versions of a standard operator; None if it is not a standard operator."""
    import onnx

    found: frozenset[str] | None = None
    version = NEWEST_OPSET
    while version > 0:
        try:
            schema = onnx.defs.get_schema(name, version, domain)
        except onnx.defs.SchemaError:
            break
        found = (found or frozenset()) | frozenset(schema.attributes)
        version = schema.since_version - 1
    return found


def _schema(domain: str, name: str, version: int) -> Any:
    import onnx

    try:
        schema = onnx.defs.get_schema(name, version, domain)
    except onnx.defs.SchemaError:
        return None
    return None if schema.deprecated else schema
