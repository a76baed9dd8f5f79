"""Merge nodes that compute the same, and initialisers with the same content."""

from __future__ import annotations

import hashlib

from graphkit.onnx_io.editing.document import Document, Node, Scope
from graphkit.onnx_io.editing.rules import RANDOM, Round

_Key = tuple[object, ...]


def equal_nodes(round: Round) -> None:
    """Merge equal nodes of a scope, and nodes of a subgraph with equal ones outside of it."""
    known: dict[int, dict[_Key, Node]] = {}
    for scope in round.each_scope():
        _merge_in(round, scope, known)


def _merge_in(round: Round, scope: Scope, outer: dict[int, dict[_Key, Node]]) -> None:
    """Merge the nodes of one scope. outer: by scope, the nodes that come before its node in enclosing scopes."""
    known = dict(outer.pop(id(scope), {}))
    kept = []
    for node in scope.nodes:
        for body in node.bodies.values():
            outer[id(body)] = dict(known)
        keys = _keys(round, node)
        first = next((known[key] for key in keys if key in known), None)
        if first is None or not _merges(round, scope, first, node):
            known.update((key, node) for key in keys if key not in known)
            kept.append(node)
    scope.nodes = kept


def _merges(round: Round, scope: Scope, first: Node, node: Node) -> bool:
    """Let readers of a node read an equal one. Returns whether outputs of the scope keep their names."""
    pairs = [(old, new) for new, old in zip(first.outputs, node.outputs, strict=False) if old and round.uses[old]]
    final = [(old, new) for old, new in pairs if old in scope.outputs]
    if any(not new for _, new in pairs) or any(
        new in scope.outputs or round.producers.get(new) is not first for _, new in final
    ):
        return False
    for old, new in pairs:
        round.replace(scope, old, new)
    return True


def _keys(round: Round, node: Node) -> list[_Key]:
    """Return the keys of a node: its operator and operands, or its elements. Nodes that share a key are equal."""
    if (node.kind in RANDOM and node.kind != "Dropout") or node.bodies or _may_draw(round, node):
        return []
    if node.kind == "Dropout" and (round.document.opset < 7 or node.input(2)):
        return []
    attributes = tuple(sorted(a.SerializeToString(deterministic=True) for a in node.proto.attribute))
    inputs = tuple(round.name(name) for name in node.inputs)
    outputs = tuple(bool(name) for name in node.outputs)
    keys: list[_Key] = [(node.kind, node.proto.overload, inputs, attributes, outputs)]
    kind = round.type(node.outputs[0]) if len(node.outputs) == 1 else None
    if kind is not None and kind.value is not None and node.kind != "Constant":
        keys.append((kind.dtype, kind.shape, kind.value))
    return keys


def _may_draw(round: Round, node: Node) -> bool:
    """Whether a function of the file, or an operator of another domain, may draw random numbers."""
    functions = {(f.domain, f.name) for f in round.document.model.functions}
    if (node.proto.domain, node.proto.op_type) in functions:
        return True
    return bool(node.proto.domain) and any(word in node.kind for word in ("Random", "Dropout", "Sampling"))


def equal_initializers(round: Round) -> None:
    """Keep one of several initialisers with the same type, shape and bytes."""
    document = round.document
    table: dict[str, str] = {}
    for names in _same_size(document).values():
        first: dict[bytes, str] = {}
        for name in names if len(names) > 1 else ():
            array = document.array(name)
            if array is None or array.dtype.hasobject:
                continue
            digest = hashlib.sha256(array.tobytes()).digest()
            other = first.setdefault(digest, name)
            if other != name:
                table[name] = other
    outputs = {name for scope in document.scopes for name in scope.outputs}
    table = {old: new for old, new in table.items() if old not in outputs and new not in outputs}
    document.rename(table)
    round.changes += len(table)


def _same_size(document: Document) -> dict[tuple[object, ...], list[str]]:
    """Return the initialisers by element type and shape."""
    found: dict[tuple[object, ...], list[str]] = {}
    for name, tensor in document.initializers.items():
        found.setdefault((tensor.data_type, *tensor.dims), []).append(name)
    return found
