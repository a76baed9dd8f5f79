"""Operations for tests of the dependency engine: blocked, failing, and waiting for each other."""

from __future__ import annotations

import threading

from graphkit.executor.run.engine import Engine, Variable


class Gate:
    """An operation that holds a worker until it is opened."""

    def __init__(self) -> None:
        self.started = threading.Event()
        self._open = threading.Event()

    def __call__(self) -> None:
        self.started.set()
        assert self._open.wait(60)

    def open(self) -> None:
        self._open.set()


def fail(text: str) -> None:
    raise KeyError(text)


def held(engine: Engine) -> tuple[Gate, Variable, list[int]]:
    """A busy worker, and ten waiting operations on its variable."""
    gate, variable, ran = Gate(), engine.variable(), []
    engine.push(gate, writes=[variable])
    for i in range(10):
        engine.push(lambda i=i: ran.append(i), writes=[variable])  # type: ignore[misc]
    assert gate.started.wait(60)
    return gate, variable, ran
