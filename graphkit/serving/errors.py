"""Errors of requests, and the HTTP status of every error."""

from __future__ import annotations

from graphkit.errors import GraphkitError, InputError, LimitReached, RuntimeFailure, TypeMismatch, UsageError


class Unauthorized(UsageError):
    """A request lacks the API key, or has a wrong one."""


class Forbidden(UsageError):
    """A request comes from a page of another site, or names another host."""


class UnknownModel(UsageError):
    """There is no such model or version, or it is not loaded."""


class TooLarge(InputError):
    """The body of a request is larger than the limit."""


class SlowRequest(LimitReached):
    """The body of a request did not arrive in time."""


class Busy(RuntimeFailure):
    """The queue is full. The client may retry after a second."""


class Retired(RuntimeFailure):
    """This version of a model was unloaded or replaced, and takes no more requests."""


class Disconnected(RuntimeFailure):
    """The client closed the connection before the answer was ready."""


# HTTP status by class of error; the first class that fits. 499 is for the log only: the client has gone.
_STATUS: tuple[tuple[type[BaseException], int], ...] = (
    (Unauthorized, 401), (Forbidden, 403), (UnknownModel, 404), (TooLarge, 413), (SlowRequest, 408),
    (Disconnected, 499), (Busy, 503), (Retired, 503), (MemoryError, 503), (LimitReached, 504), (UsageError, 400),
    (TypeMismatch, 400),
)  # fmt: skip


def status_of(error: BaseException) -> int:
    """Return the HTTP status of the answer to a request that failed with this error."""
    return next((status for kind, status in _STATUS if isinstance(error, kind)), 500)


def message_of(error: BaseException) -> str:
    """Return the text of an error for a client. Errors that graphkit does not raise on purpose show only their type."""
    return str(error) if isinstance(error, GraphkitError) else f"internal error: {type(error).__name__}"
