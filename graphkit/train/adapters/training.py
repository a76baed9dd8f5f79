"""The model that a Trainer with `lora=` trains."""

from __future__ import annotations

from collections.abc import Sequence

from graphkit.errors import UsageError
from graphkit.ir.origin import titled
from graphkit.model import Model
from graphkit.train.adapter_marks import has_adapters
from graphkit.train.adapters.lora import adapted
from graphkit.train.adapters.merge import settings_of
from graphkit.train.adapters.settings import Lora
from graphkit.train.selection import matching


def model_to_train(net: Model, settings: Lora, train: Sequence[str], seed: int | None) -> Model:
    """Return the model with adapters: a new one, or `net` if it has adapters with these settings.

    Args:
        train: Names or glob patterns of other trained parameters.

    Raises:
        UsageError: The model has other adapters, or a pattern of `train` matches only frozen parameters.
    """
    if not has_adapters(net.graph):
        return adapted(net, settings, train, seed=seed, owner="Trainer: lora")
    own = settings_of(net, "Trainer")
    if own != settings:
        raise UsageError(
            f"Trainer: {titled(net.graph, 'model')} has adapters with {own}, but lora= (--lora) is {settings}. Leave "
            "out lora= to train these adapters, or merge them into the weights first (gk.merge_lora)"
        )
    for pattern in train:
        if not matching([pattern], net.trainable):
            raise UsageError(
                f"Trainer: train pattern {pattern!r} matches only parameters that {titled(net.graph, 'model')} froze "
                "when it got its adapters; give train= when you add them"
            )
    return net
