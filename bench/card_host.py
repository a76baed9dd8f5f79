"""Measure the host's share of a training step on a GPU: calls on the host, and waiting times between them.

    python bench/card_host.py [--only lenet,mlp] [--steps 300] [--record FILE.json]

A step starts with a batch in host memory and ends with the loss in host memory. The GPU's time is measured by events
around each replay, from its first to its last node. The rest is the host's time: copies, checks and waiting. Needs a
GPU, see bench/cuda.sh. The first line shows the GPU and the versions.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import training_engines as engines
from card import about, on_card
from tables import table
from training_workloads import WORKLOADS, Workload

# Steps before the first that counts: by then all is recorded.
_BEFORE = 5


class Clock(Protocol):
    """Events of a card's stream, and the milliseconds between two."""

    def mark(self) -> Any: ...
    def between(self, first: Any, last: Any) -> float: ...


class CardClock:
    def __init__(self) -> None:
        import cupy

        self._cuda = cupy.cuda

    def mark(self) -> Any:
        event = self._cuda.Event()
        event.record()
        return event

    def between(self, first: Any, last: Any) -> float:
        return float(self._cuda.get_elapsed_time(first, last))


class Replays:
    """Of what a card records from now on, when replays began and ended."""

    def __init__(self, card: Any, clock: Clock):
        self._clock, self._record = clock, card.record
        self.spans: list[tuple[Any, Any]] = []
        card.record = self._recorded

    def _recorded(self, stream: Any, steps: Sequence[Any]) -> Callable[[], None]:
        replay = self._record(stream, steps)

        def timed() -> None:
            first = self._clock.mark()
            replay()
            self.spans.append((first, self._clock.mark()))

        return timed

    def seconds(self) -> float:
        """Return the seconds of all replays since the last call. They must be complete."""
        taken = sum(self._clock.between(*span) for span in self.spans)
        self.spans.clear()
        return taken / 1e3


def measure(card: Any, clock: Clock, workloads: Sequence[Workload], steps: int) -> list[dict[str, Any]]:
    """Measure each network: medians of the seconds of a step and of the GPU, and replays per step."""
    found = []
    for workload in workloads:
        replays = Replays(card, clock)
        step = engines.graphkit(workload, 1, device="cuda").step
        for _ in range(_BEFORE):
            step()
        replays.spans.clear()
        rows = []
        for _ in range(steps):
            begin = time.perf_counter()
            step()
            taken, count = time.perf_counter() - begin, len(replays.spans)
            rows.append((taken, replays.seconds(), count))
        step_s, card_s, host_s = (statistics.median(x) for x in zip(*((a, b, a - b) for a, b, _ in rows), strict=True))
        found.append(
            {"network": workload.title, "replays": rows[-1][2], "step": step_s, "card": card_s, "host": host_s}
        )
    return found


def report(found: Sequence[dict[str, Any]], about: str) -> str:
    body = [
        (row["network"], str(row["replays"]), *(f"{row[part] * 1e6:.1f}" for part in ("step", "card", "host")))
        for row in found
    ]
    return f"{about}\n\n" + table(("network", "replays", "step, us", "card, us", "beyond it, us"), body)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="lenet,mlp", help="workloads, by comma")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--record", type=Path, help="where the figures are written as JSON")
    given = parser.parse_args()
    return on_card(lambda card: _measured(card, given))


def _measured(card: Any, given: argparse.Namespace) -> int:
    found = measure(card, CardClock(), [WORKLOADS[name] for name in given.only.split(",")], given.steps)
    print(report(found, about(card)))
    if given.record is not None:
        given.record.write_text(json.dumps({"about": about(card), "rows": found}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
