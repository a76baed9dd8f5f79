"""Where what tests of several processes share is found."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
