"""graphkit run"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from graphkit.checks.maps import flattened
from graphkit.cli._adapters import adapter_option, with_adapters
from graphkit.cli._classes import best, table
from graphkit.cli._groups import LIMITS, OUTPUT, REPORTING, GroupedCommand, option
from graphkit.cli._images import image_options, images_of
from graphkit.cli._limits import limit_options
from graphkit.cli._options import (
    backend_option,
    device_of,
    device_options,
    input_options,
    json_option,
    log_backends,
    model_file_options,
    read_model,
    trace_file,
)
from graphkit.cli._output import log, print_json, print_table, show
from graphkit.cli._ranges import IntRange
from graphkit.cli._values import arrays_of, empty_of
from graphkit.errors import UsageError
from graphkit.ir.atomic import write_whole
from graphkit.ir.npz import npz_bytes

if TYPE_CHECKING:
    from graphkit.executor.run.profile import Profile
    from graphkit.executor.run.session import Executor
    from graphkit.model import Model


@click.command(cls=GroupedCommand)
@click.argument("model")
@input_options
@image_options
@option(
    "-o", "--output", group=OUTPUT, type=click.Path(dir_okay=False),
    help="Write the outputs to this .npz file, each under its name. Parts of a name that are unsafe in a path are "
    "escaped as in URLs: ../x becomes %2E%2E/x.",
)  # fmt: skip
@option(
    "--output-name", "names", group=OUTPUT, multiple=True, metavar="NAME",
    help="Compute only this output, or this internal value. Repeatable.",
)  # fmt: skip
@option(
    "--profile", "trace", group=REPORTING, type=click.Path(dir_okay=False), callback=trace_file,
    help="Record a second run as a trace for Perfetto or Chrome in this .json file, and print the time per operator.",
)  # fmt: skip
@option(
    "--top", group=OUTPUT, type=IntRange(1), metavar="K",
    help="Show the K most probable classes of each sample. Default: 5 if the model has class names, else none.",
)  # fmt: skip
@option(
    "--check-nan", group=REPORTING, is_flag=True,
    help="Also run the model node by node in numpy, and name the first node that makes a NaN or an infinity. Exit code "
    "1 if there is one.",
)  # fmt: skip
@option("--check-finite", group=LIMITS, is_flag=True, help="Stop with an error if an input contains NaN or infinity.")
@adapter_option
@device_options
@backend_option
@model_file_options
@limit_options
@json_option
def command(
    model: str, inputs: tuple[str, ...], fill: str, seed: int, output: str | None, names: tuple[str, ...],
    trace: str | None, top: int | None, check_nan: bool, check_finite: bool, device: str, threads: int | None,
    adapters: tuple[str, ...], backends: Any, external_root: str | None, as_json: bool, **image: Any,
) -> int:  # fmt: skip
    """Run MODEL (.json, .onnx, a run folder, or - for stdin) and show its outputs.

    An input is NAME:SHAPE (values by --fill) or NAME=FILE, with a .npy or .npz file, an image (.png, .jpg, ...) or a
    folder of images. If only one input takes images, you may leave out its NAME; several images are a batch. If
    the model was trained on a table, give a .csv, .tsv or .parquet file without NAME: its columns are encoded as in
    training. Inputs that you leave out are filled (--fill). Symbolic dimensions are guessed; the command prints
    them.

    Images are preprocessed as the --image options say, otherwise as the model's metadata say. Without either, they are
    resized to the size of the input and converted to its channels (gray, RGB or RGBA), with values from 0 to 1, or from
    0 to 255 for uint8.

    A sequence is NAME=FILE,FILE,... (NAME= if it is empty), or the arrays NAME[0], NAME[1], ... of an .npz file. An
    output that is a map is shown and written as two arrays, NAME.keys and NAME.values.

    \b
    graphkit run net.onnx
    graphkit run net.onnx x:16,1,8,8 --fill ones -o out.npz
    graphkit run net.onnx x=image.npy
    graphkit run net.onnx x=photo.jpg --image-mean 0.485,0.456,0.406 --image-std 0.229,0.224,0.225
    graphkit run net.onnx photo.jpg --top 3
    graphkit run net.onnx photos/ --top 1 --json
    graphkit run net.onnx x:16,1,8,8 --profile trace.json
    graphkit run net.onnx x=image.npy --check-nan
    graphkit run base.onnx x=image.npy --adapter tuned/
    """
    from graphkit.cli._inputs import feeds_for, picture_files

    if output is not None and not output.endswith(".npz"):
        raise UsageError(f"-o {output}: the name of the output file must end in .npz")
    net = with_adapters(read_model(model, external_root, best=True), adapters)
    if names:
        net = net.select(*names)
    feeds = feeds_for(net, inputs, fill, seed, images_of(image)).arrays
    executor = net.compile(device_of(device), threads=threads, check_finite=check_finite, backends=backends)
    recorded = None
    if trace is None:
        start = time.perf_counter()
        results = executor.run(feeds)
        seconds = time.perf_counter() - start
    else:
        results, recorded = _profiled(executor, feeds, trace)
        seconds = recorded.seconds
    log_backends(executor, backends)
    arrays = arrays_of(flattened(results))
    if output is not None:
        write_whole(Path(output), [npz_bytes(arrays, instead="--json instead of -o")])
        log(f"wrote {output}")
    pictures = list(picture_files(net.input_types, inputs).values())
    classes = best(net, results, top, [str(path) for path in pictures[0]] if len(pictures) == 1 else ())
    rows = [(n, str(a.dtype), list(a.shape), _statistics(a)) for n, a in arrays.items()]
    rows += [(n, "", [], what) for n, what in empty_of(results).items()]
    origin = _origin(net, feeds, results) if check_nan else None
    code = 0 if origin is None else 1
    if as_json:
        outputs = [
            {"name": n, "dtype": str(a.dtype), "shape": list(a.shape), "values": a.tolist() if a.size <= 1000 else None}
            for n, a in arrays.items()
        ]
        outputs += [{"name": n, "dtype": None, "shape": None, "values": None} for n in empty_of(results)]
        result = {"model": net.name, "seconds": seconds, "outputs": outputs}
        if classes is not None:
            result["top"] = classes
        if recorded is not None:
            result["operators"] = [asdict(o) for o in recorded.operators]
        if check_nan:
            result["nonfinite"] = origin
        print_json("run", result)
        return code
    print_table(f"{net.name}: {seconds * 1e3:.2f} ms", ["output", "dtype", "shape", "values"], rows)
    if classes is not None:
        print_table(f"most probable classes, by output {classes['output']}", *table(classes))
    if recorded is not None:
        print_table("time per operator", *recorded.table())
    if check_nan:
        show(f"not finite: {origin['message']}" if origin else "all values are finite")
    return code


def _origin(net: Model, feeds: Mapping[str, Any], results: Mapping[str, np.ndarray]) -> dict[str, Any] | None:
    """Return the node that makes the first NaN or infinity; None if all values are finite."""
    from graphkit.checks.nonfinite import counted, find_nonfinite

    found = find_nonfinite(net, feeds)
    if found is not None:
        return {"message": str(found), **asdict(found)}
    bad = [name for name, array in results.items() if any(counted(array))]
    if not bad:
        return None
    listed = ", ".join(map(repr, bad))
    return {
        "message": f"output {listed} of the native kernels; in the reference implementation (numpy), all values are "
        "finite"
    }


def _profiled(executor: Executor, feeds: Mapping[str, Any], path: str) -> tuple[dict[str, np.ndarray], Profile]:
    """Run twice and record the second run: the first one also allocates memory and packs weights."""
    from graphkit.executor.run.profile import profile

    state = executor.rng
    executor.run(feeds)
    executor.rng = state
    with profile(path) as recorded:
        results = executor.run(feeds)
    log(f"wrote {path}")
    return results, recorded


def _statistics(array: np.ndarray) -> str:
    if array.size == 0 or array.dtype == object:
        return "empty" if array.size == 0 else str(array.reshape(-1)[:4].tolist())
    if array.size <= 4:
        return str(array.tolist())
    numbers = array.astype(np.float64)
    return f"min {numbers.min():.5g}, mean {numbers.mean():.5g}, max {numbers.max():.5g}"
