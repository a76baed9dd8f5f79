"""Choose the Exchange of a Trainer."""

from __future__ import annotations

from graphkit.dist.kvstore import KVStore
from graphkit.train.exchange.division import Division
from graphkit.train.exchange.exchange import Exchange, StepSpec
from graphkit.train.exchange.local import NoExchange


def exchange_of(spec: StepSpec, kvstore: KVStore | None, division: Division | None, shard: bool) -> Exchange:
    """Return the Exchange of a training step.

    Args:
        spec: What the step computes.
        kvstore: The store that the ranks share, or None in a process that trains alone.
        division: How the model is divided among ranks, or None.
        shard: Whether ranks share the optimizer states.

    Raises:
        UsageError: Settings exclude each other.
    """
    # A process that trains alone does not import the others.
    if division is not None:
        from graphkit.train.exchange.placement import Placement
        from graphkit.train.exchange.stages import Stages

        return Stages(spec, division) if division.is_pipeline(spec.graph) else Placement(spec, division)
    if kvstore is None or (kvstore.num_workers == 1 and not kvstore.is_remote):
        return NoExchange(spec)
    if not kvstore.is_remote:
        from graphkit.train.exchange.all_reduce import AllReduce

        return AllReduce(spec, kvstore, shard)
    from graphkit.dist.servers.remote import RemoteStore
    from graphkit.train.exchange.servers import ElasticAveraging, Servers

    assert isinstance(kvstore, RemoteStore), "the only kind that is remote"
    return (ElasticAveraging if kvstore.type == "elastic" else Servers)(spec, kvstore, shard)
