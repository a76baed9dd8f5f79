"""Read the time of each node from a profile."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphkit.checks.inputs import make_feeds
from graphkit.errors import UsageError
from graphkit.named_tuples import NamedTuple
from graphkit.signatures import shown

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
        UsageError: The file cannot be read, or is not a profile.
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
    slices = [event for event in events if isinstance(event, dict) and event.get("ph") == "X"]
    runs = [str(e.get("name")).removeprefix("run ") for e in slices if e.get("cat") == "run"]
    found: dict[str, StepTime] = {}
    for event in slices:
        details = event.get("args")
        if not isinstance(details, dict) or not isinstance(details.get("node"), str):
            continue
        path = details["node"]
        where = f"{_label(source)}: step {path!r} has"
        seconds = _seconds(event.get("dur"), where)
        results, outputs = [_texts(details.get(key, ()), f"{where} {key}") for key in ("results", "outputs")]
        known = found.get(path) or StepTime(
            path, results, str(event.get("name")), str(details.get("implementation") or ""), next(iter(outputs), "")
        )
        found[path] = known._replace(seconds=known.seconds + seconds, calls=known.calls + 1)
    if not runs or not found:
        raise UsageError(f"{_label(source)} contains no steps of a graphkit model")
    steps = [step._replace(seconds=step.seconds / len(runs)) for step in found.values()]
    return NodeTimes(steps, len(runs), tuple(dict.fromkeys(runs)), source)


def _label(source: str) -> str:
    return f"profile {source}" if source else "the profile"


def _seconds(duration: Any, where: str) -> float:
    """Return a duration, which the file has in microseconds. where: Start of the error if it is not valid."""
    is_number = isinstance(duration, int | float) and not isinstance(duration, bool)
    if not is_number or not 0 <= duration <= sys.float_info.max:
        raise UsageError(
            f"{where} the duration {shown(duration)}; expected a finite number of microseconds that is not negative. "
            "Record the profile again"
        )
    return float(duration) / 1e6


def _texts(given: Any, where: str) -> tuple[str, ...]:
    """Return a list of texts as a tuple. where: Start of the error if it is not valid."""
    if not isinstance(given, list | tuple) or not all(isinstance(text, str) for text in given):
        raise UsageError(f"{where} {shown(given)}; expected a list of texts. Record the profile again")
    return tuple(given)
