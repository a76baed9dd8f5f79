"""Values sent between programs that run on different ranks, with a limit on how far one may be ahead of another.

Between two ranks, values are sent in an order that both know. A sender continues until `window` values are not yet
received. The receiver confirms each half window. So a fast rank may be ahead of a slow one, with bounded memory
(compare `parallel_iterations` of TensorFlow).
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from graphkit.dist.wire.transfers import Kind, Messages
from graphkit.errors import UsageError

# Lanes of messages; pipelines use lanes 0 to 4.
_VALUES, _RECEIPTS = 5, 6

WINDOW = 32


class Channels:
    """Sends and receives the values of one rank's programs, which run one at a time, in the same order on every rank.

    Attributes:
        sent, received: Number of values by rank.
        by_key: Number of sent values by name.
        ahead: Largest number of values that were sent and not yet confirmed, by rank.
        waits: How often a window was full.
    """

    def __init__(self, messages: Messages, window: int = WINDOW):
        if window < 2:
            raise UsageError(f"window={window} must be at least 2")
        self._messages, self.window, self._half = messages, window, window // 2
        self.sent: Counter[int] = Counter()
        self.received: Counter[int] = Counter()
        self.by_key: Counter[str] = Counter()
        self.ahead: Counter[int] = Counter()
        self.waits = 0
        # Confirmations of each rank, for half a window each.
        self._receipts: Counter[int] = Counter()

    def send(self, to: int, number: int, key: str, array: np.ndarray) -> None:
        """Send a copy of an array to a rank. Waits while the window of that rank is full."""
        while (under_way := self.sent[to] - self._receipts[to] * self._half) >= self.window:
            self.waits += 1
            self._take_receipt(to)
        self.ahead[to] = max(self.ahead[to], under_way + 1)
        self._messages.send(to, [array.copy()], _VALUES, number)
        self.sent[to] += 1
        self.by_key[key] += 1

    def receive(self, source: int, number: int, key: str, dtype: np.dtype[Any], rank: int) -> np.ndarray:
        """Return the array that a rank sends under this number.

        rank: number of axes. Raises RuntimeFailure if the array does not arrive, or another one does.
        """
        arrival = self._messages.expect(source, [Kind(dtype, rank)], _VALUES, number)
        (array,) = self._messages.receive(arrival, f"the values of {key}")
        self.received[source] += 1
        if self.received[source] % self._half == 0:
            self._messages.send(source, [], _RECEIPTS)
        return array

    def finish(self) -> None:
        """Wait until all values of a run have been received. Collectives may follow. Every rank must call it."""
        for to, count in self.sent.items():
            while self._receipts[to] < count // self._half:
                self._take_receipt(to)
        self._messages.settle()

    def _take_receipt(self, rank: int) -> None:
        arrival = self._messages.expect(rank, [], _RECEIPTS)
        self._messages.receive(arrival, "a receipt for values")
        self._receipts[rank] += 1
