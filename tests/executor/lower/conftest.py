from __future__ import annotations

import sys
from pathlib import Path

# What several files of tests here share: compiled_graph.py.
sys.path.insert(0, str(Path(__file__).parent))
