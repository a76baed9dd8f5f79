"""How `fit` calls callbacks: with states from checkpoints, errors with their place, and a common decision to stop."""

from __future__ import annotations

import contextlib
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from graphkit.errors import UsageError
from graphkit.signatures import shown
from graphkit.train.base_trainer import BaseTrainer, States
from graphkit.train.callbacks import Callback, Numbers
from graphkit.train.exchange.gather import gather

if TYPE_CHECKING:
    from graphkit.dist.kvstore import KVStore


class Calls:
    """The callbacks of one `fit`. `steps`, `epochs`: whether any rank has some, so that all ranks agree after
    calling them.
    """

    def __init__(self, trainer: BaseTrainer, callbacks: Sequence[Callback]):
        for given in callbacks if isinstance(callbacks, (list, tuple)) else [callbacks]:
            if not isinstance(given, Callback):
                hint = "; on_epoch= calls a function after each epoch" if inspect.isroutine(given) else ""
                raise UsageError(f"fit: callbacks must be a gk.Callback or a list of them, not {shown(given)}{hint}")
        names = [c.name for c in callbacks]
        if twice := sorted({n for n in names if names.count(n) > 1}):
            raise UsageError(f"two callbacks are called {twice[0]!r}: give one of them another `name`")
        self._trainer = trainer
        self.callbacks = tuple(callbacks)
        self._at_steps = tuple(c for c in callbacks if type(c).on_step_end is not Callback.on_step_end)
        self._begun: list[Callback] = []
        # Before the end of an epoch that is not over: whoever goes on calls it again.
        self._states: States | None = None
        store = trainer.kvstore
        self._store: KVStore | None = None if store is None or store.num_workers == 1 else store
        self.steps, self.epochs = bool(self._at_steps), bool(callbacks)
        if self._store is not None:
            steps, epochs = self._store.pushpull("callbacks", np.array([self.steps, self.epochs], np.int64))
            # Workers with servers take steps by themselves, and are at different ones.
            self.steps, self.epochs = bool(steps) and not self._store.is_remote, bool(epochs)

    @property
    def adds_scores(self) -> bool:
        """Whether a callback that is not graphkit's own sees the numbers of an epoch, to which it may add some."""
        own = f"{__name__.partition('.')[0]}."
        return any(
            type(c).on_epoch_end is not Callback.on_epoch_end and not type(c).__module__.startswith(own)
            for c in self.callbacks
        )

    def begin(self, numbers: Numbers, states: Mapping[str, Mapping[str, Any]]) -> None:
        for callback in self.callbacks:
            if callback.name in states:
                self._call(callback, "restore", states[callback.name])
            else:
                self._call(callback, "reset")
        for callback in self.callbacks:
            self._begun.append(callback)
            self._call(callback, "on_fit_begin", self._trainer, numbers)
        self.agree(self.epochs)

    def step(self, numbers: Callable[[], Numbers]) -> None:
        """Call the callbacks after a step. numbers: computed only if a callback needs them."""
        if self._at_steps:
            given = numbers()
            for callback in self._at_steps:
                self._call(callback, "on_step_end", self._trainer, given)
        self.agree(self.steps)

    def epoch(self, numbers: Numbers) -> None:
        if not self.epochs:
            return
        if self._store is not None:
            packed = np.frombuffer(json.dumps(numbers).encode(), np.uint8)
            first = gather(self._store, {"numbers": packed} if self._store.rank == 0 else {})[0]
            numbers = json.loads(first["numbers"].tobytes())
        self._states = self.states()
        for callback in self.callbacks:
            self._call(callback, "on_epoch_end", self._trainer, numbers)
        self.agree(True)
        self._states = None

    def end(self, numbers: Numbers, error: BaseException | None) -> None:
        """Call the callbacks at the end. error: the exception that ends `fit`; it takes precedence over later ones."""
        for callback in self._begun:
            try:
                self._call(callback, "on_fit_end", self._trainer, numbers)
            except Exception as further:
                if error is None:
                    raise
                error.add_note(f"then {type(further).__name__} in {callback.name}.on_fit_end: {further}")

    def states(self) -> States:
        """Return the states for a checkpoint. During or after a failed end of an epoch, they are those from before it.

        Raises UsageError if a state cannot be written as JSON.
        """
        if self._states is not None:
            return self._states
        found = {}
        for callback in self.callbacks:
            state = self._call(callback, "state")
            with self._noted(callback, "state"):
                try:
                    found[callback.name] = json.loads(json.dumps(state))
                except (TypeError, ValueError) as error:
                    raise UsageError(
                        f"the state of callback {callback.name!r} cannot be written as JSON: {error}"
                    ) from None
                if not isinstance(found[callback.name], dict):
                    raise UsageError(f"the state of callback {callback.name!r} must be a dict, not {state!r}")
        return {name: state for name, state in found.items() if state}

    def agree(self, together: bool) -> None:
        """Stop if a rank wants to. together: whether all ranks call this, as they do if some rank has callbacks."""
        trainer = self._trainer
        reason = trainer.stop_reason
        if self._store is not None and together:
            wanted = np.zeros(self._store.num_workers, np.int64)
            wanted[self._store.rank] = reason is not None
            wanted = self._store.pushpull("stop", wanted)
            if not wanted.any():
                return
            packed = np.frombuffer((reason or "").encode(), np.uint8)
            parts = gather(self._store, {"reason": packed})
            reason = parts[int(np.argmax(wanted))]["reason"].tobytes().decode()
        elif self._store is not None:
            return  # asked for at a step: all come together at the end of the epoch
        if reason is not None:
            trainer.position.stopped = reason

    def _call(self, callback: Callback, method: str, *arguments: Any) -> Any:
        with self._trainer._running(f"callback {callback.name}.{method}"), self._noted(callback, method):
            return getattr(callback, method)(*arguments)

    @contextlib.contextmanager
    def _noted(self, callback: Callback, method: str) -> Any:
        try:
            yield
        except Exception as error:
            error.add_note(f"raised by {callback.name}.{method}, {self._trainer.position}")
            raise
