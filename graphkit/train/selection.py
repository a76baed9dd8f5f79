"""Which parameters are trained, and how each of them: by shell patterns of their names."""

from __future__ import annotations

import fnmatch
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from graphkit.autodiff.reverse_mode import reached
from graphkit.errors import UsageError
from graphkit.ir.graph import Graph, Value
from graphkit.train.arguments import NOT_NEGATIVE, real


@dataclass(frozen=True)
class TrainedParameter:
    """One parameter under training: its Value, the name that slots derive from, its multipliers.

    lazy: it is a table, and a step updates only the rows that it read.
    """

    value: Value
    name: str
    lr_mult: float = 1.0
    decay_mult: float = 1.0
    lazy: bool = False


@dataclass(frozen=True)
class ParameterSelection:
    """Shell patterns of parameter names that say what is trained, and how.

    train: what is trained (all, when there is none); freeze: what is left out of it; lazy: tables with row-sparse
    updates; lr_mult and wd_mult: factors on the learning rate and the weight decay, which go before the attributes
    `lr_mult` and `wd_mult` of a parameter; of several patterns that match, the last counts.
    """

    freeze: Sequence[str] = ()
    train: Sequence[str] = ()
    lazy: Sequence[str] = ()
    lr_mult: Mapping[str, float] = field(default_factory=dict)
    wd_mult: Mapping[str, float] = field(default_factory=dict)

    def takes(self, name: str) -> bool:
        """Whether the patterns let a parameter be trained."""
        return (not self.train or _matches(name, self.train)) and not _matches(name, self.freeze)


def select_parameters(graph: Graph, selection: ParameterSelection) -> list[TrainedParameter]:
    """The parameters to update: floats that `selection` takes, that are not marked trainable=False, and that the loss
    (the graph's first output) depends on, which those of other outputs need not be.

    Raises UsageError when a pattern matches no parameter, a multiplier is no number, or nothing is left to train.
    """
    names = {graph.name_of(v): v for v in graph.inputs if v.role == "parameter" and v.dtype.is_float}
    for option, patterns in vars(selection).items():
        for pattern in patterns:
            if not fnmatch.filter(names, pattern):
                raise UsageError(f"{option} pattern {pattern!r} matches no parameter; there are {_some(names)}")
    found = reached([graph.outputs[0]])
    chosen = [
        TrainedParameter(
            v, n, _multiplier(n, v, "lr_mult", selection.lr_mult), _multiplier(n, v, "wd_mult", selection.wd_mult),
            _matches(n, selection.lazy) or str(v.attrs.get("lazy", "")).lower() in ("1", "true"),
        )
        for n, v in names.items()
        if v in found and v.attrs.get("trainable", True) and selection.takes(n)
    ]  # fmt: skip
    if not chosen:
        raise UsageError(
            "there is no parameter to train: the model has none that the loss depends on, or all are frozen"
            + (
                ""
                if names
                else "; weights in Constant nodes become parameters by constants_to_parameters (--constants)"
            )
        )
    return chosen


def _some(names: Collection[str]) -> str:
    """Names for a message, not all of hundreds."""
    shown = ", ".join(list(names)[:20])
    return shown + (f" and {len(names) - 20} more" if len(names) > 20 else "")


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def _multiplier(name: str, value: Value, key: str, patterns: Mapping[str, float]) -> float:
    given = [number for pattern, number in patterns.items() if fnmatch.fnmatchcase(name, pattern)]
    text = given[-1] if given else value.attrs.get(key, 1.0)
    try:
        number = float(text) if isinstance(text, str) else text
    except ValueError:
        raise UsageError(f"{key} of parameter {name!r} is {text!r}, which is no number") from None
    return real(f"parameter {name!r}", key, number, NOT_NEGATIVE)
