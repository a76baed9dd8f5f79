"""Modules that tests of the core share are found here."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
