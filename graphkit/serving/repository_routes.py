"""Endpoints of Triton's repository extension: list, load and unload models."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from graphkit.errors import InputError
from graphkit.serving.admission import Admission
from graphkit.serving.errors import Busy
from graphkit.serving.repository import ModelRepository
from graphkit.serving.tensors import shown

# Requests to load or unload models that wait for each other.
_MOST_CHANGES = 64


class RepositoryRoutes:
    """Endpoints of the repository.

    repository: The models. admission: Lets requests in.
    """

    def __init__(self, repository: ModelRepository, admission: Admission):
        self._repository, self._admission = repository, admission
        # A load takes long. It must not take a thread of those that answer other requests.
        self._changes = ThreadPoolExecutor(1, thread_name_prefix="graphkit-load")
        self._waiting = 0

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            Route("/v2/repository/index", self.index, methods=["POST"]),
            Route("/v2/repository/models/{name}/load", self.load, methods=["POST"]),
            Route("/v2/repository/models/{name}/unload", self.unload, methods=["POST"]),
        ]

    async def index(self, request: Request) -> Response:
        """Return the models of the repository, with their states."""
        ready = (await self._options(request)).get("ready", False)
        if not isinstance(ready, bool):
            raise InputError(f"ready: expected true or false, not {shown(ready)}")
        return JSONResponse(await asyncio.to_thread(self._repository.index, only_ready=ready))

    async def load(self, request: Request) -> Response:
        """Load a model from its file, or load it again."""
        parameters = (await self._options(request)).get("parameters") or {}
        if parameters:
            raise InputError(
                f"parameters: {shown(sorted(parameters))} are not supported: models are loaded only from the "
                "files of the repository"
            )
        await self._change(self._repository.load, request.path_params["name"])
        return JSONResponse({})

    async def unload(self, request: Request) -> Response:
        """Unload a model."""
        await self._options(request)
        await self._change(self._repository.unload, request.path_params["name"])
        return JSONResponse({})

    async def _change(self, change: Callable[[str], None], name: str) -> None:
        """Load or unload a model after the changes that were requested before. Raises Busy if they are too many."""
        if self._waiting >= _MOST_CHANGES:
            raise Busy(f"{self._waiting} requests to load or unload models wait; retry later")
        self._waiting += 1
        done = self._changes.submit(change, name)
        try:
            await asyncio.wrap_future(done)
        finally:
            self._waiting -= 1

    async def _options(self, request: Request) -> dict[str, Any]:
        """Return the JSON object in the body; an empty one if the body is empty."""
        with self._admission.request() as ticket:
            body = await self._admission.body(request.scope, request.receive, ticket)
        try:
            found = json.loads(body) if body.strip() else {}
        except (ValueError, RecursionError) as error:
            raise InputError(f"the body is not valid JSON: {error}") from None
        if not isinstance(found, dict) or not isinstance(found.get("parameters") or {}, dict):
            raise InputError("the body must be a JSON object, and its parameters too")
        return found
