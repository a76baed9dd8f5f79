"""The native best-fit allocation gives the same offsets as the one in Python."""

import numpy as np
import pytest
from combinations import in_one_item

from graphkit.executor.devices.extension import import_extension
from graphkit.executor.memory import first_fit, planner
from graphkit.executor.memory.first_fit import FirstFit
from graphkit.executor.memory.planner import Request, plan_memory


def requests(seed: int, count: int = 80) -> list[Request]:
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        first = int(rng.integers(0, count))
        size = int(rng.choice([0, 1, 64, 100, 128, 640, 4096]))
        found.append(Request(size, first, first + int(rng.geometric(0.1))))
    return found


@in_one_item()
@pytest.mark.parametrize("seed", range(20))
def test_native_offsets_are_equal(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    import_extension()
    native = plan_memory(requests(seed))
    blocks = [planner._Block(r.size, r.first, r.last) for r in requests(seed) if r.size]

    def swept() -> list[tuple[int, list[int]]]:
        return [(planner._sweep(blocks, backwards), [b.offset for b in blocks]) for backwards in (False, True)]

    sweeps = swept()
    monkeypatch.setattr(planner, "native_module", lambda: None)
    assert plan_memory(requests(seed)) == native
    assert swept() == sweeps


@in_one_item()
@pytest.mark.parametrize("seed", range(20))
def test_native_first_fit_gives_equal_offsets(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    native = import_extension()
    spans = [(planner.aligned(r.size), r.first, r.last) for r in requests(seed)]
    search = FirstFit(spans, 0)
    assert search._find_neighbours()
    orders = list(search._orders())
    found = [native.first_fit(spans, order) for order in orders]
    assert [search._place(order) for order in orders] == [arena for _, arena in found]
    monkeypatch.setattr(first_fit, "native_module", lambda: None)
    for order, (offsets, arena) in zip(orders, found, strict=True):
        assert search._place(order) == arena
        assert [search._offsets[i] for i in order] == [offsets[i] for i in order]
