"""Requests that offer another protocol, such as HTTP/2 without TLS: the server ignores the offer, as HTTP allows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httptools


class ParserWithoutUpgrades:
    """Parses requests of HTTP/1.1. httptools alone would skip the body of a request that has the header Upgrade.

    The head of such a request is parsed a second time, without this header. The protocol must ignore calls of the first
    time, see `is_offer`.

    Args:
        protocol: Gets the calls of httptools.
        head: Returns the last head without the header Upgrade.
    """

    def __init__(self, protocol: Any, head: Callable[[], bytes]):
        self._protocol, self._head = protocol, head
        self._parser = _made(protocol)

    @property
    def is_offer(self) -> bool:
        """Whether the present request offers another protocol, so that its head comes again."""
        return bool(self._parser.should_upgrade() and self._parser.get_method() != b"CONNECT")

    def feed_data(self, data: bytes) -> None:
        """Parse further bytes. Raises the errors of httptools."""
        while True:
            try:
                self._parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as upgrade:
                if not self.is_offer:
                    raise
                data = self._head() + data[upgrade.args[0] :]
                self._parser = _made(self._protocol)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._parser, name)


def _made(protocol: Any) -> Any:
    parser = httptools.HttpRequestParser(protocol)
    parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn does
    return parser
