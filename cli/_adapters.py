"""--adapter: apply LoRA adapters to a model before a command uses it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from graphkit.cli._groups import NETWORK, option
from graphkit.cli._output import log
from graphkit.errors import UsageError
from graphkit.model import Model


def adapter_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """--adapter, as `adapters`, for `with_adapters`."""
    return option(
        "--adapter", "adapters", group=NETWORK, multiple=True, metavar="FOLDER[:WEIGHT]",
        help="Apply the LoRA adapters of this folder to MODEL: a run folder of graphkit train --lora, or a folder of "
        "peft. Repeatable: several adapters are added, each multiplied by its WEIGHT (default: 1).",
    )(command)  # fmt: skip


def with_adapters(net: Model, adapters: Sequence[str]) -> Model:
    """Return the model with the adapters of `--adapter`, and log which they are; the model itself without any."""
    if not adapters:
        return net
    from graphkit.train.adapters.files import described, load_adapter

    folders, weights = zip(*map(_parsed, adapters), strict=True)
    made = load_adapter(net, folders, weights=weights)
    log(f"{', '.join(adapters)}: {described(made)}")
    return made


def _parsed(text: str) -> tuple[str, float]:
    """Return the folder and the weight of `FOLDER:WEIGHT` or `FOLDER`."""
    folder, separator, weight = text.rpartition(":")
    if not separator or Path(text).exists():
        return text, 1.0
    try:
        return folder, float(weight)
    except ValueError:
        raise UsageError(
            f"--adapter {text}: there is no such folder, and {weight!r} is not a number; give FOLDER or FOLDER:WEIGHT"
        ) from None
