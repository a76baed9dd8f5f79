from __future__ import annotations

import importlib
import importlib.util
import sys
import types
from pathlib import Path

import pytest

# This folder is first, so that its training.py hides the benchmarks' file of that name. The folder of the benchmarks is
# needed for torch_zoo.py: the networks of the zoo as PyTorch modules.
sys.path.insert(0, str(Path(__file__).parent))
sys.path.append(str(Path(__file__).parents[2] / "bench"))


@pytest.fixture(scope="session")
def torchvision():
    """Import torchvision, even if its compiled operators cannot be loaded. The networks do not need them."""
    if importlib.util.find_spec("torchvision") is None:
        pytest.skip("torchvision is not installed")
    # This module registers the shapes of the compiled operators, and fails without them.
    sys.modules.setdefault("torchvision._meta_registrations", types.ModuleType("torchvision._meta_registrations"))
    return importlib.import_module("torchvision")


@pytest.fixture(scope="session")
def timm(torchvision):
    """Return timm, which imports torchvision."""
    return pytest.importorskip("timm", reason="timm is not installed")
