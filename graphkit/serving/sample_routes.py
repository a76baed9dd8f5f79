"""Predictions for images and texts, and a page to try them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from starlette.datastructures import FormData, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from graphkit.data.preprocessing.decode import pixel_count
from graphkit.errors import InputError, UsageError
from graphkit.ir.limits import Bounds
from graphkit.named_tuples import NamedTuple
from graphkit.report.page import filled
from graphkit.serving.admission import RECORD, Admission, Record, Ticket
from graphkit.serving.batcher import Arrays
from graphkit.serving.budget import Budget
from graphkit.serving.errors import Retired, TooLarge
from graphkit.serving.inference import ATTEMPTS, Counted, finished, note
from graphkit.serving.repository import ModelRepository
from graphkit.serving.served_model import ServedModel
from graphkit.serving.tensors import shown

_T = TypeVar("_T")

# Pixels of images that are decoded at a time, and about how many bytes decoding takes for each.
_MOST_PIXELS, _PIXEL_BYTES = 64_000_000, 8
# Samples of one request, and other fields.
_MOST_SAMPLES, _MOST_FIELDS = 64, 16
_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'; img-src blob:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


@dataclass(frozen=True)
class _Sample:
    """A sample of a request. convert: makes its inputs for a model. pixels: of an image."""

    name: str | None
    convert: Callable[[ServedModel], Arrays]
    pixels: int = 0


class _Asked(NamedTuple):
    """The fields of a form. top: number of classes."""

    model: str | None
    version: str | None
    top: int | None
    samples: list[_Sample]


class SampleRoutes:
    """Endpoints for images and texts.

    repository: The models. admission: Lets requests in.
    """

    def __init__(self, repository: ModelRepository, admission: Admission):
        self._repository, self._admission = repository, admission
        self._page = filled("serve.html")
        bounds = Bounds.of(memory=repository.settings.max_memory)
        self._most_bytes = None if bounds is None else bounds.memory
        self._pixels = Budget(
            _MOST_PIXELS if self._most_bytes is None else min(_MOST_PIXELS, max(self._most_bytes // _PIXEL_BYTES, 1))
        )

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            Route("/", self.page),
            Route("/predict", self.models),
            Route("/predict", self.predict, methods=["POST"]),
        ]

    async def page(self, request: Request) -> Response:
        """Return the page."""
        return HTMLResponse(self._page, headers={"Content-Security-Policy": _POLICY, "Cache-Control": "no-store"})

    async def models(self, request: Request) -> Response:
        """Return which samples each model takes."""
        found = [
            {"name": name, "versions": self._repository.versions(name), "takes": await asyncio.to_thread(_takes, model)}
            for name, model in self._newest().items()
        ]
        return JSONResponse({"models": found})

    async def predict(self, request: Request) -> Response:
        """Predict the classes, or the outputs, of images and texts.

        Fields of the form: `file` (images), `text`, `model` (needed if there are several), `version`, `top`.
        """
        record: Record = request.scope[RECORD]
        with self._admission.request() as ticket:
            body = await self._admission.body(request.scope, request.receive, ticket)
            asked = await _asked(request, body)
            name = asked.model if asked.model is not None else self._only_name()
            for _ in range(ATTEMPTS):
                model = self._repository.get(name, asked.version)
                with Counted(model, record):
                    try:
                        found = await _all(
                            self._predicted(request, ticket, model, sample, asked.top) for sample in asked.samples
                        )
                    except Retired:
                        continue  # the repository has a newer one already
                return JSONResponse({"model_name": name, "model_version": model.version, "predictions": found})
        raise Retired(f"model {name!r} is being replaced; retry later")

    async def _predicted(
        self, request: Request, ticket: Ticket, model: ServedModel, sample: _Sample, top: int | None
    ) -> dict[str, Any]:
        record: Record = request.scope[RECORD]
        needed = sample.pixels * _PIXEL_BYTES
        if self._most_bytes is not None and needed > self._most_bytes:
            raise TooLarge(
                f"{sample.name}: decoding an image of {sample.pixels} pixels takes about {needed} bytes, and at most "
                f"{self._most_bytes} are allowed (--max-memory)"
            )
        async with self._pixels.hold(sample.pixels):
            inputs = await asyncio.to_thread(sample.convert, model)
        if sample.pixels:
            ticket.hold(sum(array.nbytes for array in inputs.values()))
        result = await finished(model.submit(inputs, record.left), request.scope, request.receive)
        note(record, model, result)
        answer = await asyncio.to_thread(model.samples.answer, result.outputs, top)
        return answer if sample.name is None else {"file": sample.name, **answer}

    def _only_name(self) -> str:
        names = list(self._newest())
        if len(names) != 1:
            raise InputError(f"model: several models are loaded; name one of them: {', '.join(names) or 'none'}")
        return names[0]

    def _newest(self) -> dict[str, ServedModel]:
        return {model.name: self._repository.get(model.name) for model in self._repository.loaded()}


async def _all(work: Iterable[Coroutine[Any, Any, _T]]) -> list[_T]:
    """Return the results of coroutines that run at the same time. The first error cancels the others."""
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()  # without effect if it is done


def _takes(model: ServedModel) -> list[str]:
    return model.samples.takes


async def _asked(request: Request, body: bytes) -> _Asked:
    form = await _form(request, body)
    try:
        return _Asked(_text(form, "model"), _text(form, "version"), _number(form, "top"), await _samples(form))
    finally:
        await form.close()


async def _form(request: Request, body: bytes) -> FormData:
    if not request.headers.get("content-type", "").lower().startswith("multipart/form-data"):
        raise InputError("Content-Type: expected multipart/form-data")

    async def parts() -> AsyncGenerator[bytes, None]:
        yield body

    parser = MultiPartParser(
        request.headers, parts(), max_files=_MOST_SAMPLES, max_fields=_MOST_SAMPLES + _MOST_FIELDS,
        max_part_size=max(len(body), 1),
    )  # fmt: skip
    parser.spool_max_size = max(len(body), 1)  # parts stay in memory, which the limit of the body bounds
    try:
        return await parser.parse()
    except (MultiPartException, KeyError, ValueError) as error:
        message = error.message if isinstance(error, MultiPartException) else str(error)
        raise InputError(f"the form cannot be read: {message}") from None


async def _samples(form: FormData) -> list[_Sample]:
    found: list[_Sample] = []
    for key, value in form.multi_items():
        if key == "file":
            if not isinstance(value, UploadFile):
                raise InputError("file: expected a file")
            name, data = value.filename or "image", await value.read()
            pixels = await asyncio.to_thread(pixel_count, data)
            found.append(_Sample(name, partial(_of_image, data=data, name=name), pixels))
        elif key == "text":
            text = value if isinstance(value, str) else (await value.read()).decode("utf-8", "replace")
            found.append(_Sample(None, partial(_of_text, text=text)))
        elif key not in ("model", "version", "top"):
            raise InputError(f"the form has no field {shown(key)}; its fields are file, text, model, version and top")
    if not found:
        raise InputError("the form contains no sample: give the field file (an image) or text")
    if len(found) > _MOST_SAMPLES:
        raise InputError(f"the form contains {len(found)} samples, and at most {_MOST_SAMPLES} are allowed")
    return found


def _of_image(model: ServedModel, data: bytes, name: str) -> Arrays:
    return model.samples.of_image(data, name)


def _of_text(model: ServedModel, text: str) -> Arrays:
    return model.samples.of_text(text)


def _text(form: FormData, key: str) -> str | None:
    value = form.get(key)
    if value is not None and not isinstance(value, str):
        raise InputError(f"{key}: expected a text, not a file")
    return value or None


def _number(form: FormData, key: str) -> int | None:
    text = _text(form, key)
    if text is None:
        return None
    if not text.isascii() or not text.isdecimal() or len(text) > 9 or not int(text):
        raise UsageError(f"{key}: expected a number of at least 1, not {shown(text)}")
    return int(text)
