"""Call the callbacks of a `fit`, store and restore their states, and stop all ranks if one callback stops training."""

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


class CallbackRunner:
    """Calls the callbacks of one `fit`.

    Attributes:
        stops_at_steps: Whether ranks decide after each step whether to stop: some callback has `on_step_end`, and the
            store has no servers.
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
        self._started: list[Callback] = []
        # While `on_epoch_end` runs, and after it has failed: the states from before the call. Otherwise None.
        # Checkpoints store them, because a resumed run repeats the call.
        self._states: States | None = None
        store = trainer.kvstore
        self._store: KVStore | None = None if store is None or store.num_workers == 1 else store
        self.stops_at_steps, self.any_rank_has_callbacks = bool(self._at_steps), bool(callbacks)
        if self._store is not None:
            mine = np.array([self.stops_at_steps, self.any_rank_has_callbacks], np.int64)
            at_steps, callbacks_of_ranks = self._store.pushpull("callbacks", mine)
            # Workers with parameter servers take steps independently: they cannot decide together after a step.
            self.stops_at_steps = bool(at_steps) and not self._store.is_remote
            self.any_rank_has_callbacks = bool(callbacks_of_ranks)

    @property
    def may_add_scores(self) -> bool:
        own = f"{__name__.partition('.')[0]}."
        return any(
            type(c).on_epoch_end is not Callback.on_epoch_end and not type(c).__module__.startswith(own)
            for c in self.callbacks
        )

    def begin(self, numbers: Numbers, states: Mapping[str, Mapping[str, Any]]) -> None:
        """Restore or reset the callbacks, then call `on_fit_begin`. states: by name of the callback."""
        for callback in self.callbacks:
            if callback.name in states:
                self._call(callback, "restore", states[callback.name])
            else:
                self._call(callback, "reset")
        for callback in self.callbacks:
            self._started.append(callback)
            self._call(callback, "on_fit_begin", self._trainer, numbers)
        self._agree_to_stop(self.any_rank_has_callbacks)

    def step(self, numbers: Callable[[], Numbers]) -> None:
        if self._at_steps:
            given = numbers()
            for callback in self._at_steps:
                self._call(callback, "on_step_end", self._trainer, given)
        self._agree_to_stop(self.stops_at_steps)

    def epoch(self, numbers: Numbers) -> None:
        if not self.any_rank_has_callbacks:
            return
        if self._store is not None:
            packed = np.frombuffer(json.dumps(numbers).encode(), np.uint8)
            first = gather(self._store, {"numbers": packed} if self._store.rank == 0 else {})[0]
            numbers = json.loads(first["numbers"].tobytes())
        self._states = self.states()
        for callback in self.callbacks:
            self._call(callback, "on_epoch_end", self._trainer, numbers)
        self._agree_to_stop(True)
        self._states = None

    def end(self, numbers: Numbers, error: BaseException | None) -> None:
        """Call `on_fit_end`. Its errors become notes on `error`, if any."""
        for callback in self._started:
            try:
                self._call(callback, "on_fit_end", self._trainer, numbers)
            except Exception as further:
                if error is None:
                    raise
                error.add_note(f"then {type(further).__name__} in {callback.name}.on_fit_end: {further}")

    def states(self) -> States:
        if self._states is not None:
            return self._states
        found = {}
        for callback in self.callbacks:
            state = self._call(callback, "state")
            with self._locating_errors(callback, "state"):
                try:
                    found[callback.name] = json.loads(json.dumps(state))
                except (TypeError, ValueError) as error:
                    raise UsageError(
                        f"the state of callback {callback.name!r} cannot be written as JSON: {error}"
                    ) from None
                if not isinstance(found[callback.name], dict):
                    raise UsageError(f"the state of callback {callback.name!r} must be a dict, not {state!r}")
        return {name: state for name, state in found.items() if state}

    def _agree_to_stop(self, together: bool) -> None:
        """Stop training if a callback of any rank has called `stop`. together: whether all ranks make this call."""
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
            return  # ranks decide together at the end of the epoch
        if reason is not None:
            trainer.position.stopped = reason

    def _call(self, callback: Callback, method: str, *arguments: Any) -> Any:
        with (
            self._trainer._running_user_code(f"callback {callback.name}.{method}"),
            self._locating_errors(callback, method),
        ):
            return getattr(callback, method)(*arguments)

    @contextlib.contextmanager
    def _locating_errors(self, callback: Callback, method: str) -> Any:
        try:
            yield
        except Exception as error:
            error.add_note(f"raised by {callback.name}.{method}, {self._trainer.position}")
            raise
