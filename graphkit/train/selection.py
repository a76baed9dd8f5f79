from __future__ import annotations

import fnmatch
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from graphkit.autodiff.reverse_mode import reached
from graphkit.errors import UsageError, did_you_mean
from graphkit.ir.graph import Graph, Value
from graphkit.ir.types import DType, TensorType
from graphkit.ops.tensor.constants import Constant
from graphkit.text import listed
from graphkit.train.adapter_marks import frozen_parameters
from graphkit.train.arguments import NOT_NEGATIVE, real

MASK = "mask"


@dataclass(frozen=True, eq=False)
class Mask:
    """Marks the elements of a parameter that are trained. The other elements are always 0.

    Attributes:
        array: The initial mask, bool, in the shape of the parameter.
    """

    array: np.ndarray
    value: Value


@dataclass(frozen=True)
class TrainedParameter:
    """A parameter that is trained.

    Attributes:
        name: Its name, with which the names of its slots begin.
        lazy: Whether a step updates only the rows that it reads.
    """

    value: Value
    name: str
    lr_mult: float = 1.0
    decay_mult: float = 1.0
    lazy: bool = False
    mask: Mask | None = None


@dataclass(frozen=True)
class ParameterSelection:
    """A parameter's exact name selects only that parameter, even if it contains brackets (special in patterns).

    Attributes:
        freeze: Parameters that are excluded from `train`.
        train: Parameters that are trained; all if it is empty. A parameter marked trainable=False is selected only by
            its exact name, not by a pattern.
        lazy: Tables with row-sparse updates, besides parameters with the attribute `lazy`.
        lr_mult: Factors on the learning rate. They override the attributes `lr_mult` of parameters. If several patterns
            match, the last one counts.
        wd_mult: Factors on the weight decay, with the same rules.
        masks: Masks by the exact names of parameters.
    """

    freeze: Sequence[str] = ()
    train: Sequence[str] = ()
    lazy: Sequence[str] = ()
    lr_mult: Mapping[str, float] = field(default_factory=dict)
    wd_mult: Mapping[str, float] = field(default_factory=dict)
    masks: Mapping[str, np.ndarray] = field(default_factory=dict)

    def selected(self, names: Collection[str]) -> set[str]:
        return (matching(self.train, names) if self.train else set(names)) - matching(self.freeze, names)


def select_parameters(
    graph: Graph, selection: ParameterSelection, losses: Sequence[Value] | None = None
) -> list[TrainedParameter]:
    """Return the float parameters that `selection` selects and that a loss depends on.

    losses: values of the graph (default: its first output).

    Parameters marked trainable=False are included only if `train` contains their exact name.

    Raises UsageError if a pattern matches no parameter, a multiplier is not a number, a mask is of an untrained
    parameter, or there is nothing to train.
    """
    named = zip(graph.input_names, graph.inputs, strict=True)
    names = {n: v for n, v in named if v.role == "parameter" and v.dtype.is_float}
    _check_patterns(graph, selection, names)
    exact = set(selection.train)
    found, selected = reached(losses or [graph.outputs[0]]), selection.selected(names)
    lazy = matching(selection.lazy, names)
    rates, decays = (_by_name(given, names) for given in (selection.lr_mult, selection.wd_mult))
    chosen = [
        TrainedParameter(
            v, n, _multiplier(n, v, "lr_mult", rates), _multiplier(n, v, "wd_mult", decays),
            n in lazy or str(v.attrs.get("lazy", "")).lower() in ("1", "true"), _mask(n, v, selection.masks),
        )
        for n, v in names.items()
        if v in found and (v.attrs.get("trainable", True) or n in exact) and n in selected
    ]  # fmt: skip
    if not chosen:
        raise UsageError(
            "nothing to train. A parameter is trained if the loss depends on it, it is not frozen (freeze=, --freeze, "
            "trainable=False), and train= (--train), if given, selects it. No parameter meets all of these conditions"
            + ("" if names else "; constants_to_parameters (--constants) makes parameters of the Constant nodes")
        )
    _check_masks(graph, selection.masks, {t.name for t in chosen})
    return chosen


def _check_patterns(graph: Graph, selection: ParameterSelection, names: Collection[str]) -> None:
    for name in selection.masks:
        if name not in names:
            raise UsageError(
                f"masks: there is no parameter {name!r}. Masks take exact names, not patterns"
                f"{did_you_mean(name, names)}"
            )
    for option, patterns in vars(selection).items():
        for pattern in patterns:
            if not matching([pattern], names):
                hint = ""
                if any(isinstance(n.op, Constant) and graph.name_of(n.outputs[0]) == pattern for n in graph.nodes):
                    hint = (
                        f"; it is a constant, which constants_to_parameters(net, [{pattern!r}]) turns into a parameter"
                    )
                raise UsageError(f"{option} pattern {pattern!r} matches no parameter; there are {_some(names)}{hint}")


def _check_masks(graph: Graph, masks: Collection[str], trained: Collection[str]) -> None:
    ignored = [name for name in masks if name not in trained]
    if not ignored:
        return
    frozen = {graph.name_of(v) for v in frozen_parameters(graph)}
    if by_lora := [name for name in ignored if name in frozen]:
        raise UsageError(
            f"masks: {_some(by_lora)} cannot have masks, because LoRA (lora=, gk.lora) freezes these parameters, and "
            "merged adapters change all elements of a weight. Leave out masks=, and prune the model after gk.merge_lora"
        )
    raise UsageError(
        f"masks: {_some(ignored)} cannot have masks, because these parameters are not trained: they are frozen "
        "(freeze=, trainable=False), train= does not select them, or the loss does not depend on them. Leave out their "
        "masks"
    )


def _mask(name: str, value: Value, masks: Mapping[str, np.ndarray]) -> Mask | None:
    if name not in masks:
        return None
    shape = value.tensor.static_shape
    kept = mask_array("masks", name, masks[name], shape)
    return Mask(kept, Value(TensorType(DType.BOOL, shape), f"{name}/{MASK}", role="state"))


def mask_array(owner: str, name: str, given: Any, shape: tuple[int, ...]) -> np.ndarray:
    """Return the mask of a parameter as an array of booleans.

    Raises:
        UsageError: The mask has another shape, or other values.
    """
    array = np.asarray(given)
    if array.shape != shape:
        raise UsageError(f"{owner}: the mask of {name!r} has shape {list(array.shape)}, the parameter {list(shape)}")
    kept = array.astype(bool)
    if array.dtype != bool and not (array.dtype.kind in "iuf" and np.array_equal(kept, array)):
        raise UsageError(f"{owner}: the mask of {name!r} must contain booleans, or only 0 and 1")
    return kept


def _some(names: Collection[str]) -> str:
    return listed(names, len(names), 20)


def matching(patterns: Iterable[str], names: Collection[str]) -> set[str]:
    found: set[str] = set()
    for pattern in patterns:
        found.update([pattern] if pattern in names else (n for n in names if fnmatch.fnmatchcase(n, pattern)))
    return found


def _by_name(given: Mapping[str, float], names: Collection[str]) -> dict[str, float]:
    """Return numbers by name from numbers by pattern. The last matching pattern counts."""
    return {name: number for pattern, number in given.items() for name in matching([pattern], names)}


def _multiplier(name: str, value: Value, key: str, given: Mapping[str, float]) -> float:
    """Return the multiplier of a parameter: from `given`, else from its attribute `key`, else 1."""
    if name not in given and key not in value.attrs:
        return 1.0
    text = given[name] if name in given else value.attrs[key]
    try:
        number = float(text) if isinstance(text, str) else text
    except ValueError:
        raise UsageError(f"{key} of parameter {name!r} is {text!r}, which is not a number") from None
    return real(f"parameter {name!r}", key, number, NOT_NEGATIVE)
