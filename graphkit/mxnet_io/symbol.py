"""Read MXNet's graphs (symbol.json) of all generations into one form.

A file is a JSON object: `nodes` in topological order, `heads` (the outputs), `arg_nodes`, and since 0.9 `attrs` with
MXNet's version. A node has an operator ("null" for a variable), a name, its inputs as [node, output, version], and its
attributes as texts. Generations differ in the key of the attributes:

    0.8 and before    `param`, the user's attributes in `attr`, `backward_source_id`
    0.9 to 0.11       `attr`
    since 1.0         `attrs`

Attributes of users and optimizers, such as lr_mult, were written without underscores before 0.9; `annotations` has them
without. Source: src/nnvm/legacy_json_util.cc of MXNet 1.9.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from graphkit.errors import BAD_VALUE, InvalidModel
from graphkit.ir.json_file import read_json
from graphkit.named_tuples import NamedTuple

VARIABLE = "null"


class SymbolNode(NamedTuple):
    """A node of a symbol.

    Attributes:
        op: MXNet's name of the operator; "null" for a variable.
        name: Its name.
        attributes: Attributes of the operator, as texts.
        annotations: Attributes of users and optimizers, without underscores: lr_mult, shape, ...
        inputs: (node, output) of each input.
        subgraphs: The bodies of a control flow operator.
    """

    op: str
    name: str
    attributes: Mapping[str, str]
    annotations: Mapping[str, str]
    inputs: tuple[tuple[int, int], ...]
    subgraphs: tuple[Symbol, ...]

    @property
    def is_variable(self) -> bool:
        return self.op == VARIABLE

    def __str__(self) -> str:
        return f"{self.name!r} ({self.op})"


class Symbol(NamedTuple):
    """A graph of MXNet: nodes in topological order, and (node, output) of each output of the graph."""

    nodes: tuple[SymbolNode, ...]
    heads: tuple[tuple[int, int], ...]


def read_symbol(path: str | os.PathLike[str]) -> Symbol:
    """Read a symbol.json file.

    Raises:
        UsageError: There is no such file.
        InvalidModel: The file is damaged. The message names the file and the node.
    """
    label = repr(os.fspath(path))
    return parse_symbol(read_json(path, "a symbol of MXNet"), label)


def parse_symbol(document: Any, label: str) -> Symbol:
    """Return the symbol in a JSON document. Raises InvalidModel, which begins with `label`, if it is damaged."""
    try:
        return _symbol(document, label)
    except RecursionError:
        raise InvalidModel(f"{label}: subgraphs are nested too deeply") from None


def _symbol(document: Any, where: str) -> Symbol:
    if not isinstance(document, dict) or not isinstance(document.get("nodes"), list):
        raise InvalidModel(f"{where} is not a symbol of MXNet: it has no list of nodes")
    nodes: list[SymbolNode] = []
    for index, raw in enumerate(document["nodes"]):
        place = f"{where}: node {index}"
        try:
            nodes.append(_node(raw, nodes, place))
        except (*BAD_VALUE, AttributeError) as error:
            raise InvalidModel(f"{place} is damaged: {type(error).__name__}: {error}") from None
    heads = _entries(document.get("heads"), nodes, f"{where}: the outputs (heads)")
    if not heads:
        raise InvalidModel(f"{where} has no outputs (heads)")
    return Symbol(tuple(nodes), heads)


def _node(raw: dict[str, Any], before: list[SymbolNode], place: str) -> SymbolNode:
    op, name = raw["op"], raw["name"]
    if not isinstance(op, str) or not isinstance(name, str):
        raise TypeError("op and name must be texts")
    place = f"{place}, {name!r} ({op})"
    attributes: dict[str, str] = {}
    annotations: dict[str, str] = {}
    for key in ("param", "attrs", "attr"):
        for attribute, value in (raw.get(key) or {}).items():
            if not isinstance(value, str):
                raise TypeError(f"attribute {attribute} is not a text")
            bare = attribute.strip("_")
            if attribute.startswith("__") or op == VARIABLE or (key != "param" and _is_annotation(attribute)):
                annotations[bare] = value
            else:
                attributes[attribute] = value
    inputs = _entries(raw.get("inputs", []), before, f"{place}: its inputs")
    subgraphs = tuple(_symbol(inner, f"{place}: subgraph {i}") for i, inner in enumerate(raw.get("subgraphs") or ()))
    return SymbolNode(op, name, attributes, annotations, inputs, subgraphs)


def _is_annotation(attribute: str) -> bool:
    """Return whether an attribute of an operator is for its user or the optimizer, though it has no underscores."""
    return attribute in ("ctx_group", "force_mirroring", "mirror_stage") or attribute.endswith(("lr_mult", "wd_mult"))


def _entries(raw: Any, nodes: list[SymbolNode], place: str) -> tuple[tuple[int, int], ...]:
    if not isinstance(raw, list):
        raise InvalidModel(f"{place} must be a list")
    entries = []
    for entry in raw:
        fits = isinstance(entry, list) and 2 <= len(entry) <= 3 and all(type(part) is int for part in entry)
        if not fits or not 0 <= entry[0] < len(nodes) or entry[1] < 0:
            raise InvalidModel(f"{place}: {entry!r} is not [node, output] of an earlier node")
        entries.append((entry[0], entry[1]))
    return tuple(entries)
