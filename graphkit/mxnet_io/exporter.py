"""Export to MXNet: a graph becomes symbol.json, its parameters a .params file.

Values that depend on parameters and constants only are computed and become variables of the symbol. Every other node is
written by a function of `graphkit.mxnet_io.writers`, as one or more nodes of MXNet 1.9.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from graphkit.errors import GraphkitError, RuntimeFailure, UnsupportedOperator, UsageError
from graphkit.ir.atomic import PendingFile, sync_folder
from graphkit.ir.graph import Graph, Node
from graphkit.ir.origin import titled
from graphkit.mxnet_io import writers
from graphkit.mxnet_io.arrays import write_arrays
from graphkit.mxnet_io.writing import WRITERS, Writer, Writing
from graphkit.passes.core.draws import is_random
from graphkit.passes.core.sweep import symbolic_dims
from graphkit.text import nodes_by_operator, quantity

assert writers.__all__  # imported for the writers that they register

# MXNet's version 1.9.1, in the form in which its files contain it.
_VERSION = 10901


def save(graph: Graph, params: Mapping[str, Any], prefix: str | os.PathLike[str], epoch: int) -> None:
    """Write PREFIX-symbol.json and PREFIX-EPOCH.params, as MXNet 1.9 writes a checkpoint.

    Raises:
        UsageError: The epoch is negative.
        UnsupportedOperator: The graph contains operators that cannot be written. The message lists all of them.
        UnsupportedError: An attribute of a node has no counterpart in MXNet. The message names the node.
        RuntimeFailure: The files cannot be written.
    """
    if epoch < 0:
        raise UsageError(f"the epoch must not be negative: {epoch}")
    document, arrays = export(graph, params)
    symbol = Path(f"{os.fspath(prefix)}-symbol.json")
    write_arrays(f"{os.fspath(prefix)}-{epoch:04d}.params", arrays)
    try:
        with PendingFile(symbol.parent, symbol.name) as file:
            file.write(json.dumps(document, indent=2).encode())
            file.commit(symbol)
        sync_folder(symbol.parent)
    except OSError as error:
        raise RuntimeFailure(f"cannot write {str(symbol)!r}: {error.strerror or error}") from error


def export(graph: Graph, params: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the symbol as JSON data, and the arrays with the prefixes arg: and aux:. For errors, see `save`."""
    writing = Writing(graph, params)
    varying = [node for node in graph.nodes if not _fix(writing, node)]
    _check_operators(graph, varying)
    for value in graph.inputs:
        if value.role == "data":
            writing.entry(value)
    for node in varying:
        try:
            made = WRITERS[node.op.name](Writer(writing, node))
        except GraphkitError as error:
            raise type(error)(f"{titled(graph, 'model')}: {node.describe()}: {error}") from None
        writing.entries.update(zip(node.outputs, made if isinstance(made, list) else [made], strict=False))
    heads = [writing.entry(value) for value in graph.outputs]
    variables = [index for index, node in enumerate(writing.nodes) if node["op"] == "null"]
    document = {
        "nodes": writing.nodes,
        "arg_nodes": variables,
        "node_row_ptr": list(range(len(writing.nodes) + 1)),
        "heads": [[index, output, 0] for index, output in heads],
        "attrs": {"mxnet_version": ["int", _VERSION]},
    }
    return document, writing.arrays


def _fix(writing: Writing, node: Node) -> bool:
    """Return whether a node depends on parameters and constants only, and record its results if so."""
    if not all(value is None or writing.is_fixed(value) for value in node.inputs):
        return False
    if node.op.subgraphs() or is_random(node.op):
        return False
    writing.fixed.update(dict.fromkeys(node.outputs))
    return True


def _check_operators(graph: Graph, nodes: Sequence[Node]) -> None:
    missing: dict[str, list[str]] = {}
    for node in nodes:
        if node.op.name not in WRITERS or node.op.domain:
            missing.setdefault(node.op.name, []).append(repr(graph.node_name(node)))
    if missing:
        lines = nodes_by_operator(missing)
        if any(symbolic_dims(v) for v in graph.inputs):
            lines.append("With shapes of the inputs (shapes=), sizes are constants, and need no operators")
        raise UnsupportedOperator(
            f"{titled(graph, 'model')}: {quantity(len(missing), 'operator')} cannot be written for MXNet. Nodes:\n"
            + "\n".join(lines)
        )
