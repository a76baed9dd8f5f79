"""Requests for runs, and descriptions of models and of the server, as the Open Inference Protocol defines them."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from graphkit import distribution
from graphkit.errors import GraphkitError, LimitReached
from graphkit.serving.admission import RECORD, Admission, Record
from graphkit.serving.batcher import Result
from graphkit.serving.errors import Disconnected, Retired
from graphkit.serving.protocol import Answer, InferRequest, answer, json_bytes, parse_request
from graphkit.serving.repository import ModelRepository
from graphkit.serving.served_model import ServedModel

HEADER_LENGTH = "Inference-Header-Content-Length"
_EXTENSIONS = ["binary_tensor_data", "model_configuration", "model_repository", "statistics"]

# Larger JSON, and larger answers, are converted in another thread than that of the event loop.
_LARGE = 64 << 10
# How often a request is tried again if its model is replaced at that moment.
ATTEMPTS = 10


class InferenceRoutes:
    """Endpoints of the protocol.

    repository: The models. admission: Lets requests in.
    """

    def __init__(self, repository: ModelRepository, admission: Admission):
        self._repository, self._admission = repository, admission
        self.draining = False

    def routes(self) -> list[Route]:
        """Return the routes."""
        model, version = "/v2/models/{name}", "/v2/models/{name}/versions/{version}"
        found = [
            Route("/v2", self.server),
            Route("/v2/health/live", self.live),
            Route("/v2/health/ready", self.ready),
            Route("/v2/models/stats", self.all_statistics),
        ]
        for path in (model, version):
            found += [
                Route(f"{path}/infer", self.infer, methods=["POST"]),
                Route(path, self.metadata),
                Route(f"{path}/ready", self.model_ready),
                Route(f"{path}/config", self.config),
                Route(f"{path}/stats", self.statistics),
            ]
        return found

    async def server(self, request: Request) -> Response:
        """Return the metadata of the server."""
        version = distribution.version()
        return JSONResponse({"name": "graphkit", "version": version, "extensions": _EXTENSIONS})

    async def live(self, request: Request) -> Response:
        """Return 200: the server answers."""
        return JSONResponse({"live": True})

    async def ready(self, request: Request) -> Response:
        """Return 200 if a model is loaded and the server is not stopping, else 503."""
        ready = self._repository.is_ready and not self.draining
        return JSONResponse({"ready": ready}, 200 if ready else 503)

    async def model_ready(self, request: Request) -> Response:
        """Return 200 if the model is loaded, else 404."""
        model = self._model(request)
        return JSONResponse({"name": model.name, "ready": True})

    async def metadata(self, request: Request) -> Response:
        """Return the inputs and outputs of a model."""
        model = self._model(request)
        return JSONResponse(model.metadata(self._repository.versions(model.name)))

    async def config(self, request: Request) -> Response:
        """Return the configuration of a model in Triton's form."""
        return JSONResponse(self._model(request).config())

    async def statistics(self, request: Request) -> Response:
        """Return the counts of a model."""
        return JSONResponse({"model_stats": [self._model(request).statistics.to_json()]})

    async def all_statistics(self, request: Request) -> Response:
        """Return the counts of all models."""
        return JSONResponse({"model_stats": [model.statistics.to_json() for model in self._repository.loaded()]})

    async def infer(self, request: Request) -> Response:
        """Run a model."""
        record: Record = request.scope[RECORD]
        name, version = request.path_params["name"], request.path_params.get("version")
        with counted(self._repository.get(name, version), record), self._admission.request() as ticket:
            body = await self._admission.body(request, ticket)
            for _ in range(ATTEMPTS):
                model = self._repository.get(name, version)
                parsed = await self._parsed(body, request.headers.get(HEADER_LENGTH), model)
                try:
                    future = model.submit(parsed.inputs, record.left)
                except Retired:
                    continue  # the repository has a newer one already
                result = await finished(future, request)
                if parsed.id is not None:
                    record.fields["id"] = parsed.id
                return await self._answered(model, parsed, result, record)
        raise Retired(f"model {name!r} is being replaced; retry later")

    async def _parsed(self, body: bytes, header_length: str | None, model: ServedModel) -> InferRequest:
        arguments = (body, header_length, model.inputs, model.outputs, self._repository.settings.max_json)
        if json_bytes(body, header_length) > _LARGE:
            return await asyncio.to_thread(parse_request, *arguments)
        return parse_request(*arguments)

    async def _answered(self, model: ServedModel, parsed: InferRequest, result: Result, record: Record) -> Response:
        arguments = (model.name, model.version, parsed, result.outputs, model.outputs)
        if sum(array.nbytes for array in result.outputs.values()) > _LARGE:
            made = await asyncio.to_thread(answer, *arguments)
        else:
            made = answer(*arguments)
        note(record, model, result)
        return _response(made)

    def _model(self, request: Request) -> ServedModel:
        return self._repository.get(request.path_params["name"], request.path_params.get("version"))


def _response(made: Answer) -> Response:
    if made.header_length is None:
        return Response(made.body, media_type="application/json")
    headers = {HEADER_LENGTH: str(made.header_length)}
    return Response(made.body, headers=headers, media_type="application/octet-stream")


@contextlib.contextmanager
def counted(model: ServedModel, record: Record) -> Iterator[None]:
    """Count a request of a model that fails in the block, and add the model to its error."""
    record.fields |= {"model": model.name, "version": model.version}
    try:
        yield
    except Exception as error:
        model.statistics.failed(time.monotonic() - record.begun)
        title = f"model {model.name!r}"
        if isinstance(error, GraphkitError) and title not in str(error):
            error.args = (f"{title}: {error}",)
        raise


def note(record: Record, model: ServedModel, result: Result) -> None:
    """Count a request that was computed, and note its times for the log."""
    model.statistics.answered(time.monotonic() - record.begun, result.times)
    record.fields |= {
        "version": model.version, "batch": result.rows,
        "queue_seconds": round(result.times.queue, 6), "run_seconds": round(result.times.run, 6),
    }  # fmt: skip


async def finished(future: Future[Result], request: Request) -> Result:
    """Wait for a request in the queue of a model. It leaves the queue if the client goes, or after the deadline.

    Raises:
        Disconnected: The client closed the connection.
        LimitReached: The deadline is over.
    """
    record: Record = request.scope[RECORD]
    waiting = asyncio.wrap_future(future)
    leaving = asyncio.ensure_future(_left(request))
    either: set[asyncio.Future[Any]] = {waiting, leaving}
    try:
        done, _ = await asyncio.wait(either, timeout=max(record.left, 0.0), return_when=asyncio.FIRST_COMPLETED)
    finally:
        leaving.cancel()
        waiting.cancel()  # without effect if it is done
    if waiting in done:
        return waiting.result()
    if leaving in done:
        raise Disconnected("the client closed the connection before the answer was ready")
    raise LimitReached("the request was not finished within its time limit (--timeout)")


async def _left(request: Request) -> None:
    """Wait until the client closes the connection. The body must have been read."""
    message: Any = {}
    while message.get("type") != "http.disconnect":
        message = await request.receive()
