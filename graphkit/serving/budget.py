"""A budget that tasks share, such as the pixels that may be decoded at a time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator


class Budget:
    """Bounds the sum of what tasks take. Tasks get their part in the order in which they ask.

    most: The sum. A task that needs more waits until it is alone.
    """

    def __init__(self, most: int):
        self._most = self._free = most
        self._turn = asyncio.Lock()
        self._changed = asyncio.Event()

    @contextlib.asynccontextmanager
    async def hold(self, amount: int) -> AsyncIterator[None]:
        """Wait for a part of the budget, and hold it while the block runs."""
        amount = min(amount, self._most)
        async with self._turn:
            while self._free < amount:
                self._changed.clear()
                await self._changed.wait()
            self._free -= amount
        try:
            yield
        finally:
            self._free += amount
            self._changed.set()
