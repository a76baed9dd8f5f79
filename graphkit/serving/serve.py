"""serve: answer requests over HTTP until a signal ends the server."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphkit.distribution import how_to_install
from graphkit.errors import InputError, UsageError
from graphkit.interop.torch_export import require
from graphkit.model import Model
from graphkit.serving.hang_up import HANG_UP
from graphkit.serving.settings import Settings
from graphkit.signatures import typed

if TYPE_CHECKING:
    from graphkit.executor.devices.groups import AnyDevice

_PACKAGES = ("starlette", "uvicorn", "httptools", "python_multipart", "prometheus_client")


@typed("gk.serve")
def serve(
    models: str | Path | Sequence[Any] | Mapping[str, Any],
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    max_batch: int = 32,
    max_delay: float = 0.002,
    max_queue: int = 512,
    timeout: float = 30.0,
    max_body: int = 64 << 20,
    max_json: int = 16 << 20,
    max_pending: int = 1 << 30,
    max_connections: int = 1024,
    max_memory: int | str | None = None,
    max_iterations: int | None = None,
    device: AnyDevice = "cpu",
    threads: int | None = None,
    api_key: str | None = None,
    tls_cert: str | Path | None = None,
    tls_key: str | Path | None = None,
    drain: float = 1.0,
    log_level: str = "info",
    reader: Callable[[Path], Model] | None = None,
    started: Callable[[str], None] | None = None,
) -> None:
    """Serve models over HTTP until SIGTERM or SIGINT. SIGHUP loads all models again.

    The server implements the Open Inference Protocol, version 2, with binary tensors, and Triton's extensions for
    statistics and the model repository. Logs are JSON lines on stderr.

    Args:
        models: Files, run folders, folders of versions (`1/model.onnx`), and folders that contain any of these. For
            other names than those of the files, give pairs of a name and a path, or a dict of paths by name.
        host: Address to listen on. By default, only this machine can reach the server.
        port: Port; 0 for any free one.
        max_batch: Most rows of a batch that several requests share; 1 turns dynamic batching off.
        max_delay: Seconds that a request waits for others to share its batch.
        max_queue: Most requests in progress. Further ones get status 503.
        timeout: Seconds from the head of a request to its answer.
        max_body: Most bytes of the body of a request.
        max_json: Most bytes of JSON in a request.
        max_pending: Most bytes of all bodies in progress together, and of the inputs that images become. Requests take
            up to twice as much memory while their bodies are joined or parsed.
        max_connections: Most connections.
        max_memory: Memory limit of a file, a run and a decoded image: a number of bytes, or a text such as `"500MB"`.
        max_iterations: Limit on the iterations of a Loop or Scan.
        device: Device of all models.
        threads: Number of CPU threads of a run.
        api_key: Key that requests must send: `Authorization: Bearer KEY`.
        tls_cert: PEM file of a certificate, for HTTPS.
        tls_key: PEM file of its key.
        drain: Seconds after SIGTERM in which new connections are still accepted.
        log_level: "debug", "info", "warning" or "error". Requests are logged at "info".
        reader: Reads the model of a path (default: `gk.load`).
        started: Called with the address when the server answers.

    Raises:
        UsageError: A path contains no model, two models have the same name, or an argument is wrong.
        InputError: The certificate or the API key cannot be used.
        MissingDependency: A package of the extra `serve` is not installed.
        RuntimeFailure: The port is in use.
        GraphkitError: A model cannot be loaded.
    """
    require(*_PACKAGES, task="gk.serve (graphkit serve)", command=how_to_install("serve"))
    if (tls_cert is None) != (tls_key is None):
        raise UsageError("tls_cert (--tls-cert) and tls_key (--tls-key) belong together; give both")
    if not 0 <= port < 1 << 16:
        raise UsageError(f"port={port}: expected a number from 0 to 65535")
    if api_key is not None:
        check_api_key(api_key)
    settings = Settings(
        max_batch, max_delay, max_queue, timeout, max_body, max_json, max_pending, max_connections, max_memory,
        max_iterations, device, threads,
    )  # fmt: skip
    given = [models] if isinstance(models, (str, Path)) else models
    tls = None if tls_cert is None or tls_key is None else (Path(tls_cert), Path(tls_key))
    with HANG_UP:  # from here on, because the imports take long
        _run(given, settings, reader, started, log_level, host=host, port=port, api_key=api_key, tls=tls, drain=drain)


def _run(
    models: Any, settings: Settings, reader: Callable[[Path], Model] | None, started: Callable[[str], None] | None,
    log_level: str, **options: Any,
) -> None:  # fmt: skip
    from graphkit.serving.logs import json_logs
    from graphkit.serving.repository import ModelRepository
    from graphkit.serving.server import Server

    with json_logs(sys.stderr, log_level):
        repository = ModelRepository(models, settings, reader=reader)
        server = Server(repository, **options)
        server.run(lambda: None if started is None else started(server.url))


def check_api_key(key: str, where: str = "api_key") -> None:
    """Raise InputError if a key cannot be sent in a header, or is too short to be safe. where: what contains it."""
    if not key.isascii() or not key.isprintable() or " " in key or len(key) < _SHORTEST:
        raise InputError(
            f"{where}: the API key must have at least {_SHORTEST} characters, all of them printable ASCII without "
            'spaces; python -c "import secrets; print(secrets.token_urlsafe(32))" makes one'
        )


_SHORTEST = 16
