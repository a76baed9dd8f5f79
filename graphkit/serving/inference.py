"""Requests for runs of the Open Inference Protocol."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
from starlette.types import Receive, Scope, Send

from graphkit.errors import GraphkitError, LimitReached, RuntimeFailure
from graphkit.serving.admission import RECORD, Admission, Record
from graphkit.serving.batcher import Result
from graphkit.serving.connections import WHEN_LOST
from graphkit.serving.errors import Disconnected, Retired
from graphkit.serving.protocol import Answer, InferRequest, answer, json_bytes, parse_request
from graphkit.serving.repository import ModelRepository
from graphkit.serving.served_model import ServedModel

HEADER_LENGTH = b"inference-header-content-length"

# Larger JSON, and larger answers, are converted in another thread than that of the event loop.
_LARGE = 64 << 10
# Most characters of the id of a request in the log.
_ID_CHARACTERS = 200
# How often a request is tried again if its model is replaced at that moment.
ATTEMPTS = 10


class Inference:
    """An ASGI application that answers a request for a run. The scope names the model in its `path_params`.

    It does without requests and responses of Starlette: they take longer than the rest of a small request.

    Args:
        repository: The models.
        admission: Lets requests in.
    """

    def __init__(self, repository: ModelRepository, admission: Admission):
        self._repository, self._admission = repository, admission

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run a model, and send its outputs."""
        parameters: Mapping[str, Any] = scope["path_params"]
        name, version = parameters["name"], parameters.get("version")
        with Counted(self._repository.get(name, version), scope[RECORD]), self._admission.request() as ticket:
            body = await self._admission.body(scope, receive, ticket)
            made = await self._answer(name, version, body, scope, receive)
        await _send(made, send)

    async def _answer(self, name: str, version: str | None, body: bytes, scope: Scope, receive: Receive) -> Answer:
        record: Record = scope[RECORD]
        length = record.headers.get(HEADER_LENGTH)
        for _ in range(ATTEMPTS):
            model = self._repository.get(name, version)
            parsed = await self._parsed(body, None if length is None else length.decode("latin-1"), model)
            try:
                future = model.submit(parsed.inputs, record.left)
            except Retired:
                continue  # the repository has a newer one already
            result = await finished(future, scope, receive)
            if parsed.id is not None:
                record.fields["id"] = parsed.id[:_ID_CHARACTERS]
            arguments = (model.name, model.version, parsed, result.outputs, model.outputs)
            if _bytes(result.outputs) > _LARGE:
                made = await asyncio.to_thread(answer, *arguments)
            else:
                made = answer(*arguments)
            note(record, model, result)
            return made
        raise Retired(f"model {name!r} is being replaced; retry later")

    async def _parsed(self, body: bytes, header_length: str | None, model: ServedModel) -> InferRequest:
        arguments = (body, header_length, model.inputs, model.outputs, self._repository.settings.max_json)
        if json_bytes(body, header_length) > _LARGE:
            return await asyncio.to_thread(parse_request, *arguments)
        return parse_request(*arguments)


def _bytes(arrays: Mapping[str, np.ndarray]) -> int:
    return sum(array.nbytes for array in arrays.values())


async def _send(made: Answer, send: Send) -> None:
    headers = [(b"content-length", b"%d" % len(made.body))]
    if made.header_length is None:
        headers.append((b"content-type", b"application/json"))
    else:
        headers += [(b"content-type", b"application/octet-stream"), (HEADER_LENGTH, b"%d" % made.header_length)]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": made.body})


class Counted:
    """Counts a request of a model that fails in the block, and adds the model to its error."""

    def __init__(self, model: ServedModel, record: Record):
        self._model, self._record = model, record

    def __enter__(self) -> None:
        self._record.fields["model"] = self._model.name
        self._record.fields["version"] = self._model.version

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        if not isinstance(error, Exception):
            return
        self._model.statistics.failed(time.monotonic() - self._record.begun)
        title = f"model {self._model.name!r}"
        if isinstance(error, GraphkitError) and title not in str(error):
            error.args = (f"{title}: {error}",)


def note(record: Record, model: ServedModel, result: Result) -> None:
    """Count a request that was computed, and note its times for the log."""
    times = result.times
    model.statistics.answered(time.monotonic() - record.begun, times)
    fields = record.fields
    fields["version"], fields["batch"] = model.version, result.rows
    fields["queue_seconds"], fields["run_seconds"] = round(times.queue, 6), round(times.run, 6)


async def finished(future: asyncio.Future[Result], scope: Scope, receive: Receive) -> Result:
    """Wait for a request in the queue of a model. It leaves the queue if the client goes, or after the deadline.

    Args:
        future: Gets the result.
        scope: The scope of the request, whose body has been read.
        receive: Waits for the end of the connection, if the scope has no `WHEN_LOST`.

    Raises:
        Disconnected: The client closed the connection.
        LimitReached: The deadline is over.
    """
    record: Record = scope[RECORD]
    when_lost, leaving = scope.get(WHEN_LOST), None
    if when_lost is not None:
        when_lost(lambda: _fail(future, _gone()))
    else:
        leaving = asyncio.ensure_future(_left(future, receive))
    timer = future.get_loop().call_later(max(record.left, 0.0), _expire, future)
    try:
        return await future
    finally:
        timer.cancel()
        if leaving is not None:
            leaving.cancel()


def _fail(future: asyncio.Future[Result], error: RuntimeFailure) -> None:
    if not future.done():
        future.set_exception(error)


def _expire(future: asyncio.Future[Result]) -> None:
    _fail(future, LimitReached("the request was not finished within its time limit (--timeout)"))


def _gone() -> Disconnected:
    return Disconnected("the client closed the connection before the answer was ready")


async def _left(future: asyncio.Future[Result], receive: Receive) -> None:
    """Wait until the client closes the connection; then the request fails."""
    while (await receive())["type"] != "http.disconnect":
        pass
    _fail(future, _gone())
