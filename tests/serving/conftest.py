"""An application with a client, and requests."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from starlette.testclient import TestClient

from graphkit.executor.run.session import Executor
from graphkit.serving.application import Application
from graphkit.serving.guard import Access
from graphkit.serving.repository import ModelRepository
from graphkit.serving.settings import Settings

sys.path.insert(0, str(Path(__file__).parent))

from handmade import write_scaled


@pytest.fixture
def served() -> Iterator[Callable[..., TestClient]]:
    """`served(paths, access=..., **settings)`: a client of an application with these models, which are loaded."""
    made: list[ModelRepository] = []

    def start(models: Any, access: Access | None = None, **settings: Any) -> TestClient:
        repository = ModelRepository(models, Settings(**{"threads": 1, **settings}))
        made.append(repository)
        repository.load_all()
        return TestClient(Application(repository, access))

    yield start
    for repository in made:
        repository.close()


class HeldRuns(NamedTuple):
    """begun: set by the first run. go: lets all runs end."""

    begun: threading.Event
    go: threading.Event


@pytest.fixture
def hold_runs(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], HeldRuns]]:
    """`hold_runs()`: the runs of all models that are loaded wait from now on, until `go` is set."""
    held = HeldRuns(threading.Event(), threading.Event())
    run = Executor.run

    def waiting(*arguments: Any, **options: Any) -> Any:
        held.begun.set()
        assert held.go.wait(60)
        return run(*arguments, **options)

    def start() -> HeldRuns:
        monkeypatch.setattr(Executor, "run", waiting)
        return held

    yield start
    held.go.set()


@pytest.fixture
def scaled(tmp_path: Path) -> Path:
    """The file of a model y = 2 x."""
    return write_scaled(tmp_path / "scaled.onnx")


@pytest.fixture
def client(served: Callable[..., TestClient], scaled: Path) -> TestClient:
    """A client of a server with the model `scaled`."""
    return served([scaled])


@pytest.fixture
def ask() -> Callable[..., Any]:
    """`ask(client, array, model=...)`: the status and the JSON of the answer to a request with JSON tensors."""

    def send(client: TestClient, array: Any, model: str = "scaled", datatype: str = "FP32") -> tuple[int, Any]:
        array = np.asarray(array)
        tensor = {"name": "x", "datatype": datatype, "shape": list(array.shape), "data": array.tolist()}
        answer = client.post(f"/v2/models/{model}/infer", json={"inputs": [tensor]})
        return answer.status_code, answer.json()

    return send
