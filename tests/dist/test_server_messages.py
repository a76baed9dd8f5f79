"""Messages between workers and servers, and the assignment of keys to servers."""

import itertools

import numpy as np
import pytest
from combinations import in_one_item

from graphkit.dist.servers.sharding import LARGE, Sharding
from graphkit.dist.wire.packing import pack, pack_named, unpack, unpack_named
from graphkit.ir.types import dtype_of


@in_one_item()
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int4", "bool", "complex64", "string"])
@pytest.mark.parametrize("shape", [(), (0, 3), (5,), (2, 3)])
def test_messages_bring_what_was_given(dtype, shape):
    kind = dtype_of(dtype)
    array = np.full(shape, "a text", object) if dtype == "string" else np.ones(shape).astype(kind.numpy)
    fields, (first, second) = unpack(pack({"call": "push", "key": "ä"}, [array, np.arange(3.0)]))
    assert fields == {"call": "push", "key": "ä"}
    assert first.shape == shape
    assert first.dtype == array.dtype
    assert (first == array).all()
    assert (second == np.arange(3.0)).all()
    assert second.flags.aligned
    assert unpack_named(pack_named({"x": array}))["x"].shape == shape


# --- where keys are -------------------------------------------------------------------------------------


def test_large_keys_are_divided_and_small_ones_spread():
    sharding = Sharding(3)
    parts = sharding.parts("large", LARGE + 1)
    assert [p.server for p in parts] == [0, 1, 2]
    assert parts[0].begin == 0
    assert parts[-1].end == LARGE + 1
    assert all(a.end == b.begin for a, b in itertools.pairwise(parts))
    owners = [sharding.parts(key, 10)[0].server for key in range(3000)]
    assert all(700 < owners.count(server) < 1300 for server in range(3))
    # One more server takes keys from all, and moves no others.
    moved = [(a, Sharding(4).parts(key, 10)[0].server) for key, a in enumerate(owners)]
    assert all(b in (a, 3) for a, b in moved)
    assert len(sharding.parts(1, 0)) == 1
