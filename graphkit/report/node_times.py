"""Read the time of each node from a profile."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphkit.checks.inputs import make_feeds
from graphkit.errors import UsageError
from graphkit.named_tuples import NamedTuple

if TYPE_CHECKING:
    from graphkit.executor.run.profile import Profile
    from graphkit.model import Model

# Runs that `measured` records. Their mean is the time of a node.
_RUNS = 5


class StepTime(NamedTuple):
    """A step of a profile. seconds: per run, including the steps of its subgraphs.

    path, results: Names of the node and of its outputs, after the names of the nodes and subgraphs that contain it.
    """

    path: str
    results: tuple[str, ...]
    operator: str
    implementation: str
    type: str  # of the first output
    seconds: float = 0.0
    calls: int = 0


class NodeTimes(NamedTuple):
    """Times of a profile. graphs: names of the graphs that ran.

    source: Path of the file; empty for a Profile.
    """

    steps: Sequence[StepTime]
    runs: int
    graphs: Sequence[str]
    source: str

    @property
    def label(self) -> str:
        """The profile, for errors."""
        return _label(self.source)


def measured(net: Model, shapes: Mapping[str, Sequence[int]]) -> Profile:
    """Run a model with generated inputs, and return the profile. The first run, which prepares kernels, is left out.

    shapes: Input shapes by name. Dimensions that are not given are guessed.
    """
    from graphkit.executor.run.profile import profile

    feeds = make_feeds(net, shapes=shapes).arrays
    executor = net.compile()
    executor.run(feeds)
    with profile() as recorded:
        for _ in range(_RUNS):
            executor.run(feeds)
    return recorded


def read_times(profile: Profile | str | os.PathLike[str]) -> NodeTimes:
    """Return the times of a Profile, or of a file that `gk.profile`, `graphkit run` or `graphkit bench` wrote.

    Raises:
        UsageError: The file cannot be read, or is no profile.
    """
    if isinstance(profile, str | os.PathLike):
        source = str(profile)
        try:
            trace = json.loads(Path(profile).read_bytes())
        except OSError as error:
            raise UsageError(f"profile {source}: {error.strerror or error}") from None
        except (ValueError, RecursionError) as error:
            raise UsageError(f"profile {source} is not a JSON file: {error}") from None
    else:
        source, trace = "", profile.trace()
    events = trace.get("traceEvents") if isinstance(trace, dict) else None
    if not isinstance(events, list):
        raise UsageError(
            f"{_label(source)}: expected a file that --profile of `graphkit run` or `graphkit bench` wrote"
        )
    return _times(events, source)


def _times(events: Sequence[Any], source: str) -> NodeTimes:
    runs = [str(e.get("name")).removeprefix("run ") for e in events if _is_slice(e) and e.get("cat") == "run"]
    found: dict[str, StepTime] = {}
    for event in events:
        details = event.get("args") if _is_slice(event) else None
        if not isinstance(details, dict) or not isinstance(details.get("node"), str):
            continue
        path, results = details["node"], details.get("results")
        known = found.get(path) or StepTime(
            path, tuple(map(str, results)) if isinstance(results, list | tuple) else (), str(event.get("name")),
            str(details.get("implementation") or ""), str(next(iter(details.get("outputs") or ()), "")),
        )  # fmt: skip
        found[path] = known._replace(seconds=known.seconds + event["dur"] / 1e6, calls=known.calls + 1)
    if not runs or not found:
        raise UsageError(f"{_label(source)} contains no steps of a graphkit model")
    steps = [step._replace(seconds=step.seconds / len(runs)) for step in found.values()]
    return NodeTimes(steps, len(runs), tuple(dict.fromkeys(runs)), source)


def _label(source: str) -> str:
    return f"profile {source}" if source else "the profile"


def _is_slice(event: Any) -> bool:
    return isinstance(event, dict) and event.get("ph") == "X" and isinstance(event.get("dur"), int | float)
