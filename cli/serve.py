"""graphkit serve"""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from graphkit import config
from graphkit.cli._groups import BATCHING, LIMITS, LISTENING, REPORTING, GroupedCommand, option
from graphkit.cli._limits import Memory
from graphkit.cli._options import (
    check_run_folder,
    device_of,
    device_options,
    external_root_option,
    json_option,
    preprocessing_option,
    read_model,
    trust_option,
)
from graphkit.cli._output import print_json
from graphkit.cli._ranges import FloatRange, IntRange
from graphkit.errors import InputError

if TYPE_CHECKING:
    from graphkit.model import Model


@click.command(cls=GroupedCommand)
@click.argument("models", nargs=-1, required=True, metavar="MODEL | FOLDER | NAME=PATH...")
@option("--host", group=LISTENING, default="127.0.0.1", show_default=True, help="Address to listen on.")
@option(
    "--port", group=LISTENING, type=IntRange(0, 65535), default=8000, show_default=True, help="Port; 0: any free one."
)
@option(
    "--api-key-file", group=LISTENING, type=click.Path(dir_okay=False), metavar="FILE",
    help="Requests must send the key in this file: Authorization: Bearer KEY. Default: the environment variable "
    "GRAPHKIT_API_KEY, else no key.",
)  # fmt: skip
@option(
    "--tls-cert", group=LISTENING, type=click.Path(dir_okay=False), metavar="FILE", help="PEM file of a certificate."
)
@option("--tls-key", group=LISTENING, type=click.Path(dir_okay=False), metavar="FILE", help="PEM file of its key.")
@option(
    "--drain", group=LISTENING, type=FloatRange(0), default=1.0, show_default=True, metavar="SECONDS",
    help="After SIGTERM, new connections are accepted for this time. Requests in progress are always answered.",
)  # fmt: skip
@option(
    "--max-batch", group=BATCHING, type=IntRange(1), default=32, show_default=True, metavar="ROWS",
    help="Most rows of a batch that several requests share. 1: no shared batches.",
)  # fmt: skip
@option(
    "--max-delay-ms", group=BATCHING, type=FloatRange(0), default=2.0, show_default=True, metavar="MS",
    help="Milliseconds that a request waits for others to share its batch.",
)  # fmt: skip
@option(
    "--max-queue", group=LIMITS, type=IntRange(1), default=512, show_default=True,
    help="Most requests in progress. Further ones get status 503.",
)  # fmt: skip
@option(
    "--timeout", group=LIMITS, type=FloatRange(0, min_open=True), default=30.0, show_default=True, metavar="SECONDS",
    help="Time limit of a request, from its head to its answer. Later, it gets status 504.",
)  # fmt: skip
@option(
    "--max-body", group=LIMITS, type=Memory(), default="64MiB", show_default=True, metavar="MEMORY",
    help="Largest body of a request. A larger one gets status 413.",
)  # fmt: skip
@option(
    "--max-json", group=LIMITS, type=Memory(), default="16MiB", show_default=True, metavar="MEMORY",
    help="Most JSON in a request. Other requests wait while JSON is parsed, unlike binary tensors.",
)  # fmt: skip
@option(
    "--max-pending", group=LIMITS, type=Memory(), default="1GiB", show_default=True, metavar="MEMORY",
    help="Memory limit of all bodies in progress together. Parsing them takes up to as much again.",
)  # fmt: skip
@option(
    "--max-connections", group=LIMITS, type=IntRange(1), default=1024, show_default=True, help="Most connections.",
)  # fmt: skip
@option(
    "--max-memory", group=LIMITS, type=Memory(), metavar="MEMORY",
    help="Memory limit of reading a file, of a run, and of decoding an image. Default: GRAPHKIT_MAX_MEMORY, else the "
    "free memory of the machine.",
)  # fmt: skip
@option(
    "--max-iterations", group=LIMITS, type=IntRange(1), metavar="N",
    help="Limit on the iterations of a Loop or Scan. Default: GRAPHKIT_MAX_ITERATIONS, else "
    f"{config.COMMAND_ITERATIONS:,}.",
)  # fmt: skip
@option(
    "--log-level", group=REPORTING, type=click.Choice(["debug", "info", "warning", "error"]), default="info",
    show_default=True, help="Least level of log lines. Requests are logged at info.",
)  # fmt: skip
@preprocessing_option
@external_root_option
@partial(trust_option, folder="given as MODEL", expose=False)
@device_options
@json_option
def command(
    models: tuple[str, ...], api_key_file: str | None, max_delay_ms: float, max_iterations: int | None, device: str,
    external_root: str | None, as_json: bool, **options: Any,
) -> None:  # fmt: skip
    """Serve models over HTTP until SIGTERM or Ctrl-C. SIGHUP loads all models again.

    A MODEL is a file (.onnx, .json) or a run folder. A FOLDER contains models, or versions of models as in Triton's
    repositories: NAME/1/model.onnx, NAME/2/model.onnx. Requests without a version get the newest one. A model has the
    name of its file or folder, or NAME. Needs the extra serve.

    The server implements the Open Inference Protocol, version 2, so the HTTP clients of KServe and Triton work with it.
    POST /predict takes images and texts, and converts them to inputs by the model's metadata. GET / is a page to try
    it, and GET /metrics returns metrics for Prometheus.

    Requests are joined to batches if the rows of the model are independent. Logs are JSON lines on stderr.

    By default, only this machine can reach the server, and it needs no key. --json prints the address when the server
    answers.

    \b
    graphkit serve net.onnx
    graphkit serve net.onnx detector=other.onnx --port 9000 --max-batch 64
    graphkit serve repository/ --host 0.0.0.0 --api-key-file key.txt --tls-cert cert.pem --tls-key key.pem
    curl -F file=@cat.jpg http://127.0.0.1:8000/predict
    """
    from graphkit.serving.hang_up import HANG_UP

    context = click.get_current_context()

    def started(url: str) -> None:
        if as_json:
            print_json("serve", {"url": url})

    def reader(path: Path) -> Model:
        with context.scope(cleanup=False):  # in any thread
            return _read(path, external_root)

    with HANG_UP:  # from here on, because the imports take long
        from graphkit.serving.serve import serve

        serve(
            _named(models), api_key=_api_key(api_key_file), max_delay=max_delay_ms / 1000, device=device_of(device),
            max_iterations=max_iterations or config.MAX_ITERATIONS.get() or config.COMMAND_ITERATIONS, reader=reader,
            started=started, **options,
        )  # fmt: skip


def _named(models: tuple[str, ...]) -> list[Path | tuple[str, Path]]:
    """Return the sources: paths, and pairs of a name and a path."""
    found: list[Path | tuple[str, Path]] = []
    for text in models:
        name, separator, path = text.partition("=")
        found.append((name, Path(path)) if separator and not Path(text).exists() else Path(text))
    return found


def _read(path: Path, external_root: str | None) -> Model:
    """Load a model: of a run folder, the best one if there is one."""
    from graphkit.inference.hugging_face import with_files_beside
    from graphkit.train.run_folder import BEST

    best = path / BEST
    if path.is_dir():
        check_run_folder(path)
    source = best if path.is_dir() and best.exists() else path
    return with_files_beside(read_model(str(source), external_root), source)[0]


def _api_key(file: str | None) -> str | None:
    """Return the key of --api-key-file, or of the environment; None if there is none."""
    from graphkit.serving.serve import check_api_key

    if file is None:
        found = os.environ.get("GRAPHKIT_API_KEY")
        if found is not None:
            check_api_key(found, "the environment variable GRAPHKIT_API_KEY")
        return found
    try:
        key = Path(file).read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise InputError(f"--api-key-file {file}: the file cannot be read: {reason}") from None
    check_api_key(key, f"--api-key-file {file}")
    return key
