"""The models of a server: load, unload and replace them while requests continue."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from graphkit.errors import RuntimeFailure
from graphkit.inference.hugging_face import with_files_beside
from graphkit.loading import load
from graphkit.model import Model
from graphkit.serving.changes import Change
from graphkit.serving.errors import Retired, UnknownModel, message_of
from graphkit.serving.metrics import Metrics
from graphkit.serving.served_model import ServedModel
from graphkit.serving.settings import Settings
from graphkit.serving.sources import Models, Problem, Scan, find_models, named_sources, scan_models
from graphkit.serving.statistics import Statistics

logger = logging.getLogger("graphkit.serve")

# Why a model is not loaded if a request has unloaded it: then only a request loads it again.
_UNLOADED = "unloaded"


def read(path: Path, settings: Settings) -> Model:
    """Load a model with the files of Hugging Face beside it."""
    return with_files_beside(load(path, max_memory=settings.max_memory), path)[0]


class ModelRepository:
    """The models of a server. Any thread may call the methods.

    Requests name models, never files: only models of the given sources can be loaded.

    Args:
        models: Files, run folders and folders of models; pairs of a name and one of them; or a dict of them by name.
        settings: Settings of the server.
        reader: Reads the model of a path. Default: `gk.load`.

    Raises:
        UsageError: A path does not exist or contains no model, or two models have the same name.
    """

    def __init__(
        self,
        models: Models,
        settings: Settings | None = None,
        *,
        reader: Callable[[Path], Model] | None = None,
    ):
        self.settings = settings if settings is not None else Settings()
        self.metrics = Metrics()
        self._reader = reader if reader is not None else lambda path: read(path, self.settings)
        self._sources = named_sources(models)
        find_models(self._sources)
        self._loaded: dict[str, dict[int, ServedModel]] = {}
        self._problems: dict[str, str] = {}  # why a model is not loaded, or why its last load failed
        self._statistics: dict[tuple[str, int], Statistics] = {}
        self._changing = threading.Lock()  # one load or unload at a time
        self._draining = False

    def get(self, name: str, version: str | None = None) -> ServedModel:
        """Return a version of a model (default: the newest one). Raises UnknownModel if it is not loaded."""
        versions = self._loaded.get(name)
        if versions is None:
            raise UnknownModel(f"there is no model {name!r}, or it is not loaded")
        if version is None:
            return versions[max(versions)]
        found = next((model for model in versions.values() if model.version == version), None)
        if found is None:
            raise UnknownModel(f"model {name!r} has no version {version!r}; it has {', '.join(map(str, versions))}")
        return found

    def versions(self, name: str) -> list[str]:
        """Return the versions of a model that are loaded, the oldest first."""
        return [str(number) for number in sorted(self._loaded.get(name, ()))]

    def loaded(self) -> list[ServedModel]:
        """Return all versions of all models that are loaded."""
        return [model for versions in list(self._loaded.values()) for model in versions.values()]

    @property
    def is_ready(self) -> bool:
        """Whether a model is loaded."""
        return bool(self._loaded)

    def index(self, *, only_ready: bool = False) -> list[dict[str, str]]:
        """Return all models of the sources with their states, in the form of Triton's repository extension."""
        known, problems = scan_models(self._sources)
        reasons = {problem.name: problem.reason for problem in problems if problem.name is not None}
        found: list[dict[str, str]] = []
        for name in sorted({*known, *reasons, *self._loaded}):
            loaded = self._loaded.get(name)
            if loaded is None and only_ready:
                continue
            reason = reasons.get(name) or self._problems.get(name, "not loaded" if loaded is None else "")
            entry = {
                "name": _sent(name),
                "state": "UNAVAILABLE" if loaded is None else "READY",
                "reason": _sent(reason),
            }
            versions = sorted(loaded if loaded is not None else known.get(name, ()))
            found += [{**entry, "version": str(number)} for number in versions] or [{**entry, "version": ""}]
        return found

    def load(self, name: str) -> None:
        """Load a model, or load it again from its file. Until it is ready, the old versions answer.

        A version whose file contains the same model as before is not compiled again.

        Raises:
            UnknownModel: The sources do not contain it.
            RuntimeFailure: The sources contain it twice, or cannot be read.
            Retired: The server stops.
            GraphkitError: Its file cannot be loaded. The old versions stay loaded.
        """
        with self._changing:
            if self._draining:
                raise Retired("the server stops, so it loads no models")
            self._load(name, scan_models(self._sources))

    def drain(self) -> None:
        """Load no further models, because the server stops."""
        self._draining = True

    def _load(self, name: str, scan: Scan) -> None:
        """Load a model whose files a scan has found. See `load`. The caller holds `_changing`."""
        paths = scan.found.get(name)
        for problem in scan.problems:
            if problem.name == name or (problem.name is None and paths is None):
                self._log_problem(problem)
                raise RuntimeFailure(f"model {name!r} cannot be loaded: {problem.reason}; the log names the files")
        if paths is None:
            raise UnknownModel(f"there is no model {name!r} in the repository")
        begun = time.monotonic()
        before = self._loaded.get(name, {})
        made: dict[int, ServedModel] = {}
        try:
            for number, path in sorted(paths.items()):
                made[number] = self._made(name, number, path, before.get(number))
        except Exception as error:
            self._problems[name] = str(error) if isinstance(error, OSError) else message_of(error)
            for number, model in made.items():
                if model is not before.get(number):
                    model.close()
            logger.error("load failed", extra={"model": name, "error": str(error)})
            raise
        for model in made.values():
            model.begin()
        self._loaded = {**self._loaded, name: made}
        self._problems.pop(name, None)
        self._retire(before.values(), made)
        for number, model in made.items():
            self._log_loaded(model, time.monotonic() - begun, model is before.get(number))

    def unload(self, name: str, reason: str = _UNLOADED) -> None:
        """Unload all versions of a model. Requests in its queue are answered first.

        Args:
            name: The model.
            reason: Why, for the index and the log.

        Raises:
            UnknownModel: It is not loaded.
        """
        with self._changing:
            if name not in self._loaded:
                raise UnknownModel(f"model {name!r} is not loaded")
            before = self._loaded[name]
            self._loaded = {other: versions for other, versions in self._loaded.items() if other != name}
            self._problems[name] = reason
            self._retire(before.values(), {})
            logger.info("unloaded", extra={"model": name, "reason": reason})

    def load_all(self) -> None:
        """Load all models of the sources. Raises the error of the first one that cannot be loaded."""
        scan = Scan(find_models(self._sources), [])
        for name in scan.found:
            with self._changing:
                self._load(name, scan)

    def reload(self) -> None:
        """Load new models, and loaded ones whose files have changed. Unload those whose files were removed.

        Errors are logged: the old versions stay loaded. If a source cannot be read, nothing is unloaded.
        """
        scan = known, problems = scan_models(self._sources)
        for problem in problems:
            self._log_problem(problem)
        for name in known:
            if self._problems.get(name) != _UNLOADED:
                try:
                    with self._changing:
                        if self._draining:
                            return
                        self._load(name, scan)
                except Exception:  # noqa: BLE001 - `_load` has logged it, and the other models can be loaded
                    continue
        if any(problem.name is None for problem in problems):
            return
        for name in {*self._loaded} - {*known} - {problem.name for problem in problems}:
            with contextlib.suppress(UnknownModel):  # a request has unloaded it meanwhile
                self.unload(name, "its files were removed")

    def close(self) -> None:
        """Unload all models, also one that another thread is loading."""
        with self._changing:
            names = list(self._loaded)
        for name in names:
            with contextlib.suppress(UnknownModel):  # a request has unloaded it meanwhile
                self.unload(name)

    def _log_problem(self, problem: Problem) -> None:
        logger.error("load failed", extra={"model": problem.name, "error": problem.text})

    def _made(self, name: str, number: int, path: Path, before: ServedModel | None) -> ServedModel:
        """Return the version of a model in a file: `before`, the present one, if the file contains the same model."""
        statistics = self._statistics.get((name, number))
        if statistics is None:
            statistics = self._statistics[name, number] = Statistics(name, str(number), self.metrics)
        model = self._reader(path)
        changed = Change.GRAPH if before is None or before.source != path else before.change(model)
        if before is not None and changed is Change.NONE:
            return before
        continued = before if changed is Change.ARRAYS else None
        return ServedModel(name, str(number), model, self.settings, path, statistics, continued)

    def _retire(self, before: Iterable[ServedModel], made: Mapping[int, ServedModel]) -> None:
        """End the queues of versions that were replaced or unloaded, after their last request."""
        for number, model in made.items():
            self.metrics.set_ready(model.name, str(number), model.queued)
        for model in before:
            if model is not made.get(int(model.version)):
                model.close()
            if int(model.version) not in made:
                self.metrics.set_ready(model.name, model.version, None)

    def _log_loaded(self, model: ServedModel, seconds: float, is_unchanged: bool) -> None:
        event = "unchanged" if is_unchanged else "loaded"
        shared = "requests share runs" if model.why_not_joined is None else f"no shared runs: {model.why_not_joined}"
        details = {"model": model.name, "version": model.version, "file": str(model.source), "batching": shared}
        logger.info(event, extra={**details, "seconds": round(seconds, 3)})


def _sent(text: str) -> str:
    """Return a text that a response can contain: paths may have bytes that are not UTF-8."""
    return text.encode(errors="backslashreplace").decode()
