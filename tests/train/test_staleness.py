"""The warning about learning rates and momentum that do not suit training with servers."""

import warnings

import pytest
from combinations import in_one_item

from graphkit import optim
from graphkit.errors import GraphkitWarning
from graphkit.train.staleness import warn_of_staleness


class Store:
    """The attributes of a store that the warning reads."""

    def __init__(self, type="dist_async", num_workers=4, rank=0):
        self.type, self.num_workers, self.rank = type, num_workers, rank


@in_one_item()
@pytest.mark.parametrize(
    ("store", "optimizer", "lowered"),
    [
        (Store(), optim.SGD(0.05, momentum=0.9), "the learning rate from 0.05 to about 0.013 (--lr) and the momentum"),
        (Store("dist_bounded", 2), optim.SGD(0.1), "the learning rate from 0.1 to about 0.05 (--lr)"),
        (Store(), optim.SGD(0.01, momentum=0.5), "lower the momentum from 0.5 to 0 (--momentum)"),
        (Store(), optim.Adam(), "the learning rate from 0.001 to about 0.00025 (--lr)"),
    ],
)
def test_warning_names_what_to_lower(store, optimizer, lowered):
    with pytest.warns(GraphkitWarning) as found:
        warn_of_staleness(store, optimizer, optimizer.schedule(0))
    (warning,) = found
    assert lowered in str(warning.message)
    assert f"{store.type} applies the gradients of {store.num_workers} workers" in str(warning.message)


@in_one_item()
@pytest.mark.parametrize(
    ("store", "optimizer"),
    [
        (None, optim.SGD(0.05, momentum=0.9)),
        (Store("dist_sync"), optim.SGD(0.05, momentum=0.9)),
        (Store("elastic"), optim.SGD(0.05, momentum=0.9)),
        (Store(num_workers=1), optim.SGD(0.05, momentum=0.9)),
        (Store(rank=1), optim.SGD(0.05, momentum=0.9)),
        (Store(), optim.SGD(0.0125)),
        (Store(), optim.Adam(2.5e-4)),
    ],
)
def test_no_warning_if_nothing_needs_lowering(store, optimizer):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_staleness(store, optimizer, optimizer.schedule(0))
