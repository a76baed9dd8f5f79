"""The ASGI application."""

from __future__ import annotations

import asyncio

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, Router
from starlette.types import Receive, Scope, Send

from graphkit.serving.admission import Admission
from graphkit.serving.guard import Access, Guard
from graphkit.serving.inference_routes import InferenceRoutes
from graphkit.serving.metrics import CONTENT_TYPE
from graphkit.serving.repository import ModelRepository
from graphkit.serving.repository_routes import RepositoryRoutes
from graphkit.serving.sample_routes import SampleRoutes


class Application:
    """An ASGI application that serves the models of a repository. Any ASGI server can run it.

    Args:
        repository: The models.
        access: The clients that may use the server. Default: all.
    """

    def __init__(self, repository: ModelRepository, access: Access | None = None):
        self.repository = repository
        admission = Admission(repository.settings, repository.metrics)
        self._inference = InferenceRoutes(repository, admission)
        routes = [
            *self._inference.routes(), *RepositoryRoutes(repository, admission).routes(),
            *SampleRoutes(repository, admission).routes(), Route("/metrics", self._metrics),
        ]  # fmt: skip
        self.guard = Guard(Router(routes), access or Access(), repository.settings.timeout, repository.metrics)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, as ASGI defines it."""
        scope["app"] = self  # then the router raises an exception for an unknown path
        await self.guard(scope, receive, send)

    def drain(self) -> None:
        """Report that the server is not ready, and close each connection after its next answer."""
        self.guard.draining = self._inference.draining = True

    async def _metrics(self, request: Request) -> Response:
        return Response(await asyncio.to_thread(self.repository.metrics.text), media_type=CONTENT_TYPE)
