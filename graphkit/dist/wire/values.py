"""Single values from program to program while these run, with a bound on how far one may be ahead of another.

Between two ranks, values travel in one order, which both know. A sender waits for nobody until `window` values are on
their way to a receiver, which says after each half of that how far it is. So a rank may be ahead of one that is slow,
and what waits there has bounded memory (in TensorFlow, `parallel_iterations` bounds the iterations under way).
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from graphkit.dist.wire.transfers import Kind, Messages
from graphkit.errors import UsageError

# Lanes of messages; those of a pipeline have 0 to 4.
_VALUES, _RECEIPTS = 5, 6

WINDOW = 32


class Channels:
    """Sends and receives for one process; programs that it is given to run one at a time, alike on every rank.

    sent, received: the values by rank, since it was made; by_key: those that were sent, by name. ahead: the most values
    that a rank had been sent and had not yet said to have taken, by rank. waits: how often a window was full.
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
        # Receipts of each rank, every one of which is for half a window.
        self._receipts: Counter[int] = Counter()

    def send(self, to: int, number: int, key: str, array: np.ndarray) -> None:
        """Send an array, which is copied, to a rank; waits while the window of that rank is full."""
        while (under_way := self.sent[to] - self._receipts[to] * self._half) >= self.window:
            self.waits += 1
            self._take_receipt(to)
        self.ahead[to] = max(self.ahead[to], under_way + 1)
        self._messages.send(to, [array.copy()], _VALUES, number)
        self.sent[to] += 1
        self.by_key[key] += 1

    def receive(self, source: int, number: int, key: str, dtype: np.dtype[Any], rank: int) -> np.ndarray:
        """The array that a rank sends under this number, of so many axes. Raises RuntimeFailure where it does not come,
        or another one does.
        """
        arrival = self._messages.expect(source, [Kind(dtype, rank)], _VALUES, number)
        (array,) = self._messages.receive(arrival, f"the values of {key}")
        self.received[source] += 1
        if self.received[source] % self._half == 0:
            self._messages.send(source, [], _RECEIPTS)
        return array

    def finish(self) -> None:
        """Behind a run of every rank: wait until all that was sent has been taken, so that collectives may follow."""
        for to, count in self.sent.items():
            while self._receipts[to] < count // self._half:
                self._take_receipt(to)
        self._messages.settle()

    def _take_receipt(self, rank: int) -> None:
        arrival = self._messages.expect(rank, [], _RECEIPTS)
        self._messages.receive(arrival, "a receipt for values")
        self._receipts[rank] += 1
