"""--adapter: apply LoRA adapters to a model before a command uses it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from graphkit.cli._groups import NETWORK, option
from graphkit.cli._output import log
from graphkit.errors import UsageError
from graphkit.ir.origin import titled
from graphkit.model import Model
from graphkit.train.adapter_marks import has_adapters


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
    from graphkit.train.adapters.files import described, loaded

    folders, weights = zip(*map(_parsed, adapters), strict=True)
    if has_adapters(net.graph):
        raise UsageError(
            f"--adapter {adapters[0]}: {titled(net.graph, 'model')} has adapters already. Leave out --adapter, or give "
            "the model without adapters"
        )
    made = loaded(net, folders, weights, "--adapter")
    log(f"{', '.join(adapters)}: {described(made)}")
    return made


def _parsed(text: str) -> tuple[str, float]:
    """Return the folder and the weight of `FOLDER:WEIGHT` or `FOLDER`."""
    folder, separator, weight = text.rpartition(":")
    if not text or (separator and not folder and not Path(text).exists()):
        raise UsageError(f"--adapter {text!r}: the name of the folder is empty; give FOLDER or FOLDER:WEIGHT")
    if not separator or Path(text).exists():
        return text, 1.0
    try:
        factor = float(weight)
    except ValueError:
        raise UsageError(
            f"--adapter {text}: there is no such folder, and {weight!r} is not a number; give FOLDER or FOLDER:WEIGHT"
        ) from None
    if not math.isfinite(factor):
        raise UsageError(f"--adapter {text}: the weight must be a finite number, not {weight}")
    return folder, factor


def folder_of(text: str) -> Path:
    """Return the folder of a value of `--adapter`."""
    return Path(_parsed(text)[0])
