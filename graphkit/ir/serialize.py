"""Files of graphs: JSON with one node per line, and a safetensors file with the weights beside it.

The name of the weights file contains a hash of its content (`net.<hash>.safetensors`). The JSON file, which contains
this name, is renamed to its target last. So the two files on disk always belong together. The graph itself is described
in graphkit/ir/codec.py.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from graphkit.collector import without_gc
from graphkit.errors import BAD_VALUE, GraphkitError, InvalidModel, RuntimeFailure, UnsafeModel, UsageError
from graphkit.ir.atomic import PendingFile, has_pending, sync_folder
from graphkit.ir.codec import Decoder, Encoder, Resolve, WeightsOut, field, from_dict, stored_tensors, strings, to_dict
from graphkit.ir.graph import Graph
from graphkit.ir.json_file import read_json
from graphkit.ir.origin import titled
from graphkit.ir.stored import StoredArray
from graphkit.ir.weights import read_weights, write_weights
from graphkit.signatures import typed

__all__ = ["FORMAT", "VERSION", "from_dict", "load", "save", "to_dict"]

FORMAT, VERSION = "graphkit", 2
# The version of files without weights. Weights of files of version 1 have a SHA-256 in place of a `hash`.
_VERSION_WITHOUT_WEIGHTS = 1


# --- files ------------------------------------------------------------------------------------------


@typed("Model.save")
@without_gc
def save(
    path: str | Path,
    graph: Graph,
    params: Mapping[str, np.ndarray | StoredArray],
    meta: Mapping[str, str] | None = None,
    *,
    before: Callable[[Path], None] | None = None,
) -> None:
    """Write `graph` to `path` and its tensors to a safetensors file beside it.

    If it fails, an earlier file at `path` stays unchanged.

    Args:
        path: The JSON file.
        graph: The graph.
        params: Arrays by the name of their graph input.
        meta: Metadata of the model.
        before: Called with the path of the complete JSON file, before it is renamed to `path`.

    Raises:
        InvalidModel: An array does not fit its input, or the graph has no such input.
        RuntimeFailure: The files cannot be written.
    """
    path = Path(path)
    stem = path.name.removesuffix(".json")
    tensors = WeightsOut()
    body = Encoder(tensors, params).graph(graph)
    unknown = [name for name in params if name not in graph.input_names]
    if unknown:
        raise InvalidModel(f"{titled(graph)} has no input for parameters {', '.join(map(repr, unknown))}")
    try:
        with PendingFile(path.parent, path.name) as text, PendingFile(path.parent, f"{stem}.safetensors") as data:
            weights, target = None, None
            if tensors.stored:
                written = write_weights(data, tensors.stored)
                data.finish()
                target = path.parent / f"{stem}.{written.digest[:16]}.safetensors"
                weights = written.reference(target.name)
            for line in _document_lines(body, weights, meta or {}):
                text.write(line)
            text.finish()
            if before is not None:
                before(text.path)
            fresh = target is not None and not target.exists()
            try:
                if target is not None:
                    data.commit(target)
                text.commit(path)
            except OSError:
                if fresh and target is not None:
                    target.unlink(missing_ok=True)
                raise
            sync_folder(path.parent)
            _remove_unreferenced(path, stem, target)
    except OSError as error:
        raise RuntimeFailure(f"cannot write {str(path)!r}: {error.strerror or error}") from error


@without_gc
def load(
    path: str | Path, resolve: Resolve, external_root: str | Path | None = None
) -> tuple[Graph, dict[str, np.ndarray | StoredArray], dict[str, str]]:
    """Read a model that `save` wrote.

    Args:
        path: The JSON file. The weights file is in the same folder.
        resolve: Returns the class of an operator, given domain and name.
        external_root: A folder; the weights file may be a symbolic link to a file in it.

    Returns:
        The graph, arrays by input name, and metadata. Large arrays stay in the weights file.

    Raises:
        UsageError: There is no such file.
        UnsupportedOperator: `resolve` does not know an operator. The message lists all of them.
        UnsafeModel: The weights are in another folder.
        InvalidModel: The file is damaged. The message names file and place.
    """
    path = Path(path)
    while True:
        document = _read_document(path)
        try:
            return _decoded(path, document, resolve, external_root)
        except GraphkitError:
            # Another process may have saved a model to `path`, and removed the weights of this document.
            if _read_document(path).get("weights") == document.get("weights"):
                raise


def _decoded(
    path: Path, document: Mapping[str, Any], resolve: Resolve, external_root: str | Path | None
) -> tuple[Graph, dict[str, np.ndarray | StoredArray], dict[str, str]]:
    """Return what `load` returns, for the content of the JSON file."""
    try:
        _check_version(document)
        meta = strings(document.get("meta", {}), "meta")
        body = field(document, "graph", dict, "the model")
        arrays = _read_arrays(path, document.get("weights"), body, external_root)
        decoder = Decoder(resolve, arrays)
        decoder.check_operators(body)
        graph = decoder.graph(body)
    except GraphkitError as error:
        # The mistake is in the file, not in the caller's use of the API.
        kind = InvalidModel if isinstance(error, UsageError) else type(error)
        raise kind(f"{str(path)!r}: {error}") from None
    except (*BAD_VALUE, AttributeError, RecursionError) as error:
        raise InvalidModel(f"{str(path)!r} is damaged: {type(error).__name__}: {error}") from error
    return graph, decoder.params, meta


def _remove_unreferenced(path: Path, stem: str, current: Path | None) -> None:
    """Remove older weights of the same model, unless a JSON file of the folder names them.

    While another process saves a model to `path`, nothing is removed: its weights may be complete before its JSON file
    is renamed. The last of several saves at the same time removes the weights of all others.
    """
    pattern = re.compile(re.escape(stem) + r"\.[0-9a-f]{16}\.safetensors")
    old = {f: _state(f) for f in path.parent.iterdir() if pattern.fullmatch(f.name) and f != current}
    if not old or has_pending(path):
        return
    heads = []
    # Read after `has_pending`: another process may have renamed its JSON file to `path` before.
    for document in path.parent.glob("*.json"):
        with contextlib.suppress(OSError), document.open("rb") as file:
            heads.append(file.read(4096))
    for leftover, state in old.items():
        # Another process may have written the same weights again since then.
        if not any(leftover.name.encode() in head for head in heads) and _state(leftover) == state:
            # On Windows, a file that another process has open cannot be removed. The next save removes it.
            with contextlib.suppress(OSError):
                leftover.unlink()


def _state(file: Path) -> tuple[int, int] | None:
    """Return numbers that change if another process replaces a file; None if it is missing."""
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


def _read_document(path: Path) -> dict[str, Any]:
    document = read_json(path, "a graphkit model")
    if isinstance(document, dict) and {"nodes", "arg_nodes", "heads"} <= document.keys():
        raise InvalidModel(
            f"{str(path)!r} is a symbol of MXNet: pass its file of parameters too (params=), or rename it to "
            "NAME-symbol.json beside NAME-0000.params"
        )
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise InvalidModel(f'{str(path)!r} is JSON but not a graphkit model: it lacks "format": "{FORMAT}"')
    return document


def _check_version(document: Mapping[str, Any]) -> None:
    version = document.get("version")
    if type(version) is not int or version < 1:
        raise InvalidModel(f"version {version!r} is not a positive integer")
    if version > VERSION:
        raise InvalidModel(
            f"the file has format version {version}; this graphkit reads up to {VERSION}: upgrade graphkit"
        )


def _read_arrays(
    path: Path, weights: Any, body: Mapping[str, Any], external_root: str | Path | None
) -> dict[str, np.ndarray | StoredArray]:
    """Return the tensors of the weights file as bytes, after a comparison with all references in the graph."""
    expected = stored_tensors(body)
    if weights is None:
        if expected:
            raise InvalidModel(
                f"tensor {next(iter(expected))!r} is in a weights file, but the model names no weights file"
            )
        return {}
    name = field(weights, "file", str, "weights")
    folder = path.parent.resolve()
    target = (folder / name).resolve()
    if name in ("", ".", "..") or Path(name).name != name or "\\" in name:
        raise UnsafeModel(f"weights file {name!r} is not in the model's own folder")
    permitted = external_root is not None and target.is_relative_to(Path(external_root).resolve())
    if target.parent != folder and not permitted:
        raise UnsafeModel(
            f"weights file {name!r} is not in the model's own folder, but a symbolic link to {target}: pass "
            "external_root (--allow-external-root) to allow the folder it is in"
        )
    return read_weights(target, weights, expected)


# --- text ---------------------------------------------------------------------------------------------


def _document_lines(body: Mapping[str, Any], weights: Any, meta: Mapping[str, str]) -> Iterator[bytes]:
    version = _VERSION_WITHOUT_WEIGHTS if weights is None else VERSION
    yield f'{{\n"format": "{FORMAT}",\n"version": {version},\n'.encode()
    yield b'"weights": ' + _json(weights) + b",\n"
    yield b'"meta": ' + _json(dict(meta)) + b",\n"
    yield b'"graph": '
    yield from _graph_lines(body, b"")
    yield b"\n}\n"


def _graph_lines(record: Mapping[str, Any], indent: bytes) -> Iterator[bytes]:
    """A graph record with one input, node, output or update per line; subgraphs are indented below their node."""
    inner = indent + b"  "
    yield b'{"name": ' + _json(record["name"]) + b', "meta": ' + _json(record["meta"])
    for key in ("inputs", "nodes", "outputs", "updates"):
        yield b",\n" + indent + b'"' + key.encode() + b'": ['
        for position, item in enumerate(record[key]):
            yield (b",\n" if position else b"\n") + inner
            graphs = item.get("graphs")
            if graphs is None:
                yield _json(item)
                continue
            yield _json({k: v for k, v in item.items() if k != "graphs"})[:-1] + b', "graphs": {'
            for number, (name, graph) in enumerate(graphs.items()):
                yield (b",\n" if number else b"\n") + inner + b"  " + _json(name) + b": "
                yield from _graph_lines(graph, inner + b"  ")
            yield b"}}"
        yield b"]"
    yield b"}"


def _json(item: Any) -> bytes:
    try:
        return json.dumps(item, ensure_ascii=False, allow_nan=False).encode()
    except UnicodeEncodeError:
        return json.dumps(item, allow_nan=False).encode()
