"""A worker's requests to the servers, and the parts of each key."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from graphkit import errors
from graphkit.dist.arguments import Key
from graphkit.dist.servers.connection import ServerConnection, raise_error
from graphkit.dist.servers.sharding import Part, Sharding
from graphkit.dist.wire.packing import pack, unpack
from graphkit.errors import UsageError
from graphkit.named_tuples import NamedTuple

Message: TypeAlias = tuple[Mapping[str, Any], Sequence[np.ndarray]]


class KeySpec(NamedTuple):
    number: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    parts: tuple[Part, ...]

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def cut(self, array: np.ndarray, part: Part) -> np.ndarray:
        return array if len(self.parts) == 1 else array[part.begin : part.end]


class ServerClient:
    """Sends requests to servers and waits for their answers.

    Attributes:
        unanswered_bytes: Bytes pushed since a server last answered.
        lock: Held during a request and its answer.
    """

    def __init__(self, connection: ServerConnection):
        self.specs: dict[Key, KeySpec] = {}
        self.waited_seconds = 0.0
        self.unanswered_bytes = 0
        self.lock = threading.RLock()
        self._connection = connection
        self._sharding = Sharding(connection.servers)
        # For each server: the numbers of the keys that were sent to it by name. Later messages contain only the number.
        self._introduced: list[set[int]] = [set() for _ in range(connection.servers)]

    @property
    def servers(self) -> int:
        return self._connection.servers

    @property
    def sent_bytes(self) -> int:
        return self._connection.sent_bytes

    def declare(self, key: Key, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
        parts = self._sharding.parts(key, math.prod(shape), shape[0] if shape else 1)
        self.specs[key] = KeySpec(len(self.specs), dtype, shape, tuple(parts))

    def spec(self, key: Key) -> KeySpec:
        """Return a declared key. Raises UsageError for others."""
        if key not in self.specs:
            hint = errors.did_you_mean(str(key), [str(k) for k in self.specs])
            raise UsageError(f"key {key!r} is not initialised; call init({key!r}, value) first{hint}")
        return self.specs[key]

    def parts_by_server(self, keys: Sequence[Key]) -> dict[int, list[tuple[Key, Part]]]:
        found: dict[int, list[tuple[Key, Part]]] = {}
        for key in keys:
            for part in self.spec(key).parts:
                found.setdefault(part.server, []).append((key, part))
        return found

    def numbers(self, parts: Sequence[tuple[Key, Part]]) -> list[int]:
        return [self.spec(key).number for key, _ in parts]

    def send(self, server: int, keys: Sequence[Key], fields: Mapping[str, Any], arrays: Sequence[np.ndarray]) -> None:
        """Send a message about these keys. The first message about a key also contains the key."""
        numbers = {self.specs[k].number: k for k in keys}
        new = [[n, k] for n, k in numbers.items() if n not in self._introduced[server]]
        self._introduced[server].update(numbers)
        self._connection.send(server, pack({**fields, **({"names": new} if new else {})}, arrays))

    def ask(
        self, call: str, keys: Sequence[Key], messages: Mapping[int, Message]
    ) -> dict[int, tuple[Any, list[np.ndarray]]]:
        """Send a request to each of these servers, and return their answers.

        Raises the error of a server that rejects its request or fails.
        """
        with self.lock:
            for server, (fields, arrays) in messages.items():
                self.send(server, keys, {"call": call, "asks": True, **fields}, arrays)
            named = f"{call} {keys[0]!r}" if len(keys) == 1 else f"{call} {len(keys)} keys" if keys else call
            start = time.monotonic()
            answers = self._connection.answers(list(messages), f"{named} (servers)")
            found = {server: unpack(answer) for server, answer in zip(messages, answers, strict=True)}
            self.waited_seconds += time.monotonic() - start
            self.unanswered_bytes = 0
        for fields, _ in found.values():
            raise_error(fields)
        return found

    def ask_all(
        self, call: str, fields: Mapping[str, Any] | None = None, arrays: Sequence[np.ndarray] = ()
    ) -> list[tuple[Any, list[np.ndarray]]]:
        return list(self.ask(call, [], dict.fromkeys(range(self.servers), (fields or {}, arrays))).values())
