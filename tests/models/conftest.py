from __future__ import annotations

import importlib
import importlib.util
import sys
import types
from pathlib import Path

import pytest

# What the tests of training graphs share: training.py. It goes before the benchmarks' command of that name, which are
# here for the networks of the zoo as PyTorch modules: torch_zoo.py.
sys.path.insert(0, str(Path(__file__).parent))
sys.path.append(str(Path(__file__).parents[2] / "bench"))


@pytest.fixture(scope="session")
def torchvision():
    """Also where its compiled operators do not load, as beside a PyTorch for processors: networks need none of them."""
    if importlib.util.find_spec("torchvision") is None:
        pytest.skip("torchvision is not installed")
    # What it tells PyTorch of the shapes of operators fails where these are not there.
    sys.modules.setdefault("torchvision._meta_registrations", types.ModuleType("torchvision._meta_registrations"))
    return importlib.import_module("torchvision")


@pytest.fixture(scope="session")
def timm(torchvision):
    """Return timm, which imports torchvision."""
    return pytest.importorskip("timm", reason="timm is not installed")
