"""Descriptions of models and of the server, as the Open Inference Protocol defines them."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from graphkit import distribution
from graphkit.serving.inference import Inference
from graphkit.serving.repository import ModelRepository
from graphkit.serving.served_model import ServedModel

_EXTENSIONS = ["binary_tensor_data", "model_configuration", "model_repository", "statistics"]


class InferenceRoutes:
    """Endpoints of the protocol.

    repository: The models. infer: Answers requests for runs.
    """

    def __init__(self, repository: ModelRepository, infer: Inference):
        self._repository, self._infer = repository, infer
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
                Route(f"{path}/infer", self._infer, methods=["POST"]),
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

    def _model(self, request: Request) -> ServedModel:
        return self._repository.get(request.path_params["name"], request.path_params.get("version"))
