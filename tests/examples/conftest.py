"""The modules of examples, as their scripts import them, and the networks of the zoo as PyTorch modules."""

from __future__ import annotations

import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"
sys.path += [str(EXAMPLES / name) for name in ("gan", "reinforcement")]
sys.path.append(str(EXAMPLES.parent / "bench"))
