"""Wrong requests to a server of `graphkit serve`: malformed, too large, no HTTP, aborted, slow.

    python bench/wrong_requests.py PORT MODEL LIMIT REQUEST

It is a process of its own, so that it does not delay the clients that `bench/server.py` measures. Lines of standard
input start and stop it: "go" and "stop". At the end of the input, it prints how many requests it sent, and which
answers were not the expected ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from pathlib import Path

# Status of the answer; the client goes without waiting for the others.
_EXPECTED = {"malformed": 400, "oversized": 413, "no HTTP": 400}
# Seconds until the client closes the connection.
_PAUSES = {"malformed": 0.05, "oversized": 0.05, "no HTTP": 0.05, "aborted": 0.05, "slow": 3.0}


def messages(name: str, limit: int, usual: bytes) -> dict[str, bytes]:
    """Return what a client sends, by kind. limit: most bytes of a body. usual: a request that the server answers."""
    head = f"POST /v2/models/{name}/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: "
    return {
        "malformed": f"{head}3\r\n\r\n{{]}}".encode(), "oversized": f"{head}{limit + 1}\r\n\r\n".encode(),
        "no HTTP": b"\x00\x01\x02\r\n\r\n", "slow": usual[: len(usual) // 2], "aborted": usual,
    }  # fmt: skip


class Clients:
    """One client for each kind. counts: sent requests by kind. failed: answers that were not expected."""

    def __init__(self, port: int, sent: dict[str, bytes]):
        self._port, self._sent = port, sent
        self._gate = asyncio.Event()
        self.counts: dict[str, int] = {}
        self.failed: list[str] = []

    async def run(self) -> None:
        """Send requests until the end of standard input."""
        reader = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        tasks = [asyncio.create_task(self._repeat(kind)) for kind in _PAUSES]
        while line := await reader.readline():
            if line == b"go\n":
                self._gate.set()
            else:
                self._gate.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _repeat(self, kind: str) -> None:
        while True:
            await self._gate.wait()
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):  # the server has stopped
                await self._once(kind)

    async def _once(self, kind: str) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            writer.write(self._sent[kind])
            if kind in _EXPECTED:
                line = await reader.readline()
                if line.split()[1:2] != [b"%d" % _EXPECTED[kind]]:
                    self.failed.append(f"{kind}: {line!r}")
            await asyncio.sleep(_PAUSES[kind])
        finally:
            writer.transport.abort()
        self.counts[kind] = self.counts.get(kind, 0) + 1


async def _main(port: str, name: str, limit: str, request: str) -> None:
    clients = Clients(int(port), messages(name, int(limit), Path(request).read_bytes()))
    await clients.run()
    print(json.dumps({"counts": clients.counts, "failed": clients.failed}))


if __name__ == "__main__":
    asyncio.run(_main(*sys.argv[1:]))
