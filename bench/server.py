"""Load on a server of `graphkit serve`: many clients on loopback, and every answer is checked.

    python bench/server.py [--network resnet] [--size 64] [--clients 200] [--seconds 60] [--disturb] [--reload 10]

Each client has a connection of its own and sends its next request when the answer has come. Requests have inputs of a
pool, in binary form; the expected outputs come from runs of single inputs in this process. The load comes in phases.
Before and after each phase, full batches run in this process: the rate of a phase is compared with theirs, and
latencies with the time of one full batch.
--network corner: a model that computes next to nothing, so that the processor time is that of requests.
With --disturb, another process sends malformed, oversized, slow and aborted requests at the same time. With --reload,
the file of the model is replaced after each such number of seconds by one with other weights, and loaded again.
Requests that are sent after the answer must get the outputs of the new weights. With --same, the file stays as it is.
At the end, SIGTERM ends the server under load: every request that it received must be answered.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import graphkit as gk

Pair = tuple[float, float]  # seconds, and processor seconds

# Different inputs of requests.
_POOL = 64
_LIMIT = 4 << 20  # --max-body of the server


@dataclass
class Seen:
    """Results of the clients. seconds: time of each request."""

    seconds: list[float] = field(default_factory=list)
    wrong: int = 0
    failed: list[str] = field(default_factory=list)
    after_load: int = 0  # requests of the end, which latencies leave out
    waiting: int = 0  # requests without an answer so far
    lost: int = 0  # requests without an answer, although the server had accepted the connection
    refused: int = 0  # connections that the server did not accept, after SIGTERM
    disturbances: dict[str, int] = field(default_factory=dict)


@dataclass
class Files:
    """The file of the model that the server reads, and files with the same graph and several weights.

    loaded: The weights that may answer: the present ones, and those that are being loaded.
    """

    served: Path
    weights: list[Path]
    loaded: set[int] = field(default_factory=lambda: {0})

    def replace(self) -> int:
        """Replace the file by the one with the next weights, and return their number."""
        following = (max(self.loaded) + 1) % len(self.weights)
        self.loaded |= {following}
        # A link, not a copy: a copy would take time of the clients and of the cores.
        link = self.served.with_suffix(".new")
        os.link(self.weights[following], link)
        link.rename(self.served)
        return following


@dataclass(frozen=True)
class Load:
    """Requests and their expected outputs. port: of the server. expected: for each of the weights."""

    port: int
    name: str
    requests: list[bytes]
    expected: list[list[np.ndarray]]
    output: str
    files: Files


def request_of(name: str, input_name: str, output: str, array: np.ndarray, number: int) -> bytes:
    described = {
        "name": input_name, "datatype": "FP32", "shape": list(array.shape),
        "parameters": {"binary_data_size": array.nbytes},
    }  # fmt: skip
    header = json.dumps({
        "id": str(number), "inputs": [described], "outputs": [{"name": output, "parameters": {"binary_data": True}}],
    }).encode()  # fmt: skip
    head = (
        f"POST /v2/models/{name}/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(header) + array.nbytes}\r\n"
        f"Inference-Header-Content-Length: {len(header)}\r\n\r\n"
    )
    return head.encode() + header + array.tobytes()


async def answer_of(reader: asyncio.StreamReader) -> tuple[int, dict[str, str], bytes]:
    """Read one answer: status, headers, body."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    headers = {key.lower(): value.strip() for key, _, value in (line.partition(":") for line in head[1:] if line)}
    return int(head[0].split()[1]), headers, await reader.readexactly(int(headers.get("content-length", 0)))


def check(
    load: Load, seen: Seen, number: int, weights: set[int], status: int, headers: dict[str, str], body: bytes
) -> None:
    """Count the answer to a request. weights: those that may have answered."""
    if status != 200:
        seen.failed.append(f"{status}: {body[:200].decode('utf-8', 'replace')}")
        return
    length = int(headers["inference-header-content-length"])
    header = json.loads(body[:length])
    found = np.frombuffer(body[length:], np.float32).reshape(header["outputs"][0]["shape"])
    expected = [load.expected[which][number] for which in weights]
    if header["id"] != str(number) or not any(found.shape == e.shape and agrees(found, e) for e in expected):
        seen.wrong += 1


def agrees(found: np.ndarray, expected: np.ndarray) -> bool:
    """Return whether two outputs differ only by rounding. The tolerance is relative to the largest element."""
    return bool(np.allclose(found, expected, rtol=0.0, atol=1e-3 * float(np.abs(expected).max(initial=0.0))))


def check_distinct(expected: list[np.ndarray]) -> None:
    """Raise RuntimeError if the check of the answers would not see that two requests got each other's outputs."""
    for place, array in enumerate(expected):
        if not np.isfinite(array).all() or any(agrees(array, other) for other in expected[:place]):
            raise RuntimeError(
                f"the outputs of input {place} do not differ from those of another one; change --network"
            )


async def client(load: Load, seen: Seen, place: int, gate: asyncio.Event) -> None:
    """Send requests while the gate is open, until the server accepts no more connections."""
    number = place % _POOL
    connection: Any = None
    while True:
        await gate.wait()
        if connection is None:
            try:
                connection = await asyncio.open_connection("127.0.0.1", load.port)
            except ConnectionError:
                seen.refused += 1
                return
        reader, writer = connection
        begun = time.perf_counter()
        seen.waiting += 1
        weights = set(load.files.loaded)
        try:
            writer.write(load.requests[number])
            status, headers, body = await answer_of(reader)
        except (ConnectionError, asyncio.IncompleteReadError):
            seen.lost += 1
            return
        finally:
            seen.waiting -= 1
        seen.seconds.append(time.perf_counter() - begun)
        check(load, seen, number, weights | load.files.loaded, status, headers, body)
        number = (number + 1) % _POOL
        if headers.get("connection") == "close":
            writer.close()
            connection = None


class Disturbance:
    """The process that sends wrong requests, and the reloads of the model, as the options say."""

    def __init__(self, load: Load, seen: Seen, options: argparse.Namespace):
        self._load, self._seen, self._options = load, seen, options
        self._wrong: asyncio.subprocess.Process | None = None

    async def begin(self) -> None:
        if self._options.disturb:
            request = self._load.files.served.with_suffix(".request")
            request.write_bytes(self._load.requests[0])
            script = Path(__file__).with_name("wrong_requests.py")
            arguments = (str(self._load.port), self._load.name, str(_LIMIT), str(request))
            self._wrong = await asyncio.create_subprocess_exec(
                sys.executable, "-P", str(script), *arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )

    def set(self, running: bool) -> None:
        """Start or stop wrong requests."""
        if self._wrong is not None:
            assert self._wrong.stdin is not None
            self._wrong.stdin.write(b"go\n" if running else b"stop\n")

    def processor_seconds(self) -> float:
        """Return the processor time of the process that sends wrong requests."""
        return 0.0 if self._wrong is None else processor_seconds(self._wrong.pid)

    async def end(self) -> None:
        if self._wrong is not None:
            found = json.loads((await self._wrong.communicate(b""))[0])
            self._seen.disturbances |= found["counts"]
            self._seen.failed += found["failed"]

    async def reload(self, gate: asyncio.Event) -> None:
        """Replace the file of the model, and load it, again and again."""
        path = f"/v2/repository/models/{self._load.name}/load"
        while self._options.reload:
            await gate.wait()
            reader, writer = await asyncio.open_connection("127.0.0.1", self._load.port)
            following = 0 if self._options.same else self._load.files.replace()
            writer.write(f"POST {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            status, _, body = await answer_of(reader)
            if not self._options.same:
                self._load.files.loaded.intersection_update({following})
            if status != 200:
                self._seen.failed.append(f"load again: {status}: {body[:200]!r}")
            await asyncio.sleep(self._options.reload)
            writer.transport.abort()
            self._seen.disturbances["load again"] = self._seen.disturbances.get("load again", 0) + 1


def processor_seconds(process: int) -> float:
    """Return the processor time of a process so far."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@dataclass
class Phase:
    """A time under load, and a batch in this process before and after. rate: requests per second."""

    rate: float
    processor: float  # seconds of the server for each request
    clients: float  # processor seconds of this process for each request
    wrong: float  # processor seconds of the clients that send wrong requests, for each request
    before: Pair
    after: Pair

    def ratio(self, rows: int) -> float:
        return self.rate * (self.before[0] + self.after[0]) / 2 / rows


async def phase(
    seen: Seen, gate: asyncio.Event, disturbance: Disturbance, seconds: float, server: int
) -> tuple[float, float, float, float]:
    """Open the gate for a time, and wait for the last answer.

    Returns requests per second, and processor seconds of each: of the server, of this process, and of wrong clients.
    """

    def processor() -> tuple[float, float, float]:
        return processor_seconds(server), time.process_time(), disturbance.processor_seconds()

    count, begun, before = len(seen.seconds), time.perf_counter(), processor()
    gate.set()
    disturbance.set(True)
    await asyncio.sleep(seconds)
    disturbance.set(False)
    gate.clear()
    while seen.waiting:
        await asyncio.sleep(0.005)
    done = len(seen.seconds) - count
    spent, own, wrong = ((after - first) / done for after, first in zip(processor(), before, strict=True))
    return done / (time.perf_counter() - begun), spent, own, wrong


async def run(
    load: Load, seen: Seen, options: argparse.Namespace, server: int, alone: Callable[[], Pair]
) -> list[Phase]:
    """Run all phases, then end the server under load."""
    gate = asyncio.Event()
    clients = [asyncio.create_task(client(load, seen, place, gate)) for place in range(options.clients)]
    disturbance = Disturbance(load, seen, options)
    await disturbance.begin()
    reloading = asyncio.create_task(disturbance.reload(gate))
    await phase(seen, gate, disturbance, options.warm_up, server)
    seen.seconds.clear()
    phases, before = [], alone()
    for _ in range(options.phases):
        measured = await phase(seen, gate, disturbance, options.seconds / options.phases, server)
        phases.append(Phase(*measured, before, after := alone()))
        before = after
        print(
            f"{measured[0]:.1f} per second, {phases[-1].ratio(options.max_batch):.2f} of the rate alone",
            file=sys.stderr,
        )
    counted = len(seen.seconds)
    reloading.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await reloading
    await disturbance.end()
    gate.set()
    await asyncio.sleep(options.warm_up)
    os.kill(server, signal.SIGTERM)
    await asyncio.gather(*clients)
    seen.after_load = len(seen.seconds) - counted
    seen.seconds[counted:] = []
    return phases


def batch_seconds(executor: Any, name: str, batch: np.ndarray, seconds: float) -> tuple[float, float]:
    """Return the mean seconds and processor seconds of a full batch in this process."""
    executor.run({name: batch})
    count = 0
    begun, used = time.perf_counter(), time.process_time()
    while time.perf_counter() < begun + seconds or count < 5:
        executor.run({name: batch})
        count += 1
    return (time.perf_counter() - begun) / count, (time.process_time() - used) / count


def network(name: str, size: int, flipped: bool = False) -> gk.Model:
    """Return a network; for "corner", a model that computes next to nothing: what is left is the cost of requests.

    flipped: Change all weights.
    """
    if name == "corner":
        x = gk.input("x", ["N", 3, size, size])
        return gk.Model({"y": x[:, :, 0, 0] * gk.constant(np.float32(3 if flipped else 2))})
    made = gk.models.build(name, image=(3, size, size), classes=100)
    for parameter, array in made.params.items() if flipped else ():
        made.params[parameter] = array[::-1]
    return made


def measure(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    size = options.size
    files = Files(folder / "net.onnx", [folder / "first.onnx", folder / "second.onnx"])
    inputs = np.random.default_rng(0).normal(size=(_POOL, 1, 3, size, size)).astype(np.float32)
    expected: list[list[np.ndarray]] = []
    for file, flipped in zip(files.weights, (False, True), strict=True):
        network(options.network, size, flipped).save(file)
        net = gk.load(file)
        (name,), output = net.inputs, net.outputs[0]
        executor = net.compile(threads=options.threads)
        expected.append([executor.run({name: array})[output] for array in inputs])
    check_distinct([array for each in expected for array in each])
    shutil.copyfile(files.weights[0], files.served)
    batch = np.resize(inputs[:, 0], (options.max_batch, *inputs.shape[2:]))
    log = folder / "log"
    command = [
        *(sys.executable, "-P", "-m", "graphkit", "serve", str(folder / "net.onnx"), "--port", "0"),
        *("--max-batch", str(options.max_batch), "--max-delay-ms", str(options.max_delay_ms)),
        *("--max-body", str(_LIMIT), "--threads", str(options.threads)),
    ]
    with log.open("wb") as file, subprocess.Popen(command, stderr=file) as server:
        try:
            port = port_of(log, server)
            requests = [request_of("net", name, output, a, i) for i, a in enumerate(inputs)]
            load = Load(port, "net", requests, expected, output, files)
            seen, alone = Seen(), partial(batch_seconds, executor, name, batch, options.alone)
            phases = asyncio.run(run(load, seen, options, server.pid, alone))
            code = server.wait(60)
        finally:
            server.kill()
    return result(options, seen, phases, code, log)


def port_of(log: Path, server: subprocess.Popen[bytes]) -> int:
    """Return the port that a server names in its log."""
    while server.poll() is None:
        for line in log.read_text().splitlines():
            if line.endswith("}") and (found := json.loads(line))["event"] == "listening":
                return int(found["url"].rpartition(":")[2])
        time.sleep(0.1)
    raise RuntimeError(f"the server ended: {log.read_text()}")


def result(options: argparse.Namespace, seen: Seen, phases: list[Phase], code: int, log: Path) -> dict[str, Any]:
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    answers = [line for line in lines if line["event"] == "request" and line["status"] == 200 and "batch" in line]
    alone = [phases[0].before, *(each.after for each in phases)]
    batch, used = (float(np.median([pair[at] for pair in alone])) for at in (0, 1))
    ratios = [each.ratio(options.max_batch) for each in phases]
    in_process, server, clients, wrong = (
        1e3 * value for value in (
            used / options.max_batch, *np.median([(p.processor, p.clients, p.wrong) for p in phases], axis=0).tolist(),
        )
    )  # fmt: skip
    p50, p99, last = (float(np.percentile(seen.seconds, at)) for at in (50, 99, 100))
    return {
        "network": f"{options.network} {options.size} x {options.size}", "clients": options.clients,
        "requests": len(seen.seconds), "requests of the end": seen.after_load, "wrong": seen.wrong,
        "failed": len(seen.failed), "errors": seen.failed[:3], "lost": seen.lost,
        "refused after SIGTERM": seen.refused, "exit code": code,
        "rate": float(np.median([each.rate for each in phases])), "rate in process": options.max_batch / batch,
        "ratios": ratios, "ratio": float(np.median(ratios)),
        "batch seconds": batch, "p50": p50, "p99": p99, "longest": last, "p99 over batch": p99 / batch,
        "mean rows": float(np.mean([line["batch"] for line in answers])),
        "processor ms per request, in process": in_process, "processor ms per request, server": server,
        "processor ms per request, clients": clients, "processor ms per request, wrong clients": wrong,
        # The ratio if all processes used the cores as well as batches in one process do.
        "ratio by processor time": in_process / (server + clients + wrong),
        "load average": os.getloadavg()[0], "disturbances": seen.disturbances,
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", default="resnet")
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--phases", type=int, default=4)
    parser.add_argument("--alone", type=float, default=6.0, help="seconds of batches in this process, each time")
    parser.add_argument("--warm-up", type=float, default=5.0)
    parser.add_argument("--max-batch", type=int, default=128)
    parser.add_argument("--max-delay-ms", type=float, default=2.0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--disturb", action="store_true")
    parser.add_argument("--reload", type=float, default=0.0, metavar="SECONDS")
    parser.add_argument("--same", action="store_true", help="load the same file again")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = measure(options, Path(folder))
    print(json.dumps(found, indent=1))
    return 1 if found["wrong"] or found["failed"] or found["lost"] or found["exit code"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
