"""Memory straight from the system."""

import pytest

from graphkit.ir.pages import HUGE, pages


@pytest.mark.parametrize("size", [1, 5000, HUGE - 1, HUGE, 3 * HUGE + 7])
def test_memory_is_aligned_and_writable(size):
    memory = pages(size)
    assert memory.nbytes == size
    assert memory.__array_interface__["data"][0] % (HUGE if size >= HUGE else 4096) == 0
    assert not memory.any()
    memory[:] = 3


def test_too_much_memory_is_an_error():
    with pytest.raises(MemoryError, match=f"{1 << 60} bytes"):
        pages(1 << 60)
