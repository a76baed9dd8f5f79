"""The network that `graphkit train` trains: a file or a model of the zoo, with the changes that options ask for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from graphkit.cli._options import key_values, read_model
from graphkit.cli.train.config_file import Network
from graphkit.errors import UsageError
from graphkit.model import Model
from graphkit.named_tuples import NamedTuple

if TYPE_CHECKING:
    from graphkit.data import Dataset

# The value of --head that takes the number of classes from the data.
_AUTO = "auto"


def load_network(source: Network, train: Dataset | None, o: Mapping[str, Any]) -> Model:
    """Return the network of a file, or of the zoo, after --constants and --train.

    train: data set that gives a model of the zoo its sizes.
    """
    from graphkit.train import imported

    if source.name is None:
        net = read_model(source.path, o["external_root"])
    else:
        from graphkit.cli.build import build_model

        try:
            net = build_model(source.name, dict(source.options), train, source.seed)
        except UsageError as error:
            raise UsageError(f"{source.file}: network: {error}") from None
    if o["constants"]:
        net = imported.constants_to_parameters(net)
    # --train only matches constants by their full names: a pattern must not turn scalars of a formula into parameters.
    known = imported.float_constants(net.graph)
    if named := [name for name in o["train_only"] if name in known and name not in net.params]:
        net = imported.constants_to_parameters(net, named)
    return net


class Prepared(NamedTuple):
    """The network to train, and the parameters of its new last layer, if it has one."""

    net: Model
    head: tuple[str, ...]


def prepare_network(
    net: Model, train: Dataset | None, axes: Mapping[str, int | None], o: Mapping[str, Any]
) -> Prepared:  # fmt: skip
    """Apply --head and --dynamic-batch. train: the training data; only `--head auto` needs them."""
    from graphkit.train import imported

    before = set(net.graph.inputs)
    found = with_head(net, o["head_options"], o["head_at"], o["output_name"], o["seed"], train, o["ignore_index"])
    new = tuple(found.graph.name_of(v) for v in found.graph.inputs if v not in before and v.role == "parameter")
    return Prepared(imported.free_batch(found, axes=axes) if o["free_batch"] else found, new)


def head_of_data(texts: tuple[str, ...]) -> bool:
    """Return whether `--head auto` is given."""
    return _AUTO in texts


def with_head(
    net: Model, texts: tuple[str, ...], at: str | None, output: str | None, seed: int | None,
    train: Dataset | None = None, ignored: int | None = None,
) -> Model:  # fmt: skip
    """Replace the last layer as `--head classes=N`, `--head auto` and `--head-at` say.

    train: the training data, for auto. ignored: of --ignore-index.
    """
    from graphkit.train.head import POOLS, replace_head

    fields = key_values(tuple(text for text in texts if text != _AUTO), "--head", "auto, classes=N or pool=VALUE")
    if _AUTO in texts:
        if "classes" in fields:
            raise UsageError(f"--head auto and --head classes={fields['classes']} contradict each other: give one")
        assert train is not None
        fields["classes"] = str(_classes_of(train, output, ignored))
    if not fields and at is not None:
        raise UsageError("--head-at also needs the number of classes: --head classes=N")
    if not fields:
        return net
    if unknown := next((name for name in fields if name not in ("classes", "pool")), None):
        raise UsageError(f"--head {unknown}={fields[unknown]}: expected auto, classes=N or pool=VALUE")
    also = "" if "classes" in fields else "; also give --head classes=N"
    if (pool := fields.get("pool", POOLS[0])) not in POOLS:
        raise UsageError(f"--head pool={pool}: pool must be {', '.join(POOLS[:-1])} or {POOLS[-1]}{also}")
    if also:
        raise UsageError(f"--head {' '.join(texts)}: also give --head classes=N")
    if not fields["classes"].isdecimal():
        raise UsageError(f"--head classes={fields['classes']}: the number of classes must be an integer")
    return replace_head(net, int(fields["classes"]), seed=seed, output=output, at=at, pool=fields.get("pool"))


def _classes_of(train: Dataset, output: str | None, ignored: int | None) -> int:
    """Return the number of classes in the training data: that of their names, or the largest class number + 1."""
    if train.classes is not None:
        return len(train.classes)
    targets = train.targets.get(output) if isinstance(train.targets, dict) else train.targets
    numbers = None if targets is None else np.asarray(targets)
    if numbers is not None and numbers.dtype.kind in "iu":
        counted = numbers if ignored is None else numbers[numbers != ignored]
        if counted.size and counted.min() >= 0:
            return int(counted.max()) + 1
    raise UsageError(
        f"--head auto: {train.name} has neither class names nor class numbers from 0 as targets; give the number of "
        "classes: --head classes=N"
    )
