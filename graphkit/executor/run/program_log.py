"""Log messages of GRAPHKIT_DEBUG: which programs are built, found and dropped, and which nodes are interpreted."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from graphkit import debug
from graphkit.executor.lower.lowering import Settings
from graphkit.executor.run.base_program import Group, Key, size_text
from graphkit.executor.run.executable import CachedProgram
from graphkit.executor.run.selection import Selection
from graphkit.ir.origin import titled
from graphkit.text import quantity

P = TypeVar("P", bound=CachedProgram)


class ProgramLog:
    """Prints which programs of a device are built, found and dropped."""

    def __init__(self, settings: Settings, level: int):
        where = str(settings.device_name)
        self._where = f"{where}, {quantity(settings.threads, 'thread')}" if settings.device == "cpu" else where
        self._level = level
        # The latest key of each group.
        self._latest: dict[Group, Key] = {}
        # Why a program was dropped, by its key.
        self._dropped: dict[Key, str] = {}

    def found(self, key: Key) -> None:
        """Print that a run uses a program of the cache."""
        if self._level >= debug.DECISIONS:
            debug.say(f"program for {key.sizes()}: found")

    def dropped(self, key: Key, reason: str) -> None:
        """Print that a program is dropped. reason: a clause, such as "a part of it is dropped"."""
        self._dropped[key] = reason
        if self._level >= debug.DECISIONS:
            debug.say(f"program for {key.sizes()}: dropped, {reason}")

    def built(self, key: Key, selection: Selection, build: Callable[[Key, Selection], P], *, again: bool) -> P:
        """Build a program. Print the reason before, and its steps and the time after.

        again: Whether the program replaces one with this key.
        """
        name = f"program of {titled(selection.graph)} for {_shapes(selection, key)}"
        if self._level >= debug.DECISIONS:
            debug.say(f"{name}: made because {self._reason(key, selection, again)}")
        begin = time.perf_counter()
        program = build(key, selection)
        seconds = time.perf_counter() - begin
        self._latest[key.group] = key
        self._dropped.pop(key, None)
        debug.say(f"{name} ({self._where}): {program.contents()}; {debug.milliseconds(seconds)}")
        if self._level >= debug.DECISIONS:
            for node, operator, reason in program.interpreted():
                why = f": {reason}" if reason else ""
                debug.say(f"node {node!r} ({operator.op.name}) is interpreted{why}")
        if self._level >= debug.LISTINGS and not program.part_keys:
            debug.show(str(program.plan))
        return program

    def _reason(self, key: Key, selection: Selection, again: bool) -> str:
        """Return why a program is built, as a clause."""
        if again:
            return "these shapes occur often, so compiling pays"
        if key in self._dropped:
            return f"the program for these shapes was dropped: {self._dropped[key]}"
        previous = self._latest.get(key.group)
        if previous is None:
            return (
                "other outputs are selected, or other parameters are fed" if self._latest else "there is no program yet"
            )
        changes = [
            f"{selection.inputs[position].name} {size_text(old)} -> {size_text(new)}"
            for position, old, new in zip(selection.open, previous.shapes, key.shapes, strict=True)
            if old != new
        ]
        return f"the shapes have changed: {', '.join(changes)}"


def _shapes(selection: Selection, key: Key) -> str:
    """Return the inputs without static types and their shapes as text, such as `x [8, 3]`."""
    named = zip(selection.open, key.shapes, strict=True)
    return ", ".join(f"{selection.inputs[i].name} {size_text(shape)}" for i, shape in named) or "fixed shapes"
