"""A missing native part: an error where graphkit is installed, interpreted kernels in a bare source tree."""

from __future__ import annotations

import subprocess
import sys

import pytest

from graphkit import distribution
from graphkit.errors import MissingDependency
from graphkit.executor.devices import loading


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    def fail() -> None:
        raise ImportError("No module named 'graphkit._native'")

    monkeypatch.setattr(loading, "import_extension", fail)
    return monkeypatch


def test_installed_without_its_extension(broken: pytest.MonkeyPatch) -> None:
    broken.setattr(distribution, "is_installed", lambda: True)
    with pytest.raises(MissingDependency, match="without its native extension"):
        loading.load_device("cpu")


def test_source_tree(broken: pytest.MonkeyPatch) -> None:
    broken.setattr(distribution, "is_installed", lambda: False)
    assert loading.load_device("cpu") is False


def test_other_import_errors_are_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise ImportError("No module named 'numpy'")

    monkeypatch.setattr(loading, "import_extension", fail)
    with pytest.raises(ImportError, match="numpy"):
        loading.load_device("cpu")


CONTROL_FLOW = """
import numpy as np
from graphkit import distribution
from graphkit.executor.devices import loading

def fail():
    raise ImportError("No module named 'graphkit._native'")

if not native:
    loading.import_extension, distribution.is_installed = fail, lambda: False

import graphkit as gk

X = np.arange(12, dtype=np.float32).reshape(3, 4)
NETWORKS = {
    "If": lambda x: gk.cond(gk.reduce_sum(x, keepdims=False) > 0.0, lambda: gk.exp(-x), lambda: x * 2.0),
    "Loop": lambda x: gk.while_loop(lambda s: gk.reduce_sum(s * s) < 400.0, lambda s: s * 1.5 + 1.0, x, 6),
    "Scan": lambda x: gk.scan(lambda h, row: (h + row, h * 2.0), gk.constant(np.zeros(4, np.float32)), x)[1],
}
for name, build in NETWORKS.items():
    for rows in (3, "N"):
        exe = gk.Model({"y": build(gk.input("x", [rows, 4]))}).compile()
        y = exe.run({"x": X})["y"]
        print(name, rows, np.round(y, 4).tolist())
assert (loading.native_module() is not None) == native
"""


def test_control_flow_without_the_extension() -> None:
    """If, Loop and Scan are interpreted, and give the results of the native engine."""
    lines = []
    for native in (True, False):
        code = f"native = {native}\n{CONTROL_FLOW}"
        done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        lines.append(done.stdout.splitlines())
    assert lines[0] == lines[1]
    assert len(lines[0]) == 6
