"""What tests of native kernels share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from graphkit.executor.devices.cpu import native


@pytest.fixture(params=["baseline", "avx2", "avx512"])
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    """Kernels made while the test runs are those for this instruction set."""
    try:
        native.use_isa(request.param)
    except native.Unsupported as error:
        pytest.skip(str(error))
    yield request.param
    native.use_isa("")
