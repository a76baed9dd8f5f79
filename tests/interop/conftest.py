from __future__ import annotations

import sys
from pathlib import Path

# The modules that the tests export are in torch_modules.py.
sys.path.insert(0, str(Path(__file__).parent))
