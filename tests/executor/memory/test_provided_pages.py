"""Memory that will be written completely has its pages before, instead of a page fault for each."""

import resource
import sys

import numpy as np
import pytest

from graphkit.executor.devices.extension import import_extension
from graphkit.executor.memory.packing import provided_bytes

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such call")

# 768 pages. numpy requests huge pages for 4 MB or more.
SIZE = 3 << 20


def faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def faults_of_writing(memory: np.ndarray) -> int:
    before = faults()
    memory[:] = 1
    return faults() - before


def test_new_memory_has_its_pages() -> None:
    assert faults_of_writing(provided_bytes(SIZE)) < 100


def test_reserve_takes_no_pages() -> None:
    before = faults()
    provided_bytes(SIZE // 4, reserve=SIZE // 2)
    assert faults() - before < SIZE // 4 // 4096 + 100


def test_content_stays() -> None:
    memory = np.arange(1 << 20, dtype=np.uint8)
    import_extension().provide_pages(memory, 1 << 30)
    np.testing.assert_array_equal(memory, np.arange(1 << 20, dtype=np.uint8))
    frozen = memory[:100]
    frozen.flags.writeable = False
    with pytest.raises((TypeError, ValueError), match="array"):
        import_extension().provide_pages(frozen, 100)
