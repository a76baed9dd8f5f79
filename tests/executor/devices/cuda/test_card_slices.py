"""Compile kernels that no sample needs: groups in slices, columns, 64-bit indices. Their values are in registers."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from card_cases import node_of
from card_runs import kernel_of
from together import together

from graphkit.errors import MissingDependency
from graphkit.executor.devices.cuda import compiler
from graphkit.ops import registry


def _array(kind: type, *shape: int) -> np.ndarray:
    """Of any size, in one element."""
    return np.lib.stride_tricks.as_strided(np.zeros(1, kind), shape, (0,) * len(shape))


def _nodes(batch: int, size: int) -> list[tuple[str, dict[str, Any], list[Any]]]:
    f, d, h = (
        lambda *s: _array(np.float32, *s), lambda *s: _array(np.float64, *s), lambda *s: _array(np.float16, *s),
    )  # fmt: skip
    labels = _array(np.int64, batch)
    return [
        ("Softmax", {"axis": 1}, [d(batch, size)]),
        ("LogSoftmax", {"axis": 0}, [h(size, batch)]),
        ("SoftmaxGrad", {"axis": 1, "log": True}, [d(batch, size), d(batch, size)]),
        ("SoftmaxCrossEntropyLoss", {"ignore_index": 3}, [f(batch, size), labels, f(size)]),
        ("SoftmaxCrossEntropyWithGrad", {"ignore_index": 3}, [d(batch, size), labels, d(), d(size)]),
        ("BatchNormalization", {"training_mode": True}, [h(batch, 3, size), *(f(3) for _ in range(4))]),
        ("BatchNormGrad", {}, [d(batch, 3, size), d(batch, 3, size), d(3)]),
        ("GroupNormalization", {"num_groups": 2}, [d(batch, 4, size), d(4), d(4)]),
        ("LayerNormGrad", {}, [d(batch, size), d(batch, size), d(size)]),
        ("RMSNormGrad", {"axis": 1}, [f(batch, 3, size), f(batch, 3, size), f(3, 1)]),
    ]


@together()
@pytest.mark.full
@pytest.mark.parametrize(("batch", "size"), [(2, 70000), (1 << 15, 1 << 17)])
def test_slices_compile_for_cards(batch: int, size: int) -> None:
    try:
        compiler.version()
    except MissingDependency as error:
        pytest.skip(str(error))
    sources = []
    for name, options, arrays in _nodes(batch, size):
        op = registry.get("ai.graphkit" if "Grad" in name else "", name)(**options)
        kernel = kernel_of(node_of(op, *arrays))
        assert batch > 2 or len(kernel.launches) > 1, name
        assert batch == 2 or any("gk_u64" in source.parameters for source in kernel.sources), name
        sources += kernel.sources
    found = compiler.compile_text(compiler.text_of(sources), "sm_90")
    spilled = re.findall(r"(\d+) bytes spill stores, (\d+) bytes spill loads", found.log)
    assert len(spilled) >= len(set(sources))
    assert max(int(n) for pair in spilled for n in pair) <= 32
    assert max(map(int, re.findall(r"Used (\d+) registers", found.log))) <= 128
