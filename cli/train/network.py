"""The network that `graphkit train` trains: a file or a model of the zoo, with the changes that options ask for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from graphkit.cli._options import key_values, read_model
from graphkit.cli.train.config_file import Network
from graphkit.errors import UsageError
from graphkit.model import Model

if TYPE_CHECKING:
    from graphkit.data import Dataset


def network(source: Network, train: Dataset | None, axes: Mapping[str, int | None], o: Mapping[str, Any]) -> Model:
    """Return the network to train, after --constants, --train, --head and --dynamic-batch.

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
    net = with_head(net, o["head_options"], o["head_at"], o["output_name"], o["seed"])
    return imported.free_batch(net, axes=axes) if o["free_batch"] else net


def with_head(net: Model, texts: tuple[str, ...], at: str | None, output: str | None, seed: int | None) -> Model:
    """Replace the last layer as `--head classes=N` and `--head-at` say."""
    from graphkit.train.head import POOLS, replace_head

    fields = key_values(texts, "--head", "classes=N or pool=VALUE")
    if not fields and at is not None:
        raise UsageError("--head-at also needs the number of classes: --head classes=N")
    if not fields:
        return net
    if unknown := next((name for name in fields if name not in ("classes", "pool")), None):
        raise UsageError(f"--head {unknown}={fields[unknown]}: expected classes=N or pool=VALUE")
    also = "" if "classes" in fields else "; also give --head classes=N"
    if (pool := fields.get("pool", POOLS[0])) not in POOLS:
        raise UsageError(f"--head pool={pool}: pool must be {', '.join(POOLS[:-1])} or {POOLS[-1]}{also}")
    if also:
        raise UsageError(f"--head {' '.join(texts)}: also give --head classes=N")
    if not fields["classes"].isdecimal():
        raise UsageError(f"--head classes={fields['classes']}: the number of classes must be an integer")
    return replace_head(net, int(fields["classes"]), seed=seed, output=output, at=at, pool=fields.get("pool"))
