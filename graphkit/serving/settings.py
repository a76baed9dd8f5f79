"""Settings of a server: batches, limits, and what models run on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from graphkit.errors import UsageError

if TYPE_CHECKING:
    from graphkit.executor.devices.groups import AnyDevice


# A day. Longer waits overflow the timers of the system.
_MOST_SECONDS = 86400.0


def check_seconds(name: str, value: float, *, positive: bool = False) -> None:
    """Raise UsageError if a time limit is negative, not finite, or above a day. positive: 0 is an error, too."""
    if not 0 <= value <= _MOST_SECONDS or (positive and not value):
        least = "above 0" if positive else "of at least 0"
        raise UsageError(f"{name}={value}: expected a number of seconds {least} and at most {_MOST_SECONDS:g}")


@dataclass(frozen=True)
class Settings:
    """Settings of a server.

    Attributes:
        max_batch: Most rows of a batch that several requests share; 1 turns dynamic batching off.
        max_delay: Seconds that a request waits for others to share its batch.
        max_queue: Most requests in progress, in all models together. Further ones get status 503.
        timeout: Seconds from the head of a request to its answer.
        max_body: Most bytes of the body of a request, also after decompression.
        max_json: Most bytes of JSON in a request. Parsing JSON delays other requests, unlike binary tensors.
        max_pending: Most bytes of all bodies in progress together, and of the inputs that images become. Requests take
            up to twice as much memory while their bodies are joined or parsed.
        max_connections: Most connections.
        max_memory: Memory limit of a file, a run and a decoded image: a number of bytes, or a text such as "500MB".
        max_iterations: Limit on the iterations of a Loop or Scan.
        device: Device of all models.
        threads: Number of CPU threads of a run.
    """

    max_batch: int = 32
    max_delay: float = 0.002
    max_queue: int = 512
    timeout: float = 30.0
    max_body: int = 64 << 20
    max_json: int = 16 << 20
    max_pending: int = 1 << 30
    max_connections: int = 1024
    max_memory: int | str | None = None
    max_iterations: int | None = None
    device: AnyDevice = "cpu"
    threads: int | None = None

    def __post_init__(self) -> None:
        counts = ("max_batch", "max_queue", "max_body", "max_json", "max_pending", "max_connections")
        for name in counts:
            if getattr(self, name) < 1:
                raise UsageError(f"{name}={getattr(self, name)}: expected an integer of at least 1")
        check_seconds("max_delay", self.max_delay)
        check_seconds("timeout", self.timeout, positive=True)
