"""The ASGI application."""

from __future__ import annotations

import asyncio
import re

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, Router
from starlette.types import Receive, Scope, Send

from graphkit.serving.admission import Admission
from graphkit.serving.guard import Access, Guard
from graphkit.serving.inference import Inference
from graphkit.serving.inference_routes import InferenceRoutes
from graphkit.serving.metrics import CONTENT_TYPE
from graphkit.serving.repository import ModelRepository
from graphkit.serving.repository_routes import RepositoryRoutes
from graphkit.serving.sample_routes import SampleRoutes

_INFER = re.compile(r"/v2/models/(?P<name>[^/]+)(/versions/(?P<version>[^/]+))?/infer")


class Application:
    """An ASGI application that serves the models of a repository. Any ASGI server can run it.

    Args:
        repository: The models.
        access: The clients that may use the server. Default: all.
    """

    def __init__(self, repository: ModelRepository, access: Access | None = None):
        self.repository = repository
        admission = Admission(repository.settings, repository.metrics)
        self._infer = Inference(repository, admission)
        self._descriptions = InferenceRoutes(repository, self._infer)
        routes = [
            *self._descriptions.routes(), *RepositoryRoutes(repository, admission).routes(),
            *SampleRoutes(repository, admission).routes(), Route("/metrics", self._metrics),
        ]  # fmt: skip
        self._router = Router(routes)
        self.guard = Guard(self._answer, access or Access(), repository.settings.timeout, repository.metrics)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, as ASGI defines it."""
        scope["app"] = self  # then the router raises an exception for an unknown path
        await self.guard(scope, receive, send)

    def drain(self) -> None:
        """Report that the server is not ready, close each connection after its next answer, and load no more models."""
        self.repository.drain()
        self.guard.draining = self._descriptions.draining = True

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request. The router would take long to find the application for runs."""
        found = _INFER.fullmatch(scope["path"]) if scope.get("method") == "POST" else None
        if found is None:
            await self._router(scope, receive, send)
        else:
            scope["path_params"] = found.groupdict()
            await self._infer(scope, receive, send)

    async def _metrics(self, request: Request) -> Response:
        return Response(await asyncio.to_thread(self.repository.metrics.text), media_type=CONTENT_TYPE)
