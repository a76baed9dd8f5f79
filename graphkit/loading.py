"""load: read a model from a file of any format that graphkit knows."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from graphkit.collector import without_gc
from graphkit.errors import UsageError
from graphkit.ir import limits
from graphkit.ir.graph import Value
from graphkit.ir.stored import plain_path
from graphkit.model import Model
from graphkit.signatures import shown, typed

if TYPE_CHECKING:
    from pathlib import Path


@typed("gk.load")
@without_gc
def load(
    source: Any,
    *,
    params: str | Path | Mapping[str, Any] | None = None,
    epoch: int | None = None,
    shapes: Mapping[str, Sequence[Any]] | None = None,
    external_root: str | Path | None = None,
    max_memory: int | str | None = None,
    timeout: float | None = None,
) -> Model:
    """Read a model from a file, a folder, or an ONNX message in memory.

    Nothing in the file is executed, and no file outside its folder is read unless `external_root` allows it. Large
    parameters of a file on disk are read when they are needed. Until then you may replace or remove the file, but not
    overwrite it in place: reading the parameters then raises FileChanged.

    Args:
        source: Path of a `.json` or `.onnx` file or of a folder that `Trainer.save` wrote; the bytes of an ONNX file;
            or an onnx.ModelProto. For a model of MXNet: `net-symbol.json`, `net-0010.params` or, with `epoch`, `net`.
        params: The parameters of an MXNet symbol: a `.params` file, or arrays by name. By default the `.params` file
            beside the symbol that has the largest number.
        epoch: The number of that file.
        shapes: Shapes of the data inputs of an MXNet symbol, by name, because its file does not contain them. By
            default they follow from the operators that read the inputs. A text names a size that may vary.
        external_root: A second folder from which external data of an ONNX file may be read.
        max_memory: Memory limit for reading the file, and for each of its tensors: a number of bytes, or a text such as
            `"500MB"` (default: GRAPHKIT_MAX_MEMORY, else the memory that the machine has left).
        timeout: Time limit in seconds (default: none).

    Returns:
        The model.

    Raises:
        UsageError: There is no such file.
        InvalidModel: The file is damaged or inconsistent. The message names the file, and the node if there is one.
        UnsafeModel: The file breaks a safety rule, for example by external data in another folder. The message names
            the file.
        UnsupportedOperator: graphkit does not have an operator of the file. The message names the file and the node.
        OutOfMemory: `max_memory` is exceeded.
        LimitReached: `timeout` is exceeded.
    """
    bounds = limits.Bounds.of(memory=max_memory)
    with limits.limited(bounds and bounds.memory, timeout):
        if params is not None or epoch is not None or shapes is not None or is_mxnet(source):
            return _read_mxnet(source, params, epoch, shapes)
        return _read(source, external_root)


def is_mxnet(source: Any) -> bool:
    """Return whether a path names a file of MXNet."""
    if not isinstance(source, (str, os.PathLike)):
        return False
    path = os.fspath(source)
    if path.endswith(("-symbol.json", ".params")):
        return True
    return not os.path.exists(path) and os.path.exists(f"{path}-symbol.json")


def is_onnx_file(path: str | os.PathLike[str]) -> bool:
    """Return whether `load` reads a path as an ONNX file: it is not a folder, a .json file or a file of MXNet."""
    return not os.path.isdir(path) and os.path.splitext(path)[1] != ".json" and not is_mxnet(path)


def _read_mxnet(
    source: Any,
    params: str | Path | Mapping[str, Any] | None,
    epoch: int | None,
    shapes: Mapping[str, Sequence[Any]] | None,
) -> Model:
    from graphkit.mxnet_io.importer import import_model

    path = os.fspath(source) if isinstance(source, (str, os.PathLike)) else None
    if path is None or path.endswith(".onnx") or os.path.isdir(path):
        what = shown(source) if path is None else repr(path)
        raise UsageError(f"params, epoch and shapes (--shape) are for models of MXNet, not for {what}")
    imported = import_model(source, params=params, epoch=epoch, shapes=shapes)
    return Model.from_graph(imported.graph, imported.params)


def _read(source: Any, external_root: str | Path | None) -> Model:
    if isinstance(source, (str, os.PathLike)):
        path = plain_path(source)
        if os.path.isdir(path):
            if not os.path.exists(f"{path}/model.json"):
                raise UsageError(f"{path!r} is not a run folder: it contains no model.json")
            path = plain_path(f"{path}/model.json")
        if os.path.splitext(path)[1] == ".gkp":
            raise UsageError(
                f"{path!r} is a compiled program: libgraphkit.so runs it, but it contains no graph to load"
            )
        if os.path.splitext(path)[1] == ".json":
            from pathlib import Path

            from graphkit.ir import hashing, serialize
            from graphkit.ops import registry

            hashing.load_extension = _load_extension
            graph, params, _ = serialize.load(Path(path), registry.get, external_root)
            return Model.from_graph(graph, params)
        source = path
    from graphkit.onnx_io import messages
    from graphkit.onnx_io.importer import import_model

    messages.load_extension = _load_extension
    imported = import_model(source, external_root=external_root, differentiate=_differentiate)
    return Model.from_graph(
        imported.graph, imported.params, name=imported.name, meta=imported.meta, declared=imported.declared
    )


def _load_extension() -> None:
    from graphkit.executor.devices.extension import import_extension

    with contextlib.suppress(ImportError):  # Python reads the file if graphkit was not built
        import_extension()


def _differentiate(outputs: Sequence[Value], wrt: Sequence[Value]) -> list[Value]:
    from graphkit.autodiff.reverse_mode import gradient

    return gradient(outputs, wrt, allow_unused=True)
