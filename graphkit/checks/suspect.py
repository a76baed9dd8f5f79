"""Write the nodes that differ, and their inputs, to files."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from graphkit.checks.isolation import Comparer, Found
from graphkit.checks.pairing import Cut, Producers
from graphkit.checks.trace import OnnxTrace
from graphkit.errors import UnsupportedError
from graphkit.ir.atomic import write_whole
from graphkit.ir.npz_names import member_name


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
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, value in given.items():
            items = {name: value} if isinstance(value, np.ndarray) else {f"{name}[{i}]": x for i, x in enumerate(value)}
            for key, array in items.items():
                if array.dtype == object:
                    array = array.astype(str)
                elif array.dtype.kind == "V":
                    raise UnsupportedError(f"input {name!r} is {array.dtype}, which an .npz file cannot store")
                with archive.open(f"{member_name(key)}.npy", "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, array, allow_pickle=False)
    return buffer.getbuffer()
