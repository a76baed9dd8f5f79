"""Compute the values of a model from the inputs on, part by part, and keep only those that are still needed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from graphkit.checks.pairing import Producers
from graphkit.errors import GraphkitError


class Walk:
    """A pass over one model. `advance` computes further values; `held` has those that later nodes read.

    wanted: names of all values that `advance` will be asked for.
    """

    def __init__(self, producers: Producers, feeds: Mapping[str, Any], wanted: Iterable[str]):
        self._producers, self._trace = producers, producers.trace
        self.held: dict[str, Any] = dict(feeds)
        self._done: set[int] = set()
        self._wanted = set(wanted)
        # How often nodes that are not done, and callers, still need each value.
        self._needs: dict[str, int] = dict.fromkeys(self._wanted, 1)
        for i in producers.cut(self._wanted, ()).steps:
            for name in set(self._trace.steps[i].inputs):
                self._needs[name] = self._needs.get(name, 0) + 1
        self._before: tuple[dict[str, Any], tuple[int, ...], tuple[str, ...]] | None = None

    def advance(self, targets: Sequence[str]) -> dict[str, Any]:
        """Return the values `targets`. After an error, the pass is where it was before."""
        cut = self._producers.cut(targets, self.held, self._done)
        self._before = (dict(self.held), cut.steps, tuple(targets))
        self._done.update(cut.steps)
        self._count(cut.steps, targets, -1)
        made = [name for i in cut.steps for name in self._trace.steps[i].outputs]
        asked = set(targets)
        fetched = [name for name in made if name in asked or self._needs.get(name, 0) > 0]
        try:
            results = self._trace.run(cut.steps, {n: self.held[n] for n in cut.reads}, fetched) if cut.steps else {}
        except GraphkitError:
            self.undo()
            raise
        values = {name: results[name] if name in results else self.held[name] for name in targets}
        self.held |= results
        self.held = {name: value for name, value in self.held.items() if self._needs.get(name, 0) > 0}
        return values

    @property
    def before(self) -> Mapping[str, Any]:
        """The values that were held before the last `advance`."""
        return {} if self._before is None else self._before[0]

    def undo(self) -> None:
        """Undo the last `advance`."""
        assert self._before is not None
        self.held, steps, targets = self._before
        self._done.difference_update(steps)
        self._count(steps, targets, 1)
        self._before = None

    def _count(self, steps: Iterable[int], targets: Iterable[str], change: int) -> None:
        for i in steps:
            for name in set(self._trace.steps[i].inputs):
                self._needs[name] += change
        for name in targets:
            self._needs[name] += change
