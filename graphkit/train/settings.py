"""Groups of settings of a Trainer.

Each setting, except those of `Lora`, is also a keyword of `Trainer`. The docstring of `Trainer` describes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from graphkit.dist.kvstore import KVStore
from graphkit.errors import UsageError
from graphkit.executor.run.precision import check_known
from graphkit.signatures import typed_constructor
from graphkit.train import defaults
from graphkit.train.adapters.settings import Lora
from graphkit.train.arguments import POSITIVE, convert_fields
from graphkit.train.average import EMA
from graphkit.train.average import ema as moving_average
from graphkit.train.programs import finite, recomputation
from graphkit.train.programs.recomputation import Recompute

__all__ = ["Lora", "Memory", "Numerics", "Parallel", "Regularisation"]

_OWNER = "Trainer"


@typed_constructor("gk.settings")
@dataclass(frozen=True, kw_only=True)
class Numerics:
    """Precision and reproducibility of training.

    Args:
        precision: "f32", "bf16", "f16", "tf32" or "fp8".
        deterministic: Make results bit-identical for any number of threads.
        straight_through: Let gradients pass through rounding.
        on_nonfinite: Behaviour if a loss is NaN or infinite: "raise" an error, "skip" the step, or "ignore" it.
    """

    precision: str = "f32"
    deterministic: bool = False
    straight_through: bool = False
    on_nonfinite: str = "raise"

    def __post_init__(self) -> None:
        convert_fields(self, _OWNER, {})
        check_known(self.precision)
        finite.check_choice(self.on_nonfinite)


@typed_constructor("gk.settings")
@dataclass(frozen=True, kw_only=True)
class Memory:
    """Ways to train in less memory.

    Args:
        accumulate: Number of batches whose gradients are averaged for one update.
        recompute: "sqrt", a limit in bytes, or None: which activations the backward pass computes again.
        swap_memory: Let activations move to host memory until the backward pass on the GPU reads them.
    """

    accumulate: int = 1
    recompute: Recompute | None = None
    swap_memory: bool = False

    def __post_init__(self) -> None:
        convert_fields(self, _OWNER, {})
        recomputation.check(self.recompute)


@typed_constructor("gk.settings")
@dataclass(frozen=True, kw_only=True)
class Parallel:
    """How several processes train one model.

    Args:
        kvstore: The store that the processes share (`gk.kvstore.create`).
        groups: Rank of each group of nodes, to divide the model among processes.
        micro_batches: Number of parts into which a pipeline divides a batch.
        batch_axes: Axis that counts samples, for each input and target where it is not 0.
        shard_optimizer: Let each process store a part of the optimizer states.
        sync_batch_norm: Compute the statistics of BatchNormalization over the samples of all processes.
    """

    kvstore: KVStore | None = None
    groups: Mapping[str, int] | None = None
    micro_batches: int = 1
    batch_axes: Mapping[str, int | None] | None = None
    shard_optimizer: bool = False
    sync_batch_norm: bool = False

    def __post_init__(self) -> None:
        convert_fields(self, _OWNER, {})


@typed_constructor("gk.settings")
@dataclass(frozen=True, kw_only=True)
class Regularisation:
    """Regularisation, and limits that keep training stable.

    Args:
        clip_norm: Upper limit of the global gradient norm.
        ema: Decay of a moving average of the parameters, or a `gk.optim.EMA`.
        mixup: Mix pairs of samples, with a weight drawn from Beta(mixup, mixup).
        cutmix: Replace a box of each image by the same box of another image. The box's share of the area is drawn from
            Beta(cutmix, cutmix).
        batch_norm: "train" or "frozen": whether BatchNormalization uses the statistics of each batch.
    """

    clip_norm: float | None = None
    ema: float | EMA | None = None
    mixup: float | None = None
    cutmix: float | None = None
    batch_norm: str = defaults.BATCH_NORM[0]

    def __post_init__(self) -> None:
        convert_fields(self, _OWNER, dict.fromkeys(("clip_norm", "mixup", "cutmix"), POSITIVE))
        moving_average(self.ema)
        if self.batch_norm not in defaults.BATCH_NORM:
            choices = " or ".join(map(repr, defaults.BATCH_NORM))
            raise UsageError(f"{_OWNER}: batch_norm must be {choices}, not {self.batch_norm!r}")

    @property
    def mixes(self) -> dict[str, float]:
        """The values of `mixup` and `cutmix` that are set, by name."""
        given = {"mixup": self.mixup, "cutmix": self.cutmix}
        return {name: alpha for name, alpha in given.items() if alpha is not None}


Group = TypeVar("Group", Numerics, Memory, Parallel, Regularisation)


def group_of(kind: type[Group], given: Group | None, keywords: Mapping[str, Any]) -> Group:
    """Return the group that the user passed, or a new group made of the keywords.

    Raises UsageError if a group and one of its keywords are set.
    """
    own = {field.name: keywords[field.name] for field in fields(kind)}
    if given is None:
        return kind(**own)
    name = kind.__name__.lower()
    if not isinstance(given, kind):
        raise UsageError(f"{_OWNER}: {name} must be a gk.settings.{kind.__name__}, not {given!r}")
    if both := [field.name for field in fields(kind) if own[field.name] != field.default]:
        raise UsageError(f"{_OWNER}: {both[0]}= is also a setting of {name}=: set it in only one of them")
    return given
