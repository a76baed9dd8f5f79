"""A trainer and a store of several processes print as one line, by each rank for itself."""

CODE = """
import numpy as np
import graphkit as gk

store = gk.kvstore.create("dist_sync")
x = gk.input("x", ["N", 3])
net = gk.Model(gk.nn.linear(x, 4, name="fc"), name="net")
trainer = gk.Trainer(net, "mse", kvstore=store, threads=1)
if store.rank == 1:
    # Nothing is done together meanwhile: a repr that waited for rank 0 would wait for ever.
    for _ in range(3):
        print(repr(store))
        print(repr(trainer))
store.barrier()
if store.rank == 0:
    print(repr(store))
    print(repr(trainer))
"""


def test_each_rank_prints_its_own_rank_without_waiting(jobs) -> None:
    first, second = jobs.run(CODE, 2)
    assert len(set(second.splitlines())) == 2
    for rank, text in enumerate((first, second)):
        store, trainer = text.splitlines()[:2]
        assert store.startswith(f"<KVStore 'dist_sync': rank {rank} of 2, ")
        assert trainer.startswith("<Trainer 'net': update 0, epoch 0, device cpu, 1 thread, ")
        assert trainer.endswith(f"rank {rank} of 2, dist_sync>")
