"""Check that all ranks of a training agree: on the Trainer's arguments at the start, and on its state in each step.

This state is the learning rate, the counts of updates, the resumed run, and parameters that were assigned after the
Trainer was created. Each step sends a fingerprint of this state with the all-reduce of the loss. If fingerprints
differ, all ranks raise the same error, and no rank changes parameters or states.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Any, Protocol

import numpy as np

from graphkit.data import Dataset, IterableDataset
from graphkit.dist.agreement import LIMIT, checksum
from graphkit.dist.kvstore import KVStore
from graphkit.dist.updaters import optimizer_facts
from graphkit.distribution import version
from graphkit.errors import RanksDiffer
from graphkit.executor.run.params import ParamStore
from graphkit.train.background import length_of
from graphkit.train.programs import step as steps
from graphkit.train.selection import TrainedParameter

_NUMBERS = struct.Struct("<d4q")
# The checksum covers at most this many labels.
_COMPARED_LABELS = 1 << 20


def compare_setup(
    store: KVStore | None,
    rule: steps.UpdateRule,
    trained: Sequence[TrainedParameter],
    params: ParamStore,
    options: Mapping[str, Any],
) -> None:
    """Raise RanksDiffer on all ranks if their Trainers differ. Collective.

    Args:
        store: With None or a single rank, nothing is compared.
    """
    if store is None or store.num_workers == 1:
        return
    facts = {
        "graphkit": version(),
        **optimizer_facts(rule.optimizer),
        "clip_norm": rule.clip_norm,
        "ema": None if rule.ema is None else rule.ema.describe(),
        "on_nonfinite": rule.on_nonfinite,
        "bucket_bytes": store.transport.known_bucket_bytes,
        **options,
    }
    multipliers = {t.name: t for t in trained}
    for name in params:
        facts[f"parameter {name!r}"] = f"{params.type_of(name)}, {_describe_training(multipliers.get(name))}"
    store.transport.compare("the set-up of their Trainer", facts)


def _describe_training(parameter: TrainedParameter | None) -> str:
    if parameter is None:
        return "not trained"
    rows = ", lazy" if parameter.lazy else ""
    mask = "" if parameter.mask is None else f", mask {checksum(parameter.mask.array)}"
    return f"trained, lr_mult {parameter.lr_mult:g}, wd_mult {parameter.decay_mult:g}{rows}{mask}"


class Counts(Protocol):
    updates: int
    accumulated: int
    skipped: int


def data_facts(train: Dataset | IterableDataset) -> dict[str, int | None]:
    """Return facts about training data that must be equal on all ranks.

    Inputs and float targets are left out, because ranks on different processors may have rounded them differently.
    """
    labels = train.integer_targets if isinstance(train, Dataset) else None
    facts = {"samples": length_of(train), "checksum of labels": None}
    if labels is not None:
        compared = _COMPARED_LABELS // max(math.prod(labels.shape[1:]), 1)
        # Ranks may store the same labels in different integer types.
        facts["checksum of labels"] = checksum(labels[: max(compared, 1)].astype(np.int64, copy=False))
    return facts


class NoAgreement:
    """The agreement of a rank that takes independent steps: nothing is compared."""

    def set_resumed(self, run: Mapping[str, Any]) -> None:
        """Store which run this rank has resumed: later steps compare it. run: facts of the checkpoint, by name."""

    def step(self, rate: float, counts: Counts) -> AbstractContextManager[None]:
        return nullcontext()


def agreement_of(store: KVStore | None, params: ParamStore, divided: bool) -> NoAgreement:
    """Return the agreement of ranks. divided: the model is divided, so assigned parameters are not compared."""
    if store is None or store.num_workers == 1 or store.is_remote:
        return NoAgreement()
    return StepAgreement(store, ParamStore({}) if divided else params)


class StepAgreement(NoAgreement):
    def __init__(self, store: KVStore, params: ParamStore):
        self._store, self._params = store, params
        # Numbers of assignments before the Trainer was created. Only later assignments are compared.
        self._before = dict(params.assigned)
        self._assignments = params.assignments
        self._checksums: dict[str, int] = {}
        self._resumed: Mapping[str, Any] | None = None
        self._state = 0
        self._rate, self._counts = 0.0, (0, 0, 0)

    def set_resumed(self, run: Mapping[str, Any]) -> None:
        self._resumed = run
        self._state = self._checksum()

    def step(self, rate: float, counts: Counts) -> AbstractContextManager[None]:
        self._rate, self._counts = rate, (counts.updates, counts.accumulated, counts.skipped)
        return self

    def __enter__(self) -> None:
        if self._params.assignments != self._assignments:
            self._note_assignments()
        bits = zlib.crc32(_NUMBERS.pack(self._rate, *self._counts, self._state))
        self._store.transport.fingerprint.number = bits % (LIMIT - 1) + 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._store.transport.fingerprint.number = 0
        if isinstance(error, RanksDiffer):
            try:
                self._store.transport.compare("their training", self.facts())
            except RanksDiffer as detailed:
                raise detailed from None

    def facts(self) -> dict[str, Any]:
        updates, accumulated, skipped = self._counts
        assigned = {
            f"parameter {name!r}": f"set {self._times(name)} (checksum {self._checksums[name]:08x})"
            for name in sorted(self._checksums)
        }
        return {
            "learning rate": self._rate,
            "updates": updates,
            "batches that wait for an update": accumulated,
            "skipped steps": skipped,
            "resumed run": self._resumed,
            **{f"parameter {name!r}": "as trained" for name in self._params},
            **assigned,
        }

    def _note_assignments(self) -> None:
        for name, count in self._params.assigned.items():
            if count != self._before.get(name, 0):
                self._checksums[name] = checksum(self._params[name])
        self._assignments = self._params.assignments
        self._state = self._checksum()

    def _times(self, name: str) -> str:
        count = self._params.assigned[name] - self._before.get(name, 0)
        return "1 time" if count == 1 else f"{count} times"

    def _checksum(self) -> int:
        counted = [(name, self._times(name), self._checksums[name]) for name in sorted(self._checksums)]
        return zlib.crc32(repr((counted, self._resumed)).encode())
