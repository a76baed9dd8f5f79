"""Write the nodes that differ, and their inputs, to files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from graphkit.checks.isolation import Comparer, Found
from graphkit.checks.pairing import Cut, Producers
from graphkit.checks.trace import OnnxTrace
from graphkit.errors import UnsupportedError
from graphkit.ir.atomic import write_whole
from graphkit.ir.npz import npz_bytes


def write_suspect(comparer: Comparer, found: Found, path: Path) -> tuple[tuple[str, ...], str]:
    """Write the nodes of a divergence to an `.onnx` file, and their inputs to an `.npz` file beside it.

    The nodes of a second model are written to `NAME-against.onnx`.

    Returns:
        The paths of the files, and the command that compares them.
    """
    case = found.case
    given = comparer.given_to(case)
    wanted = [p.ours for p in case.targets], [p.theirs for p in case.targets]
    sides = [(comparer.ours, case.ours, given[0], wanted[0]), (comparer.theirs, case.theirs, given[1], wanted[1])]
    engines = f" --engine {comparer.first.engine} --against-engine {comparer.second.engine}"
    arrays = path.with_suffix(".npz")
    if comparer.is_one_model:
        # The nodes of the file itself, if ONNX Runtime runs one, are written, and not an export of them.
        chosen = next((side for side in sides if isinstance(side[0].trace, OnnxTrace)), sides[0])
        content = _npz(chosen[2])
        _write(*chosen, path)
        write_whole(arrays, [content])
        engine = "" if comparer.first.engine == "graphkit" else engines
        return (str(path), str(arrays)), f"graphkit verify {path} {arrays}{engine}"
    against = path.with_name(f"{path.stem}-against.onnx")
    content = _npz(given[0])
    _write(*sides[0], path)
    _write(*sides[1], against)
    write_whole(arrays, [content])
    return (str(path), str(against), str(arrays)), f"graphkit verify {path} {arrays} --against {against}{engines}"


def _write(side: Producers, cut: Cut, given: Mapping[str, Any], wanted: list[str], path: Path) -> None:
    part = side.trace.part(cut.steps, given, wanted)
    if isinstance(side.trace, OnnxTrace):
        from graphkit.onnx_io.writing import EXTERNAL_ABOVE, raw_bytes, write_proto

        write_proto(part, path, external=raw_bytes(part) > EXTERNAL_ABOVE)
    else:
        part.save(path)


def _npz(given: Mapping[str, Any]) -> memoryview:
    """Return the bytes of an .npz file with these inputs; a sequence as the arrays name[0], name[1], ..."""
    arrays: dict[str, np.ndarray] = {}
    for name, value in given.items():
        items = {name: value} if isinstance(value, np.ndarray) else {f"{name}[{i}]": x for i, x in enumerate(value)}
        if odd := [array.dtype for array in items.values() if array.dtype.kind == "V"]:
            raise UnsupportedError(f"input {name!r} is {odd[0]}, which an .npz file cannot store")
        arrays |= items
    return npz_bytes(arrays, instead="other inputs")
